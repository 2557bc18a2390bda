"""Ranges of offsets and their operations: split, chunk, intersect, subtract, merge."""

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
        """Return the offsets ``start`` (included) to ``until`` (excluded) of this partition."""
        return OffsetRange(self.topic, self.partition, start, until)


Positions = Mapping[TopicPartition, int]
"""Offset of each partition; as the end of a read, the offset after the last record read."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``start`` (included) to ``until`` (excluded) of one partition.

    Operations return ranges of the same partition, in ascending order.
    """

    topic: str
    partition: int
    start: int
    until: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def count(self) -> int:
        """Number of offsets: an upper bound of the records, because compaction leaves gaps."""
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.until})"

    def _between(self, start: int, until: int) -> "OffsetRange":
        return OffsetRange(self.topic, self.partition, start, until)

    def contains(self, other: "OffsetRange") -> bool:
        """Whether ``other`` lies within this range, in the same partition."""
        same = self.topic_partition == other.topic_partition
        return same and self.start <= other.start and other.until <= self.until

    def intersect(self, other: "OffsetRange") -> "OffsetRange | None":
        """Return the offsets in both ranges; None for disjoint ranges or different partitions."""
        start, until = max(self.start, other.start), min(self.until, other.until)
        if start >= until or self.topic_partition != other.topic_partition:
            return None
        return self._between(start, until)

    def hull(self, other: "OffsetRange") -> "OffsetRange":
        """Return the smallest range with both ranges, which must have the same partition."""
        return self._between(min(self.start, other.start), max(self.until, other.until))

    def split_at(self, offset: int) -> tuple["OffsetRange", "OffsetRange"]:
        """Split the range before ``offset``; one side is empty if ``offset`` lies outside.

        >>> [str(part) for part in OffsetRange("a", 0, 0, 10).split_at(4)]
        ['a-0 [0, 4)', 'a-0 [4, 10)']
        """
        cut = min(max(offset, self.start), self.until)
        return self._between(self.start, cut), self._between(cut, self.until)

    def chunks(self, count: int, at: Sequence[int] | None = None) -> list["OffsetRange"]:
        """Split the range into up to ``count`` (1 or more) non-empty chunks of about equal size.

        ``at`` lists the only offsets at which to split, ascending; each split moves up to the next
        of these offsets. Default: split at any offset.

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
        """Split the range at the ends of ``cover``; yield each piece and whether it is covered.

        ``cover`` is ascending, disjoint and of this partition, as `merge` returns it.

        >>> parts = OffsetRange("a", 0, 0, 10).split_by([OffsetRange("a", 0, 4, 6)])
        >>> [(str(part), covered) for part, covered in parts]
        [('a-0 [0, 4)', False), ('a-0 [4, 6)', True), ('a-0 [6, 10)', False)]
        """
        start = self.start
        for piece in cover:
            if shared := self.intersect(piece):
                if start < shared.start:
                    yield self._between(start, shared.start), False
                yield shared, True
                start = shared.until
        if start < self.until:
            yield self._between(start, self.until), False

    def subtract(self, cover: Iterable["OffsetRange"]) -> list["OffsetRange"]:
        """Return the pieces outside ``cover``, which is ascending and disjoint as in `split_by`."""
        return [part for part, covered in self.split_by(cover) if not covered]


def merge(ranges: Iterable[OffsetRange]) -> Mapping[TopicPartition, Sequence[OffsetRange]]:
    """Merge ranges into as few ranges as possible, by partition and in ascending order.

    >>> merged = merge([OffsetRange("a", 0, 5, 9), OffsetRange("a", 0, 1, 5)])
    >>> [str(range_) for range_ in merged[TopicPartition("a", 0)]]
    ['a-0 [1, 9)']
    """
    merged: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for range_ in sorted(ranges):
        same = merged[range_.topic_partition]
        if same and range_.start <= same[-1].until:
            last = same.pop()
            same.append(last.topic_partition.range(last.start, max(last.until, range_.until)))
        else:
            same.append(range_)
    return merged


def hulls(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return one range for each partition, from its first to its last offset."""
    by_partition: dict[TopicPartition, OffsetRange] = {}
    for offsets in sorted(ranges):
        hull = by_partition.get(offsets.topic_partition, offsets)
        by_partition[offsets.topic_partition] = hull.hull(offsets)
    return list(by_partition.values())


def shared_offsets(ranges: Iterable[OffsetRange]) -> OffsetRange | None:
    """Return the first offsets that two ranges share; None if the ranges are disjoint.

    >>> print(shared_offsets([OffsetRange("a", 0, 0, 5), OffsetRange("a", 0, 3, 9)]))
    a-0 [3, 5)
    """
    # An empty range within a range would replace it in `reached`, and hide later overlaps.
    rising = sorted(offsets for offsets in ranges if offsets.count)
    reached: dict[TopicPartition, OffsetRange] = {}
    for offsets in rising:
        before = reached.get(offsets.topic_partition)
        if before is not None and (shared := before.intersect(offsets)) is not None:
            return shared
        reached[offsets.topic_partition] = offsets
    return None


class RangeSequence:
    """Detects gaps and overlaps in ranges of one partition, which are appended by ascending start.

    ``start`` is the expected start of the first range. Default: any start.
    """

    def __init__(self, start: int | None = None) -> None:
        self._reached = start
        self.last: str | None = None
        """Name of the range that reached the highest offset so far."""

    def gap_before(self, offsets: OffsetRange) -> OffsetRange | None:
        """Return the gap between the appended ranges and ``offsets``, the next range, or None."""
        if self._reached is None or offsets.start <= self._reached:
            return None
        return offsets.topic_partition.range(self._reached, offsets.start)

    def shared_with(self, offsets: OffsetRange) -> OffsetRange | None:
        """Return the overlap of the appended ranges and ``offsets``, the next range, or None."""
        if self._reached is None or offsets.start >= self._reached:
            return None
        return offsets.topic_partition.range(offsets.start, min(offsets.until, self._reached))

    def append(self, offsets: OffsetRange, name: str | None) -> None:
        """Append a range with a name for `last`."""
        if self._reached is None or offsets.until > self._reached:
            self._reached, self.last = offsets.until, name


def partitions_of(topics: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    """Return all partitions of the topics."""
    return [
        TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers
    ]


def nested(positions: Positions) -> dict[str, dict[str, int]]:
    """Return sorted ``{topic: {partition: offset}}``, partitions as text, as in Kafka's JSON."""
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(positions.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics


def flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Invert `nested`; ValueError, TypeError or AttributeError for values of another form."""
    return {
        TopicPartition(topic, _partition(partition)): _offset(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def lists_of(ranges: Iterable[OffsetRange]) -> list[list[str | int]]:
    """Return ``[topic, partition, start, until]`` of each range, for JSON."""
    return [[r.topic, r.partition, r.start, r.until] for r in ranges]


def ranges_of_lists(lists: object) -> list[OffsetRange]:
    """Invert `lists_of`, for ranges that are to be read.

    ValueError or TypeError if ``lists`` has another form, a range is empty, or two ranges share an
    offset.
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
