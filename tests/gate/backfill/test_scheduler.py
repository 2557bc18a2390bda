"""When failed batches are run, in which order, and until when."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.gate.backfill.runners import (
    ERROR,
    LEASE_MS,
    Backfill,
    Offsets,
    PriceError,
    one_that_failed,
)
from tests.gate.ledger.samples import batch_number, stored
from tests.services.waiting import wait_until

from headrace.core.backoff import Backoff
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError, LedgerError
from headrace.gate.backfill.monitor import Monitor, NearRetention
from headrace.gate.backfill.schedule import Every, Manual, Schedule, Spare
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class CountingClock(ManualClock):
    """The time, and how often it was asked for: once or twice in each step of a scheduler."""

    steps = 0

    def __call__(self) -> int:
        self.steps += 1
        return super().__call__()

    def wait_for_steps(self) -> None:
        before = self.steps
        wait_until(lambda: self.steps >= before + 5)


@contextmanager
def running(backfill: Backfill, monitor: Monitor, schedule: Schedule) -> Iterator[None]:
    """The scheduler at work, in a thread that ends with it."""
    thread = threading.Thread(target=backfill.run, args=(monitor, schedule), daemon=True)
    thread.start()
    try:
        yield
    finally:
        backfill.close()
        thread.join(timeout=30)
        assert not thread.is_alive()


@contextmanager
def running_these(backfill: Backfill, *keys: str) -> Iterator[None]:
    """The scheduler at work on these batches, until it has ended by itself."""
    thread = threading.Thread(target=backfill.run_manually, args=(keys,), daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


def failed_batches(ledger: Ledger, count: int) -> list[str]:
    return [one_that_failed(ledger, batch_number(number)) for number in range(count)]


def a_monitor(ledger: Ledger, first_ms: int = 60_000) -> Monitor:
    """One that has read what there is."""
    monitor = Monitor(ledger, "orders", backoff=Backoff(first_ms=first_ms))
    monitor.refresh()
    return monitor


def test_the_earliest_created_batch_is_first_and_one_that_fails_waits(
    ledger: Ledger, clock: ManualClock
) -> None:
    failed = failed_batches(ledger, 3)

    def first_fails(batch: BatchRecord, offsets: Offsets) -> None:
        if batch.batch_key == failed[0] and batch.attempts == 1:
            raise PriceError

    backfill, monitor = Backfill(ledger, clock, first_fails), a_monitor(ledger, 1_000)
    while backfill.run_next(monitor) is not None:
        pass
    assert backfill.runner.keys == failed
    monitor.refresh()
    assert backfill.run_next(monitor) is None
    clock.now_ms += 1_000
    assert backfill.run_next(monitor) is not None
    assert backfill.runner.keys == [*failed, failed[0]]
    assert ledger.batches.failed() == ()


def test_what_an_operator_asks_for_is_run_next_whatever_budget_and_schedule(
    ledger: Ledger, clock: ManualClock
) -> None:
    """Seen: after a mended handler 147 records waited for spare time, and no command took them."""
    first, second, third = failed_batches(ledger, 3)
    backfill = Backfill(ledger, clock, most=0, poll_ms=1)
    with running(backfill, Monitor(ledger, "orders", interval_ms=1), Manual()):
        ledger.repairs.retry("orders", [second, third], "ada", "the column is back")
        wait_until(lambda: len(backfill.runner.keys) == 2)
    assert backfill.runner.keys == [second, third]
    assert stored(ledger, first).status is Status.FAILED


def test_with_capacity_to_spare_what_fails_is_run_at_once(
    ledger: Ledger, clock: ManualClock
) -> None:
    backfill = Backfill(ledger, clock, poll_ms=1)
    with running(backfill, Monitor(ledger, "orders", interval_ms=1), Spare()):
        for number in range(3):
            key = one_that_failed(ledger, batch_number(number))
            wait_until(lambda key=key: key in backfill.runner.keys)  # type: ignore[misc]
    assert len(backfill.runner.runs) == 3


def test_at_an_interval_the_start_is_a_run_and_it_goes_on_until_nothing_is_ready(
    ledger: Ledger,
) -> None:
    early, steps = failed_batches(ledger, 3), CountingClock()
    backfill = Backfill(ledger, steps, poll_ms=1)
    monitor = Monitor(ledger, "orders", interval_ms=1)
    with running(backfill, monitor, Every(HOUR_MS)):
        wait_until(lambda: backfill.runner.keys == early)
        wait_until(lambda: monitor.batches() == ())
        steps.wait_for_steps()
        late = one_that_failed(ledger, batch_number(3))
        wait_until(monitor.batches)
        steps.wait_for_steps()
        assert backfill.runner.keys == early
        steps.now_ms += HOUR_MS
        wait_until(lambda: late in backfill.runner.keys)


def test_while_nothing_is_allowed_it_waits_and_is_woken(ledger: Ledger, clock: ManualClock) -> None:
    (key,) = failed_batches(ledger, 1)
    backfill = Backfill(ledger, clock, most=0, poll_ms=DAY_MS)
    with running(backfill, a_monitor(ledger), Spare()):
        wait_until(lambda: backfill.budget.asked)
        assert backfill.runner.runs == []
        backfill.budget.most = 100
        backfill.wake()
        wait_until(lambda: backfill.runner.keys == [key])


def test_the_manual_schedule_runs_nothing(ledger: Ledger) -> None:
    failed_batches(ledger, 1)
    steps = CountingClock()
    backfill = Backfill(ledger, steps, poll_ms=1)
    with running(backfill, a_monitor(ledger), Manual()):
        steps.wait_for_steps()
    assert (backfill.runner.runs, backfill.budget.asked) == ([], 0)


def test_closing_it_ends_it_however_long_it_would_rest(ledger: Ledger, clock: ManualClock) -> None:
    backfill = Backfill(ledger, clock, poll_ms=DAY_MS)
    with running(backfill, Monitor(ledger, "orders"), Spare()):
        pass
    backfill.run(Monitor(ledger, "orders"), Spare())  # and for good


def test_closing_it_lets_the_batch_in_hand_end_and_claims_no_other(
    ledger: Ledger, clock: ManualClock
) -> None:
    first, second = failed_batches(ledger, 2)
    begun, go_on = threading.Event(), threading.Event()

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        begun.set()
        assert go_on.wait(30)

    backfill = Backfill(ledger, clock, handler, poll_ms=1)
    with running(backfill, a_monitor(ledger), Spare()):
        assert begun.wait(30)
        backfill.close()
        go_on.set()
    assert backfill.runner.keys == [first]
    statuses = [stored(ledger, key).status for key in (first, second)]
    assert statuses == [Status.SUCCESS, Status.FAILED]


@pytest.mark.parametrize("away", ["kafka", "ledger"])
def test_while_kafka_or_the_ledger_cannot_be_reached_it_warns_once_and_goes_on_after(
    ledger: Ledger,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    away: str,
) -> None:
    (key,) = failed_batches(ledger, 1)
    backfill, attempts = Backfill(ledger, clock, poll_ms=1), list[object]()
    owner, method = (backfill.runner, "gone") if away == "kafka" else (ledger.batches, "failed")

    def unreachable(*asked: object) -> None:
        attempts.append(asked)
        raise (BrokerError if away == "kafka" else LedgerError)("It cannot be reached.")

    with caplog.at_level(logging.WARNING, "headrace.backfill"), monkeypatch.context() as patch:
        patch.setattr(owner, method, unreachable)
        with running(backfill, Monitor(ledger, "orders", interval_ms=1), Spare()):
            wait_until(lambda: len(attempts) > 3)
            patch.undo()
            wait_until(lambda: backfill.runner.keys == [key])
    assert [record.getMessage() for record in caplog.records] == [
        "Backfills pause until this error no longer occurs: It cannot be reached."
    ]


@pytest.mark.parametrize("schedule", [Spare(), Manual()])
def test_a_batch_that_retention_nears_is_warned_of_once(
    ledger: Ledger, clock: ManualClock, caplog: pytest.LogCaptureFixture, schedule: Schedule
) -> None:
    key = one_that_failed(ledger, batch_number(10))  # offsets 100 to 110
    backfill = Backfill(ledger, clock, most=0, poll_ms=1)
    looked = backfill.runner.looked
    with (
        caplog.at_level(logging.WARNING, "headrace.backfill"),
        running(backfill, a_monitor(ledger), schedule),
    ):
        wait_until(lambda: looked)
        for begin in (49, 50, 60):
            backfill.runner.begins[TopicPartition("orders", 0)] = begin
            clock.now_ms += 60_000
            wait_until(lambda begin=begin: begin in looked)  # type: ignore[misc]
    assert looked == [0, 49, 50, 60]
    assert backfill.events == [NearRetention(key, (OffsetRange("orders", 0, 100, 110),))]
    (record,) = caplog.records
    assert f"Batch {key}" in record.getMessage()
    assert "orders-0 [100, 110)" in record.getMessage()


def test_named_batches_run_once_each_in_order_without_a_wait(
    ledger: Ledger, clock: ManualClock
) -> None:
    failed = failed_batches(ledger, 4)
    assert ledger.batches.claim(failed[0], "before", LEASE_MS)
    assert ledger.batches.release(failed[0], "before", ERROR, is_dead=False)  # would wait now
    assert ledger.batches.claim(failed[3], "other", LEASE_MS)

    def some_fail(batch: BatchRecord, offsets: Offsets) -> None:
        if offsets[0].start == 10:
            raise PriceError

    backfill = Backfill(ledger, clock, some_fail, most=5)
    backfill.run_manually([failed[1], failed[0], failed[3]])
    assert [offsets[0].start for _, offsets in backfill.runner.runs] == [10, 0]
    assert backfill.event_names == [
        *("Claimed", "Failed"),
        *("Claimed", "Done", "Skipped"),
    ]
    untouched = stored(ledger, failed[2])
    assert (untouched.status, untouched.attempts) == (Status.FAILED, 1)


@pytest.mark.parametrize("closed", [False, True])
def test_named_batches_wait_for_a_budget_until_the_scheduler_is_closed(
    ledger: Ledger, clock: ManualClock, *, closed: bool
) -> None:
    (key,) = failed_batches(ledger, 1)
    backfill = Backfill(ledger, clock, most=0, poll_ms=DAY_MS if closed else 1)
    with running_these(backfill, key):
        wait_until(lambda: backfill.budget.asked)
        assert backfill.runner.runs == []
        if closed:
            backfill.close()
        backfill.budget.most = 100
    assert backfill.runner.keys == ([] if closed else [key])
