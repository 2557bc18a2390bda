"""A source that can be read again without Spark: a frame is the list of its offsets."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from headrace.core.ranges import OffsetRange
from headrace.execution import Batch
from headrace.execution.batch_reader import BatchReader
from headrace.kafka.kafka_connector import KAFKA
from headrace.ledger import DeadLetter, ErrorReport, PlannedRange

Place = tuple[int, int]
"""Partition and offset."""


def places(ranges: Sequence[OffsetRange]) -> list[Place]:
    return [(r.partition, offset) for r in ranges for offset in range(r.start, r.until)]


def frame(ranges: Sequence[OffsetRange]) -> DataFrame:
    """What a handler here is given in place of a data frame."""
    return cast(DataFrame, places(ranges))


AWAY = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/headrace/kafka/reader.py", line 103, in read
headrace.errors.BrokerError: Kafka gave nothing of orders-0 [3, 4) for 5000 ms.
It happened while Headrace read the source.
"""
"""What Spark says where a task could not reach the brokers."""


class FakeReader(BatchReader):
    """Reads nothing.

    Args:
        gaps: offsets at which there is no record.
        is_away: answers whether the source cannot be reached for a read of these places.
    """

    def __init__(
        self,
        gaps: Collection[Place] = (),
        is_away: Callable[[list[Place]], bool] = lambda _places: False,
    ) -> None:
        super().__init__(
            cast(SparkSession, None), KAFKA, {"kafka.bootstrap.servers": "nowhere:9092"}
        )
        object.__setattr__(self, "gaps", set(gaps))
        object.__setattr__(self, "is_away", is_away)

    def run(self, ranges: Sequence[PlannedRange], use: Callable[[DataFrame], None]) -> None:
        offsets = [each.offsets for each in ranges]
        if cast(Any, self).is_away(places(offsets)):
            raise PythonException(message=AWAY)
        use(frame(offsets))

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        return []

    def dead_letter(self, planned: PlannedRange, error: BaseException) -> DeadLetter | None:
        offset = planned.offsets
        (place,) = places([offset])
        if place in cast(Any, self).gaps:
            return None
        return DeadLetter(
            topic=offset.topic,
            partition=offset.partition,
            offset=offset.start,
            key=None,
            value=str(place).encode(),
            headers=None,
            timestamp_ms=0,
            timestamp_type=0,
            error=ErrorReport.of(error),
        )


class Poisoned(Exception):  # noqa: N818  (the tests' own)
    """What the sink raises."""


class Killed(BaseException):
    """The process's end."""


@dataclass
class KeyedSink:
    """Keeps what it is given under each batch's key, over what is there already.

    Attributes:
        bad: what it cannot keep.
        kill_at: the call, counted from 1, in which the process ends, after the sink has written.
    """

    bad: Collection[Place] = ()
    kill_at: int | None = None
    calls: int = 0
    kept: dict[str, list[Place]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        given = cast(list[Place], df)
        self.calls += 1
        self.batches.append(batch)
        assert given == places(batch.ranges)
        found = [place for place in given if place in self.bad]
        if found:
            raise Poisoned(f"cannot keep {found[0]}")
        self.kept[batch.key] = given
        if self.calls == self.kill_at:
            raise Killed

    @property
    def everything(self) -> list[Place]:
        return sorted(place for kept in self.kept.values() for place in kept)
