"""Flows on topics with signals over ZooKeeper, in a real Spark application."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.errors import OptionError, SourceError
from headrace.flow import Flow, ZookeeperSession, ZookeeperSettings, kafka, zookeeper_signals
from headrace.gate.execution.batch import Batch
from headrace.gate.ledger.ledger import Ledger

PARTITIONS = 2
RECORDS = 600  # in each partition, and again after the restart


def produce(raw: Topic, since: int, until: int) -> None:
    for partition in range(PARTITIONS):
        values = (b"%d/%d" % (partition, number) for number in range(since, until))
        raw.produce(*values, partition=partition)


@pytest.fixture
def signals(zookeeper: ZookeeperServer) -> ZookeeperSettings:
    return ZookeeperSettings(f"{zookeeper.hosts}/tests", "flows", "secret", unreachable="refuse")


def test_a_topic_under_two_names_of_its_brokers_feeds_no_stage_with_its_own_output(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    raw = topic(PARTITIONS)
    port = raw.bootstrap_servers.rpartition(":")[2]
    flow = Flow("loop", ledger=f"sqlite:///{tmp_path}/headrace.db", checkpoints=tmp_path / "c")
    flow.channel("raw", kafka(raw.name, f"localhost:{port}"))
    flow.channel("other", kafka(raw.name, f"127.0.0.1:{port}"))

    @flow.stage("loop", reads="raw", writes="other")
    def loop(df: DataFrame, batch: Batch) -> DataFrame:
        return df

    with pytest.raises(OptionError, match=r"Channel 'other' .* is the same as Channel 'raw'"):
        flow.start(spark)


@pytest.mark.soak
def test_each_record_arrives_once_before_and_after_a_restart(
    spark: SparkSession, topic: TopicFactory, signals: ZookeeperSettings, tmp_path: Path
) -> None:
    raw, clean = topic(PARTITIONS), topic(PARTITIONS)
    stored: dict[str, list[str]] = {}
    flow = Flow(
        "shop",
        ledger=f"sqlite:///{tmp_path}/headrace.db",
        checkpoints=tmp_path / "checkpoints",
        signals=signals,
    )
    flow.channel("raw", kafka(raw.name, raw.bootstrap_servers))
    flow.channel("clean", kafka(clean.name, clean.bootstrap_servers))

    @flow.stage("parse", reads="raw", writes="clean", options={"maxRatePerPartition": 200})
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.selectExpr("concat('parsed ', string(value)) AS value")

    @flow.stage("store", reads="clean")
    def store(df: DataFrame, batch: Batch) -> None:
        stored[batch.key] = [row.value.decode() for row in df.select("value").collect()]

    def arrived() -> list[str]:
        return [value for values in list(stored.values()) for value in values]

    produce(raw, 0, RECORDS)
    with flow.start(spark):
        wait_until(lambda: len(arrived()) >= RECORDS, timeout_s=100)  # and stop in the middle
    produce(raw, RECORDS, 2 * RECORDS)
    every = {f"parsed {part}/{n}" for part in range(PARTITIONS) for n in range(2 * RECORDS)}
    with flow.start(spark):
        wait_until(lambda: every <= set(arrived()), timeout_s=100)
        with (
            ZookeeperSession(signals) as session,
            Ledger.open(flow.ledger) as ledger,
            zookeeper_signals(session, "shop", "x", secret=ledger.signals.secret("shop")) as seen,
        ):
            assert wait_until(seen.states).keys() <= {"parse", "store"}
    assert len(arrived()) == len(every)


def test_a_topic_that_is_only_written_must_be_there_before_anything_starts(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path
) -> None:
    raw = topic(PARTITIONS)
    flow = Flow("shop", ledger=f"sqlite:///{tmp_path}/headrace.db", checkpoints=tmp_path / "c")
    flow.channel("raw", kafka(raw.name, raw.bootstrap_servers))
    flow.channel("clean", kafka("nowhere", raw.bootstrap_servers))

    @flow.stage("parse", reads="raw", writes="clean", on_failure="isolate")
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.select("value")

    with pytest.raises(
        SourceError, match=r"^Stage 'parse' \(.*\): .* the topic nowhere at .* create"
    ):
        flow.start(spark)
    assert not (tmp_path / "c").exists()
