"""Count what arrives, record by record, to say at the end what is missing and what came twice."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.printing import count
from headrace.control import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Finding:
    """What an audit found.

    Attributes:
        expected: How many records there were to arrive.
        arrived: How many arrivals there were, second ones included.
        missing: How many were lost: they never arrived, and do not wait in Kafka either.
        twice: How many arrived more than once, or were never sent.
    """

    expected: int
    arrived: int
    missing: int
    twice: int

    @property
    def passed(self) -> bool:
        """Whether every record arrived exactly once."""
        return self.missing == 0 and self.twice == 0

    def __str__(self) -> str:
        missing, twice = (count(n) if n else "none" for n in (self.missing, self.twice))
        return f"{missing} missing, {twice} twice"


class OrderAudit:
    """Counts orders by their numbers, in one byte each.

    One thread tells it of arrivals; others may read :attr:`arrived` meanwhile.
    """

    def __init__(self) -> None:
        self._times = bytearray()
        self.arrived = 0
        """Arrivals so far."""

    def add(self, ids: Iterable[int]) -> None:
        """Take orders that were processed into account; their numbers are 0 or more."""
        for number in ids:
            if number >= len(self._times):
                self._times.extend(bytes(number + 1 - len(self._times)))
            self._times[number] = min(self._times[number] + 1, 255)
            self.arrived += 1

    def finding(self, produced: int, waiting: int = 0) -> Finding:
        """Compare with what was sent.

        Args:
            produced: The orders 0 up to this were sent.
            waiting: How many of them have not been admitted yet, and are still in Kafka.
        """
        sent, never_sent = self._times[:produced], self._times[produced:]
        unseen = produced - len(sent)
        strangers = len(never_sent) - never_sent.count(0)
        return Finding(
            expected=produced,
            arrived=self.arrived,
            missing=max(sent.count(0) + unseen - waiting, 0),
            twice=len(sent) - sent.count(0) - sent.count(1) + strangers,
        )


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a batch held of one partition.

    Attributes:
        records: How many records.
        offsets: How many different offsets they had.
        first: The lowest of these.
        last: The highest.
    """

    records: int
    offsets: int
    first: int
    last: int


class OffsetAudit:
    """Counts the records of a topic of which only the offsets are known.

    Each partition's batches have to follow one another without a gap, and every offset may come
    once. An offset of a range that holds no record is no fault: compaction and transactions leave
    such gaps.
    """

    def __init__(self) -> None:
        self._next: dict[TopicPartition, int] = {}
        self._missing = self._twice = 0
        self.arrived = self.offsets = 0
        """Records so far, and the offsets that were read for them."""

    def add(self, ranges: Sequence[OffsetRange], arrived: Mapping[TopicPartition, Arrived]) -> None:
        """Take a batch into account: its ranges, and what was found in each partition."""
        for each in ranges:
            expected = self._next.get(each.topic_partition, each.start)
            self._missing += max(each.start - expected, 0)
            self._twice += max(min(expected, each.until) - each.start, 0)
            self._next[each.topic_partition] = max(expected, each.until)
            self.offsets += each.count
        bounds = {each.topic_partition: each for each in ranges}
        for partition, found in arrived.items():
            self.arrived += found.records
            self._twice += found.records - found.offsets
            if not _holds(bounds.get(partition), found):
                self._twice += found.records

    def finding(self) -> Finding:
        """What was found so far."""
        return Finding(self.arrived, self.arrived, self._missing, self._twice)


def _holds(bounds: OffsetRange | None, found: Arrived) -> bool:
    return bounds is not None and bounds.start <= found.first and found.last < bounds.until
