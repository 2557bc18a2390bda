"""Records, journals that have them, and what is in a lane."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from unittest import mock

import pyarrow as pa
from hypothesis import strategies as st
from tests.journal.shim import Fast

from headrace.core.ranges import OffsetRange
from headrace.journal import Journal, Records
from headrace.journal.block import Compression
from headrace.journal.storage.local import Disk, LocalStorage

NOW_MS: Final = 1_700_000_000_000

_HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)
_ROWS = st.tuples(
    st.none() | st.binary(max_size=8),
    st.none() | st.binary(max_size=4),
    st.none() | _HEADERS,
    st.none() | st.text(max_size=4),
)


@st.composite
def records(draw: st.DrawFn, least: int = 0) -> Records:
    """Some records, each column there or not."""
    rows = draw(st.lists(_ROWS, min_size=least, max_size=8))
    there = st.booleans()
    return Records.of(
        [row[0] for row in rows],
        keys=[row[1] for row in rows] if draw(there) else None,
        headers=[row[2] for row in rows] if draw(there) else None,
        ids=[row[3] for row in rows] if draw(there) else None,
        timestamp_ms=draw(st.integers(-1, 2**41)),
    )


def numbered(start: int, until: int) -> Records:
    """Records whose values are their numbers."""
    values = [b"%d" % number for number in range(start, until)]
    return Records.of(values, ids=[v.decode() for v in values], timestamp_ms=NOW_MS)


def values_of(journal: Journal, lane: int = 0) -> list[bytes]:
    """The values of everything in a lane."""
    offsets = OffsetRange(journal.name, lane, *journal.lane_bounds(lane))
    return [value for batch in journal.read(offsets) for value in batch.column("value").to_pylist()]


def numbers(*ranges: range) -> list[bytes]:
    """The values of numbered records."""
    return [b"%d" % number for one in ranges for number in one]


def journal_at(path: Path, disk: Disk | None = None) -> Journal:
    """The journal in a folder, made if need be. Default: a disk that syncs nothing."""
    return Journal.in_storage(LocalStorage(path, disk or Fast()), path.name, create=True)


def append(journal: Journal, *counts: int, lane: int = 0, compression: Compression = "lz4") -> None:
    """Append blocks of so many records to a lane, whose values are their offsets."""
    with journal.writer(lane, compression=compression) as writer:
        for count in counts:
            writer.append(numbered(writer.end, writer.end + count))


def folder(journal: Journal, lane: int = 0) -> Path:
    """Return the folder of a lane's files."""
    return Path(journal.storage.url) / f"{lane}"


def stored(lane: Path) -> dict[int, bytes]:
    """The values in a lane's folder by their offsets, read without the code under test.

    A frame has a header of 128 bytes, with the payload's length at byte 64, and one Arrow stream.
    """
    found: dict[int, bytes] = {}
    for path in sorted(lane.glob("*.segment")):
        data, at, offset = path.read_bytes(), 0, int(path.stem)
        while at < len(data):
            size = int.from_bytes(data[at + 64 : at + 72], "little")
            with pa.ipc.open_stream(data[at + 128 : at + 128 + size]) as stream:
                values = stream.read_all().column("value").to_pylist()
            for value in values:
                assert offset not in found, "an offset was given twice"
                found[offset] = value
                offset += 1
            at += 128 + size
    return found


def segments_of(most_bytes: int) -> AbstractContextManager[object]:
    """Let writers begin another segment when one has so many bytes."""
    return mock.patch("headrace.journal.lane_writer.SEGMENT_BYTES", most_bytes)


def damage(journal: Journal, first: int, *, at: int = 200, lane: int = 0) -> Path:
    """Change one byte of the block that begins at an offset; return its segment's path."""
    index = journal.look(lane).index
    segment = index.segment_of(first)
    assert segment is not None
    path = folder(journal, lane) / f"{segment:020d}.segment"
    before = [block for block in journal.blocks(lane) if segment <= block.first < first]
    place = sum(block.stored_bytes for block in before) + at
    data = path.read_bytes()
    path.write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
    return path
