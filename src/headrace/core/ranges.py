"""Ranges of offsets, and operations on them: split, chunk, intersect, subtract and merge."""

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
        """Return the range of this partition from ``start`` (included) to ``until`` (excluded)."""
        return OffsetRange(self.topic, self.partition, start, until)


Positions = Mapping[TopicPartition, int]
"""An offset for each partition: the offset of the next record to read."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets of one partition from ``start`` (included) to ``until`` (excluded).

    Methods that return several ranges return them in ascending order.
    """

    topic: str
    partition: int
    start: int
    until: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def count(self) -> int:
        """Number of offsets in the range. The range has fewer records if compaction left gaps."""
        return self.until - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.until})"

    def _between(self, start: int, until: int) -> "OffsetRange":
        return OffsetRange(self.topic, self.partition, start, until)

    def contains(self, other: "OffsetRange") -> bool:
        """Whether ``other`` is of the same partition and within this range."""
        same = self.topic_partition == other.topic_partition
        return same and self.start <= other.start and other.until <= self.until

    def intersect(self, other: "OffsetRange") -> "OffsetRange | None":
        """Return the range of offsets that are in both ranges; None without a common offset."""
        start, until = max(self.start, other.start), min(self.until, other.until)
        if start >= until or self.topic_partition != other.topic_partition:
            return None
        return self._between(start, until)

    def hull(self, other: "OffsetRange") -> "OffsetRange":
        """Return the smallest range that contains this range and ``other``, of one partition."""
        return self._between(min(self.start, other.start), max(self.until, other.until))

    def split_at(self, offset: int) -> tuple["OffsetRange", "OffsetRange"]:
        """Split the range before ``offset``. One result is empty for an offset outside the range.

        >>> [str(part) for part in OffsetRange("a", 0, 0, 10).split_at(4)]
        ['a-0 [0, 4)', 'a-0 [4, 10)']
        """
        cut = min(max(offset, self.start), self.until)
        return self._between(self.start, cut), self._between(cut, self.until)

    def chunks(self, count: int, at: Sequence[int] | None = None) -> list["OffsetRange"]:
        """Split the range into at most ``count`` chunks of about equal size; none is empty.

        Args:
            count: Largest number of chunks; 1 or more.
            at: The offsets at which the range may be split, in ascending order. A split between two
                of these offsets moves to the higher offset. Default: any offset.

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
        """Split the range into pieces inside and outside ``cover``.

        Yield each piece, and whether it is inside ``cover``. The ranges in ``cover`` must be of
        this partition, ascending and disjoint, as `merge` returns them.

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
        """Return the pieces of this range that are outside ``cover``.

        The ranges in ``cover`` must be ascending and disjoint, as in `split_by`.
        """
        return [part for part, covered in self.split_by(cover) if not covered]


def merge(ranges: Iterable[OffsetRange]) -> Mapping[TopicPartition, Sequence[OffsetRange]]:
    """Merge ranges that overlap or touch. Return the merged ranges of each partition, ascending.

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
    """Return one range for each partition, from the lowest start to the highest end."""
    by_partition: dict[TopicPartition, OffsetRange] = {}
    for offsets in sorted(ranges):
        hull = by_partition.get(offsets.topic_partition, offsets)
        by_partition[offsets.topic_partition] = hull.hull(offsets)
    return list(by_partition.values())


def shared_offsets(ranges: Iterable[OffsetRange]) -> OffsetRange | None:
    """Return the first overlap between two of the ranges; None if all ranges are disjoint.

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
    """Finds gaps and overlaps in a sequence of ranges of one partition.

    For each range, call `gap_before` and `shared_with`, then `append`. The ranges must come in
    ascending order of their starts.

    Args:
        start: The expected start of the first range. Default: any start.
    """

    def __init__(self, start: int | None = None) -> None:
        self._reached = start
        self.last: str | None = None
        """Name of the appended range with the highest end so far; None before the first range."""

    def gap_before(self, offsets: OffsetRange) -> OffsetRange | None:
        """Return the gap between the appended ranges and ``offsets``; None without a gap."""
        if self._reached is None or offsets.start <= self._reached:
            return None
        return offsets.topic_partition.range(self._reached, offsets.start)

    def shared_with(self, offsets: OffsetRange) -> OffsetRange | None:
        """Return the overlap of ``offsets`` with the appended ranges; None without overlap."""
        if self._reached is None or offsets.start >= self._reached:
            return None
        return offsets.topic_partition.range(offsets.start, min(offsets.until, self._reached))

    def append(self, offsets: OffsetRange, name: str | None) -> None:
        """Append a range. ``name`` becomes `last` if the range has the highest end so far."""
        if self._reached is None or offsets.until > self._reached:
            self._reached, self.last = offsets.until, name


def partitions_of(topics: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    """Return a `TopicPartition` for each partition number of each topic."""
    return [
        TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers
    ]


def nested(positions: Positions) -> dict[str, dict[str, int]]:
    """Return positions as ``{topic: {partition: offset}}``, the form of Spark's JSON of offsets.

    Topics and partitions are sorted, and partitions are texts.
    """
    topics: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(positions.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return topics


def flat(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return positions from the form that `nested` returns.

    Raises:
        ValueError, TypeError, AttributeError: The value has another form.
    """
    return {
        TopicPartition(topic, _partition(partition)): _offset(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def lists_of(ranges: Iterable[OffsetRange]) -> list[list[str | int]]:
    """Return each range as a list ``[topic, partition, start, until]``, for JSON."""
    return [[r.topic, r.partition, r.start, r.until] for r in ranges]


def ranges_of_lists(lists: object) -> list[OffsetRange]:
    """Return ranges from the form that `lists_of` returns.

    Raises:
        ValueError, TypeError: The value has another form, a range is empty, or two ranges share an
            offset.
    """
    if not isinstance(lists, list):
        raise TypeError("it is not a list of ranges")
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
