import math
from dataclasses import replace

import pytest
from tests.ledger.samples import ManualClock, a_batch, a_sample, batch_number

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.ledger import ErrorReport, GateRecord, Ledger, Loss, Status


def test_a_gate_is_known_once_it_is_declared(ledger: Ledger, clock: ManualClock) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="journal", estimator="{}")
    assert [gate.name for gate in ledger.gates()] == ["clicks", "orders"]
    assert ledger.gates()[0] == GateRecord(
        "clicks", 500, "journal", "{}", clock(), rate_per_s=None, rate_time_ms=None
    )


def test_a_gate_that_is_declared_again_is_described_anew_and_keeps_its_rate_and_history(
    ledger: Ledger, clock: ManualClock
) -> None:
    created_ms = clock()
    batch = ledger.begin(a_batch())
    ledger.publish_rate(a_sample(5, 120.5))
    clock.now_ms += 1_000
    ledger.declare_gate("orders", interval_ms=2_000, source="journal", estimator="other")
    assert ledger.gates() == (
        GateRecord("orders", 2_000, "journal", "other", created_ms, 120.5, rate_time_ms=5),
    )
    assert ledger.rates("orders") == (a_sample(5, 120.5),)
    assert ledger.batches("orders") == (batch,)


def test_a_gate_has_no_rate_before_one_is_published(ledger: Ledger) -> None:
    assert ledger.rate("orders") is None
    assert ledger.rate("unheard of") is None


def test_a_published_rate_is_in_force(ledger: Ledger) -> None:
    ledger.publish_rate(a_sample(1_000, 0.1 + 0.2))
    assert ledger.rate("orders") == 0.1 + 0.2
    assert ledger.gates()[0].rate_time_ms == 1_000


def test_a_sample_without_a_rate_leaves_the_last_one_in_force(ledger: Ledger) -> None:
    ledger.publish_rate(a_sample(1_000, 200.0))
    ledger.publish_rate(a_sample(2_000, None))
    assert ledger.rate("orders") == 200.0
    assert ledger.gates()[0].rate_time_ms == 1_000
    assert ledger.rates("orders", limit=1) == (a_sample(2_000, None),)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_rate_that_is_no_positive_number_is_refused(ledger: Ledger, rate: float) -> None:
    with pytest.raises(LedgerError, match=f"'orders' cannot be {rate};"):
        ledger.publish_rate(a_sample(1_000, rate))
    assert ledger.rate("orders") is None
    assert ledger.rates("orders") == ()


def test_a_rate_of_an_undeclared_gate_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ledger.publish_rate(a_sample(1_000, gate="clicks"))
    assert ledger.rates("clicks") == ()


def test_a_sample_tells_its_batch_how_many_records_it_had(ledger: Ledger) -> None:
    batch = ledger.begin(a_batch())
    other = ledger.begin(a_batch(run_id="other"))
    ledger.publish_rate(a_sample(1_000, records=8, schedule_id=batch.schedule_id))
    assert [told.records for told in ledger.batches("orders")] == [None, 8]
    assert ledger.batch(other.schedule_id) == other


def test_a_report_settles_a_batch_that_nobody_has_settled_and_publishes(ledger: Ledger) -> None:
    open_, done = (ledger.begin(a_batch(run_id=run)).schedule_id for run in ("open", "done"))
    ledger.fail(done, ErrorReport("ValueError", "no", ""))
    failed = ledger.batch(done)
    for key in (open_, done):
        ledger.report(key, 7, 123, a_sample(1_000, 50.0, records=8, schedule_id=key))
    settled = ledger.batch(open_)
    assert settled is not None
    assert (settled.status, settled.records) == (Status.SUCCESS, 8)
    assert (settled.query_batch_id, settled.start_time_ms) == (7, 123)
    assert failed is not None
    assert ledger.batch(done) == replace(failed, records=8)
    assert ledger.rate("orders") == 50.0


def test_a_report_without_a_sample_settles_and_teaches_nothing(ledger: Ledger) -> None:
    key = ledger.begin(a_batch()).schedule_id
    ledger.report(key, 7, 123, None)
    settled = ledger.batch(key)
    assert settled is not None
    assert (settled.status, settled.records) == (Status.SUCCESS, None)
    assert (ledger.rates("orders"), ledger.rate("orders")) == ((), None)


def test_a_sample_of_a_batch_that_is_not_in_the_ledger_is_kept(ledger: Ledger) -> None:
    sample = a_sample(1_000, schedule_id="pruned long ago")
    ledger.publish_rate(sample)
    assert ledger.rates("orders") == (sample,)


def test_rates_come_newest_first_and_no_more_than_asked_for(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    samples = [a_sample(time_ms, 10.0 * n) for n, time_ms in enumerate([3, 1, 2, 3], start=1)]
    for sample in samples:
        ledger.publish_rate(sample)
    ledger.publish_rate(a_sample(9, gate="clicks"))
    assert ledger.rates("orders") == (samples[3], samples[0], samples[2], samples[1])
    assert ledger.rates("orders", limit=2) == (samples[3], samples[0])
    assert ledger.rates("orders", limit=0) == ()


def test_what_was_lost_is_kept_in_the_order_it_was_found(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    first_ms = clock()
    ledger.record_losses("orders", [OffsetRange("t", 1, 0, 5), OffsetRange("t", 0, 3, 9)])
    clock.now_ms += 1
    ledger.record_losses("orders", [OffsetRange("s", 0, 7, 8)])
    ledger.record_losses("clicks", [OffsetRange("t", 0, 3, 9)])
    assert ledger.losses("orders") == (
        Loss("orders", first_ms, OffsetRange("t", 0, 3, 9)),
        Loss("orders", first_ms, OffsetRange("t", 1, 0, 5)),
        Loss("orders", first_ms + 1, OffsetRange("s", 0, 7, 8)),
    )


def test_a_loss_that_is_recorded_again_is_counted_once_as_far_as_it_reached(
    ledger: Ledger, clock: ManualClock
) -> None:
    first_ms = clock()
    for until in (9, 12, 10, 12):
        ledger.record_losses("orders", [OffsetRange("t", 0, 3, until)])
        clock.now_ms += 1
    assert ledger.losses("orders") == (Loss("orders", first_ms, OffsetRange("t", 0, 3, 12)),)


def test_an_empty_range_is_no_loss(ledger: Ledger) -> None:
    ledger.record_losses("orders", [OffsetRange("t", 0, 3, 3)])
    ledger.record_losses("orders", [])
    assert ledger.losses("orders") == ()


def test_losses_of_an_undeclared_gate_are_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ledger.record_losses("clicks", [OffsetRange("t", 0, 3, 9)])
    assert ledger.losses("clicks") == ()


def test_a_loss_of_a_batch_is_kept_beside_that_of_another_and_tells_its_run(
    ledger: Ledger, clock: ManualClock
) -> None:
    first, second = (ledger.begin(batch_number(number)) for number in (0, 1))
    gone = OffsetRange("orders", 0, 3, 9)
    ledger.record_losses("orders", [gone])
    for batch in (first, second, first):
        ledger.record_losses(
            "orders", [gone], schedule_id=batch.schedule_id, reasons={gone: "deleted\x00"}
        )
    with Ledger.join(ledger.url) as beside:
        found = beside.losses_of([first.schedule_id, second.schedule_id, "another"])
    assert found == {
        key: (
            Loss("orders", clock(), gone, None, key, "deleted\\x00", first.run_id, was_split=False),
        )
        for key in (first.schedule_id, second.schedule_id)
    }
    assert len(ledger.losses("orders")) == 3
    assert ledger.losses_of([]) == {}


def test_a_loss_of_a_batch_that_is_not_the_gates_is_refused(ledger: Ledger) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    key = ledger.begin(batch_number(0)).schedule_id
    for gate, batch in (("clicks", key), ("orders", "another")):
        with pytest.raises(LedgerError, match="so it is not the ledger that the gate uses"):
            ledger.record_losses(gate, [OffsetRange("orders", 0, 3, 9)], schedule_id=batch)
        assert ledger.losses(gate) == ()
