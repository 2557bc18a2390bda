"""Interface of a log that a source reads: topics, their partitions, and the offsets in each.

Kafka and Headrace's journals are logs. A journal's name is a topic, the journal's id is the
topic's id, and a lane is a partition. So one planner serves Kafka and journals.
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
"""All columns of a record batch, in the native connector's order. ``headers`` is optional."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Id and partitions of a topic, at the time when the log listed its topics.

    Attributes:
        topic_id: Id that distinguishes the topic from a later topic of the same name; None on
            brokers before 2.8.
        partitions: The partitions' numbers, ascending.
    """

    topic_id: str | None
    partitions: tuple[int, ...]

    def may_be(self, topic_id: str | None) -> bool:
        """Return whether the topic can have this id: both are equal, or one of them is unknown."""
        return None in {topic_id, self.topic_id} or topic_id == self.topic_id


class Log(Protocol):
    """Log that a source reads: selected topics, and selected partitions of each topic.

    Every method raises ``BrokerError`` or ``JournalError`` if the log cannot be reached.
    """

    @property
    def name(self) -> str:
        """Name of the log in messages, such as Kafka."""

    @property
    def source(self) -> str:
        """Name of the source in `Gate.read`, such as kafka."""

    @property
    def servers(self) -> str:
        """Address of the log, without secrets."""

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        """Return the existing topics. With ``must_exist``, a missing topic raises `SourceError`."""

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Return the partitions that the source reads from these topics."""

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the first offset of each partition's log."""

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the end offset of each partition's log."""

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """Return the first offset and the end offset of each partition, as of the same moment."""

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Return the offset after each partition's last written record, readable or not."""

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Return, by partition, the offset of the first record at or after a time (ms), or None."""

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Return the mean size of a record (bytes) between two positions, by topic."""

    def readable_until(self, latest: Positions) -> Positions:
        """Return the offset up to which records can be read (Kafka's last stable offset).

        ``latest`` is the newest result of `latest` or `bounds`.
        """

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        """Return the names of aborted stage attempts. Their records in these ranges are skipped."""

    def processed(self, positions: Positions) -> None:
        """Note that all records before these offsets have been processed."""

    def close(self) -> None:
        """Release the log's resources."""


@runtime_checkable
class CheckedLog(Protocol):
    """Additional methods of a log that never reuses an offset, such as a journal.

    Kafka may lose its last records and then use their offsets for new records; a query then reads
    on from the new end. Every method raises ``JournalError`` if the log cannot be reached.
    """

    @property
    def cut(self) -> str:
        """Advice to the user, for the error about a log that has lost its last records."""

    def checksums(self, positions: Positions) -> Checksums:
        """Return, for each position, a checksum that identifies all records before it.

        No position may be beyond the newest result of `latest` or `bounds`. Partitions with an
        unknown checksum are left out. A checksum is never 0.
        """

    def check_continues(self, after: ChecksumsBefore) -> None:
        """Raise `DataLossError` if the records before an offset have changed since they were read.

        A query that continued from the offset would skip the new records before it. The check
        covers the offsets that `latest` or `bounds` have just seen, and costs no request. The tasks
        check the other offsets when they read the batch.
        """

    def lost(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the chunks of these ranges that the log has declared lost."""


def declared_lost(log: Log, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the chunks of these ranges that a `CheckedLog` has declared lost, else nothing."""
    return log.lost(ranges) if isinstance(log, CheckedLog) else []


def beginnings(log: Log, ranges: "Sequence[PlannedRange]") -> Positions:
    """Return the first offset in each partition of these ranges, if its topic still exists."""
    return log.earliest(as_planned(log, ranges))


def gone(log: Log, ranges: "Sequence[PlannedRange]") -> list[OffsetRange]:
    """Return the chunks of planned ranges that the log no longer has.

    All ranges of a deleted topic are gone, even if a topic of the same name was created since.
    Ranges that the log has declared lost are gone too, even after the log's first offset.
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
    """Return the partitions of these ranges whose topic still exists under the planned id."""
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
