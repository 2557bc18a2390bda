"""Connections lent by the ledger: their transaction is not ended, their session is as before."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Connection
from tests.gate.ledger.samples import a_batch
from tests.services.postgresql import NewUrl
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.gate.control.parts import WHOLE, Progress
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.database import Database
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import DeadLetter, part_key

pytestmark = pytest.mark.integration  # over both kinds of database


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    Ledger.open(url).close()
    opened = Database(url, read_only=False, timeouts=Timeouts())
    with opened.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE sink (name TEXT)")
    yield opened
    opened.close()


SERVER_SETTINGS = [
    "SET default_transaction_read_only = on",
    "SET ROLE pg_monitor",
    "SET SESSION AUTHORIZATION pg_monitor",
    "SET search_path = nowhere",
    "SET statement_timeout = '1s'",
    "SET lock_timeout = '1s'",
    "SET tcp_keepalives_idle = 99",
    "SET synchronous_commit = off",
    "CREATE TEMP TABLE batch (a INT)",
    "SELECT pg_advisory_lock(7)",
    "LISTEN somebody",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
]
FILE_SETTINGS = [
    "PRAGMA query_only = on",
    "PRAGMA recursive_triggers = on",
    "PRAGMA ignore_check_constraints = on",
    "PRAGMA busy_timeout = 1",
    "PRAGMA temp_store = memory",
    "CREATE TEMP TABLE batch (a INT)",
]
SERVER_SESSION = [
    "SELECT name, setting FROM pg_settings WHERE name <> 'transaction_read_only' ORDER BY name",
    "SELECT current_user::text, session_user::text",
    "SELECT relname::text FROM pg_class WHERE relpersistence = 't'",
    "SELECT objid FROM pg_locks WHERE locktype = 'advisory'",
    "SELECT pg_listening_channels()",
    "SELECT name FROM pg_cursors WHERE is_holdable",
]
FILE_SESSION = [
    f"PRAGMA {name}"
    for name in (
        "query_only",
        "foreign_keys",
        "synchronous",
        "recursive_triggers",
        "ignore_check_constraints",
        "busy_timeout",
        "temp_store",
        "table_list('batch')",
    )
]


def session(connection: Connection) -> list[Sequence[Any]]:
    """Return the session's settings that can change."""
    is_server = connection.dialect.name == "postgresql"
    statements = SERVER_SESSION if is_server else FILE_SESSION
    return [connection.exec_driver_sql(each).all() for each in statements]


@pytest.mark.parametrize("ends", ["committed", "undone"])
def test_a_session_is_after_it_was_lent_as_it_was_before(database: Database, ends: str) -> None:
    settings = FILE_SETTINGS if database.is_sqlite else SERVER_SETTINGS
    with database.reading() as connection:
        before = session(connection)
    for statement in settings:
        with suppress(ZeroDivisionError), database.lend(lambda _connection: None) as connection:
            connection.exec_driver_sql("INSERT INTO sink VALUES ('tea')")
            connection.exec_driver_sql(statement)
            if ends == "undone":
                raise ZeroDivisionError
        with database.reading() as connection:
            assert session(connection) == before, statement
    written = sqlalchemy.text("SELECT count(*) FROM sink")
    count = database.read(lambda connection: connection.scalar(written))
    assert count == (len(settings) if ends == "committed" else 0)


def test_a_server_s_session_is_restored_and_used_again(new_postgresql_url: NewUrl) -> None:
    url = new_postgresql_url()
    Ledger.open(url).close()
    database = Database(url, read_only=False, timeouts=Timeouts())
    number = sqlalchemy.text("SELECT pg_backend_pid()")
    before = database.read(lambda connection: connection.scalar(number))
    for _ in range(8):  # as often as the driver executes a statement until it has prepared it
        with database.lend(lambda _connection: None) as connection:
            assert connection.scalar(number) == before
    assert database.read(lambda connection: connection.scalar(number)) == before
    database.close()


@pytest.mark.parametrize("part", [WHOLE, "0"])
def test_whether_a_part_is_over_is_known_once_its_commit_has_ended(
    new_postgresql_url: NewUrl, part: str
) -> None:
    url, progress = new_postgresql_url(), Progress().with_done(part) if part else None
    is_committing, may_commit = threading.Event(), threading.Event()

    def commit_slowly() -> Sequence[DeadLetter]:
        is_committing.set()  # the batch's row is written by now
        may_commit.wait()
        return ()

    with Ledger.open(url) as ledger, ThreadPoolExecutor(2) as threads:
        batches = ledger.batches
        ledger.gates.declare("orders", interval_ms=500, source="kafka", estimator="pid")
        key = batches.begin(a_batch(OffsetRange("orders", 0, 0, 8))).batch_key
        batches.attach(key, 0, owner="me", lease_ms=60_000)

        def commit() -> None:
            with batches.transaction(key, "me", rejected=commit_slowly, progress=progress):
                pass

        def is_waited_for() -> bool:
            with psycopg.connect(url, autocommit=True) as connection:
                waiting = connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
                return is_over.done() or waiting.fetchone() is not None

        committed = threads.submit(commit)
        is_committing.wait()
        is_over = threads.submit(batches.is_over, part_key(key, part))
        wait_until(is_waited_for)
        may_commit.set()
        assert is_over.result()
        committed.result()
