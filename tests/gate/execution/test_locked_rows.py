"""A gate whose rows somebody else keeps locked on PostgreSQL, and what goes on meanwhile.

A connection of its own locks them and does nothing more, as one that is left "idle in transaction"
by a process that was frozen between its last statement and its commit.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from psycopg.sql import SQL, Identifier
from tests.gate.execution.events import gated_source, planned, progress
from tests.gate.ledger.samples import stored
from tests.services.ledgers import new_ledger
from tests.services.postgresql import NewUrl
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.execution.listener import GateListener
from headrace.gate.ledger.connection import OF_A_QUERY
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

HERE = OffsetRange("orders-topic", 0, 0, 8)
THERE = OffsetRange("payments-topic", 0, 0, 8)
THE_GATE = "SELECT 1 FROM gate WHERE name = %s FOR UPDATE"
THE_BATCH = "SELECT 1 FROM batch WHERE batch_key = %s FOR UPDATE"
SOON = "lock_timeout%3D200"
"""In the place of ten seconds."""


@pytest.fixture
def url(new_postgresql_url: NewUrl) -> str:
    return new_postgresql_url()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """A query's, which waits."""
    new_ledger(url).close()
    with Ledger.open(f"{url}%20-c{SOON}", timeouts=OF_A_QUERY) as opened:
        for name in ("orders", "payments"):
            opened.gates.declare(
                name, interval_ms=1_000, source="kafka", estimator=EstimatorSettings().to_text()
            )
        yield opened


@contextmanager
def locked(url: str, lock: LiteralString, key: str) -> Iterator[None]:
    """Keep what a statement locks, until the end of the block."""
    with psycopg.connect(url) as connection:
        connection.execute(lock, [key])
        yield


def begin(ledger: Ledger, gate: str, offsets: OffsetRange) -> str:
    return ledger.batches.begin(planned(gate, offsets)).batch_key


def status_of(ledger: Ledger, key: str) -> Status:
    found = stored(ledger, key)
    return found.status


def test_a_gate_that_is_locked_keeps_no_other_gates_report_waiting(
    url: str, ledger: Ledger
) -> None:
    first, second = begin(ledger, "orders", HERE), begin(ledger, "payments", THERE)
    listener = GateListener(lambda _gate, _run: ledger, wait_s=0.1)
    run = uuid4()
    with locked(url, THE_GATE, "orders"):
        listener.onQueryProgress(progress(gated_source("orders", HERE, first=True), run=run))
        listener.onQueryProgress(progress(gated_source("payments", THERE, first=True), run=run))
        wait_until(lambda: status_of(ledger, second) is Status.SUCCESS)
        assert status_of(ledger, first) is Status.IN_PROGRESS
    wait_until(lambda: status_of(ledger, first) is Status.SUCCESS)
    assert len(ledger.rates.history("orders")) == 1


def test_who_waits_for_a_batchs_row_lets_the_gate_go_in_between(
    url: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """The planner that asks for a batch once more has the gate's row locked before the batch's."""
    caplog.set_level(logging.INFO, "headrace.ledger")
    key = begin(ledger, "orders", HERE)
    with locked(url, THE_BATCH, key):
        again = threading.Thread(target=begin, args=(ledger, "orders", HERE))
        again.start()
        wait_until(lambda: "locked by another client's transaction" in caplog.text)
        assert ledger.gates.next_sequence("orders") == 1
    again.join(60)
    found = stored(ledger, key)
    assert found.attempts == 2
    assert "is reachable again after" in caplog.text


def test_without_patience_it_is_raised_at_once(url: str, ledger: Ledger) -> None:
    key = begin(ledger, "orders", HERE)
    with (
        Ledger.open(f"{url}%20-c{SOON}") as impatient,
        locked(url, THE_BATCH, key),
        pytest.raises(LedgerError, match=r"locked by another client's transaction.*idle in trans"),
    ):
        impatient.batches.succeed(key)


def test_a_handlers_own_statements_wait_as_the_server_has_them_wait(url: str) -> None:
    with new_ledger(url) as ledger:
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
        key = begin(ledger, "orders", HERE)
        ledger.batches.attach(key, 0, owner="me", lease_ms=30_000)
        asked = sqlalchemy.text("SELECT current_setting('lock_timeout')")
        with ledger.batches.transaction(key, "me") as connection:
            assert connection.scalar(asked) == "0"
        assert status_of(ledger, key) is Status.SUCCESS


def test_a_lent_transaction_locks_no_row_of_the_ledger_before_its_end(
    url: str, ledger: Ledger
) -> None:
    key = begin(ledger, "orders", HERE)
    ledger.batches.attach(key, 0, owner="me", lease_ms=30_000)
    with ledger.batches.transaction(key, "me") as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE sink (name TEXT)"))
        connection.execute(sqlalchemy.text("INSERT INTO sink VALUES ('tea')"))
        for table in ("gate", "batch", "batch_range", "rate"):
            with psycopg.connect(url) as other:
                lock = SQL("SELECT 1 FROM {} FOR UPDATE NOWAIT").format(Identifier(table))
                other.execute(lock)
    assert status_of(ledger, key) is Status.SUCCESS
