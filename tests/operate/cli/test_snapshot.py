"""Fields of a snapshot, from the ledger's records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operate.cli.histories import (
    INTERVAL_MS,
    NOW_MS,
    a_batch,
    a_gate,
    learnt,
    text_of,
    with_lags,
)
from tests.services.ledgers import report_sample

from headrace.core.ranges import OffsetRange
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.limits import OperatorAction, OperatorActionKind, OperatorLimits
from headrace.gate.control.schema_fit import FitCount
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Missed
from headrace.gate.ledger.records import PlannedBatch, PlannedRange, RateSample, Unresolved
from headrace.gate.ledger.transitions import Status
from headrace.operate.cli.gate_view import GateView
from headrace.operate.cli.status import status_view
from headrace.operate.status.lags import GateLag
from headrace.operate.status.moment import read_histories, take_snapshot
from headrace.operate.status.needs import headline
from headrace.operate.status.states import GateHistory, GateState


@pytest.mark.parametrize(
    ("history", "state"),
    [
        (GateHistory(a_gate(rate_per_s=None)), GateState.NEW),
        (with_lags(900, 1_000), GateState.KEEPING_UP),
        (with_lags(9_000, 8_500, 8_000), GateState.CATCHING_UP),
        (with_lags(9_000, 9_010, 9_000), GateState.STEADY),
        (with_lags(9_000), GateState.STEADY),
        (with_lags(9_000, 9_500, 10_000), GateState.FALLING_BEHIND),
        (with_lags(900, 1_000, ended_ms_ago=60_000), GateState.IDLE),
        (with_lags(9_000, 9_000, ended_ms_ago=60_000), GateState.STALLED),
        (
            GateHistory(a_gate(), (a_batch(1, NOW_MS - 90_000, 1_000, status=Status.IN_PROGRESS),)),
            GateState.OVERDUE,
        ),
        (
            GateHistory(a_gate(), (a_batch(1, NOW_MS - 4_000, 1_000, status=Status.IN_PROGRESS),)),
            GateState.KEEPING_UP,
        ),
        (
            GateHistory(a_gate(), (a_batch(1, NOW_MS, 1_000, status=Status.FAILED),)),
            GateState.FAILED,
        ),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, GateState) else "",
)
def test_a_gate_is_in_the_state_that_its_batches_show(
    history: GateHistory, state: GateState
) -> None:
    assert take_snapshot(history, NOW_MS).state is state


@pytest.mark.parametrize(
    ("history", "ended", "state", "said"),
    [
        (with_lags(900, 1_000), "finished", GateState.FINISHED, "2,000 records processed"),
        (with_lags(9_000, 9_000), "finished", GateState.STOPPED, "8,000 records left waiting."),
        (
            with_lags(900, 1_000),
            "stopped",
            GateState.STOPPED,
            "; what waits now is not known; nothing did 1.00 s ago.",
        ),
        (with_lags(900, 1_000), "failed", GateState.STOPPED, "by an error: no (ValueError); "),
        (GateHistory(a_gate()), "finished", GateState.FINISHED, "all records processed"),
    ],
)
def test_a_gate_whose_query_has_said_how_it_ended_is_neither_dead_nor_stalled(
    history: GateHistory, ended: str, state: GateState, said: str
) -> None:
    error = "ValueError: no" if ended == "failed" else None
    gate = replace(history.gate, ended_ms=NOW_MS - 5_000, ended=ended, ended_error=error)
    snapshot = take_snapshot(replace(history, gate=gate), NOW_MS)
    assert snapshot.state is state
    assert said in headline(snapshot)
    assert "(5.00 s ago)" in headline(snapshot)
    assert [str(need.kind) for need in snapshot.needs] == (["stopped"] if error else [])


def test_a_query_that_an_error_has_ended_needs_somebody_now_and_says_what_waits_now() -> None:
    history, error = with_lags(900, 1_000), "DataLossError: The journal has lost records."
    ended = replace(history.gate, ended_ms=NOW_MS, ended="failed", ended_error=error)
    waiting = GateLag(records=50, source_records=50)
    (need,) = take_snapshot(replace(history, gate=ended), NOW_MS + 600_000, waiting).needs
    assert need.urgency == 0
    assert need.records == 50
    assert need.sentence.endswith(
        "by an error: The journal has lost records (DataLossError); 50 records waiting now."
    )
    assert need.command == "headrace failures orders"
    by_somebody = replace(ended, ended="stopped", ended_error=None)
    assert take_snapshot(replace(history, gate=by_somebody), NOW_MS).needs == ()


def test_once_a_query_has_ended_its_lag_is_what_waits_and_not_what_its_last_plan_saw() -> None:
    history = with_lags(900, 1_000)
    ended = replace(history.gate, ended_ms=NOW_MS - 5_000, ended="finished", ended_error=None)
    snapshot = take_snapshot(replace(history, gate=ended), NOW_MS)
    assert (snapshot.lag, snapshot.lag_trend, snapshot.drain_s) == (None, None, None)
    plan = PlannedRange(OffsetRange("orders", 0, 0, 900), latest=900)
    left = take_snapshot(replace(history, gate=ended, ranges=(plan,)), NOW_MS)
    shown = " ".join(text_of(GateView(left)).replace("│", " ").split())
    assert "none left" in shown
    assert "partition left admitted" in shown
    assert "orders-0 0 900" in shown
    assert "drained in" not in shown
    silent = take_snapshot(
        replace(history, gate=ended), NOW_MS + 60_000, GateLag(records=0, source_records=0)
    )
    assert (silent.lag, silent.lag_now) == (0, 0)
    came = replace(snapshot, lag_now=50)
    assert headline(came).endswith("processed, none left then; 50 records waiting now.")
    assert take_snapshot(history, NOW_MS).lag == 1_000


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ({"unresolved": Unresolved(failed=1, dead=2)}, "with 1 failed batch, 2 dead batches, none"),
        ({"unresolved": Unresolved(letters=3)}, "with 3 dead letters, none left"),
        ({"missed": Missed(lost=4, skipped=5)}, "with 4 lost records, 5 skipped records, none"),
    ],
)
def test_a_query_that_has_finished_has_processed_all_only_if_nothing_is_unresolved(
    trouble: dict[str, Any], said: str
) -> None:
    history = with_lags(900, 1_000)
    ended = replace(history.gate, ended_ms=NOW_MS - 5_000, ended="finished", ended_error=None)
    snapshot = take_snapshot(replace(history, gate=ended, **trouble), NOW_MS)
    assert snapshot.state is GateState.FINISHED
    assert f"2,000 records taken, {said}" in headline(snapshot)
    assert "processed" not in headline(snapshot)


def test_a_gate_that_was_stopped_within_a_batch_does_not_say_when_it_is_drained() -> None:
    history = with_lags(9_000, 8_500, 8_000)
    running = a_batch(3, NOW_MS - 500, 7_500, status=Status.IN_PROGRESS)
    history = replace(history, batches=(running, *history.batches))
    assert take_snapshot(history, NOW_MS).drain_s is not None
    ended = replace(history.gate, ended_ms=NOW_MS, ended="stopped", ended_error=None)
    snapshot = take_snapshot(replace(history, gate=ended), NOW_MS)
    assert snapshot.state is GateState.INTERRUPTED
    assert (snapshot.drain_s, snapshot.drain_trend, snapshot.lag_trend) == (None, None, None)


def limited_to(records_per_s: float) -> OperatorLimits:
    action = OperatorAction(
        1,
        "orders",
        OperatorActionKind.LIMIT,
        "jo",
        "",
        NOW_MS - 60_000,
        records_per_s=records_per_s,
    )
    return OperatorLimits("orders", NOW_MS, limit=action)


def test_a_gate_that_an_operator_limits_is_limited_and_not_behind() -> None:
    history = with_lags(9_000, 9_500, 10_000)
    first, *others = history.batches
    behind = replace(history, operator_limits=limited_to(10))
    limited = replace(behind, batches=(replace(first, reason="limited to 10 records/s"), *others))
    snapshot = take_snapshot(limited, NOW_MS)
    assert snapshot.state is GateState.LIMITED
    assert headline(snapshot).startswith("Limited to 10 records/s by jo, since ")
    assert headline(snapshot).endswith("; 9,000 records left waiting.")
    assert [each.command for each in snapshot.needs] == ["headrace limit off orders"]
    assert take_snapshot(behind, NOW_MS).state is GateState.FALLING_BEHIND


def test_a_batch_takes_as_long_as_spark_reports_and_until_then_as_the_ledger_saw() -> None:
    sample = RateSample(
        "orders", NOW_MS, 990.0, 1_000, 1_150, 0, 870.0, -130.0, -5.0, 0.0, 1, "run 1"
    )
    history = replace(with_lags(9_000, 8_500, 8_000), samples=(sample,))
    batches = take_snapshot(history, NOW_MS).batches
    assert [(batch.id, batch.duration_ms) for batch in batches] == [(2, 900), (1, 1_150), (0, 900)]


def test_a_running_batch_lasts_until_now() -> None:
    running = a_batch(1, NOW_MS - 4_200, 1_000, status=Status.IN_PROGRESS)
    snapshot = take_snapshot(GateHistory(a_gate(), (running,)), NOW_MS)
    assert snapshot.batches[0].running
    assert snapshot.batches[0].duration_ms == 4_200
    assert snapshot.in_progress == 1


def test_failures_are_counted_and_the_newest_error_is_told_in_one_line() -> None:
    older = ErrorReport("KeyError", "'id'", "")
    newer = ErrorReport("ValueError", "bad order 12\nin line 3", "")
    history = GateHistory(
        a_gate(),
        (
            a_batch(3, NOW_MS, 1_000),
            a_batch(2, NOW_MS - 1_000, 1_000, status=Status.FAILED, error=newer),
            a_batch(1, NOW_MS - 2_000, 1_000, status=Status.DEAD, error=older),
        ),
        unresolved=Unresolved(failed=7, dead=3, letters=12),
    )
    snapshot = take_snapshot(history, NOW_MS)
    assert (snapshot.failed, snapshot.dead, snapshot.dead_letters) == (7, 3, 12)
    assert snapshot.error == "bad order 12 (ValueError)"


def reported(
    *took_ms: int, rate_per_s: float | None = 100.0, records: int = 100, failures: int = 0
) -> GateHistory:
    """Batches that took so long, the newest first, at the lowest rate unless it is another."""
    gate = replace(a_gate(rate_per_s), estimator=EstimatorSettings().to_text())
    batches = [
        replace(a_batch(number, NOW_MS - number * 1_000, 900, 100), attempts=1 + failures)
        for number in range(len(took_ms))
    ]
    samples = [
        RateSample("orders", NOW_MS, rate_per_s, records, ms, 0, batch_key=batch.batch_key)
        for ms, batch in zip(took_ms, batches, strict=True)
    ]
    return GateHistory(gate, tuple(batches), tuple(samples))


def test_what_a_batch_costs_is_shown() -> None:
    gate = learnt(a_gate(2_400.0), fixed_s=0.31, law="learned", changed_ms=NOW_MS - 180_000)
    sample = RateSample("orders", NOW_MS, 2_400.0, 2_400, 990, 0)
    snapshot = take_snapshot(GateHistory(gate, (), (sample,)), NOW_MS)
    assert snapshot.law == "learned"
    assert (snapshot.fixed_ms, snapshot.record_us, snapshot.noise) == pytest.approx((310, 52, 0.08))
    shown = " ".join(text_of(GateView(snapshot)).replace("│", " ").split())
    assert "batch cost 0.31 s before its first record · 52 µs a record · noise 8%" in shown
    assert "· changed 3 min 0 s ago" in shown


@pytest.mark.parametrize(
    ("history", "words"),
    [
        (
            reported(1_050, 950, 30_000),
            "its lowest, 100/s (minRate), and batches still take 1.05 s",
        ),
        (reported(880, 700, 1_200), None),
        (reported(1_050, 950), None),
        (reported(1_050, 950, 1_100, rate_per_s=101.0), None),
        (reported(1_050, 950, 1_100, rate_per_s=None), None),
        (reported(5, 5, 5, rate_per_s=None, records=0), "has read no record of the last 3"),
        (reported(5, 5, rate_per_s=None, records=0), None),
        (
            replace(
                reported(5, 5, 5, rate_per_s=None, records=0), fit_counts=(FitCount(100, 100),) * 3
            ),
            None,
        ),
        (reported(5, 5, 5, rate_per_s=None, records=0, failures=1), None),
        (GateHistory(replace(a_gate(), estimator="{")), None),
    ],
)
def test_a_gate_that_stays_at_its_lowest_rate_says_why(
    history: GateHistory, words: str | None
) -> None:
    snapshot = take_snapshot(history, NOW_MS)
    assert len(snapshot.advice) == (words is not None)
    assert all(words in sentence for sentence in snapshot.advice if words)
    for picture in (GateView(snapshot), status_view([snapshot, snapshot], [])):
        shown = " ".join(text_of(picture).replace("│", " ").split())
        assert all(sentence in shown for sentence in snapshot.advice)


def test_records_of_a_run_are_counted_only_where_all_its_batches_were_read() -> None:
    history = with_lags(*[900] * 12)
    assert take_snapshot(history, NOW_MS).run_records == 12_000
    assert take_snapshot(replace(history, look_back=12), NOW_MS).run_records is None


def test_a_history_is_read_from_the_ledger(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db", clock=lambda: NOW_MS) as ledger:
        ledger.gates.declare("orders", interval_ms=INTERVAL_MS, source="kafka", estimator="pid")
        begun = ledger.batches.begin(
            PlannedBatch(
                gate="orders",
                checkpoint_id="run",
                ranges=(PlannedRange(OffsetRange("orders", 4, 10, 30), 100, "rate"),),
                reason="rate",
                bootstrap_servers="localhost:9092",
                lag=90,
            )
        )
        ledger.batches.attach(begun.batch_key, 7)
        report_sample(
            ledger, RateSample("orders", NOW_MS, 42.5, 20, 800, 0, 25.0, -1.0, -0.5, 0.0, 7, None)
        )
        ledger.history.record_losses("orders", [OffsetRange("orders", 4, 3, 10)])
        (gate,) = ledger.gates.all()
        (history,) = read_histories(ledger, [gate])
        snapshot = take_snapshot(history, NOW_MS)

    assert snapshot.rate_per_s == 42.5
    assert snapshot.proportional == -1.0
    assert (snapshot.lag, snapshot.left_over) == (90, 70)
    assert snapshot.batches[0].id == 7
    assert snapshot.partitions[0].partition == 4
    assert snapshot.lost_records == 7
