"""Outages that a ledger waits for, and its limit; errors that it raises at once."""

import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, update
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import Pool
from sqlalchemy.schema import DropTable
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import batch_number
from tests.services.ledgers import patient

from headrace.core.timing import cancel_when
from headrace.errors import LedgerError
from headrace.gate.ledger.connection import (
    OutageError,
    Retries,
    Timeouts,
    next_wait_s,
)
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.tables import gate, metadata
from headrace.testing import ManualClock

seconds = st.floats(0, 10_000)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.ledger")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


def away_until(time: ManualClock, back_s: float) -> Callable[[], float]:
    """Return an attempt that fails until then, and succeeds after that."""

    def attempt() -> float:
        if time.monotonic() < back_s:
            raise OutageError("The ledger L cannot be reached: refused.")
        return time.monotonic()

    return attempt


@given(st.integers(1, 10_000), seconds, st.floats(0.001, 10_000))
def test_a_wait_is_within_its_bounds_and_ends_with_the_timeout(
    tries: int, waited_s: float, patience_s: float
) -> None:
    wait_s = next_wait_s(tries, waited_s, patience_s)
    if wait_s is None:
        assert waited_s >= patience_s
    else:
        assert 0 < wait_s <= LONGEST_WAIT_S
        assert wait_s >= FIRST_WAIT_S or wait_s == patience_s - waited_s


def test_waits_grow_from_the_shortest_to_the_longest(time: ManualClock) -> None:
    tried_s = [0.0]
    time.on_sleep = lambda: tried_s.append(time.monotonic())
    Retries("L", patient(time)).wait_out(away_until(time, 60))
    waits_s = [round(later - tried, 6) for tried, later in pairwise(tried_s)]
    assert waits_s[0] == FIRST_WAIT_S
    assert waits_s[-1] == LONGEST_WAIT_S
    assert all(later == min(2 * wait, LONGEST_WAIT_S) for wait, later in pairwise(waits_s))


def test_what_comes_back_is_noticed_within_the_longest_wait(time: ManualClock) -> None:
    assert 60 <= Retries("L", patient(time)).wait_out(away_until(time, 60)) <= 60 + LONGEST_WAIT_S


def test_waiting_is_logged_when_it_begins_and_when_it_is_over(
    time: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    Retries("L", patient(time)).wait_out(away_until(time, 3))
    assert lines(caplog) == [
        "WARNING The ledger L cannot be reached: refused. Headrace retries for up to 600 s.",
        "INFO The ledger L is reachable again after 3.1 s.",
    ]


def test_the_next_outage_is_logged_too(time: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    waiting = Retries("L", patient(time))
    for back_s in (3, 20):
        waiting.wait_out(away_until(time, back_s))
    assert [line.partition(" ")[0] for line in lines(caplog)] == ["WARNING", "INFO"] * 2


def test_what_answers_at_once_is_not_logged(
    time: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert Retries("L", patient(time)).wait_out(lambda: "answer") == "answer"
    assert (time.monotonic(), lines(caplog)) == (0, [])


@pytest.mark.parametrize("patience_s", [0.25, 10])
def test_after_the_timeout_the_last_error_is_raised_with_the_time_that_was_waited(
    time: ManualClock, patience_s: float
) -> None:
    with pytest.raises(LedgerError) as caught:
        Retries("L", patient(time, patience_s)).wait_out(away_until(time, 1_000))
    assert type(caught.value) is LedgerError
    assert str(caught.value) == (
        f"The ledger L cannot be reached: refused; Headrace gave up after {patience_s:.0f} s."
    )
    assert time.monotonic() == pytest.approx(patience_s)


@pytest.mark.parametrize("error", [LedgerError("no"), ValueError("no"), KeyboardInterrupt()])
def test_any_other_error_passes_at_once(time: ManualClock, error: BaseException) -> None:
    def attempt() -> None:
        raise error if time.monotonic() else OutageError("away.")

    with pytest.raises(type(error)) as caught:
        Retries("L", patient(time)).wait_out(attempt)
    assert caught.value is error
    assert time.monotonic() == FIRST_WAIT_S


def test_an_interrupted_wait_ends_at_once_and_the_next_outage_is_logged(
    time: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    waiting = Retries("L", patient(time))
    time.on_sleep = interrupt
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            waiting.wait_out(away_until(time, 1_000))
    assert time.monotonic() == 2 * FIRST_WAIT_S
    assert [line.partition(" ")[0] for line in lines(caplog)] == ["WARNING"] * 2


def test_waiting_ends_with_what_it_is_for_and_the_error_says_so(time: ManualClock) -> None:
    with (
        pytest.raises(LedgerError) as caught,
        cancel_when(lambda: time.monotonic() >= 30, "the query was stopped"),
    ):
        Retries("L", patient(time)).wait_out(away_until(time, 1_000))
    assert type(caught.value) is LedgerError
    told = str(caught.value)
    assert told.startswith("The ledger L cannot be reached: refused; Headrace gave up after 3")
    assert told.endswith(" s, because the query was stopped.")
    assert 30 <= time.monotonic() <= 30 + LONGEST_WAIT_S


def test_one_try_is_made_however_late_it_is(time: ManualClock) -> None:
    with cancel_when(lambda: True, "it ended"):
        assert Retries("L", patient(time)).wait_out(lambda: "answer") == "answer"
        with pytest.raises(LedgerError, match="Headrace gave up after 0 s, because it ended"):
            Retries("L", patient(time)).wait_out(away_until(time, 1))
    assert time.monotonic() == 0
    assert Retries("L", patient(time)).wait_out(away_until(time, 1)) >= 1


def test_the_waiting_of_another_thread_goes_on(time: ManualClock) -> None:
    waiting = Retries("L", patient(time))
    with ThreadPoolExecutor(1) as pool, cancel_when(lambda: True, "it ended"):
        assert pool.submit(waiting.wait_out, away_until(time, 60)).result() >= 60


def test_threads_that_wait_together_log_once(caplog: pytest.LogCaptureFixture) -> None:
    waiting, together, is_back = (
        Retries("L", Timeouts(600)),
        threading.Barrier(5),
        threading.Event(),
    )

    def call() -> str:
        tried = False

        def attempt() -> str:
            nonlocal tried
            if not tried:
                tried = True
                raise OutageError("The ledger L cannot be reached: refused.")
            if not is_back.is_set():
                together.wait()
                is_back.wait()
            return "answer"

        return waiting.wait_out(attempt)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(call) for _ in range(4)]
        together.wait()
        is_back.set()
        assert [answer.result() for answer in answers] == ["answer"] * 4
    assert [line.partition(" ")[0] for line in lines(caplog)] == ["WARNING", "INFO"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger's file."""
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
    return path


def opened(path: Path, time: ManualClock) -> Ledger:
    return Ledger.open(f"sqlite:///{path}", timeouts=patient(time))


@pytest.mark.integration
def test_a_file_that_another_program_keeps_locked_is_waited_for(
    path: Path, time: ManualClock
) -> None:
    with opened(path, time) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.on_sleep = lambda: other.rollback() if time.monotonic() > 60 else None
        ledger.batches.begin(batch_number(0))
        assert len(ledger.batches.newest("orders")) == 1
    assert 60 < time.monotonic() < 63


def test_a_transaction_waits_for_the_file_before_it_begins(path: Path, time: ManualClock) -> None:
    with opened(path, time) as ledger, closing(sqlite3.connect(path)) as other:
        key = ledger.batches.begin(batch_number(0)).batch_key
        ledger.batches.attach(key, 0, owner="me", lease_ms=60_000)
        other.execute("BEGIN IMMEDIATE")
        time.on_sleep = other.rollback
        with ledger.batches.transaction(key, "me") as connection:
            connection.execute(update(gate).values(source="the sink's"))
        assert ledger.gates.all()[0].source == "the sink's"
    assert time.monotonic() > 0


def test_a_file_that_stays_locked_is_waited_for_until_the_timeout_with_the_time_that_was_waited(
    path: Path, time: ManualClock
) -> None:
    url = f"sqlite:///{path}"
    with (
        Ledger.open(url, timeouts=patient(time, 9)) as ledger,
        closing(sqlite3.connect(path)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"locked by .*; Headrace gave up after 9 s\."):
            ledger.batches.begin(batch_number(0))
        assert ledger.batches.newest("orders") == ()


def test_opening_waits_too_but_not_without_a_timeout(path: Path, time: ManualClock) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="has been locked by another process"):
            Ledger.open(f"sqlite:///{path}", timeouts=patient(time, 0))
        assert time.monotonic() == 0
        time.on_sleep = lambda: other.rollback() if time.monotonic() > 30 else None
        with opened(path, time) as ledger:
            assert len(ledger.gates.all()) == 1
    assert 30 < time.monotonic() < 33


def test_a_file_without_room_is_waited_for(
    path: Path, time: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    files: list[sqlite3.Connection] = []

    def fill(file: sqlite3.Connection, _: object) -> None:
        """Let it grow no further, as on a disk that is full."""
        (pages,) = file.execute("PRAGMA page_count").fetchone()
        file.execute(f"PRAGMA max_page_count = {pages}")
        files.append(file)

    def make_room() -> None:
        if time.monotonic() > 60:
            for file in files:
                file.execute(f"PRAGMA max_page_count = {2**30}")

    time.on_sleep = make_room
    sqlalchemy.event.listen(Engine, "connect", fill)
    try:
        ledger = opened(path, time)
    finally:
        sqlalchemy.event.remove(Engine, "connect", fill)
    with ledger:
        for number in range(100):
            assert ledger.batches.begin(batch_number(number)).attempts == 1
        assert len(ledger.batches.newest("orders", limit=200)) == 100
    assert 60 < time.monotonic() < 63
    (warning, _) = lines(caplog)
    assert "because its disk is full; free space on the disk. Headrace retries" in warning


@pytest.mark.parametrize(
    "error", [DisconnectionError(), sqlalchemy.exc.TimeoutError("no connection is free")]
)
def test_a_pool_without_a_connection_is_waited_for(
    path: Path, time: ManualClock, error: Exception
) -> None:
    """As one whose new connections are cut at once; SQLAlchemy says so by classes of its own."""

    def cut(*_: object) -> None:
        if time.monotonic() < 60:
            raise error

    with opened(path, time) as ledger:
        sqlalchemy.event.listen(Pool, "checkout", cut)
        try:
            assert len(ledger.gates.all()) == 1
        finally:
            sqlalchemy.event.remove(Pool, "checkout", cut)
    assert 60 < time.monotonic() < 63


CALLS: dict[str, Callable[[Ledger], object]] = {
    "read": lambda ledger: ledger.gates.all(),
    "change": lambda ledger: ledger.batches.succeed("a batch"),
    "write": lambda ledger: ledger.batches.begin(batch_number(0)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_table_that_is_missing_is_raised_at_once(
    url: str, execute: Execute, time: ManualClock, call: Callable[[Ledger], object]
) -> None:
    with Ledger.open(url, timeouts=patient(time)) as ledger:
        for table in reversed(metadata.sorted_tables):
            execute(DropTable(table))
        with pytest.raises(LedgerError, match="cannot be used: "):
            call(ledger)
    assert time.monotonic() == 0


def test_a_constraint_that_is_violated_is_raised_at_once(url: str, time: ManualClock) -> None:
    with (
        Ledger.open(url, timeouts=patient(time)) as ledger,
        pytest.raises(LedgerError, match="'orders' is not declared"),
    ):
        ledger.batches.begin(batch_number(0))
    assert time.monotonic() == 0
