import sys

import pytest
from tests.ledger.samples import ManualClock, a_sample

from headrace.backfill import Cost, ExternalBudget, InProcessBudget, LiveStream, UnlimitedBudget
from headrace.errors import LedgerError
from headrace.ledger import Ledger


def test_beside_a_stream_the_last_run_that_went_through_tells_what_runs_cost() -> None:
    clock = ManualClock()
    stream = LiveStream(1_000.0, 1_000)
    budget = InProcessBudget(lambda: stream, clock)
    budget.spent(Cost(100, 9_000, clock(), succeeded=False))
    assert budget.records() == 800
    budget.spent(Cost(100, 9_000, clock()))  # the first, which makes workers
    assert budget.records() == 800
    budget.spent(Cost(100, 300, clock()))
    assert budget.records() == 640
    budget.spent(Cost(100, 2_000, clock(), succeeded=False))
    assert budget.records() == 640
    stream = LiveStream(1_000.0, 1_000, running=True, start_ms=clock())
    assert budget.records() == 0


def test_from_outside_the_ledger_tells_what_the_stream_leaves(
    ledger: Ledger, clock: ManualClock
) -> None:
    budget = ExternalBudget(ledger, "orders", clock)
    ledger.publish_rate(a_sample(clock(), 100.0, records=32))  # in 800 ms: 40 records/s
    assert budget.records() == 0
    clock.now_ms += 1_000
    ledger.publish_rate(a_sample(clock(), 100.0, records=40))
    assert budget.records() == 60
    budget.spent(Cost(60, 900, clock()))
    assert budget.records() == 0
    ledger.publish_rate(a_sample(clock(), 100.0, records=500))  # more than the rate
    clock.now_ms += 1_000
    assert budget.records() == 0
    clock.now_ms += 20_000  # the stream has had nothing for long
    assert budget.records() == 100


def test_from_outside_a_gate_has_to_be_known(ledger: Ledger, clock: ManualClock) -> None:
    with pytest.raises(LedgerError, match="'clicks' is not declared"):
        ExternalBudget(ledger, "clicks", clock).records()


def test_unlimited_is_more_than_any_batch() -> None:
    budget = UnlimitedBudget()
    budget.spent(Cost(10**9, 1, 0))
    assert budget.records() == sys.maxsize
