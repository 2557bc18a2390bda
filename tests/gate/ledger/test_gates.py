"""Gates: as declared, the query behind each, and what throttles it."""

import math
from dataclasses import replace

import pytest
import sqlalchemy
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import (
    a_batch,
    a_sample,
    batch_number,
    declare_clicks,
    stored,
)
from tests.services.ledgers import gate_now, report_sample

from headrace.core.ranges import OffsetRange
from headrace.errors import GateInUseError, LedgerError
from headrace.gate.control.pressure import RateLimit
from headrace.gate.control.size_ceiling import SizeCeiling
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import GateRecord, Loss, QueryEnd
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock


def test_a_gate_is_known_once_it_is_declared(ledger: Ledger, clock: ManualClock) -> None:
    ledger.gates.declare("clicks", interval_ms=500, source="journal", estimator="{}")
    assert [gate.name for gate in ledger.gates.all()] == ["clicks", "orders"]
    clicks, orders = ledger.gates.all()
    assert clicks == GateRecord(
        "clicks",
        500,
        "journal",
        "{}",
        clock(),
        rate_per_s=None,
        rate_time_ms=None,
        gate_id=clicks.gate_id,
    )
    assert clicks.gate_id not in {"", orders.gate_id}


def test_a_gate_that_is_declared_again_is_described_again_and_keeps_its_rate_and_history(
    ledger: Ledger, clock: ManualClock
) -> None:
    created_ms, (before,) = clock(), ledger.gates.all()
    batch = ledger.batches.begin(a_batch())
    report_sample(ledger, a_sample(5, 120.5))
    clock.now_ms += 1_000
    ledger.gates.declare("orders", interval_ms=2_000, source="journal", estimator="other")
    assert ledger.gates.all() == (
        GateRecord(
            "orders",
            2_000,
            "journal",
            "other",
            created_ms,
            120.5,
            rate_time_ms=5,
            gate_id=before.gate_id,
        ),
    )
    assert ledger.rates.history("orders") == (a_sample(5, 120.5),)
    assert ledger.batches.newest("orders") == (batch,)


def test_a_sample_without_a_rate_leaves_the_last_one_in_force(ledger: Ledger) -> None:
    assert ledger.rates.current("orders") is None
    assert ledger.rates.current("unheard of") is None
    report_sample(ledger, a_sample(1_000, 0.1 + 0.2))
    report_sample(ledger, a_sample(2_000, None))
    assert ledger.rates.current("orders") == 0.1 + 0.2
    assert ledger.gates.all()[0].rate_time_ms == 1_000
    assert ledger.rates.history("orders", limit=1) == (a_sample(2_000, None),)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_rate_that_is_no_positive_number_is_refused(ledger: Ledger, rate: float) -> None:
    with pytest.raises(LedgerError, match=f"'orders' cannot be {rate};"):
        report_sample(ledger, a_sample(1_000, rate))
    assert ledger.rates.current("orders") is None
    assert ledger.rates.history("orders") == ()


def test_a_rate_of_an_undeclared_gate_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        report_sample(ledger, a_sample(1_000, gate="clicks"))
    assert ledger.rates.history("clicks") == ()


def test_a_sample_tells_its_batch_how_many_records_it_had(ledger: Ledger) -> None:
    batch = ledger.batches.begin(a_batch())
    other = ledger.batches.begin(a_batch(checkpoint_id="other"))
    report_sample(ledger, a_sample(1_000, records=8, batch_key=batch.batch_key))
    assert [told.records for told in ledger.batches.newest("orders")] == [None, 8]
    assert ledger.batches.get(other.batch_key) == other


def test_a_report_ends_a_batch_that_nobody_has_ended_and_sets_the_rate(ledger: Ledger) -> None:
    open_, done = (
        ledger.batches.begin(a_batch(checkpoint_id=run)).batch_key for run in ("open", "done")
    )
    ledger.batches.fail(done, ErrorReport("ValueError", "no", ""))
    failed = ledger.batches.get(done)
    for key in (open_, done):
        ledger.rates.report(key, 7, 123, a_sample(1_000, 50.0, records=8, batch_key=key))
    settled = stored(ledger, open_)
    assert (settled.status, settled.records) == (Status.SUCCESS, 8)
    assert (settled.query_batch_id, settled.start_time_ms) == (7, 123)
    assert failed is not None
    assert ledger.batches.get(done) == replace(failed, records=8)
    assert gate_now(ledger).reported == done
    assert ledger.rates.current("orders") == 50.0


def test_a_report_without_a_sample_ends_its_batch_and_teaches_nothing(ledger: Ledger) -> None:
    key = ledger.batches.begin(a_batch()).batch_key
    ledger.rates.report(key, 7, 123, None)
    settled = stored(ledger, key)
    assert (settled.status, settled.records) == (Status.SUCCESS, None)
    assert (ledger.rates.history("orders"), ledger.rates.current("orders")) == ((), None)


def test_rates_come_newest_first_and_no_more_than_asked_for(ledger: Ledger) -> None:
    declare_clicks(ledger)
    samples = [a_sample(time_ms, 10.0 * n) for n, time_ms in enumerate([3, 1, 2, 3], start=1)]
    for sample in samples:
        report_sample(ledger, sample)
    report_sample(ledger, a_sample(9, gate="clicks"))
    assert ledger.rates.history("orders") == (samples[3], samples[0], samples[2], samples[1])
    assert ledger.rates.history("orders", limit=2) == (samples[3], samples[0])
    assert ledger.rates.history("orders", limit=0) == ()


def test_what_was_lost_is_kept_in_the_order_it_was_found(
    ledger: Ledger, clock: ManualClock
) -> None:
    declare_clicks(ledger)
    first_ms = clock()
    ledger.history.record_losses("orders", [OffsetRange("t", 1, 0, 5), OffsetRange("t", 0, 3, 9)])
    clock.now_ms += 1
    ledger.history.record_losses("orders", [OffsetRange("s", 0, 7, 8)])
    ledger.history.record_losses("clicks", [OffsetRange("t", 0, 3, 9)])
    assert ledger.history.losses("orders") == (
        Loss("orders", first_ms, OffsetRange("t", 0, 3, 9)),
        Loss("orders", first_ms, OffsetRange("t", 1, 0, 5)),
        Loss("orders", first_ms + 1, OffsetRange("s", 0, 7, 8)),
    )


def test_a_loss_that_is_recorded_again_is_counted_once_as_far_as_it_reached(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.history.record_losses("orders", [])
    for until in (3, 9, 12, 10, 12):
        ledger.history.record_losses("orders", [OffsetRange("t", 0, 3, until)])
        clock.now_ms += 1
    (loss,) = ledger.history.losses("orders")
    assert (loss.time_ms, loss.offsets) == (clock() - 4, OffsetRange("t", 0, 3, 12))


def test_losses_of_an_undeclared_gate_are_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ledger.history.record_losses("clicks", [OffsetRange("t", 0, 3, 9)])
    assert ledger.history.losses("clicks") == ()


def test_a_loss_of_a_batch_is_kept_beside_that_of_another_and_tells_its_run(
    ledger: Ledger, clock: ManualClock
) -> None:
    first, second = (ledger.batches.begin(batch_number(number)) for number in (0, 1))
    gone = OffsetRange("orders", 0, 3, 9)
    ledger.history.record_losses("orders", [gone])
    for batch in (first, second, first):
        ledger.history.record_losses(
            "orders", [gone], batch_key=batch.batch_key, reasons={gone: "deleted\x00"}
        )
    with Ledger.join(ledger.url) as beside:
        found = beside.history.losses_of([first.batch_key, second.batch_key, "another"])
    assert found == {
        key: (
            Loss(
                "orders",
                clock(),
                gone,
                None,
                key,
                "deleted\\x00",
                first.checkpoint_id,
            ),
        )
        for key in (first.batch_key, second.batch_key)
    }
    assert len(ledger.history.losses("orders")) == 3
    assert ledger.history.losses_of([]) == {}


def test_a_loss_of_a_batch_that_is_not_the_gates_is_refused(ledger: Ledger) -> None:
    declare_clicks(ledger)
    key = ledger.batches.begin(batch_number(0)).batch_key
    for gate, batch in (("clicks", key), ("orders", "another")):
        with pytest.raises(LedgerError, match="so it is not the ledger that the gate uses"):
            ledger.history.record_losses(gate, [OffsetRange("orders", 0, 3, 9)], batch_key=batch)
        assert ledger.history.losses(gate) == ()


LEASE_MS = 60_000

BLUE = GateClaim("orders", "blue", "driver", "read", "process 1 on a", 500, "kafka", "pid")

GREEN = replace(BLUE, owner="green", described="process 2 on b", interval_ms=700)


def test_a_gate_has_one_query_and_the_second_hears_of_the_first(ledger: Ledger) -> None:
    for _ in range(2):
        assert ledger.gates.claim(BLUE, LEASE_MS) is None
    first = ledger.gates.claim(GREEN, LEASE_MS)
    assert first is not None
    assert (first.owner, first.driver, first.read) == ("blue", "driver", "read")
    assert first.described == "process 1 on a"
    assert 0 <= first.until_ms - first.since_ms - LEASE_MS < 5_000
    assert ledger.gates.query("orders") == first
    (declared,) = [gate for gate in ledger.gates.all() if gate.name == "orders"]
    assert declared.interval_ms == 500
    assert ledger.gates.claim(replace(BLUE, gate="new"), LEASE_MS) is None
    assert "new" in [gate.name for gate in ledger.gates.all()]


def test_a_gate_that_was_released_is_free_at_once(ledger: Ledger) -> None:
    ledger.gates.claim(BLUE, LEASE_MS)
    assert ledger.gates.release("orders", "blue")
    assert ledger.gates.query("orders") is None
    assert ledger.gates.claim(GREEN, LEASE_MS) is None
    assert not ledger.gates.release("orders", "blue")
    assert not ledger.gates.renew("orders", "blue", LEASE_MS)
    assert ledger.gates.query("orders") is not None


def test_the_end_of_a_query_is_kept_until_the_next_one_and_frees_its_gate(ledger: Ledger) -> None:
    ledger.gates.claim(BLUE, LEASE_MS)
    assert not ledger.gates.end("orders", "another driver", QueryEnd.STOPPED)
    assert ledger.gates.end("orders", "driver", QueryEnd.FAILED, "ValueError: no")
    ended = ledger.gates.get("orders")
    assert ended is not None
    assert (ended.ended, ended.ended_error) == ("failed", "ValueError: no")
    assert ended.ended_ms is not None
    assert ledger.gates.last_queries() == {}
    assert ledger.gates.claim(GREEN, LEASE_MS) is None
    running = ledger.gates.get("orders")
    assert running is not None
    assert (running.ended_ms, running.ended, running.ended_error) == (None, None, None)


def test_the_end_of_a_query_that_has_released_its_gate_is_kept(ledger: Ledger) -> None:
    ledger.gates.claim(BLUE, LEASE_MS)
    ledger.gates.release("orders", "blue")
    assert ledger.gates.end("orders", "driver", QueryEnd.FINISHED)
    assert [gate.ended for gate in ledger.gates.all()] == ["finished"]


def test_a_lease_that_has_run_out_is_taken_over_unless_it_was_renewed(ledger: Ledger) -> None:
    ledger.gates.claim(BLUE, 0)
    assert ledger.gates.query("orders") is None
    assert ledger.gates.renew("orders", "blue", LEASE_MS)
    assert ledger.gates.claim(GREEN, LEASE_MS) is not None
    ledger.gates.renew("orders", "blue", 0)
    assert ledger.gates.claim(GREEN, LEASE_MS) is None


def test_a_query_that_is_known_to_be_gone_is_replaced_at_once(ledger: Ledger) -> None:
    ledger.gates.claim(BLUE, LEASE_MS)
    assert ledger.gates.claim(GREEN, LEASE_MS, gone="somebody else") is not None
    assert ledger.gates.claim(GREEN, LEASE_MS, gone="blue") is None


def test_a_lease_that_is_longer_than_one_can_be_counts_for_nothing(
    ledger: Ledger, execute: Execute
) -> None:
    ledger.gates.claim(BLUE, LEASE_MS)
    # The database's clock was a day ahead, and was put right.
    execute(sqlalchemy.text("UPDATE gate SET query_until_ms = query_until_ms + 86400000"))
    assert ledger.gates.claim(GREEN, LEASE_MS) is None


def test_a_batch_is_begun_by_the_query_behind_the_gate_and_by_no_other(ledger: Ledger) -> None:
    ledger.batches.begin(batch_number(0))
    ledger.gates.claim(BLUE, LEASE_MS)
    batch = ledger.batches.begin(batch_number(1), query="blue")
    behind = ledger.gates.query("orders")
    assert behind is not None
    assert (behind.begins, behind.checkpoint_id) == (1, batch.checkpoint_id)
    with pytest.raises(GateInUseError, match=r"taken over by another query \(process 1 on a\)"):
        ledger.batches.begin(batch_number(2), query="green")
    assert ledger.gates.last_begun("orders") == (2, batch)
    ledger.gates.release("orders", "blue")
    with pytest.raises(GateInUseError):
        ledger.batches.begin(batch_number(2), query="blue")
    assert ledger.batches.newest("orders", limit=1) == (batch,)


def test_a_query_says_where_its_checkpoint_is(ledger: Ledger) -> None:
    ledger.gates.claim(BLUE, LEASE_MS)
    ledger.gates.set_checkpoint("orders", "green", "/elsewhere")
    ledger.gates.set_checkpoint("orders", "blue", "/ckpt")
    behind = ledger.gates.query("orders")
    assert behind is not None
    assert behind.checkpoint == "/ckpt"


def test_the_runs_of_a_handler_are_counted_for_each_gate(ledger: Ledger) -> None:
    declare_clicks(ledger)
    assert [ledger.gates.next_sequence("orders") for _ in range(3)] == [1, 2, 3]
    assert ledger.gates.next_sequence("clicks") == 1


def test_an_auto_interval_that_is_there_stays_when_its_gate_is_claimed_again(
    ledger: Ledger,
) -> None:
    assert ledger.gates.claim(replace(BLUE, keeps_interval=True), 60_000) is None
    sample = a_sample(5, 120.5)
    ledger.rates.report("a batch", 0, 0, sample, batch_cost="what is known", interval_ms=2_500)
    assert uncontrolled(ledger, BLUE.gate) == (120.5, None, 2_500)
    ledger.rates.report("a batch", 0, 0, replace(sample, time_ms=6))
    again = replace(BLUE, keeps_interval=True, interval_ms=700)
    assert ledger.gates.claim(again, 60_000) is None
    found = ledger.gates.get(BLUE.gate)
    assert found is not None
    assert (found.interval_ms, found.batch_cost) == (2_500, "what is known")
    assert ledger.gates.claim(replace(again, keeps_interval=False), 60_000) is None
    assert gate_now(ledger, BLUE.gate).interval_ms == 700


LIMIT = RateLimit(250.0, "enrich", 2.0, 1000.0)


Bounds = tuple[float | None, RateLimit | None, int]


def uncontrolled(ledger: Ledger, gate: str) -> Bounds:
    """Return the rate, the throttle and the interval; assert that no operator's limit is there."""
    now = gate_now(ledger, gate)
    assert not now.operator.in_force
    return now.rate_per_s, now.rate_limit, now.interval_ms


def test_a_gate_s_controls_are_read_with_its_rate(ledger: Ledger) -> None:
    assert gate_now(ledger).operator == ledger.operator_limits.of("orders")
    ledger.operator_limits.pause("orders", "ops")
    ledger.operator_limits.limit("orders", 5, "ops")
    operator = gate_now(ledger).operator
    assert operator == ledger.operator_limits.of("orders")
    assert len(operator.in_force) == 2


def test_a_gate_that_is_not_throttled_has_its_rate_alone(ledger: Ledger) -> None:
    assert gate_now(ledger).reported is None
    assert uncontrolled(ledger, "orders") == (None, None, 1_000)
    assert ledger.gates.now("unheard of") is None
    report_sample(ledger, a_sample(5, 120.5))
    assert uncontrolled(ledger, "orders") == (120.5, None, 1_000)
    assert ledger.gates.pressures("orders") is None


def test_a_throttle_is_read_with_the_rate_until_it_ends(ledger: Ledger) -> None:
    report_sample(ledger, a_sample(5, 120.5))
    ledger.gates.throttle("orders", LIMIT, 60_000, "heard")
    ledger.gates.declare("orders", interval_ms=2_000, source="journal", estimator="other")
    assert uncontrolled(ledger, "orders") == (120.5, LIMIT, 2_000)
    ledger.gates.throttle("orders", None, 60_000, "heard more")
    assert uncontrolled(ledger, "orders") == (120.5, None, 2_000)
    assert ledger.gates.pressures("orders") == "heard more"
    ledger.gates.throttle("clicks", LIMIT, 60_000, "of a gate that is not declared")
    assert [gate.name for gate in ledger.gates.all()] == ["orders"]


@pytest.mark.parametrize("lease_ms", [0, -60_000])
def test_a_throttle_whose_lease_is_over_counts_for_nothing(ledger: Ledger, lease_ms: int) -> None:
    ledger.gates.throttle("orders", LIMIT, lease_ms, "heard")
    assert uncontrolled(ledger, "orders") == (None, None, 1_000)
    assert ledger.gates.pressures("orders") == "heard"


def test_a_ceiling_is_replaced_only_where_it_is_the_one_that_was_read(ledger: Ledger) -> None:
    first = SizeCeiling(250, 564)
    second = SizeCeiling(300, 564)
    assert ledger.gates.ceiling("orders") is None
    assert ledger.gates.change_ceiling("orders", None, first.to_text())
    assert not ledger.gates.change_ceiling("orders", None, second.to_text())
    assert gate_now(ledger).ceiling == first
    found = ledger.gates.get("orders")
    assert found is not None
    assert found.size_ceiling == first.to_text()
    assert ledger.gates.change_ceiling("orders", first.to_text(), second.to_text())
    assert gate_now(ledger).ceiling == second
    assert not ledger.gates.change_ceiling("clicks", None, first.to_text())


def test_an_operator_lifts_a_ceiling_and_what_is_learnt_meanwhile_does_not_bring_it_back(
    ledger: Ledger,
) -> None:
    known = SizeCeiling(250, 564).to_text()
    ledger.gates.change_ceiling("orders", None, known)
    ledger.operator_limits.limit("orders", 200, "ops")
    in_force = ledger.operator_limits.lift_ceiling("orders", "ada", "a larger sink")
    assert in_force.limit is not None
    assert gate_now(ledger).ceiling is None
    assert not ledger.gates.change_ceiling("orders", known, known)
    newest = ledger.operator_limits.history("orders", 1)[0]
    assert (str(newest.kind), newest.by, newest.why) == ("lift ceiling", "ada", "a larger sink")


def test_a_ceiling_of_another_version_bounds_no_batch(ledger: Ledger) -> None:
    ledger.gates.change_ceiling("orders", None, "{}")
    assert gate_now(ledger).ceiling is None
