"""Dividing what a batch reads: into an earlier and a later half, or where Kafka has forgotten."""

from collections.abc import Sequence
from dataclasses import replace

from headgate.control.ranges import OffsetRange
from headgate.ledger import PlannedRange

Portion = tuple[PlannedRange, ...]


def earlier_and_later(ranges: Sequence[PlannedRange]) -> tuple[Portion, Portion]:
    """Two portions with as many offsets each, or one more in the first.

    Each range is cut in its middle, so that both portions have all partitions to read at once, and
    of each partition the first one has what comes earlier.

    ::

        >>> both = [PlannedRange(OffsetRange("orders", p, 0, 5)) for p in (0, 1)]
        >>> [[str(each.offsets) for each in portion] for portion in earlier_and_later(both)]
        [['orders-0 [0, 3)', 'orders-1 [0, 2)'], ['orders-0 [3, 5)', 'orders-1 [2, 5)']]
    """
    cuts: list[int] = []
    spare = 1
    for each in ranges:
        offsets = each.offsets
        cuts.append(offsets.start + (offsets.count + spare) // 2)
        spare ^= offsets.count % 2
    return _cut(ranges, cuts)


def gone_and_there(
    ranges: Sequence[PlannedRange], gone: Sequence[OffsetRange]
) -> tuple[Portion, Portion]:
    """What has left Kafka, and what is still there.

    Args:
        ranges: At most one of each partition.
        gone: Of some of them, what has left: their beginnings, or all of them.

    Raises:
        ValueError: Something else than a range's beginning is gone, which a log does not do.
    """
    by_partition = {each.topic_partition: each for each in gone}
    cuts: list[int] = []
    for each in ranges:
        missing = by_partition.pop(each.offsets.topic_partition, None)
        if missing is not None and missing.start != each.offsets.start:
            raise ValueError(f"{missing} is not the beginning of {each.offsets}")
        cuts.append(
            each.offsets.start if missing is None else min(missing.until, each.offsets.until)
        )
    if by_partition:
        raise ValueError(f"{', '.join(map(str, by_partition))} is not in the batch")
    return _cut(ranges, cuts)


def _cut(ranges: Sequence[PlannedRange], cuts: Sequence[int]) -> tuple[Portion, Portion]:
    """What is before, and from, these offsets."""
    before, after = [], []
    for each, cut in zip(ranges, cuts, strict=True):
        before.append(replace(each, offsets=replace(each.offsets, until=cut)))
        after.append(replace(each, offsets=replace(each.offsets, start=cut)))
    return (
        tuple(each for each in before if each.offsets.count),
        tuple(each for each in after if each.offsets.count),
    )
