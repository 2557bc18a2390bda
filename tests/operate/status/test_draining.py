"""When the query of a gate that drains can be stopped, and in which order a flow's stages are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.ledgers import new_ledger

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.operate.status.actions import FlowDrain, drain_state
from headrace.testing import ManualClock


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with the gates ``parse`` and ``store``, each with a query behind it."""
    clock = ManualClock()
    with new_ledger(
        f"sqlite:///{tmp_path}/headrace.db", clock=clock, database_clock=clock
    ) as opened:
        for gate in ("parse", "store"):
            claim = GateClaim(gate, f"query of {gate}", None, None, "a test", 1_000, "kafka", "pid")
            assert opened.gates.claim(claim, 30_000) is None
        yield opened


def begun(ledger: Ledger, gate: str) -> str:
    planned = PlannedRange(OffsetRange("orders", 0, 0, 10))
    batch = PlannedBatch(gate, "run", (planned,), "rate", "localhost:9092")
    return ledger.batches.begin(batch).batch_key


def seen(ledger: Ledger, gate: str) -> None:
    """The gate's planner plans by what is in force."""
    newest = ledger.operator_limits.of(gate).newest
    assert newest is not None
    ledger.operator_limits.mark_seen(gate, newest)


def test_a_query_can_be_stopped_when_its_planner_has_seen_the_drain_and_nothing_runs(
    ledger: Ledger,
) -> None:
    key = begun(ledger, "parse")
    assert "not draining" in drain_state(ledger, "parse").sentence
    ledger.operator_limits.drain("parse", "ops")
    state = drain_state(ledger, "parse")
    assert not state.can_stop
    assert "sees this at its next plan" in state.sentence
    seen(ledger, "parse")
    state = drain_state(ledger, "parse")
    assert (state.can_stop, state.running) == (False, 1)
    assert state.sentence == "parse: 1 batch runs; nothing more is admitted."
    ledger.batches.succeed(key)
    state = drain_state(ledger, "parse")
    assert state.can_stop
    assert state.sentence == "parse: drained, its query can be stopped."


def test_what_failed_stays_in_the_ledger_and_is_named(ledger: Ledger) -> None:
    key = begun(ledger, "parse")
    ledger.operator_limits.drain("parse", "ops")
    seen(ledger, "parse")
    ledger.batches.fail(key, ErrorReport("ValueError", "no", ""))
    state = drain_state(ledger, "parse")
    assert (state.can_stop, state.failed) == (True, 1)
    assert "1 failed batch waits in the ledger" in state.sentence
    ledger.batches.claim(key, "a backfill", 30_000)
    assert not drain_state(ledger, "parse").can_stop


def test_without_a_query_there_is_nothing_to_stop(ledger: Ledger) -> None:
    begun(ledger, "parse")
    ledger.operator_limits.drain("parse", "ops")
    ledger.gates.release("parse", "query of parse")
    assert drain_state(ledger, "parse").can_stop


def test_a_flow_is_drained_from_its_first_stage_to_its_last(ledger: Ledger) -> None:
    waiting: dict[str, int | None] = {"store": None}
    flow = FlowDrain(
        ledger,
        {"parse": (), "store": ("parse",)},
        lambda gate: waiting[gate],
        lambda gate: ledger.operator_limits.drain(gate, "ops"),
    )

    def step() -> list[bool]:
        """Whether each stage drains."""
        list(flow.step())
        return [ledger.operator_limits.of(gate).draining for gate in ("parse", "store")]

    key = begun(ledger, "parse")
    assert step() == [True, False]
    seen(ledger, "parse")
    waiting["store"] = 0
    assert step() == [True, False], "the first stage still runs a batch, which brings more"
    ledger.batches.succeed(key)
    waiting["store"] = None
    assert step() == [True, False], "what comes to the last stage is not known"
    waiting["store"] = 5
    assert step() == [True, False]
    waiting["store"] = 0
    assert step() == [True, True]
    assert [each.can_stop for each in flow.step()] == [True, False]
    seen(ledger, "store")
    assert [each.can_stop for each in flow.step()] == [True, True]


def test_whoever_resumes_a_gate_ends_its_drain(ledger: Ledger) -> None:
    draining = FlowDrain(
        ledger, {"parse": []}, lambda _: 0, lambda gate: ledger.operator_limits.drain(gate, "ada")
    )
    (state,) = draining.step()
    assert state.resumed_by is None
    ledger.operator_limits.resume("parse", "grace", "too early")
    ledger.operator_limits.limit("parse", 10, "alan", "gently")
    (state,) = draining.step()
    assert (state.resumed_by, state.can_stop) == ("grace", False)
    assert state.sentence == "parse: grace has resumed it, so it does not drain any more."
