"""A flow of two stages on each version of Spark, and over Spark Connect."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.compat.test_gate import BAD, Sink
from tests.gate.execution.queries import DEADLINE_S
from tests.services.kafka import Topics
from tests.services.waiting import wait_until

from headrace.flow import Flow, kafka
from headrace.gate.execution.batch import Batch
from headrace.gate.ledger.ledger import Ledger

pytestmark = pytest.mark.integration  # its fixtures ask for the services by name


def positive(df: DataFrame) -> DataFrame:
    return df.where("cast(value as string) != '-1'")


def passed_on(df: DataFrame, _batch: Batch) -> DataFrame:
    return df.select("value")


def test_records_go_through_a_flow_once_and_what_was_deferred_later(
    spark: SparkSession, topics: Topics, ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    raw, clean = topics.create(), topics.create(2)
    (tmp_path / "sink").mkdir()
    sink = Sink(tmp_path / "sink")
    values = [f"{n:03}" for n in range(40)]
    raw.produce(*(value.encode() for value in [*values[:20], "-1", BAD, *values[20:]]))
    flow = Flow("shop", ledger=ledger_url, checkpoints=tmp_path / "checkpoints")
    flow.channel("raw", kafka(raw.name, raw.bootstrap_servers))
    flow.channel("clean", kafka(clean.name, clean.bootstrap_servers))
    flow.stage("clean", reads="raw", writes="clean", derive=positive)(passed_on)
    flow.stage("store", reads="clean", on_failure="defer")(sink)
    with flow.start(spark) as running:
        wait_until(lambda: running.await_termination(0) or ledger.batches.failed("shop.store"))
        sink.heal()
        wait_until(lambda: sink.values == [*values, BAD], DEADLINE_S)
