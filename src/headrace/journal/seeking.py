"""Finding the block of an offset or of a time."""

from itertools import islice
from typing import Final, NamedTuple

from headrace.journal.blocks import LaneFiles
from headrace.journal.faults import told
from headrace.journal.journal import Journal

_MOST_HEADERS: Final = 64
"""So many blocks are looked at in one answer; on an object store each is a request."""


class Ahead(NamedTuple):
    """Records that come next: how many, and their bytes."""

    records: float
    bytes: float


def ahead(journal: Journal, lane: int, offset: int, most_bytes: float) -> Ahead:
    """How many records from an offset on have so many bytes together, as the blocks' headers say.

    Of a block that is not taken whole, records count as if all had its mean size. It stops at the
    lane's end, and after 64 blocks. What was declared lost has no records.

    Raises:
        JournalError: The lane cannot be read.
    """
    files = LaneFiles(journal.storage, journal.identity, lane)
    records = taken_bytes = 0.0
    with told(f"Lane {lane} of the journal {journal.storage.url} cannot be read"):
        index = files.index()
        start = index.holding(offset)
        firsts = [first for first in index.firsts.tolist() if start is None or first >= start]
        for first in islice((each for each in firsts if each not in index.lost), _MOST_HEADERS):
            header = files.header(first)
            mean_bytes = header.raw_bytes / header.count
            here: float = header.until - max(first, offset)
            if mean_bytes:
                here = min(here, (most_bytes - taken_bytes) / mean_bytes)
            records, taken_bytes = records + here, taken_bytes + here * mean_bytes
            if taken_bytes >= most_bytes:
                break
    return Ahead(records, taken_bytes)


def first_at(journal: Journal, lane: int, timestamp_ms: int) -> int | None:
    """The first offset of the first block with a record of this time or later.

    A receiver gives records the time at which they came, so that blocks follow each other in time;
    where its clock was put back in between, the answer is one of the blocks at which they reach
    the time asked for. It costs a listing and a header for each halving of the lane.

    Args:
        journal: The journal.
        lane: The lane.
        timestamp_ms: The time (ms since the epoch).

    Returns:
        The offset; None where all records are older.

    Raises:
        JournalError: The lane cannot be read.
    """
    files = LaneFiles(journal.storage, journal.identity, lane)
    with told(f"Lane {lane} of the journal {journal.storage.url} cannot be read"):
        index = files.index()
        firsts = [first for first in index.firsts.tolist() if first not in index.lost]
        below, above = 0, len(firsts)
        while below < above:
            middle = (below + above) // 2
            if files.header(firsts[middle]).latest_ms >= timestamp_ms:
                above = middle
            else:
                below = middle + 1
    return firsts[below] if below < len(firsts) else None
