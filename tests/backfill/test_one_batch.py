"""What becomes of one failed batch, with a real ledger and a runner that is a function."""

import logging
from collections.abc import Sequence

import pytest
from tests.backfill.runners import (
    ERROR,
    LEASE_MS,
    WIDE,
    Events,
    FakeRunner,
    FixedBudget,
    Offsets,
    a_scheduler,
    one_that_failed,
    stored,
)
from tests.ledger.samples import ManualClock, a_batch

from headrace.backfill import Claimed, Cost, Done, Failed, LeaseLost, MarkedDead, Skipped, Split
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError
from headrace.ledger import BatchRecord, DeadLetter, ErrorReport, Ledger, Status


class PriceError(Exception):
    """What the handlers of these tests raise."""


def refuse(batch: BatchRecord, offsets: Offsets) -> None:
    raise PriceError("price is -2")


def test_a_batch_is_taken_run_on_its_exact_ranges_and_done(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)
    events, budget = Events(), FixedBudget()

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        assert (batch.status, batch.owner) == (Status.BACKFILLING, "me")
        assert stored(ledger, key) == batch
        clock.now_ms += 700

    runner = FakeRunner(ledger, handler)
    scheduler = a_scheduler(ledger, runner, clock, events=events, budget=budget)
    done = scheduler.run_batch(key, ledger.ranges(key))
    assert isinstance(done, Done)
    assert (done.batch.schedule_id, done.elapsed_ms) == (key, 700)
    assert events.names == ["Claimed", "Done"]
    assert runner.runs == [(key, tuple(each.offsets for each in WIDE.ranges))]
    assert stored(ledger, key).status is Status.SUCCESS
    assert stored(ledger, key).error is None
    assert budget.costs == [Cost(17, 700, clock())]


def test_one_that_fails_again_is_given_back_until_its_attempts_are_spent(
    ledger: Ledger, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    key = one_that_failed(ledger, WIDE)
    events, budget = Events(), FixedBudget()
    scheduler = a_scheduler(
        ledger,
        FakeRunner(ledger, refuse),
        clock,
        events=events,
        budget=budget,
        max_backfills=3,
    )
    with caplog.at_level(logging.INFO, "headrace.backfill"):
        outcomes = [scheduler.run_batch(key, ledger.ranges(key)) for _ in range(4)]
    failed, again, buried, passed = outcomes
    assert isinstance(failed, Failed)
    assert isinstance(again, Failed)
    assert isinstance(buried, MarkedDead)
    assert isinstance(passed, Skipped)
    assert failed.error.message == "price is -2"
    assert "PriceError" in failed.error.error_class
    row = stored(ledger, key)
    assert (row.status, row.attempts, row.backfills) == (Status.DEAD, 4, 3)
    assert row.error == buried.error
    assert [cost.succeeded for cost in budget.costs] == [False] * 3
    assert [(r.levelname, r.getMessage().split(":")[0]) for r in caplog.records] == [
        ("WARNING", f"Batch {key} of gate 'orders' (17 records) failed again"),
        ("WARNING", f"Batch {key} of gate 'orders' (17 records) failed again"),
        ("ERROR", f"Batch {key} of gate 'orders' (17 records) is dead and will not be processed"),
    ]


def test_without_an_allowance_nothing_is_done(ledger: Ledger, clock: ManualClock) -> None:
    key = one_that_failed(ledger, WIDE)
    before, events = stored(ledger, key), Events()
    scheduler = a_scheduler(ledger, FakeRunner(ledger), clock, budget=FixedBudget(0), events=events)
    assert scheduler.run_batch(key, ledger.ranges(key)) is None
    assert stored(ledger, key) == before
    assert events.seen == []


def test_a_batch_that_is_anothers_or_finished_is_passed(ledger: Ledger, clock: ManualClock) -> None:
    key = one_that_failed(ledger, WIDE)
    runner = FakeRunner(ledger)
    scheduler = a_scheduler(ledger, runner, clock)
    assert ledger.take(key, "other", LEASE_MS)
    assert scheduler.run_batch(key, ledger.ranges(key)) == Skipped(key)
    assert ledger.backfilled(key, "other")
    assert scheduler.run_batch(key, ledger.ranges(key)) == Skipped(key)
    assert runner.runs == []


def test_what_has_left_kafka_becomes_dead_with_the_exact_offsets_loudly(
    ledger: Ledger, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    key = one_that_failed(ledger, WIDE)
    runner = FakeRunner(ledger)
    runner.begins = {TopicPartition("orders", 0): 25, TopicPartition("orders", 1): 12}
    buried = a_scheduler(ledger, runner, clock).run_batch(key, ledger.ranges(key))
    assert isinstance(buried, MarkedDead)
    assert runner.runs == []
    row = stored(ledger, key)
    assert row.status is Status.DEAD
    assert row.error is not None
    assert row.error.error_class == "headrace.errors.DataLossError"
    assert "has left Kafka before it was processed: orders-0 [10, 20), orders-1 [5, 12);" in (
        row.error.message
    )
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert row.error.message in record.getMessage()


def test_an_outage_of_kafka_costs_no_attempt(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = one_that_failed(ledger, WIDE)
    before = stored(ledger, key)
    runner = FakeRunner(ledger)

    def unreachable(ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        raise BrokerError("No broker can be reached.")

    monkeypatch.setattr(runner, "gone", unreachable)
    with pytest.raises(BrokerError):
        a_scheduler(ledger, runner, clock).run_batch(key, ledger.ranges(key))
    assert stored(ledger, key) == before


def test_a_handler_that_commits_its_sink_with_the_batch_has_settled_it(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        with ledger.transaction(batch.schedule_id, "me"):
            pass

    done = a_scheduler(ledger, FakeRunner(ledger, handler), clock).run_batch(
        key, ledger.ranges(key)
    )
    assert isinstance(done, Done)
    assert stored(ledger, key).status is Status.SUCCESS


def test_a_handler_that_raises_after_it_committed_has_processed_the_batch(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, WIDE)

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        with ledger.transaction(batch.schedule_id, "me"):
            pass
        raise PriceError("too late")

    done = a_scheduler(ledger, FakeRunner(ledger, handler), clock).run_batch(
        key, ledger.ranges(key)
    )
    assert isinstance(done, Done)
    assert stored(ledger, key).error is None


def test_a_batch_whose_one_record_became_a_dead_letter_is_buried(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, a_batch(OffsetRange("orders", 0, 7, 8)))
    letter = DeadLetter("orders", 0, 7, None, b"-1", (), 0, 0, ERROR)

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        assert ledger.bury_record(batch.schedule_id, letter, owner="me")

    runner = FakeRunner(ledger, handler)
    buried = a_scheduler(ledger, runner, clock).run_batch(key, ledger.ranges(key))
    assert buried == MarkedDead(runner_row(buried), ERROR)


def runner_row(event: object) -> BatchRecord:
    assert isinstance(event, MarkedDead)
    return event.batch


def test_parts_that_the_runner_isolated_hold_the_truth_and_the_batch_is_done(
    ledger: Ledger, clock: ManualClock
) -> None:
    key = one_that_failed(ledger, a_batch())
    halves = [
        a_batch(OffsetRange("orders", 0, 10, 15)),
        a_batch(OffsetRange("orders", 0, 15, 20)),
    ]

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        first, second = ledger.split(batch.schedule_id, halves, "me", LEASE_MS)
        ledger.succeed(first.schedule_id, owner="me")
        ledger.fail(second.schedule_id, ERROR, owner="me")

    done = a_scheduler(ledger, FakeRunner(ledger, handler), clock).run_batch(
        key, ledger.ranges(key)
    )
    assert isinstance(done, Done)
    assert stored(ledger, key).status is Status.SUCCESS
    assert [each.schedule_id for each in ledger.failed()] == [halves[1].schedule_id]


@pytest.mark.parametrize("error", [None, PriceError("price is -2")])
def test_the_outcome_of_a_batch_that_was_lost_meanwhile_is_not_counted(
    ledger: Ledger, clock: ManualClock, error: Exception | None
) -> None:
    key = one_that_failed(ledger, WIDE)

    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        clock.now_ms += LEASE_MS
        assert ledger.take(key, "other", LEASE_MS)
        if error is not None:
            raise error

    lost = a_scheduler(ledger, FakeRunner(ledger, handler), clock).run_batch(
        key, ledger.ranges(key)
    )
    assert isinstance(lost, LeaseLost)
    assert stored(ledger, key).owner == "other"
    assert stored(ledger, key).status is Status.BACKFILLING


def test_who_interrupts_a_run_is_obeyed_once_the_batch_is_given_back(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = one_that_failed(ledger, WIDE)
    runner = FakeRunner(ledger)
    monkeypatch.setattr(runner, "run", lambda _batch: KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        a_scheduler(ledger, runner, clock).run_batch(key, ledger.ranges(key))
    assert stored(ledger, key).status is Status.FAILED


def test_events_are_sentences_that_name_the_batch(ledger: Ledger, clock: ManualClock) -> None:
    row = stored(ledger, one_that_failed(ledger, WIDE))
    name = f"Batch {row.schedule_id} of gate 'orders' (17 records)"
    assert str(Claimed(row)) == f"{name} is claimed (attempt 2)."
    assert str(Split(row, (row, row))) == f"{name} is split into 2 batches."
    assert str(Done(row, 700)) == f"{name} was processed in 700 ms."
    assert str(LeaseLost(row)).startswith(f"{name} was run, but not as its owner any more")
    assert row.schedule_id in str(Skipped(row.schedule_id))
    error = ErrorReport("app.PriceError", "price is -1\nin a query of many lines", "")
    assert str(Failed(row, error, 9)) == f"{name} failed again: app.PriceError: price is -1"
