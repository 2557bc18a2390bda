"""Ranges of offsets, and the operations on them: split, chunk, intersect, subtract, merge."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a Kafka topic, or one lane of a journal."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def range(self, start: int, until: int) -> "OffsetRange":
        """The offsets ``start`` (included) to ``until`` (excluded) of this partition."""
        return OffsetRange(self.topic, self.partition, start, until)


Positions = Mapping[TopicPartition, int]
"""An offset in each partition; at the end of a read, the one behind the last that was read."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``start`` (included) to ``until`` (excluded) of one partition.

    The results of an operation lie in the same partition, in rising order.
    """

    topic: str
    partition: int
    start: int
    until: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition whose offsets these are."""
        return TopicPartition(self.topic, self.partition)

    @property
    def count(self) -> int:
        """Offsets in the range: an upper bound of its records, for compaction leaves gaps."""
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.until})"

    def _between(self, start: int, until: int) -> "OffsetRange":
        return OffsetRange(self.topic, self.partition, start, until)

    def contains(self, other: "OffsetRange") -> bool:
        """Whether the other range lies in this one, in the same partition."""
        same = self.topic_partition == other.topic_partition
        return same and self.start <= other.start and other.until <= self.until

    def intersect(self, other: "OffsetRange") -> "OffsetRange | None":
        """The offsets of both ranges; None if there are none, as of different partitions."""
        start, until = max(self.start, other.start), min(self.until, other.until)
        if start >= until or self.topic_partition != other.topic_partition:
            return None
        return self._between(start, until)

    def hull(self, other: "OffsetRange") -> "OffsetRange":
        """From the first to the last offset of both, which are of one partition."""
        return self._between(min(self.start, other.start), max(self.until, other.until))

    def split_at(self, offset: int) -> tuple["OffsetRange", "OffsetRange"]:
        """The offsets below ``offset``, and the rest; one is empty if it lies outside.

        >>> [str(part) for part in OffsetRange("a", 0, 0, 10).split_at(4)]
        ['a-0 [0, 4)', 'a-0 [4, 10)']
        """
        cut = min(max(offset, self.start), self.until)
        return self._between(self.start, cut), self._between(cut, self.until)

    def chunks(self, count: int, at: Sequence[int] | None = None) -> list["OffsetRange"]:
        """Up to ``count`` consecutive ranges of about equal size, none of them empty.

        Args:
            count: 1 or more.
            at: The only offsets to split at, rising: a split moves up to the next of them.
                Default: any offset.

        >>> [str(chunk) for chunk in OffsetRange("a", 0, 0, 10).chunks(3)]
        ['a-0 [0, 3)', 'a-0 [3, 6)', 'a-0 [6, 10)']
        >>> [str(chunk) for chunk in OffsetRange("a", 0, 0, 10).chunks(3, at=[0, 5, 9])]
        ['a-0 [0, 5)', 'a-0 [5, 9)', 'a-0 [9, 10)']
        """
        cuts = [self.start + self.count * number // count for number in range(1, count)]
        if at is not None:
            places = (bisect_left(at, cut) for cut in cuts)
            cuts = [at[place] for place in places if place < len(at)]
        inside = {cut for cut in cuts if self.start < cut < self.until}
        bounds = sorted(inside | {self.start, self.until})
        return [self._between(start, until) for start, until in pairwise(bounds)]

    def split_by(self, cover: Iterable["OffsetRange"]) -> Iterator[tuple["OffsetRange", bool]]:
        """Split where the cover begins and ends: the parts, and whether each is covered.

        The cover is of this partition, rising and disjoint, as `merge` returns it.

        >>> parts = OffsetRange("a", 0, 0, 10).split_by([OffsetRange("a", 0, 4, 6)])
        >>> [(str(part), covered) for part, covered in parts]
        [('a-0 [0, 4)', False), ('a-0 [4, 6)', True), ('a-0 [6, 10)', False)]
        """
        start = self.start
        for each in cover:
            if shared := self.intersect(each):
                if start < shared.start:
                    yield self._between(start, shared.start), False
                yield shared, True
                start = shared.until
        if start < self.until:
            yield self._between(start, self.until), False

    def subtract(self, cover: Iterable["OffsetRange"]) -> list["OffsetRange"]:
        """The parts that are not covered; for ``cover`` see `split_by`."""
        return [part for part, covered in self.split_by(cover) if not covered]


def merge(ranges: Iterable[OffsetRange]) -> Mapping[TopicPartition, Sequence[OffsetRange]]:
    """The same offsets in as few ranges as possible, by partition and in rising order.

    >>> merged = merge([OffsetRange("a", 0, 5, 9), OffsetRange("a", 0, 1, 5)])
    >>> [str(each) for each in merged[TopicPartition("a", 0)]]
    ['a-0 [1, 9)']
    """
    merged: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for each in sorted(ranges):
        same = merged[each.topic_partition]
        if same and each.start <= same[-1].until:
            last = same.pop()
            same.append(last.topic_partition.range(last.start, max(last.until, each.until)))
        else:
            same.append(each)
    return merged


def hulls(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return one range of each partition, from its first to its last offset among the ranges."""
    by_partition: dict[TopicPartition, OffsetRange] = {}
    for offsets in sorted(ranges):
        known = by_partition.get(offsets.topic_partition, offsets)
        by_partition[offsets.topic_partition] = known.hull(offsets)
    return list(by_partition.values())


def shared_offsets(ranges: Iterable[OffsetRange]) -> OffsetRange | None:
    """Return the first offsets that two of the ranges share; None where they are disjoint.

    >>> print(shared_offsets([OffsetRange("a", 0, 0, 5), OffsetRange("a", 0, 3, 9)]))
    a-0 [3, 5)
    """
    # An empty range within another would hide that one from those after it.
    rising = sorted(offsets for offsets in ranges if offsets.count)
    reached: dict[TopicPartition, OffsetRange] = {}
    for offsets in rising:
        before = reached.get(offsets.topic_partition)
        if before is not None and (shared := before.intersect(offsets)) is not None:
            return shared
        reached[offsets.topic_partition] = offsets
    return None


class RangeSequence:
    """Finds gaps in, and overlaps of, ranges of one partition that come by rising start.

    Args:
        start: Start that the first range should have. Default: any.
    """

    def __init__(self, start: int | None = None) -> None:
        self._reached = start
        self.last: str | None = None
        """The name of the range that reached the highest offset so far."""

    def gap_before(self, offsets: OffsetRange) -> OffsetRange | None:
        """The offsets missing between the ranges so far and this one, the next."""
        if self._reached is None or offsets.start <= self._reached:
            return None
        return offsets.topic_partition.range(self._reached, offsets.start)

    def shared_with(self, offsets: OffsetRange) -> OffsetRange | None:
        """The offsets that this range, the next, shares with those so far."""
        if self._reached is None or offsets.start >= self._reached:
            return None
        return offsets.topic_partition.range(offsets.start, min(offsets.until, self._reached))

    def append(self, offsets: OffsetRange, name: str | None) -> None:
        """Go on behind this range."""
        if self._reached is None or offsets.until > self._reached:
            self._reached, self.last = offsets.until, name


def partitions_of(topics: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    """Every partition of the topics."""
    return [
        TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers
    ]


def nested(positions: Positions) -> dict[str, dict[str, int]]:
    """``{topic: {partition: offset}}``, sorted, partitions as text: the shape of Kafka's JSON."""
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(positions.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics


def flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The opposite of `nested`.

    Raises:
        ValueError, TypeError, AttributeError: It is not of that shape.
    """
    return {
        TopicPartition(topic, _partition(partition)): _offset(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def lists_of(ranges: Iterable[OffsetRange]) -> list[list[str | int]]:
    """``[topic, partition, start, until]`` of each range, as JSON can hold it."""
    return [[r.topic, r.partition, r.start, r.until] for r in ranges]


def ranges_of_lists(lists: object) -> list[OffsetRange]:
    """The opposite of `lists_of`, for ranges that are to be read.

    Raises:
        ValueError, TypeError: It is not of that shape, a range is empty, or two share an offset.
    """
    if not isinstance(lists, list):
        raise TypeError("it is no list of ranges")
    ranges = []
    for topic, partition, start, until in lists:
        if not isinstance(topic, str):
            raise TypeError(f"{topic!r} is not a topic")
        offsets = OffsetRange(topic, _offset(partition), _offset(start), _offset(until))
        if not 0 <= offsets.start < offsets.until:
            raise ValueError(f"{offsets} has no offsets")
        ranges.append(offsets)
    if (shared := shared_offsets(ranges)) is not None:
        raise ValueError(f"{shared} is in two ranges")
    return ranges


def _partition(partition: str) -> int:
    if not (partition.isascii() and partition.isdecimal()):
        raise ValueError(f"{partition!r} is not a partition")
    return int(partition)


def _offset(offset: object) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise TypeError(f"{offset!r} is not an offset")
    return offset
