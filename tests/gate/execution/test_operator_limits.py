"""Operators pause, limit and drain gated queries that run, on a real broker and a real Spark."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import DEADLINE_S, Handled, everything_in, read
from tests.operate.cli.outcomes import invoke
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status
from headrace.operate.status.actions import drain_state


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
