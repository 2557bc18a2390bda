"""Objects that a session is given once, and settings that it is built with."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.gate.execution.queries import finish
from tests.journal.journals import fill

import headrace
from headrace.errors import LedgerError
from headrace.gate.execution.spark_session import RECOMMENDED_CONF, hide_secrets


def test_a_default_ledger_that_cannot_be_opened_is_raised_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match="no-such-folder"):
        headrace.register(spark, ledger=f"sqlite:///{tmp_path}/no-such-folder/headrace.db")


def test_a_session_can_be_built_with_what_makes_small_batches_fast() -> None:
    builder = SparkSession.Builder()
    assert headrace.configure(builder) is builder
    assert RECOMMENDED_CONF.items() <= builder._options.items()


@pytest.mark.parametrize("source", ["headrace-kafka", "headrace-journal"])
def test_a_query_that_starts_does_not_disturb_the_tasks_of_another(
    spark: SparkSession, source: str
) -> None:
    """Spark adds to a source's variables when a query starts, and reads them for its tasks.

    All queries share the variables. A map that cannot bear both refuses to be read on, or, where
    two queries add at the same moment, loses one and cannot be sent to any task any more.
    """
    headrace.register(spark)
    manager: Any = spark._jsparkSession.sessionState().dataSourceManager()
    variables = manager.lookupDataSource(source).dataSourceCls().envVars()
    reading = variables.entrySet().iterator()
    variables.put("HEADRACE_TEST", "another query starts")
    try:
        while reading.hasNext():
            reading.next()
        assert variables.get("PYTHONHASHSEED") is not None
    finally:
        variables.remove("HEADRACE_TEST")


@pytest.mark.soak
def test_queries_that_start_at_the_same_moment_all_run(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "orders", {0: [5], 1: [5]})
    headrace.register(spark)
    for number in range(25):
        moment = threading.Barrier(4)

        def start(name: str, moment: Any = moment) -> None:
            folder = tmp_path / name
            reader = spark.readStream.format("headrace-journal")
            writer = reader.load(str(tmp_path / "orders")).writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
            writer = writer.trigger(availableNow=True)
            moment.wait()
            finish(writer.start(str(folder / "stored")))
            assert spark.read.parquet(str(folder / "stored")).count() == 10

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(start, [f"{number}-{query}" for query in range(4)]))


def test_registering_again_is_harmless_in_this_session_and_in_those_made_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path / "orders", {0: [5]})
    headrace.register(spark)
    other = spark.newSession()
    for session in (spark, other, other, other.newSession(), spark):
        headrace.register(session)
        reader = session.read.format("headrace-journal")
        assert reader.load(str(tmp_path / "orders")).count() == 5


def test_sources_of_a_session_made_of_a_registered_one_know_its_secrets(
    spark: SparkSession,
) -> None:
    """The sources of a session know the secrets that were hidden from Spark in it."""
    headrace.register(spark)
    other = spark.newSession()
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.sasl.password": "hunter2"}
    shown = hide_secrets(other, given)
    assert "hunter2" not in str(shown)
    assert hide_secrets(other, given) == shown
