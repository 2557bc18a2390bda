"""As many tasks as Spark's own connector makes, where options ask for a number of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.services.kafka import Topic, TopicFactory
from tests.services.queries import stream_of

import headrace

SIZES = (7, 200, 250, 868)


@pytest.fixture(scope="module")
def orders(topic: TopicFactory) -> Topic:
    made = topic(len(SIZES))
    for partition, size in enumerate(SIZES):
        made.produce(*[b"x"] * size, partition=partition)
    return made


def offsets(topic: Topic, *numbers: int) -> str:
    said = ", ".join(f'"{partition}": {number}' for partition, number in enumerate(numbers))
    return f'{{"{topic.name}": {{{said}}}}}'


@pytest.mark.parametrize(
    "options",
    [
        {"maxRecordsPerPartition": "50"},
        {"minPartitions": "10"},
        {"minPartitions": "4"},
        {"minPartitions": "2000"},
        {"minPartitions": "10", "maxRecordsPerPartition": "300"},
        {"minPartitions": "3", "maxRecordsPerPartition": "300"},
    ],
)
def test_a_bounded_read_and_a_stream_have_as_many(
    spark: SparkSession, orders: Topic, tmp_path: Path, options: dict[str, str]
) -> None:
    ends = {"endingOffsets": offsets(orders, *SIZES)}
    for bounds in ({}, ends, ends | {"startingOffsets": offsets(orders, 2, 2, 2, 2)}):
        ours, native = (
            bounded(spark, orders, options | bounds, source)
            for source in ("headrace-kafka", "kafka")
        )
        assert ours == native, bounds
    ours, native = (
        streamed(spark, orders, options, source, tmp_path / source)
        for source in ("headrace-kafka", "kafka")
    )
    assert ours == native


def bounded(spark: SparkSession, topic: Topic, options: Mapping[str, str], source: str) -> int:
    headrace.register(spark)
    given = {"kafka.bootstrap.servers": topic.bootstrap_servers, "subscribe": topic.name}
    df = spark.read.format(source).options(**given, **options).load()
    return df.rdd.getNumPartitions()


def streamed(
    spark: SparkSession, topic: Topic, options: dict[str, str], source: str, checkpoint: Path
) -> int:
    found = []

    def count_tasks(df: DataFrame, _number: int) -> None:
        found.append(df.rdd.getNumPartitions())

    df = stream_of(spark, topic, options, source)
    writer = df.writeStream.foreachBatch(count_tasks).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(120), "the query did not end"
    (tasks,) = [each for each in found if each]
    return tasks
