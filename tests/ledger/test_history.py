import pytest
from tests.ledger.samples import ManualClock, a_sample, batch_number

from headgate.ledger import ErrorReport, Ledger, Pruned, history

ERROR = ErrorReport("ValueError", "no", "")


def test_prune_deletes_old_successes_with_their_ranges_and_old_samples(
    ledger: Ledger, clock: ManualClock
) -> None:
    old, newer, newest = (ledger.begin(batch_number(number)) for number in range(3))
    ledger.succeed(old.schedule_id)
    clock.now_ms += 10
    ledger.succeed(newer.schedule_id)
    ledger.succeed(newest.schedule_id)
    for time_ms in (clock() - 1, clock(), clock() + 1):
        ledger.publish_rate(a_sample(time_ms))
    assert ledger.prune(clock()) == Pruned(batches=1, rates=1)
    assert ledger.batch(old.schedule_id) is None
    assert ledger.ranges(old.schedule_id) == ()
    assert {batch.schedule_id for batch in ledger.batches("orders")} == {
        newer.schedule_id,
        newest.schedule_id,
    }
    assert len(ledger.ranges(newer.schedule_id)) == 1
    assert [sample.time_ms for sample in ledger.rates("orders")] == [clock() + 1, clock()]


def test_prune_never_touches_what_is_not_processed(ledger: Ledger, clock: ManualClock) -> None:
    begun, failed, succeeded, newest = (ledger.begin(batch_number(number)) for number in range(4))
    ledger.fail(failed.schedule_id, ERROR)
    ledger.succeed(succeeded.schedule_id)
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=1, rates=0)
    for kept in (begun, failed, newest):
        assert ledger.batch(kept.schedule_id) is not None
        assert len(ledger.ranges(kept.schedule_id)) == 1


def test_prune_keeps_each_gates_newest_batch_for_an_engine_that_runs_it_again(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.declare_gate("clicks", interval_ms=500, source="kafka", estimator="pid")
    newest = [ledger.begin(batch_number(1, gate=gate)) for gate in ("orders", "clicks")]
    for batch in newest:
        ledger.succeed(batch.schedule_id)
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=0, rates=0)
    assert ledger.begin(batch_number(1)).attempts == 1


def test_prune_keeps_the_rate_in_force_and_the_losses(ledger: Ledger, clock: ManualClock) -> None:
    ledger.publish_rate(a_sample(clock(), 321.0))
    ledger.record_losses("orders", [batch_number(1).ranges[0].offsets])
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=0, rates=1)
    assert ledger.rate("orders") == 321.0
    assert len(ledger.losses("orders")) == 1


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_prune_deletes_everything_old_however_few_rows_it_takes_at_once(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(history, "ROWS_AT_ONCE", rows)
    for number in range(5):
        ledger.succeed(ledger.begin(batch_number(number)).schedule_id)
        ledger.publish_rate(a_sample(clock()))
    assert ledger.prune(clock() + 1_000_000) == Pruned(batches=4, rates=5)
    assert len(ledger.batches("orders")) == 1
