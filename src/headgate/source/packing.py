"""From a batch's offset ranges to its tasks; pure.

A task costs a fixed time (some 20 ms in Spark with a warm Python worker), so small ranges share
one; a large range may be split, where the user asks for more tasks than there are partitions.
"""

import heapq
import itertools
from collections.abc import Sequence
from typing import Final

from headgate.control.ranges import OffsetRange

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
        min_partitions: ``minPartitions``: make at least this many tasks, about equal, where there
            are that many records.
        max_records_per_partition: ``maxRecordsPerPartition``: no task has more records.
    """
    pieces = [r for r in ranges if r.count > 0]
    if max_records_per_partition is not None:
        pieces = [piece for r in pieces for piece in _chunks(r, max_records_per_partition)]
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


def _chunks(r: OffsetRange, most: int) -> list[OffsetRange]:
    """Equal parts of at most ``most`` offsets."""
    return _parts(r, -(-r.count // most))


def _split(pieces: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """At least ``tasks`` parts, of about equal size, if there are as many offsets.

    A piece below the even share stays whole; the rest is split in proportion to its size.
    """
    total = sum(piece.count for piece in pieces)
    small = [piece for piece in pieces if piece.count * tasks <= total]
    large = [piece for piece in pieces if piece.count * tasks > total]
    wanted = tasks - len(small)
    weight = sum(piece.count for piece in large)
    parts = list(small)
    for piece in large:
        parts += _parts(piece, min(-(-wanted * piece.count // weight), piece.count))
    return parts


def _parts(r: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [r.start + r.count * i // count for i in range(count + 1)]
    return [
        OffsetRange(r.topic, r.partition, start, until)
        for start, until in itertools.pairwise(bounds)
    ]
