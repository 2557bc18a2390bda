"""From a batch's offset ranges to its tasks; pure.

A task costs a fixed time (some 20 ms in Spark with a warm Python worker), so small ranges share
one; a large range may be split, where the user asks for more tasks than there are partitions.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Final

from headrace.core.ranges import OffsetRange

# A task reads this many records in about twice its own fixed cost. Below it, what a task more would
# gain in reading at the same time it would lose in starting.
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
        ranges: What the batch reads; empty ranges are left out.
        parallelism: How many tasks the cluster runs at the same time; up to that many are made,
            even of few records.
        min_partitions: ``minPartitions``: make about this many tasks, about equal, by the native
            connector's rule: rounding can make it a few more or less.
        max_records_per_partition: ``maxRecordsPerPartition``: no task has more records.
    """
    pieces = [r for r in ranges if r.count > 0]
    if max_records_per_partition is not None:
        pieces = [
            part for r in pieces for part in _parts(r, -(-r.count // max_records_per_partition))
        ]
    if min_partitions is not None and min_partitions > len(pieces):
        pieces = _split(pieces, min_partitions)
    if not pieces:
        return []
    if min_partitions is not None or max_records_per_partition is not None:
        return [(piece,) for piece in sorted(pieces, key=_by_size)]
    total = sum(piece.count for piece in pieces)
    worth = -(-total // RECORDS_WORTH_A_TASK)
    return _share_out(pieces, min(len(pieces), max(parallelism, worth)))


def _by_size(piece: OffsetRange) -> tuple[int, OffsetRange]:
    return -piece.count, piece


def _share_out(pieces: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Each piece, the largest first, to the task that has least so far."""
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    loads = [(0, task) for task in range(tasks)]
    for piece in sorted(pieces, key=_by_size):
        load, task = heapq.heappop(loads)
        shares[task].append(piece)
        heapq.heappush(loads, (load + piece.count, task))
    heaviest_first = sorted(loads, key=lambda load: (-load[0], load[1]))
    return [tuple(sorted(shares[task])) for _, task in heaviest_first]


def _split(pieces: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """About ``tasks`` parts of about equal size, as many as the native connector makes.

    A piece gets its rounded share of the tasks. What would not be split leaves its place, and the
    others share the places that remain. Pieces of a partition that has one of the former stay
    whole, too.
    """
    total = sum(piece.count for piece in pieces)
    small = [piece for piece in pieces if _share(piece.count, total, tasks) == 1]
    whole = {piece.topic_partition for piece in small}
    rest = total - sum(piece.count for piece in small)
    places = max(tasks - len(small), 1)
    return [
        part
        for piece in pieces
        for part in _parts(
            piece,
            1 if piece.topic_partition in whole else _share(piece.count, rest, places),
        )
    ]


def _share(count: int, total: int, tasks: int) -> int:
    """The rounded share of the tasks, a half being rounded up; one at least."""
    return max(math.floor(count / total * tasks + 0.5), 1)


def _parts(r: OffsetRange, count: int) -> list[OffsetRange]:
    """So many equal parts; fewer where there are not as many offsets."""
    bounds = [r.start + r.count * i // count for i in range(count + 1)]
    return [
        OffsetRange(r.topic, r.partition, start, until)
        for start, until in itertools.pairwise(bounds)
        if start < until
    ]
