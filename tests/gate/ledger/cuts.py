"""A connection that is cut just before or just after something became durable.

Then a ledger is told the same: that the connection is gone. It cannot know which of both it was. A
real server does this too, but not when a test says.
"""

import re
import sqlite3
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

_WRITES = re.compile(r"(WITH \w+ AS\s*\()?(INSERT|UPDATE|DELETE)")


class Moment(StrEnum):
    """When a connection is cut."""

    BEFORE = "before"
    AFTER = "after"


class Cuts:
    """Cuts the connections of ledgers, as often as it is planned, at what writes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._planned: list[Moment] = []
        for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
            patch.setattr(dialect, "do_commit", self._cut_commits(dialect.do_commit))
            patch.setattr(dialect, "do_execute", self._cut_statements(dialect.do_execute))

    def plan(self, *moments: Moment) -> None:
        """Cut at the next write, and at those that follow."""
        self._planned += moments

    @property
    def are_over(self) -> bool:
        return not self._planned

    def _cut_commits(self, do_commit: Callable[..., None]) -> Callable[..., None]:
        def commit(dialect: Any, connection: Any) -> None:
            moment = self._planned.pop(0) if self._planned else None
            if moment is not Moment.BEFORE:
                do_commit(dialect, connection)
            if moment is not None:
                raise _cut(connection.driver_connection)

        return commit

    def _cut_statements(self, do_execute: Callable[..., None]) -> Callable[..., None]:
        def execute(dialect: Any, cursor: Any, statement: str, *others: Any) -> None:
            alone = _WRITES.match(statement) is not None and _is_alone(cursor)
            moment = self._planned.pop(0) if alone and self._planned else None
            if moment is not Moment.BEFORE:
                do_execute(dialect, cursor, statement, *others)
            if moment is Moment.AFTER and isinstance(cursor, psycopg.Cursor):
                with cursor.connection.pipeline():
                    """At its end everything that was sent has been done."""
            if moment is not None:
                raise _cut(cursor.connection)

        return execute


def _is_alone(cursor: Any) -> bool:
    """Whether a statement is a transaction by itself."""
    if isinstance(cursor, sqlite3.Cursor):
        return cursor.connection.isolation_level is None
    connection: psycopg.Connection = cursor.connection
    return connection.autocommit and connection.info.transaction_status != TransactionStatus.INTRANS


def _cut(connection: Any) -> Exception:
    if isinstance(connection, sqlite3.Connection):
        # The one thing that a ledger waits for with a SQLite file.
        connection.rollback()
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorname = "SQLITE_BUSY"
        return busy
    connection.close()
    return psycopg.OperationalError("server closed the connection unexpectedly")
