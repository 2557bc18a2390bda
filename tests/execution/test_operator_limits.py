"""Operators pause, limit and drain gated queries that run, on a real broker and a real Spark."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.cli.outcomes import invoke
from tests.execution.queries import DEADLINE_S, Handled, everything_in, read
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.execution import Gate
from headrace.ledger import BatchRecord, Ledger, Status
from headrace.status.limiting import drain_state


@pytest.fixture
def gate(ledger_url: str) -> Gate:
    return Gate("orders", interval="500ms", ledger=ledger_url)


@contextmanager
def running(
    gate: Gate, spark: SparkSession, topic: Topic, handled: Handled, folder: Path
) -> Iterator[StreamingQuery]:
    """A query that goes on until it is stopped."""
    writer = gate.write(read(gate, spark, topic), handled)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="500 milliseconds").start()
    try:
        yield query
    finally:
        query.stop()


def newest(ledger: Ledger) -> BatchRecord:
    return ledger.batches.newest("orders", 1)[0]


def begun(ledger: Ledger) -> int:
    return len(ledger.batches.newest("orders", 1_000))


def test_a_paused_query_plans_nothing_and_goes_on_where_it_was(
    spark: SparkSession,
    topic: TopicFactory,
    gate: Gate,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    orders, handled = topic(), Handled()
    orders.produce(*[b"x"] * 50)
    with running(gate, spark, orders, handled, tmp_path) as query:
        wait_until(lambda: len(handled.records) == 50, DEADLINE_S)
        paused = invoke(ledger.url, "pause", "orders", "--by", "ops", "--why", "sink migration")
        assert "in force at its next plan" in paused.output
        wait_until(lambda: ledger.operator_limits.of("orders").seen, DEADLINE_S)
        before = begun(ledger)
        orders.produce(*[b"x"] * 50)
        # Spark asks the planner again and again meanwhile, and each time for what is there now.
        wait_until(lambda: _latest_seen(query) == 100, DEADLINE_S)
        assert (begun(ledger), len(handled.records)) == (before, 50)
        shown = json.loads(invoke(ledger.url, "status", "--json").output.splitlines()[0])
        assert (shown["state"], query.isActive) == ("paused", True)
        assert shown["operator_limits"].startswith("paused by ops: sink migration, since ")
        invoke(ledger.url, "resume", "orders")
        wait_until(lambda: len(handled.records) == 100, DEADLINE_S)
        assert query.exception() is None
    assert handled.records == everything_in((orders, 100))


def _latest_seen(query: StreamingQuery) -> int:
    """The latest offset of partition 0 as Spark's newest progress has it."""
    progress = query.lastProgress
    latest = None if progress is None else progress["sources"][0]["latestOffset"]
    if isinstance(latest, str):
        latest = json.loads(latest)
    return max((at for each in (latest or {}).values() for at in each.values()), default=0)


def test_a_limit_is_in_force_at_the_next_batch_and_ends_by_itself(
    spark: SparkSession,
    topic: TopicFactory,
    gate: Gate,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    orders, handled = topic(), Handled()
    orders.produce(*[b"x"] * 3_000)
    ledger.gates.declare("orders", interval_ms=500, source="kafka", estimator="{}")
    limited = invoke(ledger.url, "limit", "20", "orders", "--for", "8s", "--why", "a quota")
    assert limited.exit_code == 0
    with running(gate, spark, orders, handled, tmp_path):
        wait_until(lambda: begun(ledger) >= 2, DEADLINE_S)
        first = ledger.batches.newest("orders", 1_000)[-1]
        assert (first.planned_records, first.rate_per_s) == (10, 20)
        assert first.reason.startswith("limited to 20 records/s by ")
        wait_until(lambda: not newest(ledger).reason.startswith("limited"), DEADLINE_S)
        assert newest(ledger).planned_records > 10
        assert ledger.operator_limits.of("orders").limit is None


def test_a_drained_query_finishes_what_it_has_and_can_be_stopped(
    spark: SparkSession,
    topic: TopicFactory,
    gate: Gate,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    orders, handled = topic(), Handled()
    orders.produce(*[b"x"] * 2_000)
    with running(gate, spark, orders, handled, tmp_path):
        wait_until(lambda: len(handled.records) > 0, DEADLINE_S)
        drained = invoke(ledger.url, "drain", "orders", "--by", "ops", "--timeout", "2min")
        assert drained.exit_code == 0, drained.output
        assert drained.output.endswith("orders: drained, its query can be stopped.\n")
        assert drain_state(ledger, "orders").can_stop
        before = begun(ledger)
    assert begun(ledger) == before
    assert {each.status for each in ledger.batches.newest("orders", 1_000)} == {Status.SUCCESS}
    taken = len(handled.records)
    assert taken < 2_000
    ledger.operator_limits.resume("orders", "ops")
    with running(gate, spark, orders, handled, tmp_path):
        wait_until(lambda: len(handled.records) >= 2_000, DEADLINE_S)
    assert sorted(handled.records) == everything_in((orders, 2_000))
