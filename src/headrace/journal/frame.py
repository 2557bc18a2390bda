"""A frame: the stored form of one block in a lane's segment. Pure functions, no I/O.

A segment is a file of consecutive frames. A frame has a header of 128 bytes and a payload. The
payload is one Arrow IPC stream (see `block`). The header is little endian and ends with its own
CRC-32::

    0   magic           8 bytes, b"HRFRAME" and the version, 1
    8   journal id     16 bytes
    24  writer         16 bytes, a new id for each writer
    40  first offset    8
    48  synced          8   offset up to which the lane was durable when the frame was written
    56  raw bytes       8   of keys, values and headers
    64  payload length  8
    72  earliest        8   timestamp, ms since the epoch
    80  latest          8   timestamp, ms since the epoch
    88  lane            4
    92  count           4   of records
    96  payload CRC-32  4   as in zlib
    100 previous        4   checksum of the previous frame, or 0
    104 zeros          20
    124 header CRC-32   4   of the first 124 bytes of the header

A frame's checksum is its header's CRC-32. ``previous`` chains a lane's frames: if two frames have
equal checksums, all frames before them are equal too, except for a chance of one in 2**32.
``previous`` is 0 in a lane's first frame and after a loss.

A crash during an append leaves an incomplete last frame, which is called a torn tail and was never
acknowledged. ``synced`` distinguishes a torn tail from damage: invalid bytes are damage if a later
frame's ``synced`` says that they were durable. If no later frame exists, invalid bytes are a torn
tail, unless they are a whole frame of another lane or offset.

The sizes of header and payload are multiples of 8 bytes, so Arrow's buffers stay aligned.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from headrace.errors import CorruptionError

MAGIC: Final = b"HRFRAME\x01"
_FIELDS: Final = struct.Struct("<8s16s16sQQQQqqIIII20x")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size

_PLACE: Final = struct.Struct("<Q16xQ16xIIII")  # from the first offset to ``previous``
_PLACE_AT: Final = 40
_ID_AT: Final = 8
_WRITER_AT: Final = 24

_WINDOW_BYTES: Final = 64 * 1024
"""Bytes that a scan for headers reads at once: about a hundred small frames, or a large frame's
header and the start of its payload."""

ROW: Final = np.dtype(
    {
        "names": [
            "first", "synced", "raw_bytes", "payload_bytes", "earliest_ms", "latest_ms", "count",
            "payload_crc", "previous", "checksum",
        ],
        "formats": ["<i8", "<i8", "<i8", "<i8", "<i8", "<i8", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [40, 48, 56, 64, 72, 80, 92, 96, 100, 124],
        "itemsize": HEADER_BYTES,
    }
)  # fmt: skip
"""NumPy type of the numeric fields of a frame header, for reading many headers as one array."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Header of a frame; this module's docstring explains the fields, in the same order."""

    journal_id: bytes
    writer: bytes
    first: int
    synced: int
    raw_bytes: int
    payload_bytes: int
    earliest_ms: int
    latest_ms: int
    lane: int
    count: int
    payload_crc: int
    previous: int

    @property
    def until(self) -> int:
        """Offset after the frame's last record."""
        return self.first + self.count

    @property
    def checksum(self) -> int:
        """The header's CRC-32, which identifies this frame and all earlier frames of its lane."""
        return crc32(self._fields())

    def encode(self) -> bytes:
        """Return the header's 128 bytes."""
        fields = self._fields()
        return fields + _CRC.pack(crc32(fields))

    def _fields(self) -> bytes:
        return _FIELDS.pack(
            MAGIC,
            self.journal_id,
            self.writer,
            self.first,
            self.synced,
            self.raw_bytes,
            self.payload_bytes,
            self.earliest_ms,
            self.latest_ms,
            self.lane,
            self.count,
            self.payload_crc,
            self.previous,
        )


def decode_header(start: bytes, name: str) -> FrameHeader:
    """Decode the header at the beginning of ``start``.

    Raise CorruptionError, with the frame's ``name``, if there is no valid header of version 1.
    """
    if len(start) < HEADER_BYTES:
        raise damaged(name, f"it has {len(start)} bytes, but a header has {HEADER_BYTES}")
    fields = start[: _FIELDS.size]
    if not fields.startswith(MAGIC[:-1]):
        raise damaged(name, "it does not begin with a frame's header")
    if _CRC.unpack_from(start, _FIELDS.size)[0] != crc32(fields):
        raise damaged(name, "its header fails its checksum")
    if (version := fields[len(MAGIC) - 1]) != MAGIC[-1]:
        raise damaged(name, f"it has version {version}, but this Headrace reads version 1")
    return FrameHeader(*_FIELDS.unpack(fields)[1:])


def damaged(name: str, what: str) -> CorruptionError:
    """Return the CorruptionError for a damaged frame ``name``; ``what`` describes the damage."""
    return CorruptionError(
        f"{name} is damaged: {what}; `headrace journal verify` lists all damage."
    )


class Place(NamedTuple):
    """Values that the next frame of a lane must have in its header.

    Attributes:
        journal_id: The journal's id.
        lane: The lane's number.
        first: The frame's first offset.
        previous: The checksum of the previous frame; None accepts any checksum.
    """

    journal_id: bytes
    lane: int
    first: int
    previous: int | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """Headers of consecutive whole frames of a segment.

    Attributes:
        rows: The frames' headers, of type `ROW`.
        places: Each frame's position in the segment (bytes).
        end: The position after the last frame (bytes).
        follows: The values that the next frame must have in its header.
    """

    rows: npt.NDArray[np.void]
    places: npt.NDArray[np.int64]
    end: int
    follows: Place

    @classmethod
    def none(cls, place: Place) -> "Frames":
        """Return an empty `Frames` for a segment whose first frame must match ``place``."""
        return cls(np.empty(0, ROW), np.empty(0, np.int64), 0, place)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def until(self) -> int:
        """Offset after the last record of the last frame."""
        return self.follows.first

    @property
    def checksum(self) -> int:
        """The last frame's checksum; 0 if there are no frames."""
        return int(self.rows["checksum"][-1]) if len(self) else 0

    @property
    def latest_ms(self) -> int:
        """Timestamp of the newest record (ms since the epoch); requires one frame or more."""
        return int(self.rows["latest_ms"].max())

    def holding(self, offset: int) -> int | None:
        """Return the index of the frame that contains an offset; None if no frame contains it."""
        number = int(np.searchsorted(self.rows["first"], offset, side="right")) - 1
        return number if number >= 0 and offset < self.until else None

    def range_of(self, number: int) -> tuple[int, int]:
        """Return the first offset of frame ``number`` and the offset after its last record."""
        row = self.rows[number]
        return int(row["first"]), int(row["first"]) + int(row["count"])

    def end_of(self, number: int) -> int:
        """Return the position after frame ``number`` in the segment (bytes)."""
        return int(self.places[number + 1]) if number + 1 < len(self) else self.end

    def before(self, number: int) -> "Frames":
        """Return the frames that precede frame ``number``."""
        first, _ = self.range_of(number)
        follows = self.follows._replace(first=first, previous=int(self.rows["previous"][number]))
        end = int(self.places[number])
        return Frames(self.rows[:number], self.places[:number], end, follows)

    def with_more(self, more: "Frames") -> "Frames":
        """Return these frames followed by the frames ``more``."""
        return Frames(
            np.concatenate([self.rows, more.rows]),
            np.concatenate([self.places, more.places]),
            more.end,
            more.follows,
        )

    def runs(self, begin: int, end: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """Split the frames ``begin`` to ``end - 1`` into runs, to read each run at once.

        For each run, yield the number of its first frame and the number after its last frame. A run
        has at most ``most_bytes`` bytes; a larger frame is a run of its own.
        """
        while begin < end:
            reach = int(self.places[begin]) + most_bytes
            stop = int(np.searchsorted(self.places[begin:end], reach, side="left")) + begin
            if stop > begin + 1 and self.end_of(stop - 1) > reach:
                stop -= 1
            stop = max(stop, begin + 1)
            yield begin, stop
            begin = stop


Read = Callable[[int, int], bytes]
"""Function that reads from a segment: ``read(position, most_bytes)`` returns at most ``most_bytes``
bytes from ``position`` on."""


def frames(read: Read, size: int, at: int, place: Place) -> Frames:
    """Return the consecutive valid frames of a segment from position ``at`` on.

    Stop before the first frame that is incomplete, has an invalid header, or does not continue the
    previous frame. The first frame must match ``place``. Payloads are not checked. ``size`` is the
    segment's size (bytes).
    """
    begin, window, window_at = at, b"", at
    rows, places = [], []
    journal_id, lane, first, previous = place
    while at + HEADER_BYTES <= size:
        if at - window_at + HEADER_BYTES > len(window):
            window, window_at = read(at, min(_WINDOW_BYTES, size - at)), at
        row = window[at - window_at : at - window_at + HEADER_BYTES]
        if not _is_header(row) or row[_ID_AT:_WRITER_AT] != journal_id:
            break
        row_first, payload_bytes, row_lane, count, _, row_previous = _PLACE.unpack_from(
            row, _PLACE_AT
        )
        if (row_first, row_lane) != (first, lane) or previous not in (None, row_previous):
            break
        if not count or at + HEADER_BYTES + payload_bytes > size:
            break
        rows.append(row)
        places.append(at)
        at += HEADER_BYTES + payload_bytes
        first, previous = first + count, _CRC.unpack_from(row, _FIELDS.size)[0]
    headers = np.frombuffer(b"".join(rows), ROW)
    follows = Place(journal_id, lane, first, previous)
    return Frames(headers, np.array(places, np.int64), at if rows else begin, follows)


def _is_header(row: bytes) -> bool:
    return (
        len(row) == HEADER_BYTES
        and row.startswith(MAGIC)
        and _CRC.unpack_from(row, _FIELDS.size)[0] == crc32(row[: _FIELDS.size])
    )


def _header_at(data: bytes, at: int) -> FrameHeader | None:
    """Return the header at position ``at``; None if no valid header begins there."""
    row = data[at : at + HEADER_BYTES]
    return FrameHeader(*_FIELDS.unpack_from(row)[1:]) if _is_header(row) else None


def _headers_from(data: bytes, at: int) -> Iterator[tuple[int, FrameHeader]]:
    """Yield each valid header in ``data`` from position ``at`` on, with its position."""
    while (at := data.find(MAGIC, at)) >= 0:
        if (header := _header_at(data, at)) is not None:
            yield at, header
        at += 1


def later_headers(data: bytes, at: int) -> Iterator[FrameHeader]:
    """Yield each valid header in ``data`` from position ``at`` on."""
    return (header for _, header in _headers_from(data, at))


WERE_DURABLE: Final = "a later frame says that these bytes were durable"
"""Reason in errors: the bytes are damage, and not a torn tail, although no valid frame begins
there."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of checking a whole segment.

    Attributes:
        frames: The valid frames before the first damage.
        torn_bytes: The number of bytes after the last valid frame.
        defect: The reason why the segment is damaged; empty if it is valid or only has a torn tail.
    """

    frames: Frames
    torn_bytes: int
    defect: str


def check_segment(data: bytes, place: Place, *, is_last: bool) -> Checked:
    """Check the headers and payloads of a segment whose first frame must match ``place``.

    Only the last segment of a lane (``is_last``) may end with a torn tail.
    """
    run = _frames_in(data, 0, place)
    number = _first_damaged(data, run)
    whole = run.before(number) if number < len(run) else run
    return Checked(whole, len(data) - whole.end, _defect(data, whole, is_last=is_last))


def _frames_in(data: bytes, at: int, place: Place) -> Frames:
    return frames(lambda at, size: data[at : at + size], len(data), at, place)


def _first_damaged(data: bytes, found: Frames) -> int:
    """Return the index of the first frame whose payload fails its checksum.

    If all payloads are valid, return the number of frames.
    """
    view = memoryview(data)
    for number, place in enumerate(found.places.tolist()):
        if not is_whole(found, number, view[place + HEADER_BYTES :]):
            return number
    return len(found)


def is_whole(found: Frames, number: int, payload: memoryview | bytes) -> bool:
    """Whether the payload of frame ``number`` matches its checksum.

    Bytes in ``payload`` after the frame's payload are ignored.
    """
    row = found.rows[number]
    return crc32(payload[: int(row["payload_bytes"])]) == int(row["payload_crc"])


def _defect(data: bytes, found: Frames, *, is_last: bool) -> str:
    """Return the reason why the bytes after the valid frames ``found`` are damage.

    Return "" if these bytes are a torn tail, or if there are no such bytes.
    """
    if found.end == len(data):
        return "" if len(found) or is_last else "it is empty"
    place = found.follows
    if (header := _header_at(data, found.end)) is not None:
        if header.journal_id != place.journal_id or header.lane != place.lane:
            is_other = header.journal_id != place.journal_id
            return f"it has a frame of {'another journal' if is_other else f'lane {header.lane}'}"
        if not found.end and header.first != place.first:
            return f"its first frame begins at offset {header.first}"
    if not is_last:
        return "it is not the last segment, so all its bytes had been durable"
    if _were_durable(data, found.end, place):
        return WERE_DURABLE
    return "" if _is_torn(data, found.end) else "a crash cannot have left these bytes"


def _were_durable(data: bytes, begin: int, place: Place) -> bool:
    """Whether a header at or after ``begin`` says that offset ``place.first`` was durable."""
    return any(
        later.synced > place.first and later.journal_id == place.journal_id
        for later in later_headers(data, begin)
    )


def hides_frames(data: bytes, place: Place) -> bool:
    """Return whether ``data`` begins with damage that hides later frames.

    ``data`` is the rest of a lane's last segment. Undamaged, it begins with the frame ``place``, or
    with a torn tail.
    """
    return not len(_frames_in(data, 0, place)) and _were_durable(data, 0, place)


def _is_torn(data: bytes, begin: int) -> bool:
    """Return whether the invalid bytes from position ``begin`` on can be a torn tail.

    A crash cannot leave a whole frame of another lane or offset. Any other bytes may be an append
    that was never acknowledged: a crash can interrupt a write anywhere, and unwritten bytes read as
    zeros.
    """
    if (header := _header_at(data, begin)) is None:
        return True
    payload = data[begin + HEADER_BYTES : begin + HEADER_BYTES + header.payload_bytes]
    return len(payload) < header.payload_bytes or crc32(payload) != header.payload_crc


def salvaged(data: bytes, place: Place) -> Iterator[Frames]:
    """Yield runs of consecutive valid frames of a damaged segment, skipping damaged bytes.

    The segment's first frame must match ``place``. Every run has at least one frame.
    """
    at = 0
    while at < len(data):
        run = _frames_in(data, at, place)
        number = _first_damaged(data, run)
        row = run.before(number) if number < len(run) else run
        if len(row):
            yield row
        elif not len(run):
            at += 1
        # The end of a damaged payload is known. After a damaged header, search for the next one.
        at = run.end_of(number) if number < len(run) else max(run.end, at)
        reached = run.range_of(number)[1] if number < len(run) else run.until
        at, place = _resumed(data, at, place._replace(first=reached, previous=None))


def _resumed(data: bytes, at: int, place: Place) -> tuple[int, Place]:
    """Find the lane's next header at or after position ``at``, to continue after damage.

    The header's first offset must be ``place.first`` or later. Return the header's position, and
    ``place`` with this offset. If no header is found, return the end of ``data``, and ``place``
    unchanged.
    """
    for begin, header in _headers_from(data, at):
        is_ours = (header.journal_id, header.lane) == (place.journal_id, place.lane)
        if is_ours and header.first >= place.first:
            return begin, place._replace(first=header.first)
    return len(data), place
