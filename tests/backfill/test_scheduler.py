"""When failed batches are worked off, in which order, and until when."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from tests.backfill.runners import (
    ERROR,
    LEASE_MS,
    Events,
    FakeRunner,
    FixedBudget,
    Offsets,
    a_scheduler,
    one_that_failed,
)
from tests.ledger.samples import ManualClock, batch_number
from tests.services.waiting import wait_until

from headrace.backfill import (
    BackfillScheduler,
    Backoff,
    Every,
    Manual,
    Monitor,
    NearRetention,
    Schedule,
    Spare,
)
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError
from headrace.ledger import BatchRecord, Ledger, Status

HOUR_MS = 3_600_000


class PriceError(Exception):
    """What the handlers of these tests raise."""


def refuse(batch: BatchRecord, offsets: Offsets) -> None:
    raise PriceError("price is -2")


@contextmanager
def running(
    scheduler: BackfillScheduler, monitor: Monitor, schedule: Schedule
) -> Iterator[threading.Thread]:
    """The scheduler at work, in a thread that ends with it."""
    thread = threading.Thread(target=scheduler.run, args=(monitor, schedule), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        scheduler.close()
        thread.join(timeout=30)
        assert not thread.is_alive()


def keys_of(runner: FakeRunner) -> list[str]:
    return [key for key, _ in runner.runs]


def test_the_earliest_created_batch_is_first_and_one_that_fails_waits(
    ledger: Ledger, clock: ManualClock
) -> None:
    failed = [one_that_failed(ledger, batch_number(number)) for number in range(3)]

    def first_fails(batch: BatchRecord, offsets: Offsets) -> None:
        if batch.schedule_id == failed[0] and batch.attempts == 1:
            raise PriceError

    runner = FakeRunner(ledger, first_fails)
    monitor = Monitor(ledger, "orders", backoff=Backoff(first_ms=1_000))
    scheduler = a_scheduler(ledger, runner, clock)
    monitor.refresh()
    while scheduler.run_next(monitor) is not None:
        pass
    assert keys_of(runner) == failed
    monitor.refresh()
    assert scheduler.run_next(monitor) is None
    clock.now_ms += 1_000
    assert scheduler.run_next(monitor) is not None
    assert keys_of(runner) == [*failed, failed[0]]
    assert ledger.failed() == ()


def test_the_parts_of_a_batch_are_next(ledger: Ledger, clock: ManualClock) -> None:
    one_that_failed(ledger, batch_number(0))
    clock.now_ms += 10
    later = one_that_failed(ledger, batch_number(1))
    runner, budget = FakeRunner(ledger), FixedBudget(5)
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    scheduler = a_scheduler(ledger, runner, clock, budget=budget)
    for _ in range(3):
        assert scheduler.run_next(monitor) is not None
    assert [str(offsets[0]) for _, offsets in runner.runs] == [
        "orders-0 [0, 5)",
        "orders-0 [5, 10)",
    ]
    assert [batch.schedule_id for batch in monitor.batches()] == [later]


def test_with_capacity_to_spare_what_fails_is_worked_off_at_once(
    ledger: Ledger, clock: ManualClock
) -> None:
    runner = FakeRunner(ledger)
    scheduler = a_scheduler(ledger, runner, clock, poll_ms=1)
    with Monitor(ledger, "orders", interval_ms=1) as monitor, running(scheduler, monitor, Spare()):
        for number in range(3):
            key = one_that_failed(ledger, batch_number(number))
            wait_until(lambda key=key: key in keys_of(runner))  # type: ignore[misc]
    assert len(runner.runs) == 3


def test_at_an_interval_the_start_is_a_run_and_it_goes_on_until_nothing_is_ready(
    ledger: Ledger, clock: ManualClock
) -> None:
    early = [one_that_failed(ledger, batch_number(number)) for number in range(3)]
    runner = FakeRunner(ledger)
    steps = 0

    def counting_clock() -> int:
        nonlocal steps
        steps += 1
        return clock()

    scheduler = a_scheduler(ledger, runner, counting_clock, poll_ms=1)

    def a_few_steps() -> None:
        before = steps
        wait_until(lambda: steps >= before + 5)

    with (
        Monitor(ledger, "orders", interval_ms=1) as monitor,
        running(scheduler, monitor, Every(HOUR_MS)),
    ):
        wait_until(lambda: keys_of(runner) == early)
        wait_until(lambda: monitor.batches() == ())
        a_few_steps()
        late = one_that_failed(ledger, batch_number(3))
        wait_until(monitor.batches)
        a_few_steps()
        assert keys_of(runner) == early
        clock.now_ms += HOUR_MS
        wait_until(lambda: late in keys_of(runner))


def test_while_nothing_is_allowed_it_waits_and_is_woken(ledger: Ledger, clock: ManualClock) -> None:
    key = one_that_failed(ledger, batch_number(0))
    runner, budget = FakeRunner(ledger), FixedBudget(0)
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    scheduler = a_scheduler(ledger, runner, clock, budget=budget, poll_ms=24 * HOUR_MS)
    with running(scheduler, monitor, Spare()):
        wait_until(lambda: budget.asked)
        assert runner.runs == []
        budget.most = 100
        scheduler.wake()
        wait_until(lambda: keys_of(runner) == [key])


def test_the_manual_schedule_runs_nothing(ledger: Ledger, clock: ManualClock) -> None:
    one_that_failed(ledger, batch_number(0))
    runner, budget = FakeRunner(ledger), FixedBudget()
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    steps: list[int] = []

    def counting_clock() -> int:
        steps.append(1)
        return clock()

    scheduler = a_scheduler(ledger, runner, counting_clock, budget=budget, poll_ms=1)
    with running(scheduler, monitor, Manual()):
        wait_until(lambda: len(steps) > 3)
    assert (runner.runs, budget.asked) == ([], 0)


def test_closing_it_ends_it_however_long_it_would_rest(ledger: Ledger, clock: ManualClock) -> None:
    scheduler = a_scheduler(ledger, FakeRunner(ledger), clock, poll_ms=24 * HOUR_MS)
    with running(scheduler, Monitor(ledger, "orders"), Spare()):
        pass
    scheduler.run(Monitor(ledger, "orders"), Spare())  # and for good


def test_closing_it_lets_the_batch_in_hand_end_and_takes_no_other(
    ledger: Ledger, clock: ManualClock
) -> None:
    first, second = (one_that_failed(ledger, batch_number(number)) for number in range(2))
    begun, go_on = threading.Event(), threading.Event()

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        begun.set()
        assert go_on.wait(30)

    runner = FakeRunner(ledger, handler)
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    scheduler = a_scheduler(ledger, runner, clock, poll_ms=1)
    with running(scheduler, monitor, Spare()):
        assert begun.wait(30)
        scheduler.close()
        go_on.set()
    assert keys_of(runner) == [first]
    statuses = [row.status for row in map(ledger.batch, (first, second)) if row is not None]
    assert statuses == [Status.SUCCESS, Status.FAILED]


def test_while_kafka_cannot_be_reached_it_warns_once_and_goes_on_after(
    ledger: Ledger,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = one_that_failed(ledger, batch_number(0))
    runner = FakeRunner(ledger)
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    failures: list[int] = []

    def unreachable(ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        failures.append(len(ranges))
        raise BrokerError("No broker can be reached.")

    scheduler = a_scheduler(ledger, runner, clock, poll_ms=1)
    with caplog.at_level(logging.WARNING, "headrace.backfill"), monkeypatch.context() as patch:
        patch.setattr(runner, "gone", unreachable)
        with running(scheduler, monitor, Spare()):
            wait_until(lambda: len(failures) > 3)
            patch.undo()
            wait_until(lambda: keys_of(runner) == [key])
    assert [record.getMessage() for record in caplog.records] == [
        "The backfill waits until this is over: No broker can be reached."
    ]


@pytest.mark.parametrize("schedule", [Spare(), Manual()])
def test_a_batch_that_retention_nears_is_warned_of_once(
    ledger: Ledger, clock: ManualClock, caplog: pytest.LogCaptureFixture, schedule: Schedule
) -> None:
    key = one_that_failed(ledger, batch_number(10))  # offsets 100 to 110
    runner, events = FakeRunner(ledger), Events()
    looked: list[int] = []
    look: Callable[[Sequence[OffsetRange]], Mapping[TopicPartition, int]] = runner.earliest

    def counted(ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        answer = look(ranges)
        looked.extend(answer.values())
        return answer

    runner.earliest = counted  # type: ignore[method-assign]
    monitor = Monitor(ledger, "orders")
    monitor.refresh()
    scheduler = a_scheduler(ledger, runner, clock, budget=FixedBudget(0), events=events, poll_ms=1)
    with (
        caplog.at_level(logging.WARNING, "headrace.backfill"),
        running(scheduler, monitor, schedule),
    ):
        wait_until(lambda: looked)
        for begin in (49, 50, 60):
            runner.begins[TopicPartition("orders", 0)] = begin
            clock.now_ms += 60_000
            wait_until(lambda begin=begin: begin in looked)  # type: ignore[misc]
    assert looked == [0, 49, 50, 60]
    assert events.seen == [NearRetention(key, (OffsetRange("orders", 0, 100, 110),))]
    (record,) = caplog.records
    assert f"Batch {key}" in record.getMessage()
    assert "orders-0 [100, 110)" in record.getMessage()


def test_these_are_worked_off_once_each_in_order_without_a_wait_and_with_their_parts(
    ledger: Ledger, clock: ManualClock
) -> None:
    failed = [one_that_failed(ledger, batch_number(number)) for number in range(4)]
    assert ledger.take(failed[0], "before", LEASE_MS)
    assert ledger.give_back(failed[0], "before", ERROR, max_backfills=10)  # would wait now
    assert ledger.take(failed[3], "other", LEASE_MS)

    def some_fail(batch: BatchRecord, offsets: Offsets) -> None:
        if offsets[0].start in {10, 0}:
            raise PriceError

    runner, events = FakeRunner(ledger, some_fail), Events()
    scheduler = a_scheduler(ledger, runner, clock, budget=FixedBudget(5), events=events)
    scheduler.run_manually([failed[1], failed[0], failed[3]])
    assert [offsets[0].start for _, offsets in runner.runs] == [10, 15, 0]
    assert events.names == [
        *("Claimed", "Split", "Claimed", "Failed", "Claimed", "Done"),
        *("Claimed", "Failed", "Skipped"),
    ]
    untouched = ledger.batch(failed[2])
    assert untouched is not None
    assert (untouched.status, untouched.attempts) == (Status.FAILED, 1)


def test_these_wait_for_an_allowance_until_it_is_closed(ledger: Ledger, clock: ManualClock) -> None:
    key = one_that_failed(ledger, batch_number(0))
    runner, budget = FakeRunner(ledger), FixedBudget(0)
    scheduler = a_scheduler(ledger, runner, clock, budget=budget, poll_ms=1)
    thread = threading.Thread(target=scheduler.run_manually, args=([key],), daemon=True)
    thread.start()
    wait_until(lambda: budget.asked)
    assert runner.runs == []
    budget.most = 100
    thread.join(30)
    assert keys_of(runner) == [key]


def test_closing_it_ends_these_too(ledger: Ledger, clock: ManualClock) -> None:
    key = one_that_failed(ledger, batch_number(0))
    budget = FixedBudget(0)
    scheduler = a_scheduler(ledger, FakeRunner(ledger), clock, budget=budget, poll_ms=24 * HOUR_MS)
    thread = threading.Thread(target=scheduler.run_manually, args=([key],), daemon=True)
    thread.start()
    wait_until(lambda: budget.asked)
    scheduler.close()
    thread.join(30)
    assert not thread.is_alive()
