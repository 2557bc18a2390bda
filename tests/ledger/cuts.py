"""A connection that is cut just before or just after something became durable.

Then a ledger is told the same: that the connection is gone. It cannot know which of both it was. A
real server does this too, but not when a test says.
"""

import sqlite3
from enum import StrEnum
from typing import Any

import psycopg
import pytest

from headrace.ledger import Ledger


class Moment(StrEnum):
    """When a connection is cut."""

    BEFORE = "before"
    AFTER = "after"


class Cuts:
    """Cuts the connections of one ledger, as often as it is told, at what writes."""

    def __init__(self, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        dialect = ledger._database._engine.dialect
        self._commit = dialect.do_commit
        self._execute = dialect.do_execute
        self._planned: list[Moment] = []
        patch.setattr(dialect, "do_commit", self.do_commit)
        patch.setattr(dialect, "do_execute", self.do_execute)

    def plan(self, *moments: Moment) -> None:
        """Cut at the next write, and at those that follow."""
        self._planned += moments

    @property
    def are_over(self) -> bool:
        return not self._planned

    def do_commit(self, connection: Any) -> None:
        moment = self._planned.pop(0) if self._planned else None
        if moment is not Moment.BEFORE:
            self._commit(connection)
        if moment is not None:
            raise _cut(connection.driver_connection)

    def do_execute(self, cursor: Any, statement: str, values: Any, context: Any = None) -> None:
        alone = statement.startswith(("INSERT", "UPDATE", "DELETE")) and _is_alone(cursor)
        moment = self._planned.pop(0) if alone and self._planned else None
        if moment is not Moment.BEFORE:
            self._execute(cursor, statement, values, context)
        if moment is not None:
            raise _cut(cursor.connection)


def _is_alone(cursor: Any) -> bool:
    """Whether a statement is a transaction by itself."""
    if isinstance(cursor, sqlite3.Cursor):
        return cursor.connection.isolation_level is None
    return bool(cursor.connection.autocommit)


def _cut(connection: Any) -> Exception:
    if isinstance(connection, sqlite3.Connection):
        # The one thing that a ledger waits for with a SQLite file.
        connection.rollback()
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorname = "SQLITE_BUSY"
        return busy
    connection.close()
    return psycopg.OperationalError("server closed the connection unexpectedly")
