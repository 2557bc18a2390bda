"""A log of records as a source sees it: topics, their partitions, and the offsets in each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import pyarrow as pa

from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.gate.source.stream_offset import Checksums, ChecksumsBefore

if TYPE_CHECKING:
    from headrace.gate.ledger.records import PlannedRange

HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
)
ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""Every column of a record batch, in the native connector's order; ``headers`` only on request."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now.

    Attributes:
        topic_id: id that distinguishes a topic from a later one of the same name; None on brokers
            before 2.8.
        partitions: the partitions' numbers, rising.
    """

    topic_id: str | None
    partitions: tuple[int, ...]

    def may_be(self, topic_id: str | None) -> bool:
        """Whether it has this id, as far as both are known."""
        return None in {topic_id, self.topic_id} or topic_id == self.topic_id


class Log(Protocol):
    """Log that a source reads: some topics, and some partitions of each.

    Every method raises ``BrokerError``, or ``JournalError``, where the log cannot be reached.
    """

    @property
    def name(self) -> str:
        """Name of the log in messages, such as Kafka."""

    @property
    def source(self) -> str:
        """Name of the log in a gate's reader, such as kafka."""

    @property
    def servers(self) -> str:
        """Address of the log, without secrets."""

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        """The topics that exist now; `SourceError` where ``must_exist`` is set and one does not."""

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Return the partitions of the topics that are read."""

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the first offset of each partition's log."""

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the end of each partition's log."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """``(earliest, latest)``, at the same time."""

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the written end of each partition's log, whether it can be read yet or not."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """The first offset whose record is at or after the time (ms); None where there is none."""

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Return the mean size of a record (bytes), by topic."""

    def readable_until(self, latest: Positions) -> Positions:
        """The offset up to which records can be read, such as Kafka's last stable offset.

        ``latest`` is the last answer of `latest` or `bounds`.
        """

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        """The names of aborted attempts, whose records the readers of these ranges skip."""

    def processed(self, positions: Positions) -> None:
        """Take note that everything before these offsets has been processed."""

    def close(self) -> None:
        """Release its resources."""


@runtime_checkable
class CheckedLog(Protocol):
    """Further answers of a log such as a journal, which never gives an offset twice.

    A log without them may give offsets to other records once it has lost its end, and is read on
    from there. Every method raises ``JournalError`` where the log cannot be reached.
    """

    @property
    def cut(self) -> str:
        """Advice for a log that has lost its end."""

    def checksums(self, positions: Positions) -> Checksums:
        """Return checksums that distinguish the log up to each position from any other.

        No position is beyond the last answer of `latest` or `bounds`. Known checksums are returned,
        none of them 0.
        """

    def check_continues(self, after: ChecksumsBefore) -> None:
        """Refuse a log in which something else is before an offset now than was read there.

        This is as far as `latest` or `bounds` have just seen it, at no cost; the rest is found when
        these offsets are read.

        Raises:
            DataLossError: To read on would leave out what is new before that offset.
        """

    def lost(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges among the offsets that are known to be lost."""


def declared_lost(log: Log, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges among the offsets that are known to be lost."""
    return log.lost(ranges) if isinstance(log, CheckedLog) else []


def beginnings(log: Log, ranges: "Sequence[PlannedRange]") -> Positions:
    """Return the first offset of each of these partitions whose topic is as planned."""
    return log.earliest(as_planned(log, ranges))


def gone(log: Log, ranges: "Sequence[PlannedRange]") -> list[OffsetRange]:
    """Return the parts of the ranges that are not in the log any more; all of a missing topic's.

    A topic that was recreated under its name is not the one that was planned. Ranges that were
    declared lost are not in the log any more either, wherever they lie.
    """
    begins = beginnings(log, ranges)
    found: list[OffsetRange] = []
    for planned in ranges:
        offsets = planned.offsets
        begin = begins.get(offsets.topic_partition, offsets.until)
        missing, there = offsets.split_at(begin)
        found += [missing] if missing.count else []
        found += declared_lost(log, [there]) if there.count else []
    return found


def as_planned(log: Log, ranges: "Sequence[PlannedRange]") -> list[TopicPartition]:
    """The partitions of these ranges that are as planned."""
    topics = log.topics()
    return sorted({each.offsets.topic_partition for each in ranges if _is_of(each, topics)})


def _is_of(planned: "PlannedRange", topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(planned.offsets.topic)
    if topic is None or planned.offsets.partition not in topic.partitions:
        return False
    return None in {planned.topic_id, topic.topic_id} or planned.topic_id == topic.topic_id
