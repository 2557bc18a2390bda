"""A transaction that is lent: who borrows it cannot end it, and leaves no trace on its session."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.errors import LedgerError
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.engines import KEEPALIVES, has_spoken, limit_locks

_SAVEPOINT: Final = "headrace_lent"

_ABORTED: Final = "25P02"
"""PostgreSQL: a statement of the transaction failed, and so the transaction has."""

_NO_SAVEPOINT: Final = frozenset({"3B001", "25P01"})
"""PostgreSQL: the transaction has no such savepoint, or there is no transaction."""

_ENDED: Final = "it was ended within, as by a COMMIT that was executed"

_ROLLED_BACK: Final = "a conflict that rolls back (INSERT OR ROLLBACK, RAISE(ROLLBACK))"

_FORGET: Final = "; ".join(
    (
        "CLOSE ALL",
        "SET CONSTRAINTS ALL IMMEDIATE",  # a temporary table that waits for a check stays
        "SET SESSION AUTHORIZATION DEFAULT",
        "RESET ALL",
        "DEALLOCATE ALL",
        "UNLISTEN *",
        "SELECT pg_advisory_unlock_all()",
        "DISCARD TEMP",
    )
)
"""Equivalent of PostgreSQL's ``DISCARD ALL`` that can run in a transaction."""


class Guard:
    """Keeps the borrower of a connection from ending the transaction that was begun on it.

    The end itself is refused at once where SQLAlchemy shows it. A COMMIT that is executed as a
    statement, or by the driver's own connection, is found at the end: the savepoint that was made
    at the beginning is gone then.
    """

    def __init__(self, connection: Connection, timeouts: Timeouts) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._transaction = connection.get_transaction()
        self._lent = False
        self._refused: str | None = None
        self._is_server = connection.dialect.name == "postgresql"
        begin = f"SAVEPOINT {_SAVEPOINT}"
        connection.exec_driver_sql(f"{KEEPALIVES}; {begin}" if self._is_server else begin)
        event.listen(connection, "commit", self._on_commit)
        event.listen(connection, "rollback", self._on_rollback)
        event.listen(connection, "before_cursor_execute", self._on_statement)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Refuse, within, whatever would end the transaction."""
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            if not self._is_whole() and not self._connection.closed:
                # SQLAlchemy takes the transaction for ended and would not roll it back.
                self._connection.invalidate()

    def check(self) -> None:
        """See that the transaction is the one that was begun, and can be committed.

        On a server it leaves nothing on its session then: once it is committed, a pooler may give
        the session to another client.

        Raises:
            LedgerError: It was ended, or its end was refused, be that caught; or a statement in it
                failed and was not undone.
        """
        if self._refused is not None:
            self._refuse(self._refused)
        if not self._is_whole():
            self._refuse("it was ended within")
        end = f"RELEASE SAVEPOINT {_SAVEPOINT}"
        if self._is_server:
            end = f"{end}; {_FORGET}; {KEEPALIVES}; {limit_locks(self._timeouts)}"
        try:
            self._connection.exec_driver_sql(end)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            if not self._is_server:
                self._refuse(f"{_ENDED}, or {_ROLLED_BACK}")
            state = getattr(error.orig, "sqlstate", None)
            if state == _ABORTED:
                self._refuse(
                    "a statement in it failed; let its exception pass, or run it within"
                    " connection.begin_nested()"
                )
            if state not in _NO_SAVEPOINT:
                raise
            self._refuse(_ENDED)

    def _is_whole(self) -> bool:
        now = self._connection.get_transaction()
        return now is not None and now is self._transaction and now.is_active

    def _on_commit(self, _connection: Connection) -> None:
        if self._lent:
            self._refuse("commit() is called within")

    def _on_rollback(self, _connection: Connection) -> None:
        if self._lent:
            self._refuse("rollback() or close() is called within")

    def _on_statement(self, _connection: Connection, *_others: Any) -> None:
        if self._lent and self._is_server:
            driver: Any = self._connection.connection.driver_connection
            if has_spoken(driver):
                # The reason for an ended session would be lost in the pipeline of `executemany`.
                driver.execute("")

    def _refuse(self, what: str) -> NoReturn:
        self._refused = what
        raise LedgerError(
            f"A transaction lent by batch.transaction() is not committed, for {what}. It is"
            " committed at the end of its `with`, together with the batch's success; to undo it,"
            " let an exception leave the `with`."
        )


def restore_session(connection: Connection) -> None:
    """Undo the rest of a transaction, and the settings of its session while it was lent.

    A session that cannot be restored is ended, so that it is not lent again.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        if connection.dialect.name == "sqlite":
            connection.rollback()
            # No statement undoes all pragmas. Another connection has the file open before this one
            # is closed: with the last one SQLite would delete the log by which readers know that
            # the file is in use.
            with connection.engine.connect() as another:
                another.exec_driver_sql("PRAGMA user_version")
                connection.invalidate()
        elif connection.in_transaction():
            # Send both at once: after the transaction, a pooler lends the session to another
            # client.
            driver: Any = connection.connection.driver_connection
            driver.execute(f"ROLLBACK; {_FORGET}")
    except (connection.dialect.loaded_dbapi.Error, SQLAlchemyError, LedgerError):
        connection.invalidate()
