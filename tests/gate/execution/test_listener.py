"""The listener, told of batches by hand-made events, with a real ledger."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from tests.gate.execution.events import gated_source, planned, progress, source, started, terminated
from tests.gate.ledger.samples import convict, stored
from tests.operate.cli.outcomes import LETTER
from tests.services.ledgers import gate_now

from headrace import Batch
from headrace.core.ranges import OffsetRange
from headrace.core.system import new_owner
from headrace.errors import LedgerError
from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.control.interval import IntervalLaw
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.execution.gate_state import state_of
from headrace.gate.execution.listener import GateListener
from headrace.gate.ledger.error_report import BAD_VALUE, ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import RateSample
from headrace.gate.ledger.transitions import Status
from headrace.testing import MemoryLog, StreamHarness
from headrace.testing.memory_reader import TESTED_GATE

START_MS = 1_700_000_000_000


def orders(start: int, until: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("orders-topic", partition, start, until)


def payments(start: int, until: int) -> OffsetRange:
    return OffsetRange("payments-topic", 0, start, until)


@pytest.fixture
def listener(ledger: Ledger) -> GateListener:
    return GateListener(lambda _gate, _run: ledger)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings of the gate's log so far."""
    caplog.set_level(logging.WARNING, "headrace.execution")
    return lambda: [record.getMessage() for record in caplog.records]


def report(
    listener: GateListener, *sources: dict[str, Any], run: UUID | None = None, **options: Any
) -> None:
    """Have Spark report a batch that read these sources."""
    listener.onQueryProgress(progress(*sources, run=run or uuid4(), **options))


def begin(ledger: Ledger, gate: str, *ranges: OffsetRange) -> str:
    return ledger.batches.begin(planned(gate, *ranges)).batch_key


def status_of(ledger: Ledger, batch: str) -> Status:
    return stored(ledger, batch).status


def test_a_batch_that_ended_is_a_success_transition_d(
    ledger: Ledger, listener: GateListener
) -> None:
    batch = begin(ledger, "orders", orders(0, 500))
    source = gated_source("orders", orders(0, 500), first=True)
    report(listener, source, batch_id=4, start_ms=START_MS)
    settled = stored(ledger, batch)
    assert settled.status is Status.SUCCESS
    assert (settled.query_batch_id, settled.start_time_ms, settled.records) == (4, START_MS, 500)


def test_the_second_batch_of_a_run_gives_the_rate_at_which_it_was_processed(
    ledger: Ledger, listener: GateListener
) -> None:
    run = uuid4()
    first = gated_source("orders", orders(0, 500), first=True)
    report(listener, first, run=run, start_ms=START_MS, duration_ms=1_000)
    assert ledger.rates.current("orders") is None
    second = gated_source("orders", orders(500, 900), unread=50)
    report(listener, second, run=run, batch_id=1, start_ms=START_MS + 1_000, duration_ms=2_000)
    assert ledger.rates.current("orders") == 200.0
    newest, oldest = ledger.rates.history("orders")
    assert (oldest.rate_per_s, oldest.records, oldest.proportional) == (None, 500, None)
    assert newest.rate_per_s == newest.processing_rate_per_s == 200.0
    assert (newest.proportional, newest.integral, newest.derivative) == (-300.0, 0.0, 0.0)
    assert newest.time_ms == START_MS + 3_000


def test_a_batch_that_began_late_with_data_waiting_counts_as_delayed(
    ledger: Ledger, listener: GateListener
) -> None:
    run = uuid4()
    first = gated_source("orders", orders(0, 500), first=True, unread=1)
    second = gated_source("orders", orders(500, 900))
    report(listener, first, run=run, start_ms=START_MS, duration_ms=1_700)
    report(listener, second, run=run, start_ms=START_MS + 1_700, batch_id=1)
    assert [sample.scheduling_delay_ms for sample in ledger.rates.history("orders")] == [700, 0]


def test_two_sources_of_a_query_are_distinguished_by_their_gates_not_by_their_order(
    ledger: Ledger, listener: GateListener
) -> None:
    run = uuid4()
    a = [gated_source("orders", orders(0, 100)), gated_source("payments", payments(0, 1_000))]
    b = [gated_source("payments", payments(1_000, 2_000)), gated_source("orders", orders(100, 200))]
    c = [gated_source("orders", orders(200, 300)), gated_source("payments", payments(2_000, 3_000))]
    for number, sources in enumerate((a, b, c)):
        report(listener, *sources, run=run, batch_id=number, start_ms=START_MS + number * 1_000)
    assert [sample.rate_per_s for sample in ledger.rates.history("orders")] == [100.0, 100.0, None]
    assert [sample.rate_per_s for sample in ledger.rates.history("payments")] == [
        1000.0,
        1000.0,
        None,
    ]


def test_sources_without_a_gate_are_none_of_its_business(
    ledger: Ledger, warnings: Callable[[], list[str]]
) -> None:
    listener = GateListener(lambda gate, _run: pytest.fail(f"asked for the ledger of {gate}"))
    others = [
        source(None, 5, 5, rows=5),  # the rate source
        source({"logOffset": 0}, {"logOffset": 1}, None, rows=5),  # files
        source([1], [2], None, rows=5),
        source(None, "no JSON object", None, rows=5),
        source({"t": {"0": 1}}, {"t": {"0": 9}}, {"t": {"0": 9}}, rows=8),  # the native connector
        gated_source(None, orders(0, 5)),
    ]
    report(listener, *others)
    assert ledger.batches.newest("orders") == ()
    assert warnings() == []
    known = GateListener(lambda _gate, _run: ledger)
    report(known, *others[:-1], gated_source("orders", orders(0, 5)))
    assert [sample.records for sample in ledger.rates.history("orders")] == [5]


def test_a_batch_in_which_the_gate_had_nothing_teaches_nothing(
    ledger: Ledger, listener: GateListener
) -> None:
    sources = [gated_source("orders"), gated_source("payments", payments(0, 10))]
    for number in range(3):
        report(listener, *sources, batch_id=number)
    assert ledger.rates.history("orders") == ()
    assert len(ledger.rates.history("payments")) == 3


def test_a_batch_of_which_no_row_was_read_teaches_nothing_and_counts_nothing(
    ledger: Ledger, listener: GateListener
) -> None:
    # Its handler failed and the query went on, or it had been processed before a crash.
    batch = begin(ledger, "orders", orders(0, 500))
    report(listener, gated_source("orders", orders(0, 500), rows=0))
    (sample,) = ledger.rates.history("orders")  # which the planner waits for
    assert (sample.rate_per_s, sample.processing_rate_per_s) == (None, None)
    assert stored(ledger, batch).records is None


def test_a_handler_that_never_reads_is_logged_once(
    ledger: Ledger, listener: GateListener, warnings: Callable[[], list[str]]
) -> None:
    run = uuid4()
    for number in range(8):
        unread = gated_source("orders", orders(number * 10, number * 10 + 10), rows=0)
        report(listener, unread, run=run, batch_id=number)
        assert len(warnings()) == (number >= 2)
    assert "has read no record of its last 3 batches" in warnings()[0]


def test_a_handler_whose_values_are_all_rejected_has_read_them(
    ledger: Ledger, listener: GateListener, warnings: Callable[[], list[str]]
) -> None:
    """Spark sees no row of a value that the source could not decode."""
    run = uuid4()
    for number in range(8):
        ranges = orders(number * 10, number * 10 + 10)
        letter = replace(LETTER, offset=number * 10, error=ErrorReport(BAD_VALUE, "no JSON", ""))
        convict(ledger, begin(ledger, "orders", ranges), letter)
        report(listener, gated_source("orders", ranges, rows=0), run=run, batch_id=number)
    assert len(ledger.rates.history("orders")) == 8
    assert warnings() == []


def test_a_batch_now_and_then_of_which_nothing_is_read_is_not_logged(
    ledger: Ledger, listener: GateListener, warnings: Callable[[], list[str]]
) -> None:
    run = uuid4()
    for number in range(9):
        ranges = orders(number * 10, number * 10 + 10)
        rows = 10 if number % 3 == 2 else 0
        report(listener, gated_source("orders", ranges, rows=rows), run=run, batch_id=number)
    failing = uuid4()
    for number in range(9, 18):
        ranges = orders(number * 10, number * 10 + 10)
        state_of(ledger.url, "orders").batch_was_helped(begin(ledger, "orders", ranges))
        report(listener, gated_source("orders", ranges, rows=0), run=failing, batch_id=number)
    assert warnings() == []


PID = EstimatorSettings("pid", {"backpressure.pid.derived": 0.5})
PID_FROM_100 = {"backpressure.rateEstimator": "pid", "backpressure.initialRate": 100}


@dataclass(frozen=True)
class Told:
    """A batch as Spark reports it: how long it took, and how much of that it was helped or waited.

    It begins at once after the one before. It has as many records as milliseconds of its own.
    """

    own_ms: int
    helped: bool = False
    waited_ms: int = 0


def taught(ledger: Ledger, gate: str, batches: Sequence[Told]) -> list[tuple[float | None, ...]]:
    """Return the estimator's samples of the batches that went through, the oldest first."""
    ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator=PID.to_text())
    listener, run, start_ms, offset = GateListener(lambda _gate, _run: ledger), uuid4(), START_MS, 0
    for number, each in enumerate(batches):
        ranges = orders(offset, offset + each.own_ms)
        batch = begin(ledger, gate, ranges)
        if each.helped:
            state_of(ledger.url, gate).batch_was_helped(batch)
        state_of(ledger.url, gate).batch_waited(batch, each.waited_ms)
        report(
            listener,
            gated_source(gate, ranges, unread=10_000),
            run=run,
            batch_id=number,
            start_ms=start_ms,
            duration_ms=each.own_ms + each.waited_ms,
        )
        start_ms += each.own_ms + each.waited_ms
        offset += each.own_ms
    samples = reversed(ledger.rates.history(gate))
    return [
        (s.rate_per_s, s.proportional, s.integral, s.derivative)
        for s, each in zip(samples, batches, strict=True)
        if not each.helped
    ]


STEADY = (Told(1_000), Told(1_200), Told(900), Told(1_000), Told(1_000))


@pytest.mark.integration
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("took_ms", [40, 28_700])
def test_what_isolation_does_teaches_nothing_nor_does_the_batch_after_it_pay_for_it(
    ledger: Ledger, at: int, took_ms: int
) -> None:
    isolated = [*STEADY[:at], Told(took_ms, helped=True), *STEADY[at:]]
    rates = [each[0] for each in taught(ledger, "orders", isolated)]
    # Nobody waits longer than the batch before took, whatever came between.
    assert rates[0] is None
    assert all(rate is not None and rate > 800 for rate in rates[1:])
    assert ledger.rates.current("orders") == rates[-1]


def test_a_batch_that_began_in_time_after_an_isolated_one_is_taught_as_if_that_had_not_been(
    ledger: Ledger,
) -> None:
    in_time = [Told(1_000), Told(900), Told(800), Told(1_000)]
    isolated = [*in_time[:2], Told(28_700, helped=True), *in_time[2:]]
    assert taught(ledger, "orders", isolated) == taught(ledger, "payments", in_time)


def test_what_helped_a_batch_of_two_gates_through_teaches_neither(
    ledger: Ledger, listener: GateListener
) -> None:
    run, start_ms = uuid4(), START_MS
    for number, (took_ms, waited_ms) in enumerate([(1_000, 0), (9_000, 0), (1_500, 500)]):
        ranges = orders(number * 500, number * 500 + 500), payments(number * 10, number * 10 + 10)
        mine = begin(ledger, "orders", ranges[0])
        if number == 1:
            state_of(ledger.url, "orders").batch_was_helped(mine)
        state_of(ledger.url, "orders").batch_waited(mine, waited_ms)
        sources = [gated_source("orders", ranges[0]), gated_source("payments", ranges[1])]
        report(listener, *sources, run=run, batch_id=number, start_ms=start_ms, duration_ms=took_ms)
        start_ms += took_ms
    for gate, records in (("orders", 500.0), ("payments", 10.0)):
        newest, helped, _ = ledger.rates.history(gate)
        assert helped.rate_per_s is None
        assert newest.rate_per_s == max(records, 100.0)
        assert (newest.processing_rate_per_s, newest.scheduling_delay_ms) == (records, 0)


@pytest.mark.parametrize("at", range(5))
def test_a_batch_that_waited_while_a_backfill_had_the_handler_is_taught_without_the_wait(
    ledger: Ledger, at: int
) -> None:
    waited = [*STEADY[:at], replace(STEADY[at], waited_ms=7_000), *STEADY[at + 1 :]]
    assert taught(ledger, "orders", waited) == taught(ledger, "payments", STEADY)


def test_a_failed_batch_stays_failed_though_the_query_goes_on(
    ledger: Ledger, listener: GateListener
) -> None:
    batch = begin(ledger, "orders", orders(0, 500))
    ledger.batches.fail(batch, ValueError("the sink is full"))
    report(listener, gated_source("orders", orders(0, 500), rows=0))
    assert status_of(ledger, batch) is Status.FAILED
    assert [sample.rate_per_s for sample in ledger.rates.history("orders")] == [None]


def test_a_handler_that_reads_its_batch_twice_does_not_double_the_records(
    ledger: Ledger, listener: GateListener
) -> None:
    read_twice = gated_source("orders", orders(0, 500), orders(10, 20, partition=1), rows=1_020)
    report(listener, read_twice)
    assert [sample.records for sample in ledger.rates.history("orders")] == [510]


def test_after_a_restart_the_estimator_is_new_and_the_rate_stays(
    ledger: Ledger, listener: GateListener
) -> None:
    first, second = uuid4(), uuid4()
    for number in range(2):
        ranges = orders(number * 100, number * 100 + 100)
        at_ms = START_MS + number * 1_000
        report(listener, gated_source("orders", ranges), run=first, batch_id=number, start_ms=at_ms)
    assert ledger.rates.current("orders") == 100.0
    restarted = gated_source("orders", orders(200, 1_200))
    report(listener, restarted, run=second, batch_id=2, start_ms=START_MS + 60_000)
    assert ledger.rates.current("orders") == 100.0
    assert [sample.rate_per_s for sample in ledger.rates.history("orders")] == [None, 100.0, None]


def run_job(
    ledger: Ledger,
    settings: EstimatorSettings,
    fixed_ms: int,
    *,
    batches: int = 30,
    interval_ms: int = 1_000,
    gates: Sequence[str] = ("orders",),
) -> GateListener:
    """A job on a backlog that takes so long and 0.1 ms for each record, at the ledger's rates."""
    for gate in gates:
        ledger.gates.declare(
            gate, interval_ms=interval_ms, source="kafka", estimator=settings.to_text()
        )
    listener, run, start_ms = GateListener(lambda _gate, _run: ledger), uuid4(), START_MS
    offsets = dict.fromkeys(gates, 0)
    for number in range(batches):
        sources, total = [], 0
        for gate, offset in offsets.items():
            now = gate_now(ledger, gate)
            seconds = now.interval_ms / 1000
            count = int((now.rate_per_s or 100) * seconds)
            offsets[gate] += count
            total += count
            sources.append(gated_source(gate, orders(offset, offset + count), unread=10**9))
        report(
            listener,
            *sources,
            run=run,
            batch_id=number,
            start_ms=start_ms,
            duration_ms=fixed_ms + total // 10,
            overhead_ms=50,
        )
        start_ms += max(fixed_ms + total // 10, interval_ms)
    return listener


LEARNED = EstimatorSettings("learned")


def test_the_law_that_was_chosen_is_in_force(ledger: Ledger) -> None:
    run_job(ledger, LEARNED, 500)
    newest = ledger.rates.history("orders")[0]
    assert newest.rate_per_s == ledger.rates.current("orders") == pytest.approx(5_000, rel=0.03)
    assert newest.proportional is None
    run_job(ledger, EstimatorSettings("pid"), 500, gates=["payments"], batches=6)
    climbing = ledger.rates.history("payments")[0]
    assert climbing.proportional is not None
    assert climbing.rate_per_s is not None
    assert climbing.rate_per_s < 2_500


def test_what_a_batch_costs_is_kept_with_the_gate_and_a_restart_begins_with_it(
    ledger: Ledger,
) -> None:
    run_job(ledger, LEARNED, 500)
    gate = ledger.gates.get("orders")
    assert gate is not None
    assert gate.batch_cost is not None
    cost = SourceCost.from_text(gate.batch_cost)
    assert cost.fixed_s == pytest.approx(0.5, abs=0.02)
    assert cost.record_s == pytest.approx(1e-4, rel=0.05)
    # A night of few records has lowered nothing, and a slow first batch says nothing.
    run_job(ledger, LEARNED, 5_000, batches=1)
    assert ledger.rates.current("orders") == pytest.approx(5_000, rel=0.05)


def test_a_cost_that_cannot_be_read_is_one_warning_and_is_learnt_anew(
    ledger: Ledger, warnings: Callable[[], list[str]]
) -> None:
    sample = RateSample("orders", START_MS, 100.0, 100, 900, 0)
    ledger.rates.report("a batch", 0, START_MS, sample, batch_cost="{}")
    run_job(ledger, LEARNED, 500)
    assert [each.partition(":")[0] for each in warnings()] == [
        "The gate 'orders' discards its learned batch cost and learns it again"
    ]
    assert ledger.rates.current("orders") == pytest.approx(5_000, rel=0.03)


def test_the_sources_of_a_join_share_the_time_of_a_batch(ledger: Ledger) -> None:
    run_job(ledger, LEARNED, 200, gates=["orders", "payments"], batches=70)
    rates = [ledger.rates.current(gate) for gate in ("orders", "payments")]
    assert rates == pytest.approx([4_000, 4_000], rel=0.1)


def test_an_interval_near_the_fixed_cost_is_one_warning_after_some_batches(
    ledger: Ledger, warnings: Callable[[], list[str]]
) -> None:
    run_job(ledger, LEARNED, 800, batches=8)
    assert warnings() == []
    run_job(ledger, LEARNED, 800, batches=60)
    (warning,) = warnings()
    assert warning.startswith("The gate 'orders': A batch costs 0.7")
    assert " s before its first record; the interval of 1 s is too short, and" in warning


def test_an_auto_interval_becomes_what_the_fixed_cost_asks_for_and_the_log_says_why(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.execution")
    run_job(ledger, replace(LEARNED, auto=IntervalLaw(max_delay_ms=60_000)), 600, batches=60)
    now = gate_now(ledger)
    assert now.interval_ms == pytest.approx(3_000, abs=200)
    assert now.rate_per_s == pytest.approx(8_000, rel=0.05)
    messages = [each.getMessage() for each in caplog.records if "interval" in each.getMessage()]
    assert 1 <= len(messages) <= 3
    assert messages[-1].startswith("The gate 'orders' has a new interval: a batch costs 0.")


HERE, ELSEWHERE = new_owner(), "elsewhere:7:0/run"


@pytest.mark.parametrize(
    ("error", "owner", "next_run", "expected"),
    [
        pytest.param("it failed", None, False, Status.FAILED, id="of nobody yet"),
        pytest.param("it failed", HERE, False, Status.FAILED, id="of this process"),
        pytest.param("it failed", ELSEWHERE, False, Status.IN_PROGRESS, id="of another process"),
        pytest.param("it failed", HERE, True, Status.IN_PROGRESS, id="of the next run by now"),
        pytest.param(None, HERE, False, Status.IN_PROGRESS, id="stopped on purpose"),
    ],
)
def test_a_query_that_fails_leaves_no_batch_of_its_own_in_progress_transition_e(
    ledger: Ledger,
    listener: GateListener,
    *,
    error: str | None,
    owner: str | None,
    next_run: bool,
    expected: Status,
) -> None:
    query, run = uuid4(), uuid4()
    listener.onQueryStarted(started(query, run))
    listener.onQueryStarted(started(uuid4(), uuid4()))
    report(listener, gated_source("orders", orders(0, 100)), run=run)
    report(listener, gated_source("payments", payments(0, 10)), run=uuid4())
    if next_run:
        listener.onQueryStarted(started(query, uuid4()))
    batch = begin(ledger, "orders", orders(100, 200))
    other = begin(ledger, "payments", payments(10, 20))
    if owner is not None:
        assert ledger.batches.attach(batch, 1, owner=owner, lease_ms=30_000)
    listener.onQueryTerminated(terminated(run, error, query))
    found = stored(ledger, batch)
    assert found.status is expected
    if expected is Status.FAILED:
        assert found.error == ErrorReport("STREAM_FAILED", "it failed", "")
    assert status_of(ledger, other) is Status.IN_PROGRESS


def test_nothing_is_kept_of_a_query_that_ended(listener: GateListener) -> None:
    runs = [(uuid4(), uuid4()) for _ in range(10)]
    for query, run in runs:
        listener.onQueryStarted(started(query, run))
        report(listener, gated_source("orders", orders(0, 100)), run=run)
    assert len(listener._watched) == len(listener._newest_run) == 10
    for query, run in runs:
        listener.onQueryTerminated(terminated(run, query=query))
    assert listener._watched == {}
    assert listener._newest_run == {}


def test_a_ledger_that_cannot_be_written_is_a_warning_and_no_error(
    ledger: Ledger, warnings: Callable[[], list[str]]
) -> None:
    is_away = True

    def ledger_of(_gate: str, _run: UUID) -> Ledger:
        if is_away:
            raise LedgerError("The ledger is gone.")
        return ledger

    run = uuid4()
    listener = GateListener(ledger_of)
    report(listener, gated_source("orders", orders(0, 100)), run=run)
    assert warnings() == ["A batch's report was not processed: The ledger is gone."]
    is_away = False
    report(listener, gated_source("orders", orders(100, 200)), run=run)
    assert [sample.records for sample in ledger.rates.history("orders")] == [100]


def test_one_source_that_cannot_be_taken_in_does_not_keep_the_others_from_it(
    ledger: Ledger, warnings: Callable[[], list[str]]
) -> None:
    def only_payments(gate: str, _run: UUID) -> Ledger:
        if gate == "orders":
            raise LedgerError("The ledger of orders is gone.")
        return ledger

    sources = [gated_source("orders", orders(0, 5)), gated_source("payments", payments(0, 5))]
    report(GateListener(only_payments), *sources)
    assert len(ledger.rates.history("payments")) == 1
    assert len(warnings()) == 1


def test_a_failure_that_cannot_be_written_is_a_warning(
    ledger: Ledger, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise LedgerError("The ledger is gone.")

    run = uuid4()
    listener = GateListener(lambda _gate, _run: ledger)
    report(listener, gated_source("orders", orders(0, 100)), run=run)
    begin(ledger, "orders", orders(100, 200))
    monkeypatch.setattr(ledger.batches, "fail", fail)
    listener.onQueryTerminated(terminated(run, "it failed"))
    assert warnings() == ["A batch's failure was not processed: The ledger is gone."]


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        '{"unheard_of": 1}',
        '{"proportional": "much"}',
        EstimatorSettings(min_rate=-1).to_text(),
        EstimatorSettings("pid").to_text().replace("pid", "clairvoyant"),
    ],
)
def test_settings_that_cannot_be_read_are_one_warning_and_the_batches_are_resolved_still(
    ledger: Ledger, listener: GateListener, warnings: Callable[[], list[str]], text: str
) -> None:
    ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=text)
    run = uuid4()
    for number in range(3):
        ranges = orders(number * 10, number * 10 + 10)
        batch = begin(ledger, "orders", ranges)
        report(listener, gated_source("orders", ranges), run=run, batch_id=number)
        assert status_of(ledger, batch) is Status.SUCCESS
    assert [warning.partition(":")[0] for warning in warnings()] == [
        "The gate 'orders' learns no rate"
    ]
    assert ledger.rates.history("orders") == ()


def test_a_gate_whose_ledger_nobody_named_is_logged_once_in_a_run(
    warnings: Callable[[], list[str]],
) -> None:
    listener = GateListener(lambda _gate, _run: None)
    run = uuid4()
    for _ in range(3):
        report(listener, gated_source("orders", orders(0, 5)), run=run)
    (told,) = warnings()
    assert "headrace.register(spark, ledger=...)" in told
    listener.onQueryTerminated(terminated(run, "it failed"))
    assert listener._watched == {}


def test_queries_that_report_at_the_same_time_do_not_disturb_each_other(
    ledger: Ledger, listener: GateListener
) -> None:
    def run_batches(gate: str) -> None:
        run = uuid4()
        for number in range(20):
            ranges = orders(number * 10, number * 10 + 10)
            ledger.batches.begin(planned(gate, ranges))
            at_ms = START_MS + number * 1_000
            report(listener, gated_source(gate, ranges), run=run, batch_id=number, start_ms=at_ms)
        listener.onQueryTerminated(terminated(run))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run_batches, ("orders", "payments")))
    for gate in ("orders", "payments"):
        assert [sample.rate_per_s for sample in ledger.rates.history(gate)] == [100.0] * 19 + [None]
        assert {batch.status for batch in ledger.batches.newest(gate)} == {Status.SUCCESS}
    assert listener._watched == {}


def test_a_batch_that_an_operator_has_limited_does_not_lower_the_rate() -> None:
    log = MemoryLog(*["x"] * 500)

    def handler(df: Any, batch: Batch) -> None:
        log.clock.sleep(0.05 + len(df.collect()) / 1000)

    with StreamHarness(handler, log, options=PID_FROM_100) as stream:
        stream.ledger.gates.declare(TESTED_GATE, interval_ms=1_000, source="memory", estimator="")
        stream.ledger.operator_limits.limit(TESTED_GATE, 20, "ops")
        assert stream.run_batch()
        assert stream.run_batch()
        # A batch of 20 takes 70 ms, most of which is its fixed cost: by that, 286 records/s.
        assert stream.rate_per_s is None
