"""A log of records as a source sees it: topics, their partitions, and the offsets in each.

Kafka and journals are logs: a lane is a partition, a journal's name a topic, and a journal's id a
topic's id. So one planner serves both.
"""

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
"""All columns of a record batch, in the native connector's order; ``headers`` only on request."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic at this moment.

    Attributes:
        topic_id: Id that distinguishes the topic from a later topic of the same name; None on
            brokers before 2.8.
        partitions: The partitions' numbers, ascending.
    """

    topic_id: str | None
    partitions: tuple[int, ...]

    def may_be(self, topic_id: str | None) -> bool:
        """Return whether the topic has this id, as far as both ids are known."""
        return None in {topic_id, self.topic_id} or topic_id == self.topic_id


class Log(Protocol):
    """Log that a source reads: some topics, and some partitions of each.

    Every method raises ``BrokerError`` or ``JournalError`` if the log cannot be reached.
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
        """Return the existing topics; raise `SourceError` for a missing one if ``must_exist``."""

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Return the partitions of the topics that are read."""

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the first offset of each partition's log."""

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the end of each partition's log."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """Return ``(earliest, latest)`` of each partition, at the same time."""

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the written end of each partition's log, even beyond the readable records."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of the first record at or after a time (ms), or None without one."""

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Return the mean size of a record (bytes), by topic."""

    def readable_until(self, latest: Positions) -> Positions:
        """Return the offset up to which records can be read (Kafka's last stable offset).

        ``latest`` is the last answer of `latest` or `bounds`.
        """

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        """Return the names of aborted attempts, whose records the readers of these ranges skip."""

    def processed(self, positions: Positions) -> None:
        """Note that all records before these offsets have been processed."""

    def close(self) -> None:
        """Release the log's resources."""


@runtime_checkable
class CheckedLog(Protocol):
    """Additional methods of a log that never reuses an offset, such as a journal.

    Any other log may reuse offsets for new records after a loss of its end, and reading continues
    from the new end. Every method raises ``JournalError`` if the log cannot be reached.
    """

    @property
    def cut(self) -> str:
        """Advice for a log that has lost its end."""

    def checksums(self, positions: Positions) -> Checksums:
        """Return checksums that distinguish the log up to each position from any other log.

        No position may be beyond the last answer of `latest` or `bounds`. Only known checksums are
        returned, and none of them is 0.
        """

    def check_continues(self, after: ChecksumsBefore) -> None:
        """Refuse a log whose records before an offset differ from the records read there.

        The check covers the offsets that `latest` or `bounds` have just seen, and costs no request.
        Reads of the batch check the other offsets. DataLossError is raised if reading on would skip
        the new records before an offset.
        """

    def lost(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges among the offsets that are known to be lost."""


def declared_lost(log: Log, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges among the offsets that are known to be lost; none for other logs."""
    return log.lost(ranges) if isinstance(log, CheckedLog) else []


def beginnings(log: Log, ranges: "Sequence[PlannedRange]") -> Positions:
    """Return the first offset of each of these partitions whose topic is as planned."""
    return log.earliest(as_planned(log, ranges))


def gone(log: Log, ranges: "Sequence[PlannedRange]") -> list[OffsetRange]:
    """Return the chunks of the ranges that the log no longer has; all of a missing topic's.

    A topic that was recreated under its name is another topic. Ranges that were declared lost are
    gone too, wherever they lie.
    """
    begins = beginnings(log, ranges)
    missing_ranges: list[OffsetRange] = []
    for planned in ranges:
        offsets = planned.offsets
        begin = begins.get(offsets.topic_partition, offsets.until)
        missing, remaining = offsets.split_at(begin)
        missing_ranges += [missing] if missing.count else []
        missing_ranges += declared_lost(log, [remaining]) if remaining.count else []
    return missing_ranges


def as_planned(log: Log, ranges: "Sequence[PlannedRange]") -> list[TopicPartition]:
    """Return the existing partitions of these ranges whose topic is the planned one."""
    topics = log.topics()
    return sorted(
        {
            planned_range.offsets.topic_partition
            for planned_range in ranges
            if _is_of(planned_range, topics)
        }
    )


def _is_of(planned: "PlannedRange", topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(planned.offsets.topic)
    if topic is None or planned.offsets.partition not in topic.partitions:
        return False
    return None in {planned.topic_id, topic.topic_id} or planned.topic_id == topic.topic_id
