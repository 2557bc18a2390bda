"""A gate's pages of the ledger as its planner keeps them."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from headrace.core.ranges import OffsetRange, TopicPartition
from tests.services.planners import ManualTime

from headrace.control import BatchLimits, EstimatorSettings, RateLimit, Reason, plan
from headrace.errors import LedgerError
from headrace.ledger import (
    Ledger,
    PlannedRange,
    RateSample,
    Status,
    patience,
    schedule_id,
    sqlite_file,
)
from headrace.source.books import GateBooks, GateIdentity
from headrace.source.positions import StreamOffset

RUN = "run"
END = StreamOffset({}, "orders", RUN, {"orders": "first"})
SETTINGS = EstimatorSettings(proportional=0.5)
GATE = GateIdentity("orders", 10_000, SETTINGS, "kafka", "broker:9092")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


@pytest.fixture
def clock() -> ManualTime:
    return ManualTime()


@pytest.fixture
def books(url: str, clock: ManualTime) -> Iterator[GateBooks]:
    with claimed(GateBooks(url, GATE, clock)) as opened:
        yield opened


@pytest.fixture
def ledger(url: str, books: GateBooks) -> Iterator[Ledger]:
    """The same ledger, as the driver's listener has it."""
    with Ledger.open(url) as opened:
        yield opened


@contextmanager
def claimed(books: GateBooks) -> Iterator[GateBooks]:
    with closing(books):
        books.claim()
        yield books


def ranges_of(number: int) -> list[OffsetRange]:
    return [OffsetRange("orders", 0, number * 10, number * 10 + 10)]


def begin(books: GateBooks, number: int) -> str:
    """Begin the batch of this number; its name."""
    books.begin(END, ranges_of(number), None, {})
    return schedule_id("orders", RUN, ranges_of(number), END.topic_ids)


def report(ledger: Ledger, batch: str, rate_per_s: float) -> None:
    ledger.publish_rate(RateSample("orders", 0, rate_per_s, 10, 900, 0, schedule_id=batch))


def test_the_gate_is_declared_with_what_the_listener_must_know(ledger: Ledger) -> None:
    (gate,) = ledger.gates()
    assert (gate.name, gate.interval_ms, gate.source) == ("orders", 10_000, "kafka")
    assert EstimatorSettings.from_text(gate.estimator) == SETTINGS


def test_a_batch_is_written_down_with_its_plan(books: GateBooks, ledger: Ledger) -> None:
    here, there = TopicPartition("orders", 0), TopicPartition("orders", 1)
    latest = {here: 30, there: 2}
    decided = plan({here: 0, there: 2}, latest, 7.0, BatchLimits(1.0, initial_rate=1.0))
    ranges = [OffsetRange("orders", 0, 0, 7)]
    books.begin(END, ranges, decided, latest)
    (batch,) = ledger.batches("orders")
    assert (batch.reason, batch.lag, batch.rate_per_s) == (Reason.RATE, 30, 7.0)
    assert ledger.ranges(batch.schedule_id) == (PlannedRange(ranges[0], 30, Reason.RATE, "first"),)


def test_a_batch_that_is_held_back_is_written_down_with_the_stage_that_holds_it(
    books: GateBooks, ledger: Ledger
) -> None:
    here = TopicPartition("orders", 0)
    ledger.hold("orders", RateLimit(7.0, "enrich", 1.0, 14.0), 60_000, "")
    held = books.admission().held
    decided = plan({here: 0}, {here: 30}, 9.0, BatchLimits(1.0, initial_rate=1.0), rate_limit=held)
    books.begin(END, [OffsetRange("orders", 0, 0, 7)], decided, {here: 30})
    (batch,) = ledger.batches("orders")
    assert (batch.reason, batch.rate_per_s) == ("throttled by enrich", 7.0)
    (planned,) = ledger.ranges(batch.schedule_id)
    assert planned.reason == "throttled by enrich"


def test_the_same_offsets_of_a_topic_that_was_made_anew_are_another_batch(
    books: GateBooks, ledger: Ledger
) -> None:
    ledger.succeed(begin(books, 0))
    books.begin(replace(END, topic_ids={"orders": "second"}), ranges_of(0), None, {})
    assert [b.status for b in ledger.batches("orders")] == [Status.IN_PROGRESS, Status.SUCCESS]


def test_a_batch_of_nothing_is_not_written_down(books: GateBooks, ledger: Ledger) -> None:
    books.begin(END, [], None, {})
    assert ledger.batches("orders") == ()


def test_before_the_first_batch_nothing_is_waited_for(books: GateBooks, clock: ManualTime) -> None:
    assert books.admission().rate_per_s is None
    assert clock.now_s == 0


def test_the_report_of_the_last_batch_is_waited_for(
    books: GateBooks, ledger: Ledger, clock: ManualTime
) -> None:
    for number in range(3):
        batch = begin(books, number)
        clock.on_sleep = lambda: report(ledger, batch, 40.0 + number)  # noqa: B023
        assert books.admission().rate_per_s == 40.0 + number


def test_a_report_that_is_there_costs_no_time(
    books: GateBooks, ledger: Ledger, clock: ManualTime
) -> None:
    report(ledger, begin(books, 0), 40.0)
    assert books.admission().rate_per_s == 40.0
    assert clock.now_s == 0


def test_a_report_that_does_not_come_is_waited_for_one_interval_and_the_rate_stays(
    books: GateBooks, ledger: Ledger, clock: ManualTime
) -> None:
    report(ledger, begin(books, 0), 40.0)
    begin(books, 1)
    assert books.admission().rate_per_s == 40.0
    assert clock.now_s == pytest.approx(10.0, abs=0.01)


def test_where_nobody_listens_only_the_first_report_is_waited_for(
    books: GateBooks, ledger: Ledger, clock: ManualTime
) -> None:
    begin(books, 0)
    assert books.admission().rate_per_s is None
    waited_s = clock.now_s
    for number in range(1, 4):
        begin(books, number)
        assert books.admission().rate_per_s is None
    assert clock.now_s == waited_s > 0


def test_one_report_that_came_late_does_not_end_the_waiting(
    books: GateBooks, ledger: Ledger, clock: ManualTime
) -> None:
    first = begin(books, 0)
    assert books.admission().rate_per_s is None
    report(ledger, first, 40.0)
    second = begin(books, 1)
    clock.on_sleep = lambda: report(ledger, second, 50.0)
    assert books.admission().rate_per_s == 50.0


def test_a_batch_begun_twice_has_one_row_and_two_attempts(books: GateBooks, ledger: Ledger) -> None:
    begin(books, 0)
    begin(books, 0)
    (batch,) = ledger.batches("orders")
    assert (batch.attempts, batch.reason) == (2, "run again after a restart")


def test_a_planner_whose_driver_has_ended_waits_no_longer(
    url: str, clock: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(patience, "time", clock)
    with (
        claimed(GateBooks(url, GATE)) as books,
        closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        parent = os.getppid()
        monkeypatch.setattr(os, "getppid", lambda: 1 if clock.now_s > 20 else parent)
        with pytest.raises(LedgerError, match="until the driver ended"):
            begin(books, 1)
        assert 20 < clock.now_s < 23
        other.rollback()
    with Ledger.open(url) as ledger:
        assert ledger.batches("orders") == ()


def test_a_planner_waits_for_its_ledger(
    url: str, clock: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(patience, "time", clock)
    with (
        claimed(GateBooks(url, GATE)) as books,
        closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        clock.on_sleep = lambda: other.rollback() if clock.now_s > 60 else None
        begin(books, 1)
        assert books.admission().rate_per_s is None
    assert 60 < clock.now_s < 63
