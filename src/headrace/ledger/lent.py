"""A connection lent to somebody else's statements, who do not end its transaction."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from headrace.errors import LedgerError
from headrace.ledger.postgresql_server import LIMIT_NO_LOCKS, limit_locks

_SAVEPOINT: Final = "headrace_lent"
_ENDS: Final = re.compile(
    r"(?:\s|;|--[^\n]*\n|/\*.*?\*/)*(commit|end|abort|begin|start\s+transaction|prepare\s+transaction|rollback(?!\s+to\b))\b",
    re.IGNORECASE | re.DOTALL,
)
_ABORTED: Final = "25P02"
"""PostgreSQL: a statement of the transaction failed, and so the transaction has."""


class UnknownCommitError(LedgerError):
    """The answer to a commit was lost: it was made, or it was not."""


class Guard:
    """Keeps a transaction that was begun on a connection from being ended by who borrows it.

    The end itself is refused at once where SQLAlchemy or the text of a statement tells of it. What
    goes past both, through the driver's own connection, is found at the end by a savepoint that was
    made at the beginning.

    Args:
        connection: In a transaction; it is not to be used again by others.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transaction = connection.get_transaction()
        self._lent = False
        self._refused: str | None = None
        self._is_server = connection.dialect.name == "postgresql"
        begin = f"SAVEPOINT {_SAVEPOINT}"
        connection.exec_driver_sql(f"{LIMIT_NO_LOCKS}; {begin}" if self._is_server else begin)
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
            end = f"{end}; {limit_locks(within=True)}"
        try:
            self._connection.exec_driver_sql(end)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            if getattr(error.orig, "sqlstate", None) == _ABORTED:
                self._refuse(
                    "a statement in it failed; let its exception pass, or run it within"
                    " connection.begin_nested()"
                )
            self._refuse("it was ended within by the driver's own connection")

    def _is_whole(self) -> bool:
        now = self._connection.get_transaction()
        return now is not None and now is self._transaction and now.is_active

    def _on_commit(self, _connection: Connection) -> None:
        if self._lent:
            self._refuse("commit() is called within")

    def _on_rollback(self, _connection: Connection) -> None:
        if self._lent:
            self._refuse("rollback() or close() is called within")

    def _on_statement(
        self, _connection: Connection, _cursor: object, statement: str, *_others: Any
    ) -> None:
        if self._lent and (ends := _ENDS.match(statement)):
            self._refuse(f"{ends[1].upper()} is executed within")

    def _refuse(self, what: str) -> NoReturn:
        self._refused = what
        raise LedgerError(
            f"A transaction lent by batch.transaction() is not committed, for {what}. It is"
            " committed at the end of its `with`, together with the batch's success; to undo it,"
            " let an exception leave the `with`."
        )
