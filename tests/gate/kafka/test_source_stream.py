"""Streaming queries on a real broker: what they read, when they stop, where they go on."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.services.groups import committed
from tests.services.kafka import Topic, TopicFactory
from tests.services.queries import available_now, running, sentence, stream_of

from headrace.core.ranges import OffsetRange
from headrace.errors import BrokerError, OptionError, SourceError
from headrace.gate.kafka.kafka_source import KAFKA, KafkaSource
from headrace.gate.ledger.ledger import Ledger
from headrace.operate.local.servers import free_ports


def produce(topic: Topic, *values: str, partition: int = 0) -> None:
    topic.produce(*(value.encode() for value in values), partition=partition)


def test_a_stream_begins_at_the_end_and_goes_on_from_its_checkpoint(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    produce(orders, "before", "before")
    # With the source alone: no gate, no listener, nothing that headrace.register knows.
    bare = type("Bare", (KafkaSource,), {"name": classmethod(lambda _: "bare-kafka")})
    spark.dataSource.register(bare)
    df = (
        spark.readStream.format("bare-kafka")
        .option("kafka.bootstrap.servers", orders.bootstrap_servers)
        .option("SUBSCRIBE", orders.name)
        .option("maxOffsetsPerTrigger", 4)
        .load()
    )
    first = [f"first {n}" for n in range(9)]
    with running(df, tmp_path) as collected:
        collected.wait_for(lambda c: c.last_offset("endOffset"))
        produce(orders, *first[:8])
        produce(orders, *first[8:], partition=1)
        collected.wait_for(lambda c: len(c.rows) >= 9)
        ends = {orders.name: {"0": 10, "1": 1}}
        collected.wait_for(lambda c: c.last_offset("endOffset") == ends)
        assert collected.last_offset("latestOffset") == ends
    assert collected.values == first
    assert collected.sizes[0] == 0, "the first batch pins the beginning"
    assert max(collected.sizes) <= 4 + 1, "a small share is rounded up to one record"

    produce(orders, "while it was down", partition=1)
    with running(df, tmp_path) as again:
        again.wait_for(lambda c: c.rows)
        produce(orders, "after")
        again.wait_for(lambda c: len(c.rows) >= 2)
    assert again.values == ["after", "while it was down"]


def test_available_now_reads_what_was_there_in_bounded_batches_and_tells_a_group(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    there = [f"there {n}" for n in range(10)]
    produce(orders, *there[:5])
    produce(orders, *there[5:], partition=1)
    group = f"watchers-of-{orders.name}"
    df = stream_of(spark, orders, {"maxOffsetsPerTrigger": 4, "headrace.commit.group": group})

    def produce_late(batch: int) -> None:
        if batch == 0:
            produce(orders, "late")

    first = available_now(df, tmp_path, produce_late)
    assert first.values == there
    assert first.sizes == [4, 4, 2]
    assert committed(orders, group) == [5, 5]

    second = available_now(df, tmp_path)
    assert second.values == ["late"]
    assert committed(orders, group) == [6, 5]

    produce(orders, *there)
    with running(df, tmp_path, once=True) as third:
        assert third.query.awaitTermination(60)
    assert third.sizes == [10], "once has no limits"


def test_a_checkpoint_of_the_native_source_is_gone_on_from_without_a_record_lost_or_doubled(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    orders.produce(*[b"a%d" % n for n in range(6)])
    options = {"maxOffsetsPerTrigger": 4}
    native = stream_of(spark, orders, options, source="kafka")
    ours = stream_of(spark, orders, options)

    def crash_in_second(batch: int) -> None:
        if batch == 1:
            raise RuntimeError("crashed, with the batch planned and not yet committed")

    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException, match="crashed, with the batch planned"):
        available_now(native, checkpoint, crash_in_second)
    orders.produce(b"b", partition=1)
    collected = available_now(ours, checkpoint)
    assert collected.sizes == [2, 1], "first the batch that was planned, then what is new"
    assert collected.values == ["a4", "a5", "b"]


NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


def test_counts_by_window_survive_a_restart_and_are_final_behind_the_watermark(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2, {"retention.ms": "-1"})
    noon_ms = round(NOON.timestamp() * 1000)
    counts = (
        stream_of(spark, orders)
        .withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "1 minute"), "value")
        .count()
        .select("value", "count")
    )
    for partition in (0, 1):
        orders.produce(b"tea", b"tea", partition=partition, timestamp_ms=noon_ms)
    assert available_now(counts, tmp_path).rows == []
    orders.produce(b"tea", b"milk", timestamp_ms=noon_ms)
    orders.produce(b"later", timestamp_ms=noon_ms + 180_000)
    rows = available_now(counts, tmp_path).rows
    assert {(row.value, row["count"]) for row in rows} == {(b"tea", 5), (b"milk", 1)}


def test_two_gated_sources_are_joined_and_each_has_a_ledger_of_its_own(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders, payments = topic(), topic()
    url = f"sqlite:///{tmp_path}/headrace.db"

    def gated(name: str) -> dict[str, object]:
        return {
            "headrace.gate": name,
            "headrace.ledger": url,
            "backpressure.initialRate": 10,
            "backpressure.pid.minRate": 10,
            "includeHeaders": True,
        }

    joined = (
        stream_of(spark, orders, gated("orders"))
        .join(stream_of(spark, payments, gated("payments")).drop("topic"), "value")
        .select("value")
    )
    names = [f"order {n:02}" for n in range(30)]
    orders.produce(*(name.encode() for name in names))
    payments.produce(*(name.encode() for name in names[10:15]))
    with running(joined, tmp_path / "checkpoint") as collected:
        collected.wait_for(lambda c: len(c.rows) >= 5)
        payments.produce(names[29].encode())
        collected.wait_for(lambda c: len(c.rows) >= 6)
    assert collected.values == [*names[10:15], names[29]]
    with Ledger.open(url) as ledger:
        for gate, of, count in (("orders", orders, 30), ("payments", payments, 6)):
            batches = [
                ledger.batches.ranges(b.batch_key) for b in reversed(ledger.batches.newest(gate))
            ]
            ranges = [planned.offsets for (planned,) in batches]
            assert all(r.count <= 10 for r in ranges)
            starts = [0, *(r.until for r in ranges)]
            assert ranges == [
                OffsetRange(of.name, 0, start, until) for start, until in pairwise(starts)
            ]
            assert starts[-1] == count


def test_with_the_bare_format_spark_shows_the_sentence(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic()
    for options, told in (
        (
            {"maxOffsetPerTrigger": 3},
            "OptionError: There is no option maxoffsetpertrigger for headrace-kafka; did you mean"
            " maxOffsetsPerTrigger?",
        ),
        (
            {"subscribe": "no-such-topic", "fetchOffset.numRetries": 0},
            "SourceError: Kafka has no 'no-such-topic' (subscribe); create it, or correct the"
            " name.",
        ),
    ):
        with pytest.raises(StreamingQueryException) as raised:
            available_now(stream_of(spark, orders, options), tmp_path / "checkpoint")
        assert sentence(raised.value) == told


def test_a_check_finds_a_wrong_option_a_missing_topic_and_an_unreachable_broker(
    topic: TopicFactory,
) -> None:
    orders = topic()
    right = {
        "kafka.bootstrap.servers": orders.bootstrap_servers,
        "subscribe": orders.name,
        "fetchOffset.numRetries": "0",
    }
    KAFKA.check(right)
    with pytest.raises(OptionError, match="exactly one of subscribe, subscribePattern and assign"):
        KAFKA.check({**right, "assign": '{"orders": [0]}'})
    with pytest.raises(SourceError) as missing:
        KAFKA.check({**right, "subscribe": f"{orders.name},no-such-topic"})
    assert str(missing.value) == (
        "Kafka has no 'no-such-topic' (subscribe); create it, or correct the name."
    )
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(BrokerError) as unreachable:
        KAFKA.check({**right, "kafka.bootstrap.servers": nobody})
    told = str(unreachable.value)
    assert told.startswith(f"Kafka at {nobody} (kafka.bootstrap.servers) did not answer: ")
    assert "Connection refused" in told
