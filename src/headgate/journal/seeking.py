"""Finding the block of an offset or of a time."""

from headgate.journal.block import BlockHeader
from headgate.journal.blocks import LaneFiles
from headgate.journal.faults import told
from headgate.journal.journal import Journal


def header_at(journal: Journal, lane: int, offset: int) -> BlockHeader | None:
    """The header of the block that holds an offset; None where it was lost or is not there.

    Raises:
        JournalError: The lane cannot be read.
    """
    files = LaneFiles(journal.storage, journal.identity, lane)
    with told(f"Lane {lane} of the journal {journal.storage.url} cannot be read"):
        index = files.index()
        first = index.holding(offset)
        return None if first is None or first in index.lost else files.header(first)


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
