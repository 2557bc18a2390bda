"""What a ledger with patience waits for, and what it tells at once."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.schema import DropTable
from tests.ledger.conftest import Execute
from tests.ledger.samples import batch_number
from tests.services.planners import ManualTime

from headrace.errors import LedgerError
from headrace.ledger import Ledger, sqlite_file
from headrace.ledger.patience import QUERY_PATIENCE_S
from headrace.ledger.tables import gate, metadata


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger's file; whoever finds it locked is told soon."""
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.declare_gate("orders", interval_ms=1_000, source="kafka", estimator="pid")
    return path


def patient(path: Path) -> Ledger:
    return Ledger.open(f"sqlite:///{path}", patience_s=QUERY_PATIENCE_S)


def test_a_file_that_another_program_keeps_locked_is_waited_for(
    path: Path, time: ManualTime
) -> None:
    with patient(path) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        time.on_sleep = lambda: other.rollback() if time.now_s > 60 else None
        ledger.begin(batch_number(0))
        assert len(ledger.batches("orders")) == 1
    assert 60 < time.now_s < 63


def test_a_transaction_waits_for_the_file_before_it_begins(path: Path, time: ManualTime) -> None:
    with patient(path) as ledger, closing(sqlite3.connect(path)) as other:
        key = ledger.begin(batch_number(0)).schedule_id
        ledger.attach(key, 0, owner="me", lease_ms=60_000)
        other.execute("BEGIN IMMEDIATE")
        time.on_sleep = other.rollback
        with ledger.transaction(key, "me") as connection:
            connection.execute(update(gate).values(source="the sink's"))
        assert ledger.gates()[0].source == "the sink's"
    assert time.now_s > 0


def test_a_file_that_stays_locked_is_given_up_with_the_time_that_was_waited(
    path: Path, time: ManualTime
) -> None:
    url = f"sqlite:///{path}"
    with Ledger.open(url, patience_s=9) as ledger, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"has been locked by .*; it was waited for 9 s\."):
            ledger.begin(batch_number(0))
        assert ledger.batches("orders") == ()


def test_opening_does_not_wait(path: Path, time: ManualTime) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerError, match="has been locked by another process"):
            patient(path)
    assert time.now_s == 0


def test_a_file_that_was_deleted_is_told_at_once(path: Path, time: ManualTime) -> None:
    with patient(path) as ledger:
        path.unlink()
        with pytest.raises(LedgerError, match="was deleted or replaced while it was open"):
            ledger.begin(batch_number(0))
    assert time.now_s == 0


CALLS: dict[str, Callable[[Ledger], object]] = {
    "read": Ledger.gates,
    "change": lambda ledger: ledger.succeed("a batch"),
    "write": lambda ledger: ledger.begin(batch_number(0)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_table_that_is_missing_is_told_at_once(
    url: str, execute: Execute, time: ManualTime, call: Callable[[Ledger], object]
) -> None:
    with Ledger.open(url, patience_s=QUERY_PATIENCE_S) as ledger:
        for table in reversed(metadata.sorted_tables):
            execute(DropTable(table))
        with pytest.raises(LedgerError, match="cannot be used: "):
            call(ledger)
    assert time.now_s == 0


def test_a_constraint_that_is_violated_is_told_at_once(url: str, time: ManualTime) -> None:
    with (
        Ledger.open(url, patience_s=QUERY_PATIENCE_S) as ledger,
        pytest.raises(LedgerError, match="'orders' is not declared"),
    ):
        ledger.begin(batch_number(0))
    assert time.now_s == 0
