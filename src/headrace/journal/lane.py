"""One lane, read and checked: common code of its writer, its readers, `verify` and `repair`.

A lane is a row of pieces, named by their first offsets: segments, and declarations that a range is
lost. A loss counts before a segment, so what is within one can be declared lost; behind it another
segment begins.
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
    FrameHeader,
    Frames,
    Place,
    decode_header,
    frames,
    is_whole,
)
from headrace.journal.layout import LOST, SEGMENT, corrupt_name, file_name, parsed
from headrace.journal.storage import Storage

RUN_BYTES: Final = 2**20
"""Bytes of frames that are read at once, unless one alone is larger."""

_MOST_LOST_BYTES: Final = 65_536

_MOST_CACHED: Final = 4
"""Segments whose headers are remembered; of one with frames of one record these take 13 MB."""

_cached: Final[OrderedDict[str, Frames]] = OrderedDict()
_cache_lock: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Identity:
    """A journal's name, and its id of 16 bytes: a later journal of the same name has another."""

    name: str
    id: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """The declaration that the records of some offsets cannot be read any more, and why."""

    first: int
    until: int
    reason: str

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Parse a stored loss; raises ValueError, KeyError or TypeError if it is none."""
        values = json.loads(text)
        lost = cls(values["first"], values["until"], values["reason"])
        if (type(lost.first), type(lost.until), type(lost.reason)) != (int, int, str):
            raise TypeError
        return lost


class LaneEnd(NamedTuple):
    """End of a lane: the offset after the last, and the last frame's checksum; 0 if unknown."""

    until: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class LaneIndex:
    """A lane's pieces by their first offsets, ascending; both may begin at the same."""

    segments: Sequence[int]
    lost: Sequence[int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        """Parse these names; foreign ones are ignored."""
        known = sorted(piece for name in names if (piece := parsed(name)) is not None)
        return cls(
            [first for first, kind in known if kind == SEGMENT],
            [first for first, kind in known if kind == LOST],
        )

    @property
    def firsts(self) -> list[int]:
        """The first offsets of all pieces, ascending."""
        return sorted({*self.segments, *self.lost})

    @property
    def start(self) -> int:
        """Start of the lane; 0 where it has no piece."""
        return min(chain(self.segments[:1], self.lost[:1]), default=0)

    @property
    def ends_lost(self) -> bool:
        """Whether the last piece is a loss."""
        return bool(self.lost) and (not self.segments or self.lost[-1] >= self.segments[-1])

    def segment_of(self, offset: int) -> int | None:
        """Return the first offset of the only segment that can hold an offset."""
        place = bisect_right(self.segments, offset)
        return self.segments[place - 1] if place else None

    def after(self, first: int) -> int | None:
        """Return the first offset of the segment behind one; None for the last."""
        place = bisect_right(self.segments, first)
        return self.segments[place] if place < len(self.segments) else None

    def stop_of(self, segment: int) -> int | None:
        """Return the first offset of the piece behind a segment, or of a loss in its place."""
        place = bisect_left(self.lost, segment)
        pieces = [self.after(segment), *self.lost[place : place + 1]]
        return min((first for first in pieces if first is not None), default=None)

    def before(self, first: int) -> int | None:
        """Return the first offset of the segment before an offset; None where there is none."""
        return self.segment_of(first - 1)


class Lane:
    """The files of one lane.

    Every method may raise ``OSError``, and ``CorruptionError`` if a file does not belong there.
    """

    def __init__(self, storage: Storage, identity: Identity, lane: int) -> None:
        self.storage = storage
        self.identity = identity
        self.lane = lane
        self.folder = str(lane)

    @property
    def what(self) -> str:
        """The lane as an error names it."""
        return f"lane {self.lane} of the journal {self.storage.url}"

    def index(self) -> LaneIndex:
        """Return the index of the lane's file names; a listed name is durable."""
        return LaneIndex.of(self.storage.names(self.folder))

    def path(self, first: int, kind: str = SEGMENT) -> str:
        """Return the path of the piece that begins at an offset."""
        return f"{self.folder}/{file_name(first, kind)}"

    def place(self, first: int, previous: int | None = None) -> Place:
        """Return where a frame of this lane belongs."""
        return Place(self.identity.id, self.lane, first, previous)

    def set_aside(self, path: str) -> None:
        """Give a file another name, under which no reader finds it."""
        folder, _, name = path.rpartition("/")
        self.storage.set_aside(path, f"{folder}/{corrupt_name(name)}")

    def shown(self, path: str) -> str:
        """A path as an error names it."""
        return f"{self.storage.url}/{path}"

    def named(self, segment: int, offset: int) -> str:
        """A frame as an error names it: by its file and its first offset."""
        return f"{self.shown(self.path(segment))} (offset {offset} of lane {self.lane})"

    def offsets(self, start: int, until: int) -> OffsetRange:
        """Some of the lane's offsets."""
        return OffsetRange(self.identity.name, self.lane, start, until)

    def frames(self, segment: int) -> Frames:
        """Return the durable frames of a segment, by its first offset.

        Their headers are read, once by this process. A frame that was not durable when the last one
        was written is checked whole: a power failure may have left its header alone.
        """
        path = self.path(segment)
        if not self.storage.appends:
            return self._put_whole(segment, path)
        key = self.shown(path)
        with _cache_lock:
            found = _cached.get(key)
        if found is None or not self._is_still(path, found):
            found = Frames.none(self.place(segment))
        size = self.storage.synced_size(path)
        if size > found.end or not len(found):
            more = frames(
                lambda at, count: self.storage.read(path, at, count).to_pybytes(),
                size,
                found.end,
                found.follows,
            )
            found = found.with_more(self._checked(path, more))
        with _cache_lock:
            _cached[key] = found
            _cached.move_to_end(key)
            if len(_cached) > _MOST_CACHED:
                _cached.popitem(last=False)
        return found

    def frames_of(self, index: LaneIndex, segment: int) -> Frames:
        """Return the frames of a segment that no piece behind it has, be it a loss or a segment.

        There is none if it was pruned since it was listed.
        """
        try:
            found = self.frames(segment)
        except FileNotFoundError:
            return Frames.none(self.place(segment))
        stop = index.stop_of(segment)
        number = len(found) if stop is None else int(np.searchsorted(found.rows["first"], stop))
        return found.before(number) if number < len(found) else found

    def firsts_within(self, start: int, until: int) -> list[int]:
        """Return the first offsets of the blocks and losses within a range, ascending."""
        index = self.index()
        begin = index.segment_of(start) or 0
        segments = [first for first in index.segments if begin <= first < until]
        found = {first for first in index.lost if start <= first < until}
        for segment in segments:
            # Elsewhere a segment has one block, which its name tells.
            rows = (
                self.frames_of(index, segment).rows["first"].tolist()
                if self.storage.appends
                else []
            )
            found.update(first for first in [segment, *rows] if start <= first < until)
        return sorted(first for first in found if start <= first < until)

    def _put_whole(self, segment: int, path: str) -> Frames:
        """The frame of a segment that was put whole, by its header: it is whole or damaged."""
        name = self.named(segment, segment)
        row = self.storage.read(path, 0, HEADER_BYTES).to_pybytes()
        size = HEADER_BYTES + decode_header(row, name).payload_bytes
        found = frames(lambda _at, _size: row, size, 0, self.place(segment))
        if not len(found):
            raise CorruptionError(
                f"{name} is not the frame of its place; put back the file that was there, or let"
                " `headrace journal repair` declare it lost."
            )
        return found

    def _is_still(self, path: str, found: Frames) -> bool:
        """Whether a segment has the frames that it had, and not those of another copy."""
        if not len(found):
            return False
        row = self.storage.read(path, int(found.places[-1]), HEADER_BYTES).to_pybytes()
        if len(row) < HEADER_BYTES:
            return False
        return bool(np.frombuffer(row, ROW).item() == found.rows[-1].item())

    def _checked(self, path: str, found: Frames) -> Frames:
        """The frames before the first one that was neither durable nor is whole."""
        synced = int(found.rows["synced"][-1]) if len(found) else 0
        for number in range(len(found)):
            if found.range_of(number)[1] > synced:
                at, size = int(found.places[number]), int(found.rows["payload_bytes"][number])
                payload = self.storage.read(path, at + HEADER_BYTES, size)
                if not is_whole(found, number, memoryview(payload)):
                    return found.before(number)
        return found

    def end(self, index: LaneIndex) -> LaneEnd:
        """Return the end of the lane."""
        if index.ends_lost:
            return LaneEnd(self.lost(index.lost[-1]).until)
        if not index.segments:
            return LaneEnd(0)
        last = index.segments[-1]
        found = self.frames(last)
        if len(found):
            return LaneEnd(found.until, found.checksum)
        before = index.before(last)
        there = self.frames(before) if before is not None else None
        return LaneEnd(last, there.checksum if there is not None and there.until == last else 0)

    def look(self) -> "LaneLook":
        """Return the present state of the lane."""
        index = self.index()
        return LaneLook(self, index, self.end(index))

    def losses(self, index: LaneIndex) -> list[Lost]:
        """The offsets that were declared lost, ascending; each costs a small file."""
        return [self.lost(first) for first in index.lost]

    def lost(self, first: int) -> Lost:
        """The declaration of lost offsets."""
        path = self.path(first, LOST)
        text = self.storage.read(path, 0, _MOST_LOST_BYTES).to_pybytes()
        place = f"{self.shown(path)} (offset {first} of lane {self.lane})"
        try:
            lost = Lost.decode(text)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{place} is damaged: it does not say which offsets are lost; "
                "let `headrace journal repair` write it again."
            ) from error
        if lost.first != first or lost.until <= first:
            raise CorruptionError(
                f"{place} is damaged: it is about the offsets [{lost.first}, "
                f"{lost.until}); let `headrace journal repair` write it again."
            )
        return lost

    def loss_of(self, index: LaneIndex, offset: int) -> Lost | None:
        """Return the loss that has an offset."""
        place = bisect_right(index.lost, offset)
        if not place:
            return None
        lost = self.lost(index.lost[place - 1])
        return lost if offset < lost.until else None

    def read_run(
        self, segment: int, found: Frames, begin: int, end: int, columns: Sequence[str]
    ) -> tuple[FrameHeader, int, pa.RecordBatch]:
        """Return the first header of frames in a row, their end, and the records of all.

        Each frame is checked whole. Without columns Arrow does not count the records.
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
        """Decode the frame at the beginning of some bytes, which should begin at an offset."""
        name = self.named(segment, first)
        start = frame.slice(0, min(HEADER_BYTES, frame.size)).to_pybytes()
        header = decode_header(start, name)
        says = (header.journal_id, header.lane, header.first)
        if says != (self.identity.id, self.lane, first) or header.count == 0:
            of_another = header.journal_id != self.identity.id
            raise CorruptionError(
                f"{name} is not the frame of its place: it holds lane {header.lane} "
                f"[{header.first}, {header.until}){' of another journal' if of_another else ''}; "
                "put back the file that was there, or let `headrace journal repair` set this one "
                "aside."
            )
        payload = frame.slice(HEADER_BYTES, min(header.payload_bytes, frame.size - HEADER_BYTES))
        return header, decode_payload(header, payload, name, columns)


@dataclass(frozen=True, slots=True)
class LaneLook:
    """A lane at one moment: its file names, and its end."""

    lane: Lane
    index: LaneIndex
    end: LaneEnd

    def lost(self) -> list[Lost]:
        """The offsets that were declared lost, ascending; each costs a small file."""
        return self.lane.losses(self.index)

    def checksum_before(self, offset: int) -> int:
        """The checksum of the frame that has the record before an offset; 0 if none has it."""
        if offset == self.end.until:
            return self.end.checksum
        segment = self.index.segment_of(offset - 1)
        if offset <= self.index.start or segment is None:
            return 0
        try:
            found = self.lane.frames_of(self.index, segment)
        except (FileNotFoundError, CorruptionError):
            return 0  # pruned since; or damaged, which whoever reads it finds
        number = found.holding(offset - 1)
        return int(found.rows["checksum"][number]) if number is not None else 0
