"""Connections lent by the ledger: their transaction is not ended, their session is as before."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Connection
from tests.services.postgresql import NewUrl

from headrace.ledger import Ledger, Timeouts
from headrace.ledger.database import Database
from headrace.ledger.lending import transaction_end

pytestmark = pytest.mark.integration  # over both kinds of database

ENDS = {
    "commit": "COMMIT",
    " ;; Commit And Chain": "COMMIT",
    "set local work_mem = '8MB'; commit": "COMMIT",
    "select 1;commit;begin": "COMMIT",
    "select 1 -- ; rollback\n; end": "END",
    "select 1; /* a /* b */ */ abort": "ABORT",
    "select 1; -- it's\n rollback": "ROLLBACK",
    "select 'it''s'; rollback work": "ROLLBACK",
    r"select e'it\'s'; rollback; select '": "ROLLBACK",
    r"select 'C:\'; rollback; select '": "ROLLBACK",
    "select $$'$$; prepare transaction 'a'": "PREPARE TRANSACTION",
    "select 1 as a$b; commit; select 2 as c$b": "COMMIT",
    "select 1; start /* a */ transaction": "START TRANSACTION",
    "select 1; begin": "BEGIN",
    "select '; commit": "COMMIT",  # no statement, so nothing is refused that could be run
}

HARMLESS = [
    "select 1; select 2",
    "insert into notes values ('done; commit')",
    "insert into notes values ('it''s done; commit')",
    r"insert into notes values (E'it\'s done; commit')",
    'select 1 as "a; commit"',
    "do $$ begin perform 1; end $$",
    "do $a$ begin perform '$$; commit'; end $a$",
    "select 1 -- ; commit",
    "select 1 /* ; commit /* ; commit */ ; commit */",
    "select case when a then 1 end from b; select 2",
    "savepoint mine; rollback to mine; release mine",
    "savepoint mine; rollback work to savepoint mine",
    "select 1; rollback transaction to mine",
    "select commit from batches; select committed",
]


@pytest.mark.parametrize(("sql", "end"), ENDS.items())
def test_what_would_end_a_transaction_is_found_wherever_it_stands(sql: str, end: str) -> None:
    assert transaction_end(sql) == end


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_would_end_no_transaction_may_be_executed(sql: str) -> None:
    assert transaction_end(sql) is None


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
    assert database.scalar(written) == (len(settings) if ends == "committed" else 0)


def test_a_server_s_session_is_restored_and_used_again(new_postgresql_url: NewUrl) -> None:
    url = new_postgresql_url()
    Ledger.open(url).close()
    database = Database(url, read_only=False, timeouts=Timeouts())
    number = sqlalchemy.text("SELECT pg_backend_pid()")
    before = database.scalar(number)
    for _ in range(8):  # as often as the driver executes a statement until it has prepared it
        with database.lend(lambda _connection: None) as connection:
            assert connection.scalar(number) == before
    assert database.scalar(number) == before
    database.close()
