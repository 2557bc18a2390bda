"""Dividing what a batch reads: into an earlier and a later half, or where Kafka has forgotten."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.ledger import PlannedRange
from headrace.ledger.tiles import merged, pieces

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
    """What has gone from the source, and what is still there.

    Args:
        ranges: What a batch reads.
        gone: What has gone: beginnings of these ranges, all of them, or, where a journal was
            repaired, something between.

    Raises:
        ValueError: Something is gone of a partition that the batch does not read.
    """
    cover = merged(gone)
    if strange := cover.keys() - {each.offsets.topic_partition for each in ranges}:
        raise ValueError(f"{', '.join(map(str, sorted(strange)))} is not in the batch")
    cut = [
        (replace(each, offsets=piece), is_gone)
        for each in ranges
        for piece, is_gone in pieces(each.offsets, cover.get(each.offsets.topic_partition, ()))
    ]
    return (
        tuple(each for each, is_gone in cut if is_gone),
        tuple(each for each, is_gone in cut if not is_gone),
    )


def one_of_each(ranges: Sequence[PlannedRange]) -> list[Portion]:
    """The same ranges in as few portions as let each have one range of each partition."""
    portions: list[list[PlannedRange]] = []
    before: Counter[TopicPartition] = Counter()
    for each in ranges:
        number = before[each.offsets.topic_partition]
        before[each.offsets.topic_partition] += 1
        if number == len(portions):
            portions.append([])
        portions[number].append(each)
    return [tuple(portion) for portion in portions]


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
