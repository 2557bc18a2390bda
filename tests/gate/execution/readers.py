"""Sources for the tests of batches that fail, and a sink that fails."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row
from sqlalchemy import Engine, create_engine

from headrace.core.ranges import OffsetRange
from headrace.errors import BrokerError
from headrace.gate.execution.batch import Batch
from headrace.testing import MemoryLog, MemoryReader

Place = tuple[int, int]
"""Partition and offset."""


def places(ranges: Sequence[OffsetRange]) -> list[Place]:
    return [(r.partition, offset) for r in ranges for offset in range(r.start, r.until)]


AWAY = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/headrace/gate/kafka/reader.py", line 103, in read
headrace.errors.BrokerError: Kafka sent no records of orders-0 [3, 4) for 5000 ms.
It happened while Headrace read the source, or a schema.
"""
"""Spark's message where a task could not reach the brokers."""


class OrdersLog(MemoryLog):
    """Both partitions of the topic of these tests.

    Args:
        is_away: answers whether the brokers cannot be reached for a read of these places.
    """

    def __init__(self, is_away: Callable[[list[Place]], bool] = lambda _places: False) -> None:
        super().__init__(topic="orders-topic", partitions=2)
        for partition in range(2):
            self.append(*[b"an order"] * 200, partition=partition)
        self._is_away = is_away

    def read(self, ranges: Iterable[OffsetRange]) -> list[Row]:
        asked = list(ranges)
        if self._is_away(places(asked)):
            raise BrokerError("Kafka sent no records of orders-0 [3, 4) for 5000 ms.")
        return super().read(asked)


READER = MemoryReader(OrdersLog())


class Poisoned(Exception):  # noqa: N818  (the tests' own)
    """The exception that the sink raises."""


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
        df.collect()
        given = places(batch.ranges)
        self.calls += 1
        self.batches.append(batch)
        found = [place for place in given if place in self.bad]
        if found:
            self.refuse(found[0])
        self.kept[batch.key] = given
        if self.calls == self.kill_at:
            raise Killed

    def refuse(self, bad: Place) -> None:
        """Raise what a batch with this record raises."""
        raise Poisoned(f"cannot keep {bad}")

    @property
    def everything(self) -> list[Place]:
        return sorted(place for kept in self.kept.values() for place in kept)


@dataclass
class OnceSink(KeyedSink):
    """Keeps the same in a database that knows which batches it has, as `Batch.once` says.

    At an odd call the process ends before the database has committed, at an even one after that.

    Attributes:
        database: where it is kept.
    """

    database: Engine = field(default_factory=lambda: create_engine("sqlite://"))

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        df.collect()
        given = places(batch.ranges)
        self.calls += 1
        with self.database.begin() as connection:
            if batch.once(connection):
                found = [place for place in given if place in self.bad]
                if found:
                    self.refuse(found[0])
                if self.calls == self.kill_at and self.calls % 2:
                    raise Killed
                self.kept[batch.key] = given
        if self.calls == self.kill_at:
            raise Killed
