"""Reading ranges with the task side's reader, as plain values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from tests.services.kafka import Topic

from headgate.control.ranges import OffsetRange
from headgate.kafka.columns import ARROW_SCHEMA
from headgate.kafka.consumers import ClientConfig
from headgate.kafka.reader import ReaderConfig, read_ranges

Row = dict[str, Any]


def client(servers: str, **settings: str | float | bool) -> ClientConfig:
    """Consumer settings; of names with dots, write ``_`` for the dot."""
    return {
        "bootstrap.servers": servers,
        "group.id": "headgate-tests",
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
        fail_on_data_loss=fail_on_data_loss,
        timeout_ms=timeout_ms,
        batch_bytes=batch_bytes,
    )


def rows(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(config: ReaderConfig, *ranges: OffsetRange) -> list[int]:
    """The offsets read, in the order in which they came."""
    return [row["offset"] for row in rows(read_ranges(config, ranges))]


def whole(topic: Topic, until: int, *, start: int = 0, partition: int = 0) -> OffsetRange:
    return OffsetRange(topic.name, partition, start, until)


@contextmanager
def transactions(servers: str, name: str) -> Iterator[Producer]:
    """A producer of transactions."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    yield producer
    producer.flush(30)


def write_transaction(
    producer: Producer, topic: Topic, count: int, *, commit: bool, partition: int = 0
) -> None:
    """``count`` records, and the control record that ends their transaction."""
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic.name, f"{number}".encode(), partition=partition)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
