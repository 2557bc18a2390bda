"""Bounded reads, held against Spark's own connector on the same topics."""

import json
from collections.abc import Callable, Mapping

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.services.changes import delete_records
from tests.services.kafka import Topic, TopicFactory
from tests.services.queries import sentence

import headrace
from headrace.core.native import Engine

Read = Callable[..., DataFrame]
Same = Callable[..., list[Row]]

KEEP = {"retention.ms": "-1"}  # though the records' own time be of 1970


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """``read(format, topic, {option: value}, schema)``."""
    headrace.register(spark)

    def read(
        source: str, topic: Topic, options: Mapping[str, object], schema: str | None = None
    ) -> DataFrame:
        reader = spark.read.format(source)
        if schema is not None:
            reader = reader.schema(schema)
        given = {"kafka.bootstrap.servers": topic.bootstrap_servers, **options}
        if not {"assign", "subscribePattern"} & given.keys():
            given.setdefault("subscribe", topic.name)
        return reader.options(**{name: str(value) for name, value in given.items()}).load()

    return read


@pytest.fixture
def same(read: Read) -> Same:
    """The rows that both connectors give for the same options; they and the schemas are equal."""

    def same(topic: Topic, options: Mapping[str, object]) -> list[Row]:
        native, ours = (read(source, topic, options) for source in ("kafka", "headrace-kafka"))
        assert ours.schema == native.schema
        rows = in_order(ours)
        assert rows == in_order(native)
        return rows

    return same


def in_order(df: DataFrame) -> list[Row]:
    return sorted(df.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in rows]


def test_columns_and_values_are_the_native_connectors(
    topic: TopicFactory, same: Same, read: Read, engine: Engine
) -> None:
    created = topic(3, KEEP)
    # Its name comes after the other one's, as its rows do.
    appended = topic(1, {"message.timestamp.type": "LogAppendTime"}, prefix="with-append-time")
    headers = [("h", b"1"), ("h", None), ("empty", b""), ("\u00e9", "\u00fc".encode())]
    created.produce(b"a", b"", None, key=b"k", headers=headers, timestamp_ms=1_001)
    created.produce(None, b"\xff\x00", key=b"", timestamp_ms=2_000, partition=1)
    appended.produce(b"c", b"d", timestamp_ms=5)
    options = {"subscribe": f"{created.name}, {appended.name}", "headrace.engine": engine}
    with_headers = same(created, {**options, "includeHeaders": "true"})
    without_headers = same(created, options)

    first = with_headers[0].asDict(recursive=True)
    assert (first["key"], first["value"], first["timestamp"].microsecond) == (b"k", b"a", 1_000)
    assert [(h["key"], h["value"]) for h in first["headers"]] == headers
    assert [row.timestampType for row in with_headers] == [0] * 5 + [1] * 2
    assert [row.headers is None for row in with_headers] == [False] * 3 + [True] * 4
    assert [row.value for row in without_headers] == [
        b"a",
        b"",
        None,
        None,
        b"\xff\x00",
        b"c",
        b"d",
    ]
    assert "headers" not in without_headers[0]


def test_topics_are_chosen_by_name_by_pattern_or_partition_by_partition(
    topic: TopicFactory, same: Same
) -> None:
    one, two = topic(2, prefix="chosen-a"), topic(2, prefix="chosen-ab")
    for chosen in (one, two):
        for partition in (0, 1):
            chosen.produce(b"x", partition=partition)
    assigned = json.dumps({one.name: [1], two.name: [0]})
    named = [(one.name, 0), (one.name, 1), (two.name, 0), (two.name, 1)]
    for options, expected in (
        ({"subscribe": f"{one.name},{two.name}"}, named),
        ({"subscribePattern": "sen-a"}, named),
        ({"subscribePattern": "^chosen-a-"}, [(one.name, 0), (one.name, 1)]),
        ({"assign": assigned}, [(one.name, 1), (two.name, 0)]),
    ):
        assert [(row.topic, row.partition) for row in same(one, options)] == expected


@pytest.fixture(scope="module")
def timed(topic: TopicFactory) -> Topic:
    """Times of partition 0, offsets 0 to 2: 1000, 2000, 3000 ms; of partition 1, offset 0: 3000."""
    made = topic(3, KEEP)
    for timestamp_ms in (1_000, 2_000, 3_000):
        made.produce(b"x", timestamp_ms=timestamp_ms)
    made.produce(b"x", partition=1, timestamp_ms=3_000)
    return made


def for_each(topic: Topic, *numbers: int) -> str:
    return json.dumps({topic.name: {str(n): number for n, number in enumerate(numbers)}})


ALL = [(0, 0), (0, 1), (0, 2), (1, 0)]
LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
        ({"startingOffsets": (1, -2, 0), "endingOffsets": (2, -1, -1)}, [(0, 1), (1, 0)]),
        ({"startingOffsets": (3, 1, 0)}, []),
        ({"startingTimestamp": 2_001, **LATEST}, [(0, 2), (1, 0)]),
        ({"startingTimestamp": 3_001, **LATEST}, []),
        ({"endingTimestamp": 3_000}, [(0, 0), (0, 1)]),
        ({"startingTimestamp": 1_001, "endingTimestamp": 9_000, **LATEST}, ALL[1:]),
        ({"startingOffsetsByTimestamp": (2_000, 9_000, 0), **LATEST}, [(0, 1), (0, 2)]),
        ({"endingOffsetsByTimestamp": (1_500, 9_000, 0)}, [(0, 0), (1, 0)]),
        ({"startingOffsets": (0, 0, 0), "startingTimestamp": 3_000, **LATEST}, [(0, 2), (1, 0)]),
    ],
)  # fmt: skip
def test_a_read_begins_and_ends_where_the_native_one_does(
    timed: Topic, same: Same, options: Mapping[str, object], expected: list[tuple[int, int]]
) -> None:
    given = {
        name: for_each(timed, *value) if isinstance(value, tuple) else value
        for name, value in options.items()
    }
    assert places(same(timed, given)) == expected


def test_tasks_are_as_many_as_asked_for(timed: Topic, read: Read) -> None:
    def tasks(**options: object) -> int:
        return read("headrace-kafka", timed, options).rdd.getNumPartitions()

    assert tasks() == 2, "partitions share tasks; the test session runs two at once"
    native = read("kafka", timed, {"minPartitions": 4}).rdd.getNumPartitions()
    assert tasks(minPartitions=4) == native == 4
    ends = {"endingOffsets": for_each(timed, 3, 1, 0)}
    assert tasks(maxRecordsPerPartition=2, **ends) == 3
    assert tasks(maxRecordsPerPartition=2) == 2, "the native one does not cap what it looks up"


def test_a_schema_chooses_columns_in_its_own_order(timed: Topic, read: Read) -> None:
    df = read(
        "headrace-kafka",
        timed,
        {},
        schema="offset bigint, headers array<struct<key:string,value:binary>>, topic string",
    )
    assert df.columns == ["offset", "headers", "topic"]
    assert {tuple(row) for row in df.collect()} == {(n, None, timed.name) for n in range(3)}


def test_a_schema_with_a_column_that_kafka_has_not_is_refused(timed: Topic, read: Read) -> None:
    with pytest.raises(PySparkException) as raised:
        read("headrace-kafka", timed, {}, schema="value string").collect()
    assert sentence(raised.value) == (
        "OptionError: The schema's column value string is not one that headrace-kafka has; it has"
        " key binary, value binary, topic string, partition int, offset bigint, timestamp"
        " timestamp, timestampType int, headers array<struct<key:string,value:binary>>."
    )


def test_a_bounded_read_is_refused_in_one_sentence(
    timed: Topic, read: Read, topic: TopicFactory, admin: AdminClient
) -> None:
    aged = topic()
    aged.produce(*[b"x"] * 5)
    delete_records(admin, aged, before=3)

    def refusal(of: Topic, **options: object) -> str:
        with pytest.raises(PySparkException) as raised:
            read("headrace-kafka", of, options).collect()
        return sentence(raised.value)

    assert refusal(timed, subscribe="no-such-topic", **{"fetchOffset.numRetries": 0}) == (
        "SourceError: Kafka has no 'no-such-topic' (subscribe); create it, or correct the name."
    )
    assert refusal(timed, startingTimestamp=2_500) == (
        f"OptionError: startingTimestamp is 2500, and {timed.name}-2 has no record at or after that"
        " time; choose an earlier time, or set startingOffsetsByTimestampStrategy to latest."
    )
    assert refusal(timed, startingOffsets=for_each(timed, 2, 0, 0), endingTimestamp=1_500) == (
        f"OptionError: startingOffsets begins the read of {timed.name}-0 at 2, past its end at 1"
        " (endingTimestamp); choose an earlier start or a later end."
    )
    assert refusal(aged, endingOffsets=for_each(aged, 2)) == (
        f"OptionError: startingOffsets begins the read of {aged.name}-0 at 3, past its end at 2"
        " (endingOffsets); choose an earlier start or a later end."
    )
    assert refusal(aged, startingOffsets=for_each(aged, 1)) == (
        f"DataLossError: Offsets {aged.name}-0 [1, 3) are gone from Kafka (the log of this"
        " partition now holds [3, 5)); to continue without them, and only report the loss, set the"
        " option failOnDataLoss to false."
    )
