"""From a batch's offset ranges to its tasks; pure.

A task costs a fixed time (some 20 ms in Spark with a warm Python worker), so small ranges share
one; a large range may be split, where the user asks for more tasks than there are partitions.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Final

from headrace.core.ranges import OffsetRange

# A task reads this many records in about twice its own fixed cost. Below it, one more task would
# gain less by parallel reading than it loses in starting.
RECORDS_WORTH_A_TASK: Final = 50_000


def pack(
    ranges: Sequence[OffsetRange],
    parallelism: int,
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, the largest task first.

    Args:
        ranges: Ranges of the batch; empty ranges are left out.
        parallelism: Number of tasks that the cluster runs at the same time; up to that many are
            made, even of few records.
        min_partitions: ``minPartitions``: make about this many tasks, about equal, by the native
            connector's rule: rounding can make it a few more or less.
        max_records_per_partition: ``maxRecordsPerPartition``: no task has more records.
    """
    chunks = [r for r in ranges if r.count > 0]
    if max_records_per_partition is not None:
        chunks = [
            chunk for r in chunks for chunk in r.chunks(-(-r.count // max_records_per_partition))
        ]
    if min_partitions is not None and min_partitions > len(chunks):
        chunks = _split(chunks, min_partitions)
    if not chunks:
        return []
    if min_partitions is not None or max_records_per_partition is not None:
        return [(each,) for each in sorted(chunks, key=_by_size)]
    total = sum(each.count for each in chunks)
    worth = -(-total // RECORDS_WORTH_A_TASK)
    return _share_out(chunks, min(len(chunks), max(parallelism, worth)))


def _by_size(chunk: OffsetRange) -> tuple[int, OffsetRange]:
    return -chunk.count, chunk


def _share_out(chunks: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Each range, the largest first, to the task that has least so far."""
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    loads = [(0, task) for task in range(tasks)]
    for each in sorted(chunks, key=_by_size):
        load, task = heapq.heappop(loads)
        shares[task].append(each)
        heapq.heappush(loads, (load + each.count, task))
    heaviest_first = sorted(loads, key=lambda load: (-load[0], load[1]))
    return [tuple(sorted(shares[task])) for _, task in heaviest_first]


def _split(chunks: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """About ``tasks`` parts of about equal size, as many as the native connector makes.

    A range gets its rounded share of the tasks. A range that would not be split leaves its place,
    and the others share the places that remain. Other ranges in the partition of such a range stay
    whole, too.
    """
    total = sum(each.count for each in chunks)
    small = [each for each in chunks if _share(each.count, total, tasks) == 1]
    whole = {each.topic_partition for each in small}
    rest = total - sum(each.count for each in small)
    places = max(tasks - len(small), 1)
    return [
        chunk
        for each in chunks
        for chunk in each.chunks(
            1 if each.topic_partition in whole else _share(each.count, rest, places)
        )
    ]


def _share(count: int, total: int, tasks: int) -> int:
    """The rounded share of the tasks, a half being rounded up; one at least."""
    return max(math.floor(count / total * tasks + 0.5), 1)
