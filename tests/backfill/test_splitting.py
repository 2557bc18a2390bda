"""Batches that are divided: too large for now, or partly gone; and those that are not."""

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from tests.backfill.runners import (
    ERROR,
    LEASE_MS,
    WIDE,
    Events,
    FakeRunner,
    FixedBudget,
    a_scheduler,
    one_that_failed,
    processed,
    stored,
    whole,
)
from tests.ledger.samples import ManualClock, a_batch

from headrace.backfill import Done, Failed, MarkedDead, Skipped, Split
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.errors import CorruptionError, DataLossError
from headrace.ledger import BatchRecord, Ledger, Status


def text_of(parts: Sequence[BatchRecord], ledger: Ledger) -> list[list[str]]:
    return [[str(each.offsets) for each in ledger.ranges(part.schedule_id)] for part in parts]


def test_a_batch_too_large_for_now_is_halved_until_it_is_not_and_the_earlier_half_is_first(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)
    runner, events = FakeRunner(ledger), Events()
    budget = FixedBudget(9)
    scheduler = a_scheduler(ledger, runner, clock, budget=budget, events=events)
    split = scheduler.run_batch(key, ledger.ranges(key))
    assert isinstance(split, Split)
    assert text_of(split.children, ledger) == [
        ["orders-0 [10, 15)", "orders-1 [5, 9)"],
        ["orders-0 [15, 20)", "orders-1 [9, 12)"],
    ]
    assert stored(ledger, key).status is Status.SUCCESS
    assert [(part.status, part.attempts, part.error) for part in split.children] == [
        (Status.FAILED, 1, ERROR)
    ] * 2
    assert runner.runs == []
    budget.most = 5
    while batches := ledger.failed("orders"):
        first = batches[0].schedule_id
        scheduler.run_batch(first, ledger.ranges(first))
    assert events.names.count("Split") == 3
    assert sorted(sum(r.count for r in offsets) for _, offsets in runner.runs) == [4, 4, 4, 5]
    assert runner.runs[0][1] == (OffsetRange("orders", 0, 10, 13), OffsetRange("orders", 1, 5, 7))
    assert processed(runner) == whole(key, ledger)


def test_a_batch_that_may_be_in_its_sink_already_is_run_whole_under_its_key(
    ledger: Ledger, clock: ManualClock
) -> None:
    raised = one_that_failed(ledger, a_batch(OffsetRange("orders", 0, 0, 10)))
    assert ledger.take(raised, "other", LEASE_MS)
    assert ledger.give_back(raised, "other", ERROR, max_backfills=10)
    crashed = one_that_failed(ledger, a_batch(OffsetRange("orders", 0, 10, 20)))
    assert ledger.take(crashed, "other", LEASE_MS)
    settled = ledger.begin(a_batch(OffsetRange("orders", 0, 20, 30))).schedule_id
    ledger.attach(settled, 7, owner="driver", lease_ms=LEASE_MS)
    clock.now_ms += LEASE_MS
    assert ledger.settle("orders", but=None, unowned_before_ms=0) == [settled]
    runner = FakeRunner(ledger)
    scheduler = a_scheduler(ledger, runner, clock, budget=FixedBudget(1))
    for key in (raised, crashed, settled):
        assert isinstance(scheduler.run_batch(key, ledger.ranges(key)), Done)
    assert [key for key, _ in runner.runs] == [raised, crashed, settled]


def test_a_part_that_was_cut_short_may_be_in_its_sink_too(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, a_batch())
    halves = [
        a_batch(OffsetRange("orders", 0, 10, 15)),
        a_batch(OffsetRange("orders", 0, 15, 20)),
    ]
    assert ledger.take(key, "other", LEASE_MS)
    first, second = (part.schedule_id for part in ledger.split(key, halves, "other", LEASE_MS))
    assert ledger.fail(second, ERROR, owner="other")
    clock.now_ms += LEASE_MS  # the other one crashed as it ran the first
    scheduler = a_scheduler(ledger, FakeRunner(ledger), clock, budget=FixedBudget(2))
    outcomes = [scheduler.run_batch(each, ledger.ranges(each)) for each in (key, first, second)]
    assert [type(outcome) for outcome in outcomes] == [Split, Done, Split]


def test_a_batch_that_raised_whenever_the_stream_ran_it_is_divided(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = ledger.begin(WIDE).schedule_id
    ledger.attach(key, 7, owner="driver", lease_ms=LEASE_MS)
    assert ledger.retry(key, "driver", LEASE_MS)
    assert ledger.fail(key, ERROR, owner="driver")
    assert ledger.begin(WIDE).attempts == 3
    assert ledger.fail(key, ERROR)
    scheduler = a_scheduler(ledger, FakeRunner(ledger), clock, budget=FixedBudget(5))
    assert isinstance(scheduler.run_batch(key, ledger.ranges(key)), Split)


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), ValueError("the context was shut down")])
def test_a_run_that_did_not_raise_by_itself_may_be_in_its_sink(
    ledger: Ledger, clock: ManualClock, ends: BaseException
) -> None:
    class Ended(FakeRunner):
        def run(self, batch: BatchRecord) -> BaseException | None:
            return ends

    key = one_that_failed(ledger, WIDE)
    stopped = isinstance(ends, Exception)
    scheduler = a_scheduler(ledger, Ended(ledger), clock, stopped=lambda: stopped)
    with nullcontext() if stopped else pytest.raises(KeyboardInterrupt):
        scheduler.run_batch(key, ledger.ranges(key))
    assert (stored(ledger, key).status, stored(ledger, key).cut_short) == (Status.FAILED, True)


def test_what_is_still_there_of_a_batch_is_not_lost_with_what_is_gone(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)
    runner = FakeRunner(ledger)
    runner.begins = {TopicPartition("orders", 0): 13}
    scheduler = a_scheduler(ledger, runner, clock)
    split = scheduler.run_batch(key, ledger.ranges(key))
    assert isinstance(split, Split)
    gone, there = (part.schedule_id for part in split.children)
    assert [part.schedule_id for part in ledger.failed("orders")] == [gone, there]
    buried = scheduler.run_batch(gone, ledger.ranges(gone))
    assert isinstance(buried, MarkedDead)
    assert "processed: orders-0 [10, 13);" in buried.error.message
    assert isinstance(scheduler.run_batch(there, ledger.ranges(there)), Done)
    assert processed(runner) == [pair for pair in whole(key, ledger) if pair >= (0, 13)]
    leaves = {
        str(each.offsets): each.status for each in ledger.coverage("orders") if not each.has_parts
    }
    assert leaves == {
        "orders-0 [10, 13)": Status.DEAD,
        "orders-0 [13, 20)": Status.SUCCESS,
        "orders-1 [5, 12)": Status.SUCCESS,
    }


def test_what_goes_while_a_batch_is_run_is_parted_from_it_and_costs_no_attempt(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)
    runner = FakeRunner(ledger)

    def lose(_batch: BatchRecord, _offsets: object) -> None:
        if not runner.begins:
            runner.begins = {TopicPartition("orders", 0): 13}
            raise DataLossError("orders-0 [10, 13) are gone.")

    runner.handler = lose
    scheduler = a_scheduler(ledger, runner, clock)
    split = scheduler.run_batch(key, ledger.ranges(key))
    assert isinstance(split, Split)
    assert (stored(ledger, key).status, stored(ledger, key).backfills) == (Status.SUCCESS, 0)
    gone, there = (part.schedule_id for part in split.children)
    assert isinstance(scheduler.run_batch(gone, ledger.ranges(gone)), MarkedDead)
    assert isinstance(scheduler.run_batch(there, ledger.ranges(there)), Done)


@pytest.mark.parametrize("error", [DataLossError("it is gone."), CorruptionError("it is damaged.")])
def test_a_batch_that_cannot_be_read_is_never_dead_for_that(
    ledger: Ledger, clock: ManualClock, error: Exception
) -> None:
    def fail(_batch: BatchRecord, _offsets: object) -> None:
        raise error

    key = one_that_failed(ledger, WIDE)
    scheduler = a_scheduler(ledger, FakeRunner(ledger, fail), clock, max_backfills=1)
    for _ in range(3):
        assert isinstance(scheduler.run_batch(key, ledger.ranges(key)), Failed)
    assert stored(ledger, key).status is Status.FAILED


def test_a_batch_of_which_another_still_runs_a_part_is_waited_for(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)
    assert ledger.take(key, "other", LEASE_MS)
    parts = ledger.split(
        key,
        [
            a_batch(OffsetRange("orders", 0, 10, 20)),
            a_batch(OffsetRange("orders", 1, 5, 12)),
        ],
        "other",
        LEASE_MS,
    )
    clock.now_ms += LEASE_MS - 1
    assert ledger.renew(parts[1].schedule_id, "other", LEASE_MS)
    clock.now_ms += 1
    scheduler = a_scheduler(ledger, FakeRunner(ledger), clock)
    assert scheduler.run_batch(key, ledger.ranges(key)) == Skipped(key)
    assert stored(ledger, key).status is Status.BACKFILLING
    assert [each.status for each in ledger.parts(key)] == [Status.FAILED, Status.IN_PROGRESS]
    assert ledger.succeed(parts[1].schedule_id, owner="other")
    clock.now_ms += LEASE_MS
    assert isinstance(scheduler.run_batch(key, ledger.ranges(key)), Split)
    assert [each.schedule_id for each in ledger.failed()] == [parts[0].schedule_id]
