"""The two values that every part of Headrace speaks of: a partition, and a range of its offsets."""

from dataclasses import dataclass
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of a Kafka topic, or one lane of a journal."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``start`` (included) to ``until`` (excluded) of one partition."""

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
