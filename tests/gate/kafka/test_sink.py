"""``format("headrace-kafka")`` as a sink: what the native connector writes, it writes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.services.kafka import Topic, TopicFactory, records_in
from tests.services.queries import sentence, stream_of

import headrace
from headrace.errors import BrokerError, OptionError
from headrace.gate.kafka.client.config import producer_config
from headrace.gate.kafka.producing import ProducedRecord, produce_all
from headrace.operate.local.servers import free_ports

SINKS = ("headrace-kafka", "kafka")
PARTITIONS = 3

HEADERS = "headers array<struct<key: string, value: binary>>"
# Each has a key or a partition, for where a record without either goes is left to chance.
ROWS = [
    ("k1", "v1", None, None),
    ("k2", None, None, None),
    ("ключ", "тест\x00", [("a", b"\x00\xff"), ("a", None)], None),
    (None, "", [], 0),
    ("k1", "v2", [("", b"")], 2),
    *((f"key {n}", f"value {n}", None, None) for n in range(300)),
]
COLUMNS = f"key string, value string, {HEADERS}, partition int"

Headers = list[tuple[str, bytes | None]] | None
Record = tuple[int, bytes | None, bytes | None, Headers]


def written_to(topic: Topic) -> list[Record]:
    """Return the records in a topic, sorted."""
    # A record that has no headers and one that has none of them are one to Kafka.
    found = [
        (each.partition() or 0, each.key(), each.value(), cast("Headers", each.headers()) or None)
        for each in records_in(topic)
    ]
    return sorted(found, key=repr)


def rows(spark: SparkSession, given: Sequence[tuple[Any, ...]] = ROWS) -> DataFrame:
    headrace.register(spark)
    return spark.createDataFrame(given, COLUMNS).repartition(2)


def save(
    df: DataFrame, topic: Topic, options: Mapping[str, object], sink: str = "headrace-kafka"
) -> None:
    given = {"kafka.bootstrap.servers": topic.bootstrap_servers, **options}
    writer = df.write.format(sink).mode("append")
    writer.options(**{name: str(value) for name, value in given.items()}).save()


@pytest.mark.parametrize("binary", [False, True])
def test_a_saved_frame_is_in_the_topic_as_the_native_sink_would_have_it(
    spark: SparkSession, topic: TopicFactory, binary: bool
) -> None:
    df = rows(spark)
    if binary:
        df = df.withColumns({name: df[name].cast("binary") for name in ("key", "value")})
    found = []
    for sink in SINKS:
        written = topic(PARTITIONS)
        save(df, written, {"topic": written.name}, sink)
        found.append(written_to(written))
    ours, native = found
    assert len(ours) == len(ROWS)
    assert ours == native


def test_each_row_may_name_its_topic_and_other_columns_are_not_written(
    spark: SparkSession, topic: TopicFactory
) -> None:
    found = []
    for sink in SINKS:
        one, other = topic(1), topic(1)
        df = rows(spark).selectExpr(
            f"if(partition is null, '{one.name}', '{other.name}') as topic",
            *("value", "current_timestamp() as now"),
        )
        save(df, one, {}, sink)
        found.append((written_to(one), written_to(other)))
    assert found[0] == found[1]
    assert [len(each) for each in found[0]] == [len(ROWS) - 2, 2]


def test_copies_of_a_record_are_told_by_a_header_that_no_other_record_has(
    spark: SparkSession, topic: TopicFactory
) -> None:
    headrace.register(spark)
    written = topic(1)
    given = [
        ("a", "b,c", 1, b"", 1_000_000),
        ("a,b", "c", 1, b"", 1_000_000),
        ("a", None, 2, b"\xff", 1_000_000),
        ("a", "null", 2, b"\xfe", 1_000_000),
        ("a", "null", 2, b"\xff", 1_000_000),
        ("a", "null", 2, b"\xff", 1_000_001),
        ('"', "\\", None, None, None),
    ]
    df = spark.createDataFrame(
        given, "one string, other string, number int, raw binary, micros long"
    ).selectExpr("one", "other", "number", "raw", "timestamp_micros(micros) AS at")
    for key in ("the parent", "a child"):
        headers = headrace.Batch(key, None, (), 1, "live", 1).kafka_headers(*df.columns)
        rows = df.select(headers.alias("headers"), df.one.alias("value"))
        save(rows, written, {"topic": written.name})
    found = [dict(each or ()) for _, _, _, each in written_to(written)]
    copies = Counter(each["headrace-record"] for each in found)
    assert [count for _, count in copies.items()] == [2] * len(given)
    assert (
        b'{"one":"a","other":"b,c","number":1,"raw":"","at":"1970-01-01T00:00:01.000000Z"}'
    ) in copies
    assert Counter(each["headrace-batch-key"] for each in found) == {
        b"the parent": len(given),
        b"a child": len(given),
    }


def test_copies_cannot_be_told_by_nothing() -> None:
    with pytest.raises(OptionError, match="without columns; name the columns that"):
        headrace.Batch("a key", None, (), 1, "live", 1).kafka_headers()


def test_a_stream_is_written_as_by_the_native_sink(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic(2)
    for number in range(40):
        orders.produce(b"%d" % number, key=b"k%d" % (number % 7), headers=[("n", b"%d" % number)])
    found = []
    for sink in SINKS:
        written = topic(PARTITIONS)
        df = stream_of(spark, orders, {"includeHeaders": True, "maxOffsetsPerTrigger": 15})
        query = (
            df.select("key", "value", "headers")
            .writeStream.format(sink)
            .option("kafka.bootstrap.servers", orders.bootstrap_servers)
            .option("topic", written.name)
            .option("checkpointLocation", str(tmp_path / sink))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        found.append(written_to(written))
    assert found[0] == found[1]
    assert len(found[0]) == 40


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("chosen", "options", "told"),
    [
        (["key"], {"topic": "t"}, "There is no column value"),
        (["value"], {}, "headrace-kafka has no topic to write to"),
        (["1 as value"], {"topic": "t"}, "The column value is int, and headrace-kafka writes bi"),
        (["value", "'0' as partition"], {"topic": "t"}, "The column partition is string"),
        (["value"], {"topic": "t", "subscribe": "t"}, "There is no option subscribe for writing"),
        (["value"], {"topic": "t", "topics": "t"}, "did you mean topic?"),
        (["value"], {"topic": "t", "kafka.acks": "2"}, "kafka.acks='2' is not valid"),
        (["value"], {"topic": "t", "kafka.colour": "red"}, "kafka.colour is unknown"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_sentence(
    spark: SparkSession, topic: TopicFactory, chosen: list[str], options: dict[str, str], told: str
) -> None:
    with pytest.raises(AnalysisException) as raised:
        save(rows(spark).selectExpr(*chosen), topic(), options)
    assert told in sentence(raised.value)


def test_a_topic_is_not_overwritten_and_a_journal_not_saved_to(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    orders = topic()
    df = rows(spark).select("value")
    overwriting = df.write.format("headrace-kafka").mode("overwrite").option("topic", orders.name)
    with pytest.raises(AnalysisException) as raised:
        overwriting.option("kafka.bootstrap.servers", orders.bootstrap_servers).save()
    assert 'only appends to topics; write mode("append")' in sentence(raised.value)
    with pytest.raises(AnalysisException) as raised:
        df.write.format("headrace-journal").mode("append").save(str(tmp_path))
    assert "headrace receive" in sentence(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("'v' as value, cast(null as string) as topic", "A row's topic is null"),
        ("'v' as value, '{topic}' as topic, -1 as partition", "A row's partition is -1"),
        ("'v' as value, '{topic}' as topic, 9 as partition", "did not take 1 record: "),
        (
            "repeat('x', 5000) as value, '{topic}' as topic",
            "too large; its max.message.bytes is 1000, and the largest of these records has 5000"
            " bytes: make records smaller, or raise the limit.",
        ),
        (
            "'v' as value, '{topic}' as topic, array(named_struct('key', cast(null as string),"
            " 'value', cast('x' as binary))) as headers",
            "The key of a header is null",
        ),
        (
            "'v' as value, '{topic}' as topic, array(named_struct('key', 'a', 'value',"
            " cast('x' as binary)), null) as headers",
            "A header is null; leave the header out, or give it a key.",
        ),
    ],
)
def test_a_row_that_is_not_taken_fails_its_task_in_a_sentence(
    spark: SparkSession, topic: TopicFactory, made: str, told: str
) -> None:
    headrace.register(spark)
    orders = topic(1, {"max.message.bytes": "1000"})
    df = spark.sql(f"select {made.format(topic=orders.name)}")
    with pytest.raises(PySparkException) as raised:
        save(df, orders, {})
    assert told in sentence(raised.value)


@pytest.mark.parametrize("of_them", [1, 2])
def test_only_records_that_are_too_large_are_called_that(topic: TopicFactory, of_them: int) -> None:
    """Brokers refuse a whole batch of records for one of them."""
    orders = topic(1, {"max.message.bytes": "1000"})
    sizes = [10] * 36 + [5_000] * of_them
    client = {"bootstrap.servers": orders.bootstrap_servers, "linger.ms": 1_000}
    records = [ProducedRecord(orders.name, None, b"x" * size, (), 0) for size in sizes]
    told = rf"did not take \d+ records, {of_them} of them too large; "
    with pytest.raises(BrokerError, match=told):
        produce_all(client, records)


@pytest.mark.parametrize(
    ("size", "options", "told"),
    [
        (
            3_000,
            {"kafka.max.request.size": 2_000},
            "too large; kafka.max.request.size is 2000, and the largest of these records has 3000"
            " bytes: make records smaller, or raise the limit.",
        ),
        (
            300,
            {"kafka.compression.type": "none"},
            "too large; its max.message.bytes is 1000, and the largest of these records has 300"
            " bytes: set kafka.batch.size to 1000 at most, or raise the limit.",
        ),
    ],
)
def test_what_is_too_large_is_told_with_the_limit(
    spark: SparkSession, topic: TopicFactory, size: int, options: dict[str, object], told: str
) -> None:
    headrace.register(spark)
    orders = topic(1, {"max.message.bytes": "1000"})
    df = spark.range(0, 9, 1, 1).selectExpr(f"repeat('x', {size}) as value")
    with pytest.raises(PySparkException) as raised:
        save(df, orders, {"topic": orders.name, **options})
    assert told in sentence(raised.value)


def test_records_that_fit_alone_are_taken_in_batches_of_the_size_that_the_error_names(
    spark: SparkSession, topic: TopicFactory
) -> None:
    headrace.register(spark)
    orders = topic(1, {"max.message.bytes": "1000"})
    df = spark.range(0, 9, 1, 1).selectExpr("repeat('x', 300) as value")
    save(df, orders, {"topic": orders.name, "kafka.batch.size": 1_000})
    assert len(written_to(orders)) == 9


def test_brokers_that_are_away_fail_the_task_once_their_time_is_over(
    spark: SparkSession, topic: TopicFactory
) -> None:
    options = {
        "topic": "orders",
        "kafka.bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}",
        "kafka.delivery.timeout.ms": 3_000,
        "kafka.ssl.key.password": "hunter2",
    }
    with pytest.raises(PySparkException) as raised:
        save(rows(spark, ROWS[:1]), topic(), options)
    assert "did not take 1 record: " in sentence(raised.value)
    assert "Connection refused" in sentence(raised.value)
    assert "hunter2" not in str(raised.value)


def test_options_of_javas_producer_become_librdkafkas() -> None:
    given = {
        "bootstrap.servers": "b:9092",
        **{"acks": "1", "compression.type": "zstd", "max.request.size": "2000000"},
        **{"linger.ms": "7", "batch.size": "9000", "fetch.max.bytes": "5000", "max.block.ms": "1"},
    }
    made = producer_config(given)
    assert (made["acks"], made["enable.idempotence"]) == ("1", False)
    assert made["message.max.bytes"] == 2_000_000
    assert (made["compression.type"], made["linger.ms"], made["batch.size"]) == ("zstd", 7, 9_000)
    assert "fetch.max.bytes" not in made


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("transactional.id", "x", "cannot be used: a task that runs again"),
        ("value.serializer", "x", "cast the columns"),
        ("enable.idempotence", "true", "librdkafka refuses kafka.acks='1' and kafka.enable"),
        ("linger.ms", "soon", "kafka.linger.ms='soon' is not valid"),
    ],
)
def test_options_that_a_producer_cannot_have_are_refused(
    option: str, value: str, told: str
) -> None:
    with pytest.raises(OptionError) as raised:
        producer_config({"bootstrap.servers": "b:9092", "acks": "1", option: value})
    assert told in str(raised.value)
