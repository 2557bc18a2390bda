"""Which queries of a process end when an operator has asked for it."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.gate.execution.gate_state import StreamState, shared_ledger
from headrace.gate.execution.stopping import _stop, look
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, QueryEnd
from headrace.spark_versions import Py4JNetworkError


@dataclass
class Query:
    """A query that runs until it is stopped, which may fail so often."""

    name: str
    fails: int = 0
    id: str = "an id"
    isActive: bool = True

    def stop(self) -> None:
        if self.fails:
            self.fails -= 1
            raise PySparkException("it does not answer")
        self.isActive = False


@dataclass
class WithoutSpark:
    """A query whose JVM has ended, so that whatever is asked of it raises."""

    raised: Exception

    def __getattr__(self, _name: str) -> Any:
        raise self.raised


@dataclass
class Gate:
    """A gate called orders in a ledger of its own, with a query."""

    url: str
    ledger: Ledger
    state: StreamState
    query: Query


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[list[Gate]]:
    made = []
    for number in range(2):
        url = normalize_url(f"sqlite:///{tmp_path}/{number}.db")
        ledger = shared_ledger(url)
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        gate = Gate(url, ledger, StreamState("orders"), Query(str(number)))
        gate.state.follow(cast(StreamingQuery, gate.query))
        made.append(gate)
    yield made
    for gate in made:
        gate.query.isActive = False
        gate.ledger.close()


def seen(gates: list[Gate], *idle_before: StreamState) -> set[StreamState]:
    """Look at these gates alone, not at those of other tests of this process."""
    return look({(gate.url, "orders"): gate.state for gate in gates}, set(idle_before))


def ended(gate: Gate) -> bool:
    return not gate.query.isActive


def test_a_query_is_not_ended_by_the_stop_of_the_query_before_it(gates: list[Gate]) -> None:
    """Until its planner has claimed the gate, which may take long, the gate has the old stop."""
    gate = gates[0]
    gate.ledger.operator_limits.stop("orders", "ops")
    assert gate.ledger.gates.end("orders", "a driver", QueryEnd.STOPPED)
    assert not seen([gate], gate.state)
    assert not ended(gate)
    other = gates[1]  # over Spark Connect nobody reports the end once the program was killed
    other.ledger.operator_limits.stop("orders", "ops")
    other.ledger.operator_limits.withdraw_stop("orders")
    assert not seen([other], other.state)
    assert not ended(other)


def test_queries_of_two_ledgers_end_though_their_gates_have_one_name(gates: list[Gate]) -> None:
    for gate in gates:
        gate.ledger.operator_limits.stop("orders", "ops", "a new version")
    idle = seen(gates)
    assert idle == {gate.state for gate in gates}
    assert not any(map(ended, gates)), "none plans anything, and that is not certain yet"
    seen(gates, *idle)
    wait_until(lambda: all(map(ended, gates)))
    assert [gate.state.stopped_by for gate in gates] == ["ops: a new version"] * 2


def test_a_query_that_runs_a_batch_goes_on_and_one_whose_planner_has_seen_the_stop_ends(
    gates: list[Gate],
) -> None:
    busy, done = gates
    planned = PlannedRange(OffsetRange("orders", 0, 0, 10))
    busy.ledger.batches.begin(PlannedBatch("orders", "run", (planned,), "rate", "localhost:9092"))
    for gate in gates:
        newest: Any = gate.ledger.operator_limits.stop("orders", "ops").newest
        gate.ledger.operator_limits.mark_seen("orders", newest)
    assert seen(gates) == {done.state}
    wait_until(lambda: ended(done))
    assert not ended(busy)


def test_a_stop_that_fails_is_tried_again(gates: list[Gate]) -> None:
    gate = gates[0]
    gate.query.fails = 1
    gate.ledger.operator_limits.stop("orders", "ops")
    seen(gates, gate.state)
    wait_until(lambda: not gate.query.fails and gate.state.stopped_by is None)
    seen(gates, gate.state)
    wait_until(lambda: ended(gate))


@pytest.mark.parametrize("raised", [ConnectionRefusedError(), Py4JNetworkError("no answer")])
def test_a_query_whose_spark_has_ended_has_ended_and_nobody_repeats_it(
    gates: list[Gate], raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    gate = gates[0]
    gate.state.follow(cast(StreamingQuery, WithoutSpark(raised)))
    gate.ledger.operator_limits.stop("orders", "ops")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert not seen([gate], gate.state)
        assert gate.state.is_stopped()
        gate.state.refuse_a_second_query()
        assert caplog.messages == []
        _stop(gate.state, "SIGTERM")
    assert caplog.messages == ["The query 'orders' is stopped by SIGTERM."]
