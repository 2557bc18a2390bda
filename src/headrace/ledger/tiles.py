"""Ranges laid side by side: what lies between them, and what two of them share."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.core.ranges import OffsetRange, TopicPartition


class Tiles:
    """Ranges of one partition, which come by their starts and are to follow each other.

    Args:
        start: Where the first is to begin, if that is known.
    """

    def __init__(self, start: int | None = None) -> None:
        self.reached = start
        """The offset behind all of them."""
        self.last: str | None = None
        """The name of the one that reached it."""

    def gap_before(self, offsets: OffsetRange) -> OffsetRange | None:
        """What is left out before this range, which is the next."""
        if self.reached is None or offsets.start <= self.reached:
            return None
        return replace(offsets, start=self.reached, until=offsets.start)

    def shared_with(self, offsets: OffsetRange) -> OffsetRange | None:
        """What this range, which is the next, has in common with those before it."""
        if self.reached is None or offsets.start >= self.reached:
            return None
        return replace(offsets, until=min(offsets.until, self.reached))

    def lay(self, offsets: OffsetRange, name: str | None) -> None:
        """Go on behind this range."""
        if self.reached is None or offsets.until > self.reached:
            self.reached, self.last = offsets.until, name


def merged(ranges: Iterable[OffsetRange]) -> Mapping[TopicPartition, Sequence[OffsetRange]]:
    """The same offsets by partition, in as few ranges as can be, by their starts.

    >>> found = merged([OffsetRange("a", 0, 5, 9), OffsetRange("a", 0, 1, 5)])
    >>> [str(each) for each in found[TopicPartition("a", 0)]]
    ['a-0 [1, 9)']
    """
    found: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    for each in sorted(ranges):
        same = found[each.topic_partition]
        if same and each.start <= same[-1].until:
            same[-1] = replace(same[-1], until=max(same[-1].until, each.until))
        else:
            same.append(each)
    return found


def pieces(
    offsets: OffsetRange, cover: Sequence[OffsetRange]
) -> Iterator[tuple[OffsetRange, bool]]:
    """Cut a range where others begin and end: its pieces, in order, and whether each is in one.

    Args:
        offsets: The range.
        cover: Ranges of its partition that are `merged`.

    >>> whole, cover = OffsetRange("a", 0, 0, 10), [OffsetRange("a", 0, 4, 6)]
    >>> [(str(piece), covered) for piece, covered in pieces(whole, cover)]
    [('a-0 [0, 4)', False), ('a-0 [4, 6)', True), ('a-0 [6, 10)', False)]
    """
    at = offsets.start
    for each in cover:
        start, until = max(each.start, at), min(each.until, offsets.until)
        if start < until:
            if at < start:
                yield replace(offsets, start=at, until=start), False
            yield replace(offsets, start=start, until=until), True
            at = until
    if at < offsets.until:
        yield replace(offsets, start=at), False
