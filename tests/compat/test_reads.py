"""``headrace-kafka`` in place of ``kafka``, on each version of Spark."""

import logging
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession
from tests.journal.journals import fill as fill_journal
from tests.services.kafka import Topic, TopicFactory, records_in
from tests.services.queries import available_now, running, stream_of

import headrace
from headrace.errors import OptionError
from headrace.spark_versions import PLANS_FROM_START

pytestmark = pytest.mark.integration  # its fixtures ask for the services by name

OURS, NATIVE = "headrace-kafka", "kafka"


def fill(topic: Topic, begin: int, end: int) -> list[str]:
    """Produce records to all partitions in turn; their values."""
    for number in range(begin, end):
        topic.produce(
            b"%04d" % number,
            key=b"k%d" % (number % 7),
            partition=number % topic.partitions,
            headers=[("n", b"%d" % number)],
        )
    return [f"{number:04d}" for number in range(begin, end)]


def values_of(records: Iterable[Message]) -> list[str]:
    return [(record.value() or b"").decode() for record in records]


def bounded(spark: SparkSession, orders: Topic, source: str) -> DataFrame:
    headrace.register(spark)
    reader = spark.read.format(source).option("includeHeaders", "true")
    reader = reader.option("kafka.bootstrap.servers", orders.bootstrap_servers)
    return reader.option("subscribe", orders.name).load().orderBy("partition", "offset")


def test_a_bounded_read_gives_what_the_native_source_gives(
    topic: TopicFactory, spark: SparkSession
) -> None:
    orders = topic(3)
    fill(orders, 0, 50)
    ours, native = bounded(spark, orders, OURS), bounded(spark, orders, NATIVE)
    assert ours.dtypes == native.dtypes
    assert ours.collect() == native.collect()
    assert ours.count() == 50


def test_a_stream_reads_each_record_once_in_batches_of_its_limit_and_goes_on_where_it_stopped(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    sent = fill(orders, 0, 40)
    df = stream_of(spark, orders, {"maxOffsetsPerTrigger": 15})
    with running(df, tmp_path / "checkpoint") as first:
        first.wait_for(lambda c: len(c.rows) == 40)
    assert first.values == sent
    assert max(first.sizes) <= 15
    sent += fill(orders, 40, 60)
    with running(df, tmp_path / "checkpoint") as second:
        second.wait_for(lambda c: {*first.values, *c.values} == {*sent})
    # The last batch may have been stopped before Spark had noted its end.
    again = len(first.values) + len(second.values) - 60
    assert again in {0, first.sizes[-1]}


def test_a_batch_that_was_interrupted_is_read_again_as_it_was_planned(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    sent = fill(orders, 0, 40)
    df = stream_of(spark, orders, {"maxOffsetsPerTrigger": 12})

    def fail_in(batch: int) -> None:
        if batch == 1:
            raise RuntimeError("a crash in the middle of a batch")

    with (
        pytest.raises(Exception, match="a crash in the middle"),
        running(df, tmp_path / "checkpoint", fail_in) as first,
    ):
        first.wait_for(lambda c: len(c.rows) == 40)
    fill(orders, 40, 50)
    everything = stream_of(spark, orders)
    with running(everything, tmp_path / "checkpoint") as second:
        second.wait_for(lambda c: len(first.rows) + len(c.rows) == 50)
    assert second.sizes[0] <= 12
    assert sorted(first.values + second.values) == [*sent, *(f"{n:04d}" for n in range(40, 50))]


def test_what_comes_between_the_start_at_the_end_and_the_first_batch_after_a_crash_is_read(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark asks for the initial offset again, and the end has moved on."""
    orders = topic()
    fill(orders, 0, 5)
    df = stream_of(spark, orders, {"startingOffsets": "latest"})

    def fail(_batch: int) -> None:
        raise RuntimeError("a crash in the first batch")

    with (
        pytest.raises(Exception, match="a crash in the first batch"),
        running(df, tmp_path / "checkpoint", fail) as first,
    ):
        first.wait_for(lambda c: c.rows)
    sent = fill(orders, 5, 9)
    with running(df, tmp_path / "checkpoint") as second:
        second.wait_for(lambda c: len(c.rows) == 4)
    assert second.values == sent


def test_a_checkpoint_of_the_native_source_is_taken_over(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2)
    fill(orders, 0, 20)
    native = stream_of(spark, orders, source=NATIVE)
    assert len(available_now(native, tmp_path / "checkpoint").rows) == 20
    sent = fill(orders, 20, 30)
    with running(stream_of(spark, orders), tmp_path / "checkpoint") as ours:
        ours.wait_for(lambda c: len(c.rows) == 10)
    assert ours.values == sent


def test_two_sources_of_one_query_are_read_each_once(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    """One of them is quiet for a while: no batch of its own is planned then."""
    busy, quiet = topic(), topic()
    sent = fill(busy, 0, 30)
    options = {"maxOffsetsPerTrigger": 7}
    both = stream_of(spark, busy, options).union(stream_of(spark, quiet, options))
    with running(both, tmp_path / "checkpoint") as collected:
        collected.wait_for(lambda c: len(c.rows) == 30)
        sent += fill(quiet, 30, 40)
        collected.wait_for(lambda c: len(c.rows) == 40)
        sent += fill(busy, 40, 45)
        collected.wait_for(lambda c: len(c.rows) == 45)
    assert collected.values == sent


def test_available_now_reads_all_there_is_and_with_a_limit_what_this_spark_can(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic()
    fill(orders, 0, 20)
    assert len(available_now(stream_of(spark, orders), tmp_path / "all").rows) == 20
    limited = stream_of(spark, orders, {"maxOffsetsPerTrigger": 8})
    sizes = available_now(limited, tmp_path / "limited").sizes
    assert sizes == ([8, 8, 4] if PLANS_FROM_START else [8])


def test_what_this_spark_cannot_do_is_logged_once(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        session = spark.newSession()
        headrace.register(session)
        headrace.register(session)
    told = [record.getMessage() for record in caplog.records if "AvailableNow" in record.message]
    assert len(told) == (0 if PLANS_FROM_START else 1)


def test_a_stream_is_written_to_a_topic(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders, written = topic(2), topic()
    sent = fill(orders, 0, 30)
    df = stream_of(spark, orders, {"includeHeaders": "true"})
    writer = df.select("key", "value", "headers").writeStream.format(OURS)
    writer = writer.option("kafka.bootstrap.servers", orders.bootstrap_servers)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.option("topic", written.name).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    records = records_in(written)
    assert sorted(values_of(records)) == sent
    assert all(
        dict(each.headers() or ())["n"] == b"%d" % int(each.value() or b"") for each in records
    )


def test_a_bounded_result_is_written_to_a_topic(topic: TopicFactory, spark: SparkSession) -> None:
    orders, written = topic(2), topic()
    sent = fill(orders, 0, 30)
    writer = bounded(spark, orders, OURS).select("key", "value").write.format(OURS)
    writer = writer.option("kafka.bootstrap.servers", orders.bootstrap_servers)
    writer.option("topic", written.name).mode("append").save()
    assert sorted(values_of(records_in(written))) == sent


def test_a_journal_is_read_as_kafka_is(spark: SparkSession, tmp_path: Path) -> None:
    fill_journal(tmp_path / "orders", {0: [5, 5], 1: [7]})
    headrace.register(spark)
    reader = spark.readStream.format("headrace-journal").option("path", str(tmp_path / "orders"))
    df = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 6).load()
    with running(df, tmp_path / "checkpoint") as collected:
        collected.wait_for(lambda c: len(c.rows) == 17)
    assert len({(row.partition, row.offset) for row in collected.rows}) == 17


def test_real_time_mode_is_refused_in_one_sentence(
    topic: TopicFactory, spark: SparkSession, ledger_url: str
) -> None:
    gate = headrace.Gate("orders", interval="1 second", ledger=ledger_url)
    reader = gate.read(spark, "kafka").option("subscribe", topic().name)
    df = reader.option("kafka.bootstrap.servers", topic().bootstrap_servers).load()
    writer: Any = gate.write(df, lambda _df, _batch: None)
    with pytest.raises(OptionError, match="real-time mode"):
        writer.trigger(realTime="5 seconds")


def test_batches_follow_each_other(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic()
    fill(orders, 0, 30)
    df = stream_of(spark, orders, {"maxOffsetsPerTrigger": 10})
    with running(df, tmp_path / "checkpoint") as collected:
        collected.wait_for(lambda c: len(c.rows) == 30)
    offsets = [row.offset for row in collected.rows]
    assert all(after == before + 1 for before, after in pairwise(offsets))
