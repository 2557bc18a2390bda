"""Files of one lane: code shared by the lane's writer, its readers, `verify` and `repair`.

A lane is a sequence of files named by their first offsets: segments with records, and files that
declare a range lost. If a declared loss and a segment have the same offsets, the loss takes
precedence. So `repair` can declare offsets within a segment lost. Valid blocks after the loss are
copied into a new segment.
"""

import json
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError
from headrace.journal.block import decode_payload, decode_together
from headrace.journal.frame import (
    HEADER_BYTES,
    ROW,
    WERE_DURABLE,
    FrameHeader,
    Frames,
    Place,
    decode_header,
    frames,
    hides_frames,
    is_whole,
)
from headrace.journal.layout import LOST, SEGMENT, corrupt_name, file_name, parsed
from headrace.journal.storage import Storage

RUN_BYTES: Final = 2**20
"""Maximum bytes of consecutive frames that are read at once; a larger frame is read alone."""

_MOST_LOST_BYTES: Final = 65_536
"""Maximum size of a file that declares a loss (bytes)."""

_MOST_CACHED: Final = 4
"""Maximum number of segments whose headers are cached. With one record per frame, the headers of a
segment take 13 MB."""

_cached: Final[OrderedDict[str, Frames]] = OrderedDict()
_cache_lock: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Identity:
    """A journal's name and its id of 16 bytes; a recreated journal has another id."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Declaration that a range of offsets is lost, with the reason.

    The range begins at ``first`` and ends before ``until``.
    """

    first: int
    until: int
    reason: str

    def encode(self) -> bytes:
        """Return the content of the file that declares the loss (JSON)."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Parse the content of a file that declares a loss.

        Raise ValueError, KeyError or TypeError if ``text`` is invalid.
        """
        values = json.loads(text)
        lost = cls(values["first"], values["until"], values["reason"])
        if (type(lost.first), type(lost.until), type(lost.reason)) != (int, int, str):
            raise TypeError
        return lost


class LaneEnd(NamedTuple):
    """End of a lane: the offset after its last record, and the last frame's checksum.

    The checksum is 0 for an empty lane, and after a loss.
    """

    until: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """First offsets of a lane's segments and of its declared losses, ascending.

    A segment and a loss may have the same first offset.
    """

    segments: Sequence[int]
    lost: Sequence[int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Return the index of the lane's files among these names; ignore all other names."""
        pieces = sorted(piece for name in names if (piece := parsed(name)) is not None)
        return cls(
            [first for first, kind in pieces if kind == SEGMENT],
            [first for first, kind in pieces if kind == LOST],
        )

    @property
    def pieces(self) -> list[tuple[int, str]]:
        """First offset and kind of each file, ascending.

        A loss precedes a segment with the same first offset.
        """
        return sorted(
            [(first, LOST) for first in self.lost] + [(first, SEGMENT) for first in self.segments]
        )

    @property
    def firsts(self) -> list[int]:
        """First offsets of all segments and losses, ascending and without duplicates."""
        return sorted({*self.segments, *self.lost})

    @property
    def start(self) -> int:
        """First offset of the lane; 0 if the lane is empty."""
        return min(chain(self.segments[:1], self.lost[:1]), default=0)

    @property
    def ends_lost(self) -> bool:
        """Whether the lane's last file declares a loss."""
        return bool(self.lost) and (not self.segments or self.lost[-1] >= self.segments[-1])

    def segment_of(self, offset: int) -> int | None:
        """Return the first offset of the segment that may contain an offset; None if none may."""
        place = bisect_right(self.segments, offset)
        return self.segments[place - 1] if place else None

    def after(self, first: int) -> int | None:
        """Return the first offset of the next segment after ``first``; None if there is none."""
        place = bisect_right(self.segments, first)
        return self.segments[place] if place < len(self.segments) else None

    def stop_of(self, segment: int) -> int | None:
        """Return the offset at which a segment ends; None if the segment is the lane's last file.

        A segment ends where the next segment or the first loss within the segment begins.
        """
        place = bisect_left(self.lost, segment)
        pieces = [self.after(segment), *self.lost[place : place + 1]]
        return min((first for first in pieces if first is not None), default=None)

    def before(self, first: int) -> int | None:
        """Return the first offset of the segment before offset ``first``; None if none exists."""
        return self.segment_of(first - 1)


class Lane:
    """Files of one lane.

    Every method may raise ``OSError``, and ``CorruptionError`` if a file is damaged or belongs to
    another lane or journal.
    """

    def __init__(self, storage: Storage, identity: Identity, lane: int) -> None:
        self.storage = storage
        self.identity = identity
        self.lane = lane
        self.folder = str(lane)

    @property
    def what(self) -> str:
        """Description of the lane for error messages: its number and the journal's URL."""
        return f"lane {self.lane} of the journal {self.storage.url}"

    def index(self) -> LaneIndex:
        """List the lane's files; return the index of their names. All listed names are durable."""
        return LaneIndex.of(self.storage.names(self.folder))

    def path(self, first: int, kind: str = SEGMENT) -> str:
        """Return the path of the file with this first offset and this kind."""
        return f"{self.folder}/{file_name(first, kind)}"

    def place(self, first: int, previous: int | None = None) -> Place:
        """Return the values that a frame of this lane at offset ``first`` has in its header."""
        return Place(self.identity.id, self.lane, first, previous)

    def set_aside(self, path: str) -> None:
        """Rename a file so that readers ignore it; its bytes are kept."""
        folder, _, name = path.rpartition("/")
        self.storage.set_aside(path, f"{folder}/{corrupt_name(name)}")

    def shown(self, path: str) -> str:
        """Return a path with the journal's URL, for error messages."""
        return f"{self.storage.url}/{path}"

    def named(self, segment: int, offset: int) -> str:
        """Return a text for error messages that names a frame by its file and first offset."""
        return f"{self.shown(self.path(segment))} (offset {offset} of lane {self.lane})"

    def offsets(self, start: int, until: int) -> OffsetRange:
        """Return a range of this lane's offsets."""
        return OffsetRange(self.identity.name, self.lane, start, until)

    def frames(self, segment: int) -> Frames:
        """Return the durable frames of the segment that begins at offset ``segment``.

        Headers are cached, so a process reads each header once. The payloads of frames after the
        last header's ``synced`` offset are checked too, because a power failure may have stored a
        frame's header without its payload.
        """
        path = self.path(segment)
        if not self.storage.appends:
            return self._put_whole(segment, path)
        key = self.shown(path)
        with _cache_lock:
            durable = _cached.get(key)
        if durable is None or not self._is_still(path, durable):
            durable = Frames.none(self.place(segment))
        size = self.storage.synced_size(path)
        if size > durable.end or not len(durable):
            more = frames(
                lambda at, count: self.storage.read(path, at, count).to_pybytes(),
                size,
                durable.end,
                durable.follows,
            )
            durable = durable.with_more(self._checked(path, more))
        with _cache_lock:
            _cached[key] = durable
            _cached.move_to_end(key)
            if len(_cached) > _MOST_CACHED:
                _cached.popitem(last=False)
        return durable

    def frames_of(self, index: LaneIndex, segment: int) -> Frames:
        """Return a segment's frames before the next segment or loss in ``index``.

        Return no frames if the segment was pruned after ``index`` was listed.
        """
        try:
            durable = self.frames(segment)
        except FileNotFoundError:
            return Frames.none(self.place(segment))
        stop = index.stop_of(segment)
        number = len(durable) if stop is None else int(np.searchsorted(durable.rows["first"], stop))
        return durable.before(number) if number < len(durable) else durable

    def firsts_within(self, start: int, until: int) -> list[int]:
        """Return the first offsets of the blocks and losses within a range, ascending."""
        index = self.index()
        begin = index.segment_of(start) or 0
        segments = [first for first in index.segments if begin <= first < until]
        firsts = {first for first in index.lost if start <= first < until}
        for segment in segments:
            # A segment that one `put` has written has one block, at the offset in its name.
            rows = (
                self.frames_of(index, segment).rows["first"].tolist()
                if self.storage.appends
                else []
            )
            firsts.update(first for first in [segment, *rows] if start <= first < until)
        return sorted(first for first in firsts if start <= first < until)

    def _put_whole(self, segment: int, path: str) -> Frames:
        """Read the header of a segment that one ``put`` has written; return the only frame."""
        name = self.named(segment, segment)
        row = self.storage.read(path, 0, HEADER_BYTES).to_pybytes()
        size = HEADER_BYTES + decode_header(row, name).payload_bytes
        whole = frames(lambda _at, _size: row, size, 0, self.place(segment))
        if not len(whole):
            raise CorruptionError(
                f"{name} begins with a frame of another lane, offset or journal; restore the"
                " original file, or declare its records lost with `headrace journal repair`."
            )
        return whole

    def _is_still(self, path: str, found: Frames) -> bool:
        """Whether a segment still has the cached frames ``found``: a copy may have replaced it."""
        if not len(found):
            return False
        row = self.storage.read(path, int(found.places[-1]), HEADER_BYTES).to_pybytes()
        if len(row) < HEADER_BYTES:
            return False
        return bool(np.frombuffer(row, ROW).item() == found.rows[-1].item())

    def _checked(self, path: str, found: Frames) -> Frames:
        """Return the frames before the first frame with a damaged payload.

        Frames before the last header's ``synced`` offset are durable, and are not checked.
        """
        synced = int(found.rows["synced"][-1]) if len(found) else 0
        for number in range(len(found)):
            if found.range_of(number)[1] > synced:
                at, size = int(found.places[number]), int(found.rows["payload_bytes"][number])
                payload = self.storage.read(path, at + HEADER_BYTES, size)
                if not is_whole(found, number, memoryview(payload)):
                    return found.before(number)
        return found

    def end(self, index: LaneIndex) -> LaneEnd:
        """Return the end of the lane whose files are in ``index``."""
        if index.ends_lost:
            return LaneEnd(self.lost(index.lost[-1]).until)
        if not index.segments:
            return LaneEnd(0)
        last = index.segments[-1]
        last_frames = self.frames(last)
        if len(last_frames):
            return LaneEnd(last_frames.until, last_frames.checksum)
        before = index.before(last)
        earlier = self.frames(before) if before is not None else None
        return LaneEnd(
            last, earlier.checksum if earlier is not None and earlier.until == last else 0
        )

    def check_end(self, index: LaneIndex) -> None:
        """Raise CorruptionError if damage hides the last frames of the lane.

        Without this check, a damaged header in the last segment looks like the lane's end.
        """
        if index.ends_lost or not index.segments or not self.storage.appends:
            return
        last = index.segments[-1]
        path, durable = self.path(last), self.frames(last)
        if self.storage.synced_size(path) <= durable.end:
            return
        # A read beside a writer may see an append without the one before. The next read sees both.
        for _ in range(2):
            rest = self.storage.read(path, durable.end).to_pybytes()
            if not hides_frames(rest, durable.follows):
                return
        raise self.damaged_after(last, durable, WERE_DURABLE)

    def damaged_after(self, segment: int, valid: Frames, defect: str) -> CorruptionError:
        """Return the error for a segment whose bytes after the frames ``valid`` are damaged."""
        return CorruptionError(
            f"{self.named(segment, valid.until)} is damaged from byte {valid.end} on: {defect}; the"
            " file was not changed: `headrace journal verify` lists all damage, and `headrace"
            " journal repair` declares unreadable offsets lost."
        )

    def look(self) -> "LaneLook":
        """Return a snapshot of the lane: its file names and its end."""
        index = self.index()
        return LaneLook(self, index, self.end(index))

    def losses(self, index: LaneIndex) -> list[Lost]:
        """Return all declared losses, ascending. The call reads one small file per loss."""
        return [self.lost(first) for first in index.lost]

    def lost(self, first: int) -> Lost:
        """Read the declaration of the loss that begins at offset ``first``."""
        path = self.path(first, LOST)
        text = self.storage.read(path, 0, _MOST_LOST_BYTES).to_pybytes()
        place = f"{self.shown(path)} (offset {first} of lane {self.lane})"
        try:
            lost = Lost.decode(text)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{place} is damaged: it does not say which offsets are lost; "
                "run `headrace journal repair`, which writes the file again."
            ) from error
        if lost.first != first or lost.until <= first:
            raise CorruptionError(
                f"{place} is damaged: it declares the offsets [{lost.first}, {lost.until}) lost; "
                "run `headrace journal repair`, which writes the file again."
            )
        return lost

    def loss_of(self, index: LaneIndex, offset: int) -> Lost | None:
        """Return the declared loss that includes an offset; None if the offset is not lost."""
        place = bisect_right(index.lost, offset)
        if not place:
            return None
        lost = self.lost(index.lost[place - 1])
        return lost if offset < lost.until else None

    def read_run(
        self, segment: int, found: Frames, begin: int, end: int, columns: Sequence[str]
    ) -> tuple[FrameHeader, int, pa.RecordBatch]:
        """Read the frames ``begin`` to ``end - 1`` of a segment.

        Return the first frame's header, the offset after the last frame, and the records of all
        frames. Each frame is fully checked. If ``columns`` is empty, the returned batch has 0 rows.
        """
        at = int(found.places[begin])
        data = self.storage.read(self.path(segment), at, found.end_of(end - 1) - at)
        places = (found.places[begin:end] - at).tolist()
        if end - begin > 1:
            batch = decode_together(data, found.rows[begin:end], places, columns)
            if batch is not None:
                name = self.named(segment, found.range_of(begin)[0])
                header = decode_header(data.slice(0, HEADER_BYTES).to_pybytes(), name)
                return header, found.range_of(end - 1)[1], batch
        firsts = found.rows["first"][begin:end].tolist()
        decoded = [
            self.decoded(segment, first, data.slice(place), columns)
            for first, place in zip(firsts, places, strict=True)
        ]
        batches = [batch for _, batch in decoded]
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return decoded[0][0], decoded[-1][0].until, batch

    def decoded(
        self, segment: int, first: int, frame: pa.Buffer, columns: Sequence[str]
    ) -> tuple[FrameHeader, pa.RecordBatch]:
        """Decode the frame at the start of ``frame``; return its header and its records.

        Raise CorruptionError if the frame is damaged, belongs to another lane, or does not begin at
        offset ``first``.
        """
        name = self.named(segment, first)
        start = frame.slice(0, min(HEADER_BYTES, frame.size)).to_pybytes()
        header = decode_header(start, name)
        says = (header.journal_id, header.lane, header.first)
        if says != (self.identity.id, self.lane, first) or header.count == 0:
            of_another = header.journal_id != self.identity.id
            raise CorruptionError(
                f"{name} is the wrong frame: it has the offsets of lane {header.lane} "
                f"[{header.first}, {header.until}){' of another journal' if of_another else ''}; "
                "restore the original file, or run `headrace journal repair`, which sets this file "
                "aside."
            )
        payload = frame.slice(HEADER_BYTES, min(header.payload_bytes, frame.size - HEADER_BYTES))
        return header, decode_payload(header, payload, name, columns)


@dataclass(frozen=True, slots=True)
class LaneLook:
    """Snapshot of a lane: its file names and its end."""

    lane: Lane
    index: LaneIndex
    end: LaneEnd

    def lost(self) -> list[Lost]:
        """Return the lane's declared losses, ascending. The call reads one small file per loss."""
        return self.lane.losses(self.index)

    def checksum_before(self, offset: int) -> int:
        """Return the checksum of the frame that contains the record before an offset.

        Return 0 if no frame contains that record, or if the frame is damaged.
        """
        if offset == self.end.until:
            return self.end.checksum
        segment = self.index.segment_of(offset - 1)
        if offset <= self.index.start or segment is None:
            return 0
        try:
            segment_frames = self.lane.frames_of(self.index, segment)
        except (FileNotFoundError, CorruptionError):
            return 0  # pruned since the listing, or damaged, which a read will report
        number = segment_frames.holding(offset - 1)
        return int(segment_frames.rows["checksum"][number]) if number is not None else 0
