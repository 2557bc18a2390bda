"""Streaming queries on the real broker: what they read, when they stop, where they go on."""

from pathlib import Path

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from tests.services.changes import add_partitions
from tests.services.groups import committed
from tests.services.kafka import Topic, TopicFactory
from tests.services.queries import available_now, running, stream_of

from headrace.kafka.kafka_source import KafkaSource


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


def test_new_partitions_and_new_topics_are_read_from_their_beginning(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path
) -> None:
    first = topic(prefix="growing")
    produce(first, "before")
    options = {"subscribePattern": "^growing-", "startingOffsets": "latest"}
    with running(stream_of(spark, first, options), tmp_path) as collected:
        collected.wait_for(lambda c: c.last_offset("endOffset"))
        add_partitions(admin, first, 2)
        produce(first, "in a new partition", partition=1)
        produce(topic(prefix="growing"), "in a new topic")
        collected.wait_for(lambda c: len(c.rows) >= 2)
        produce(first, "in an old partition")
        collected.wait_for(lambda c: len(c.rows) >= 3)
    assert collected.values == ["in a new partition", "in a new topic", "in an old partition"]
