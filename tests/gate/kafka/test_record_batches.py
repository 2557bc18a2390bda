"""Messages of Kafka become record batches with the native connector's columns."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message, Producer
from hypothesis import given
from hypothesis import strategies as st
from tests.gate.kafka.reads import reader_config, rows, whole
from tests.services.kafka import Headers, TopicFactory

from headrace.gate.kafka.range_reader import Chunk, RecordBatchBuilder, bounded, read_ranges

CORNERS: list[tuple[bytes | None, bytes | None, Headers]] = [
    (None, None, []),
    (b"", b"", []),
    (b"k", None, [("one", b"1")]),
    (None, b"v", [("one", b"1"), ("two", b"2")]),
    (b"\x00\xff", b"\x00" * 10, [("same", b"a"), ("same", b"b"), ("other", b"")]),
    (b"k", b"v", [("null", None)]),
    (b"k", b"v", [("grüße-鍵-🔑", "wért".encode()), ("", b"no name")]),
]


@pytest.mark.usefixtures("engine")
def test_keys_values_and_headers_come_back_as_they_went(topic: TopicFactory) -> None:
    made = topic(1)
    for key, value, headers in CORNERS:
        made.produce(value, key=key, headers=headers)
    config = reader_config(made.bootstrap_servers, columns=["key", "value", "headers"])
    found = rows(read_ranges(config, [whole(made, len(CORNERS))]))
    assert found == [
        {
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": content} for name, content in headers] or None,
        }
        for key, value, headers in CORNERS
    ]


@pytest.mark.usefixtures("engine")
def test_a_compressed_record_is_the_record(topic: TopicFactory) -> None:
    made = topic(1)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": made.bootstrap_servers, "compression.type": codec}
        )
        producer.produce(made.name, codec.encode() * 100)
        assert producer.flush(30) == 0
    config = reader_config(made.bootstrap_servers, columns=["value"])
    assert [row["value"][:4] for row in rows(read_ranges(config, [whole(made, 4)]))] == [
        b"gzip",
        b"snap",
        b"lz4l",
        b"zstd",
    ]


def chunk(*messages: dict[str, Any], topic: str | None = None) -> Chunk:
    made = [Message(**{"topic": "t", "partition": 0, "offset": 0, **each}) for each in messages]
    return Chunk(
        made,
        np.array([message.offset() for message in made], np.int64),
        np.array([message.partition() for message in made], np.int32),
        topic,
    )


def test_a_record_without_a_timestamp_has_the_native_connectors_minus_one() -> None:
    builder = RecordBatchBuilder(["timestampType", "timestamp"])
    batch = builder.build(chunk({"timestamp": (TIMESTAMP_NOT_AVAILABLE, -1)}))
    assert batch.column("timestampType").to_pylist() == [-1]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [-1000]


def test_a_time_beyond_what_spark_holds_is_the_last_or_the_first_that_it_holds() -> None:
    builder = RecordBatchBuilder(["timestamp"])
    most = (2**63 - 1) // 1000
    times = [most, most + 1, 2**63 - 1, -most, -most - 1, -(2**63)]
    batch = builder.build(chunk(*({"timestamp": (1, ms)} for ms in times)))
    found = batch.column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [most * 1000] * 3 + [-most * 1000] * 3


def test_the_topic_is_each_messages_own_unless_all_have_one() -> None:
    builder = RecordBatchBuilder(["topic"])
    assert builder.build(chunk({"topic": "a"}, {"topic": "b"})).column(0).to_pylist() == ["a", "b"]
    assert builder.build(chunk({}, {}, topic="t")).column(0).to_pylist() == ["t", "t"]


def test_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError, match="velocity"):
        RecordBatchBuilder(["value", "velocity"])


@given(st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=40), st.integers(1, 2000))
def test_parts_of_a_batch_are_bounded_and_make_up_the_batch(
    values: list[bytes | None], most_bytes: int
) -> None:
    batch = RecordBatchBuilder(["value"]).build(chunk(*({"value": value} for value in values)))
    parts = list(bounded(batch, most_bytes))
    assert [row["value"] for row in rows(iter(parts))] == values
    assert all(part.nbytes <= most_bytes or part.num_rows == 1 for part in parts)
