"""A flow of two stages on each version of Spark, and over Spark Connect."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.compat.test_gate import BAD, Sink
from tests.execution.queries import DEADLINE_S
from tests.services.kafka import Topics
from tests.services.waiting import wait_until

from headrace.execution import Batch
from headrace.flow import Flow, journal, kafka
from headrace.journal import Journal, Records
from headrace.ledger import Ledger

pytestmark = pytest.mark.integration  # its fixtures ask for the services by name


def positive(df: DataFrame) -> DataFrame:
    return df.where("cast(value as string) != '-1'")


def passed_on(df: DataFrame, _batch: Batch) -> DataFrame:
    return df.select("value")


def append(opened: Journal, values: list[str]) -> None:
    with opened.writer(0) as writer:
        writer.append(Records.of([value.encode() for value in values], timestamp_ms=1))


def test_records_go_through_a_flow_once_and_what_was_deferred_later(
    spark: SparkSession, ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    raw, clean = tmp_path / "raw", tmp_path / "clean"
    (tmp_path / "sink").mkdir()
    sink = Sink(tmp_path / "sink")
    values = [f"{n:03}" for n in range(40)]
    append(Journal.open(str(raw), create=True), [*values[:20], "-1", BAD, *values[20:]])
    Journal.open(str(clean), create=True)
    flow = Flow("shop", ledger=ledger_url, checkpoints=tmp_path / "checkpoints")
    flow.channel("raw", journal(str(raw)))
    flow.channel("clean", journal(str(clean)))
    flow.stage("clean", reads="raw", writes="clean", derive=positive)(passed_on)
    flow.stage("store", reads="clean", on_failure="defer")(sink)
    with flow.start(spark) as running:
        wait_until(lambda: running.await_termination(0) or ledger.batches.failed("shop.store"))
        sink.heal()
        wait_until(lambda: sink.values == [*values, BAD], DEADLINE_S)


def test_a_stage_writes_a_topic_that_another_one_reads(
    spark: SparkSession, topics: Topics, ledger_url: str, tmp_path: Path
) -> None:
    raw, orders = tmp_path / "raw", topics.create(2)
    (tmp_path / "sink").mkdir()
    sink = Sink(tmp_path / "sink")
    values = [f"{n:03}" for n in range(40)]
    append(Journal.open(str(raw), create=True), values)
    flow = Flow("shop", ledger=ledger_url, checkpoints=tmp_path / "checkpoints")
    flow.channel("raw", journal(str(raw)))
    flow.channel("orders", kafka(orders.name, orders.bootstrap_servers))
    flow.stage("first", reads="raw", writes="orders")(passed_on)
    flow.stage("store", reads="orders")(sink)
    with flow.start(spark) as running:
        wait_until(
            lambda: running.await_termination(0) or sink.values == values,
            DEADLINE_S,
        )
