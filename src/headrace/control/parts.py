"""Parts of a batch: what isolation cuts it into, and the steps that it takes with them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from headrace.core.ranges import OffsetRange, TopicPartition

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run the handler on this part."""

    part: Ranges


@dataclass(frozen=True, slots=True)
class Cut:
    """Divide a part into these."""

    part: Ranges
    children: tuple[Ranges, ...]


@dataclass(frozen=True, slots=True)
class AwaitControl:
    """Wait until a run that is not of this batch has ended."""


Step = Run | Cut | AwaitControl


def cut_after(ranges: Sequence[OffsetRange], wanted: int) -> tuple[Ranges, Ranges]:
    """The first so many offsets, in the ranges' order, and the others.

    ::

    >>> first, others = cut_after([OffsetRange("a", 0, 0, 2), OffsetRange("a", 1, 0, 5)], 4)
    >>> [str(r) for r in first], [str(r) for r in others]
    (['a-0 [0, 2)', 'a-1 [0, 2)'], ['a-1 [2, 5)'])
    """
    first: list[OffsetRange] = []
    second: list[OffsetRange] = []
    for r in ranges:
        cut = r.start + min(r.count, wanted)
        wanted -= cut - r.start
        if r.start < cut:
            first.append(OffsetRange(r.topic, r.partition, r.start, cut))
        if cut < r.until:
            second.append(OffsetRange(r.topic, r.partition, cut, r.until))
    return tuple(first), tuple(second)


def count(ranges: Iterable[OffsetRange]) -> int:
    """Count the offsets."""
    return sum(r.count for r in ranges)


def is_within(part: Ranges, other: Ranges) -> bool:
    """Whether a part is some of another one, or all of it."""
    return all(
        any(
            r.topic_partition == o.topic_partition and o.start <= r.start and r.until <= o.until
            for o in other
        )
        for r in part
    )


def cut_out(batch: Sequence[OffsetRange], hints: Iterable[OffsetRange]) -> list[Ranges]:
    """The rest of a batch without these single records, at most one range of each partition.

    ::

    >>> batch = [OffsetRange("a", 0, 0, 9), OffsetRange("a", 1, 0, 5)]
    >>> rest = cut_out(batch, [OffsetRange("a", 0, 3, 4)])
    >>> [[str(r) for r in part] for part in rest]
    [['a-0 [0, 3)', 'a-1 [0, 5)'], ['a-0 [4, 9)']]
    """
    out: dict[TopicPartition, list[OffsetRange]] = {}
    for each in hints:
        out.setdefault(each.topic_partition, []).append(each)
    pieces: dict[TopicPartition, list[OffsetRange]] = {}
    for whole in batch:
        own = pieces.setdefault(whole.topic_partition, [])
        start = whole.start
        for each in sorted(out.get(whole.topic_partition, ()), key=lambda r: r.start):
            if not whole.start <= each.start < whole.until:
                continue
            own += _range(whole, start, each.start)
            start = each.until
        own += _range(whole, start, whole.until)
    rows = zip_longest(*pieces.values())
    return [tuple(each for each in row if each is not None) for row in rows]


def _range(of: OffsetRange, start: int, until: int) -> list[OffsetRange]:
    return [OffsetRange(of.topic, of.partition, start, until)] if start < until else []
