"""From a batch's ranges to its tasks, which begin and end where blocks do; pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from headrace.core.ranges import OffsetRange
from headrace.source.packing import RECORDS_WORTH_A_TASK


def cut_at_blocks(
    ranges: Sequence[OffsetRange], firsts: Mapping[int, Sequence[int]], parallelism: int
) -> list[OffsetRange]:
    """The ranges in pieces that are worth a task each, as far as blocks allow it.

    A lane has one writer and so there may be one lane only: its records are read by as many tasks
    as there are cores, if there are enough of them. A block is cut only where a range begins or
    ends in it, so that no block is read by two tasks.

    Args:
        ranges: what the batch reads.
        firsts: by lane, the first offset of each block, rising.
        parallelism: how many tasks the cluster runs at the same time.

    >>> blocks = {0: range(0, 400_000, 30_000)}
    >>> [str(r) for r in cut_at_blocks([OffsetRange("a", 0, 10_000, 250_000)], blocks, 4)]
    ['a-0 [10000, 90000)', 'a-0 [90000, 150000)', 'a-0 [150000, 210000)', 'a-0 [210000, 250000)']
    """
    total = sum(r.count for r in ranges)
    tasks = min(parallelism, -(-total // RECORDS_WORTH_A_TASK))
    if tasks <= 1:
        return list(ranges)
    return [
        piece
        for r in ranges
        for piece in _pieces(r, firsts.get(r.partition, ()), max(1, tasks * r.count // total))
    ]


def _pieces(r: OffsetRange, firsts: Sequence[int], count: int) -> list[OffsetRange]:
    """About so many pieces, of about equal size."""
    pieces, start = [], r.start
    for number in range(1, count):
        place = bisect_left(firsts, r.start + r.count * number // count)
        if place < len(firsts) and start < firsts[place] < r.until:
            pieces.append(OffsetRange(r.topic, r.partition, start, firsts[place]))
            start = firsts[place]
    return [*pieces, OffsetRange(r.topic, r.partition, start, r.until)]
