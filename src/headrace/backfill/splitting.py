"""Splits a batch, for isolation and for backfill: the ranges of its children, and their rows."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace.core.ranges import OffsetRange, TopicPartition, merge
from headrace.ledger import BatchRecord, Ledger, PlannedBatch, PlannedRange

ChildRanges = tuple[PlannedRange, ...]


def split_batch(
    ledger: Ledger,
    parent: BatchRecord,
    children: Sequence[ChildRanges],
    *,
    owner: str,
    lease_ms: int,
    bootstrap_servers: str,
    reason: str,
    gone: Collection[str] = (),
) -> tuple[BatchRecord, ...]:
    """Write the children of a batch down, before any of them is read.

    Together they read just what the parent reads, which is this owner's. The children become the
    owner's, those too that a crash has left ``in_progress``; owners in ``gone`` are known to have
    ended, and are replaced at once.

    Raises:
        LedgerError: the batch is not the owner's, or these are not its children.
    """
    planned = [
        PlannedBatch(
            gate=parent.gate,
            checkpoint_id=parent.checkpoint_id,
            ranges=ranges,
            reason=reason,
            bootstrap_servers=bootstrap_servers,
        )
        for ranges in children
    ]
    return ledger.batches.split(parent.batch_key, planned, owner, lease_ms, gone=gone)


def earlier_and_later(ranges: Sequence[PlannedRange]) -> tuple[ChildRanges, ChildRanges]:
    """Two children with as many offsets each, or one more in the first.

    Each range is cut in its middle, so that both children have all partitions to read at once, and
    of each partition the first one has what comes earlier.

    ::

        >>> both = [PlannedRange(OffsetRange("orders", p, 0, 5)) for p in (0, 1)]
        >>> [[str(each.offsets) for each in child] for child in earlier_and_later(both)]
        [['orders-0 [0, 3)', 'orders-1 [0, 2)'], ['orders-0 [3, 5)', 'orders-1 [2, 5)']]
    """
    before, after = list[PlannedRange](), list[PlannedRange]()
    spare = 1
    for each in ranges:
        offsets = each.offsets
        cut = offsets.start + (offsets.count + spare) // 2
        spare ^= offsets.count % 2
        if offsets.start < cut:
            before.append(replace(each, offsets=replace(offsets, until=cut)))
        if cut < offsets.until:
            after.append(replace(each, offsets=replace(offsets, start=cut)))
    return tuple(before), tuple(after)


def gone_and_there(
    ranges: Sequence[PlannedRange], gone: Sequence[OffsetRange]
) -> tuple[ChildRanges, ChildRanges]:
    """Return the ranges that have gone from the source, and the ranges that are still there.

    The beginnings of these ranges go, all of them, or, after a repair of a journal, parts between.

    Raises:
        ValueError: something is gone of a partition that the batch does not read.
    """
    cover = merge(gone)
    if strange := cover.keys() - {each.offsets.topic_partition for each in ranges}:
        raise ValueError(f"{', '.join(map(str, sorted(strange)))} is not in the batch")
    cut = [
        (replace(each, offsets=range_), is_gone)
        for each in ranges
        for range_, is_gone in each.offsets.split_by(cover.get(each.offsets.topic_partition, ()))
    ]
    return (
        tuple(each for each, is_gone in cut if is_gone),
        tuple(each for each, is_gone in cut if not is_gone),
    )


def one_of_each(ranges: Sequence[PlannedRange]) -> list[ChildRanges]:
    """The same ranges in as few children as let each have one range of each partition."""
    children: list[list[PlannedRange]] = []
    before: Counter[TopicPartition] = Counter()
    for each in ranges:
        number = before[each.offsets.topic_partition]
        before[each.offsets.topic_partition] += 1
        if number == len(children):
            children.append([])
        children[number].append(each)
    return [tuple(child) for child in children]
