"""Backfill of one failed batch, with a real ledger and a runner that is a function."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.gate.backfill.runners import (
    ERROR,
    LEASE_MS,
    WIDE,
    Backfill,
    Offsets,
    PriceError,
    nothing,
    one_that_failed,
    refuse,
)
from tests.gate.ledger.samples import stored

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import BrokerError
from headrace.gate.backfill.monitor import (
    Claimed,
    Done,
    Failed,
    LeaseLost,
    MarkedDead,
    PartlyDone,
    Skipped,
)
from headrace.gate.backfill.schedule import Cost
from headrace.gate.control.parts import Progress
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock


@pytest.fixture
def key(ledger: Ledger) -> str:
    """A batch that has failed."""
    return one_that_failed(ledger, WIDE)


def test_a_batch_is_claimed_run_on_its_exact_ranges_and_done(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        assert (batch.status, batch.owner) == (Status.BACKFILLING, "me")
        assert stored(ledger, key) == batch
        clock.now_ms += 700

    backfill = Backfill(ledger, clock, handler)
    done = backfill.work_on(key)
    assert isinstance(done, Done)
    assert (done.batch.batch_key, done.elapsed_ms) == (key, 700)
    assert backfill.event_names == ["Claimed", "Done"]
    assert backfill.runner.runs == [(key, tuple(each.offsets for each in WIDE.ranges))]
    assert (stored(ledger, key).status, stored(ledger, key).error) == (Status.SUCCESS, None)
    assert backfill.budget.costs == [Cost(17, 700, clock())]


def test_one_that_fails_again_is_released_until_its_attempts_are_spent(
    ledger: Ledger, clock: ManualClock, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    backfill = Backfill(ledger, clock, refuse, max_backfills=3)
    with caplog.at_level(logging.INFO, "headrace.backfill"):
        outcomes = [backfill.work_on(key) for _ in range(4)]
    assert list(map(type, outcomes)) == [Failed, Failed, MarkedDead, Skipped]
    row = stored(ledger, key)
    assert (row.status, row.attempts, row.backfills) == (Status.DEAD, 4, 3)
    assert row.error is not None
    assert row.error.error_class.endswith("PriceError")
    assert row.error.message == "price is -2"
    assert [cost.succeeded for cost in backfill.budget.costs] == [False] * 3
    name = f"Batch {key} of gate 'orders' (17 records)"
    assert [(r.levelname, r.getMessage().split(":")[0]) for r in caplog.records] == [
        ("WARNING", f"{name} failed again"),
        ("WARNING", f"{name} failed again"),
        ("ERROR", f"{name} is dead and will not be processed"),
    ]


def test_without_a_budget_nothing_is_done(ledger: Ledger, clock: ManualClock, key: str) -> None:
    before, backfill = stored(ledger, key), Backfill(ledger, clock, most=0)
    assert backfill.work_on(key) is None
    assert stored(ledger, key) == before
    assert backfill.events == []


def test_a_batch_that_is_anothers_or_finished_is_skipped(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    backfill = Backfill(ledger, clock)
    assert ledger.batches.claim(key, "other", LEASE_MS)
    assert backfill.work_on(key) == Skipped(key, Status.BACKFILLING)
    assert ledger.batches.backfilled(key, "other")
    assert backfill.work_on(key) == Skipped(key, Status.SUCCESS)
    assert backfill.runner.runs == []


def test_what_has_left_kafka_becomes_dead_with_the_exact_offsets_loudly(
    ledger: Ledger, clock: ManualClock, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    backfill = Backfill(ledger, clock)
    begins = {TopicPartition("orders", 0): 25, TopicPartition("orders", 1): 12}
    backfill.runner.begins = begins
    assert isinstance(backfill.work_on(key), MarkedDead)
    assert backfill.runner.runs == []
    row = stored(ledger, key)
    assert row.status is Status.DEAD
    assert row.error is not None
    assert row.error.error_class == "headrace.errors.DataLossError"
    assert "left Kafka before they were processed: orders-0 [10, 20), orders-1 [5, 12);" in (
        row.error.message
    )
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert row.error.message in record.getMessage()


@pytest.mark.parametrize(
    ("of_topics", "source", "why"),
    [
        (
            {"begins": {TopicPartition("orders", 0): 20, TopicPartition("orders", 1): 12}},
            "kafka",
            "make the topic's retention longer than the wait of failed batches.",
        ),
        ({"recreated": {"orders"}}, "kafka", "orders was deleted and recreated."),
        (
            {"deleted": {"orders"}},
            "kafka",
            "orders-0 does not exist any more; orders-1 does not exist any more.",
        ),
        (
            {"recreated": {"orders"}},
            "journal",
            "orders was deleted and recreated, or a repair declared them lost.",
        ),
    ],
)
def test_why_a_batch_s_records_are_gone_is_said(
    ledger: Ledger, clock: ManualClock, of_topics: dict[str, Any], source: str, why: str
) -> None:
    key = one_that_failed(ledger, WIDE)
    ledger.gates.declare("orders", interval_ms=1_000, source=source, estimator="pid")
    backfill = Backfill(ledger, clock)
    for name, value in of_topics.items():
        setattr(backfill.runner, name, value)
    dead = backfill.work_on(key)
    assert isinstance(dead, MarkedDead)
    assert dead.error.message.split("; ", 1)[1] == why


def test_what_has_left_the_log_is_lost_once_and_the_rest_runs_under_its_key(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    backfill = Backfill(ledger, clock, refuse)
    backfill.runner.begins[TopicPartition("orders", 0)] = 13
    assert isinstance(backfill.work_on(key), Failed)
    backfill.runner.handler = nothing
    assert isinstance(backfill.work_on(key), Done)
    assert backfill.event_names == ["Claimed", "Lost", "Failed", "Claimed", "Done"]
    rest = (OffsetRange("orders", 0, 13, 20), OffsetRange("orders", 1, 5, 12))
    assert backfill.runner.runs == [(key, rest)] * 2
    (loss,) = ledger.history.losses("orders")
    assert (loss.offsets, loss.batch_key) == (OffsetRange("orders", 0, 10, 13), key)
    assert "make the topic's retention longer" in str(loss.reason)
    assert ledger.proofs.verify("orders").spans[0].lost == 3


def test_what_is_lost_when_a_part_is_done_already_leaves_a_success(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    assert ledger.batches.claim(key, "before", LEASE_MS)
    done = Progress(done=frozenset(["1"]))
    assert ledger.batches.keep_progress(key, "before", done)
    assert ledger.batches.put_back(key, "before")
    backfill = Backfill(ledger, clock)
    backfill.runner.begins[TopicPartition("orders", 0)] = 20
    backfill.runner.begins[TopicPartition("orders", 1)] = 12
    assert isinstance(backfill.work_on(key), Done)
    assert sum(loss.offsets.count for loss in ledger.history.losses("orders")) == 9


def test_an_outage_of_kafka_costs_no_attempt(ledger: Ledger, clock: ManualClock, key: str) -> None:
    before, backfill = stored(ledger, key), Backfill(ledger, clock)
    backfill.runner.unreachable = BrokerError("No broker can be reached.")
    with pytest.raises(BrokerError):
        backfill.work_on(key)
    assert stored(ledger, key) == before


@pytest.mark.parametrize("too_late", [None, PriceError("too late")])
def test_a_handler_that_commits_its_sink_with_the_batch_has_resolved_it_whatever_it_raises_then(
    ledger: Ledger, clock: ManualClock, key: str, too_late: Exception | None
) -> None:
    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        with ledger.batches.transaction(batch.batch_key, "me"):
            pass
        if too_late is not None:
            raise too_late

    assert isinstance(Backfill(ledger, clock, handler).work_on(key), Done)
    assert (stored(ledger, key).status, stored(ledger, key).error) == (Status.SUCCESS, None)


@pytest.mark.parametrize("then", [nothing, refuse])
def test_the_outcome_of_a_batch_whose_lease_was_lost_is_not_counted(
    ledger: Ledger, clock: ManualClock, key: str, then: Callable[[BatchRecord, Offsets], None]
) -> None:
    def handler(batch: BatchRecord, offsets: Offsets) -> None:
        clock.now_ms += LEASE_MS
        assert ledger.batches.claim(key, "other", LEASE_MS)
        then(batch, offsets)

    assert isinstance(Backfill(ledger, clock, handler).work_on(key), LeaseLost)
    row = stored(ledger, key)
    assert (row.owner, row.status) == ("other", Status.BACKFILLING)


def interrupt(batch: BatchRecord, offsets: Offsets) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_passes_once_the_batch_is_released_and_its_outcome_is_unknown(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Backfill(ledger, clock, interrupt).work_on(key)
    assert (stored(ledger, key).status, stored(ledger, key).outcome_unknown) == (
        Status.FAILED,
        True,
    )


def test_the_outcome_of_a_run_that_fails_while_its_application_is_stopped_is_unknown(
    ledger: Ledger, clock: ManualClock, key: str
) -> None:
    Backfill(ledger, clock, refuse, stopped=lambda: True).work_on(key)
    assert (stored(ledger, key).status, stored(ledger, key).outcome_unknown) == (
        Status.FAILED,
        True,
    )
    assert stored(ledger, key).error == ERROR  # what the stop raised says nothing


def test_events_are_sentences_that_name_the_batch(ledger: Ledger, key: str) -> None:
    row = stored(ledger, key)
    name = f"Batch {key} of gate 'orders' (17 records)"
    assert str(Claimed(row)) == f"{name} is claimed (attempt 2)."
    assert str(PartlyDone(row, 3)) == f"{name} was processed in part; 3 records remain."
    assert str(Done(row, 700)) == f"{name} was processed in 700 ms."
    assert str(LeaseLost(row)).startswith(f"{name} was run, but its lease expired")
    assert [str(Skipped(key, status)) for status in (Status.SUCCESS, Status.DEAD, None)] == [
        f"Batch {key} is done: the stream or another backfill has run it.",
        f"Batch {key} is dead, so it is not run.",
        f"Batch {key} is deleted, so it is not run.",
    ]
    assert str(Skipped(key, Status.BACKFILLING)) == (
        f"Batch {key} is not run here, because the stream or another backfill has it now."
    )
    error = ErrorReport("app.PriceError", "price is -1\nin a query of many lines", "")
    assert str(Failed(row, error, 9)) == f"{name} failed again: app.PriceError: price is -1"
