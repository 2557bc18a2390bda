"""Reading ranges with the task side's reader, as plain values."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import IsolationLevel, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.services.kafka import Topic
from tests.services.waiting import wait_until

from headrace.core.native import Engine
from headrace.core.ranges import OffsetRange
from headrace.gate.kafka.consumers import ClientConfig
from headrace.gate.kafka.native_reader import range_read
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges
from headrace.gate.source.log import ARROW_SCHEMA
from headrace.gate.source.losses import Losses

Row = dict[str, Any]

engine: Engine = Engine.PYTHON
"""The engine of `reader_config`; the fixture ``engine`` sets it."""


def client(servers: str, **settings: str | float | bool) -> ClientConfig:
    """Consumer settings; of names with dots, write ``_`` for the dot."""
    return {
        "bootstrap.servers": servers,
        "group.id": "headrace-tests",
        "isolation.level": "read_uncommitted",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def reader_config(
    servers: str,
    *,
    columns: Sequence[str] = ARROW_SCHEMA.names,
    fail_on_data_loss: bool = True,
    timeout_ms: int = 20_000,
    batch_bytes: int = 4 * 1024 * 1024,
    **settings: str | float | bool,
) -> ReaderConfig:
    return ReaderConfig(
        client=client(servers, **settings),
        columns=tuple(columns),
        on_loss=Losses("Kafka", fail_on_data_loss).pass_over,
        timeout_ms=timeout_ms,
        batch_bytes=batch_bytes,
        read=range_read(engine),
    )


def rows(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(config: ReaderConfig, *ranges: OffsetRange) -> list[int]:
    """The offsets read, in the order in which they came."""
    return [row["offset"] for row in rows(read_ranges(config, ranges))]


def whole(topic: Topic, until: int, *, start: int = 0, partition: int = 0) -> OffsetRange:
    return OffsetRange(topic.name, partition, start, until)


class Transactions:
    """A producer of transactions to one topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": topic.bootstrap_servers,
            "log_level": 0,
        }
        self._admin = AdminClient(config)
        self._producer = Producer({**config, "transactional.id": topic.name})
        self._producer.init_transactions(30)

    def begin(self, count: int, partition: int = 0) -> None:
        """Write ``count`` records of a transaction that stays open."""
        self._producer.begin_transaction()
        for number in range(count):
            self._producer.produce(self._topic.name, str(number).encode(), partition=partition)
        assert self._producer.flush(30) == 0

    def end(self, partition: int = 0, *, commit: bool) -> None:
        """End it; returns when its control record is in the log, which takes a while longer."""
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
        stable, until = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        wait_until(lambda: self._latest(partition, stable) == self._latest(partition, until))

    def write(self, count: int, partition: int = 0, *, commit: bool) -> None:
        """One transaction: ``count`` records, and the control record that ends it."""
        self.begin(count, partition)
        self.end(partition, commit=commit)

    def _latest(self, partition: int, level: IsolationLevel) -> int:
        position = Position(self._topic.name, partition)
        asked = self._admin.list_offsets(
            {position: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=level,
        )
        return int(asked[position].result(30).offset)
