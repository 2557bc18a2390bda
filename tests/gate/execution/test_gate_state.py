"""The ledgers of a process, patient with what runs only; and the turns of a handler's callers."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock, PropertyMock
from uuid import uuid4

import pytest
from pyspark.sql.streaming.query import StreamingQuery
from tests.services.ledgers import patient

from headrace.gate.execution import gate_state
from headrace.gate.execution.gate_state import Turn, ledger_of, shared_ledger, use_ledger
from headrace.testing import ManualClock


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"sqlite:///{tmp_path}/headrace.db"
    yield url
    shared_ledger(url).close()


@pytest.fixture
def time() -> ManualClock:
    return ManualClock()


@pytest.fixture
def other(url: str, time: ManualClock) -> Iterator[sqlite3.Connection]:
    """Another program that keeps the ledger's file to itself."""
    use_ledger("orders", url, patient(time)).close()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        yield connection


def test_a_query_waits_for_its_ledger(
    url: str, other: sqlite3.Connection, time: ManualClock
) -> None:
    time.on_sleep = lambda: other.close() if time.monotonic() > 30 else None
    ledger = ledger_of("orders", uuid4(), None)
    assert ledger is shared_ledger(url)
    assert ledger.gates.all() == ()
    assert 30 < time.monotonic() < 33


def test_what_is_checked_before_a_query_starts_waits_though_it_was_there_before(
    url: str, other: sqlite3.Connection, time: ManualClock
) -> None:
    time.on_sleep = lambda: other.close() if time.monotonic() > 30 else None
    assert use_ledger("orders", url, patient(time)) is shared_ledger(url)
    assert 30 < time.monotonic() < 33


class Held:
    """A lock that somebody else has for some seconds, and the clock that goes on meanwhile."""

    now_s = 0.0
    for_s = 2.5

    def acquire(self, blocking: bool = True) -> bool:
        if not blocking:
            return False
        self.now_s += self.for_s
        return True

    def release(self) -> None:
        self.now_s += 100.0


def test_a_caller_knows_how_long_it_waited_for_its_turns_since_it_last_asked() -> None:
    held = Held()
    turn = Turn(cast(threading.Lock, held), lambda: held.now_s)
    with turn:
        held.now_s += 50.0
    with turn:
        pass
    assert turn.take_waited_ms() == 5_000
    assert turn.take_waited_ms() == 0


def test_a_turn_says_whether_it_was_free() -> None:
    with Turn(threading.Lock()) as was_free:
        assert was_free
    with Turn(cast(threading.Lock, Held()), lambda: 0.0) as was_free:
        assert not was_free


def test_a_program_whose_spark_is_gone_ends_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = Mock(spec=StreamingQuery)
    type(query).isActive = PropertyMock(side_effect=ConnectionRefusedError("no Java any more"))
    states = {("sqlite://", "orders"): SimpleNamespace(query=query)}
    monkeypatch.setattr(gate_state, "all_states", lambda: states)
    gate_state._record_ends()
