"""A ledger's database: transactions, errors in one sentence each, and the base of its stores."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from traceback import format_exception
from typing import Any, Final, NoReturn, TypeVar

from sqlalchemy import (
    Connection,
    Row,
    event,
)
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.core.timing import LONGEST_LEASE_MS, WallClock
from headrace.errors import LedgerError
from headrace.gate.ledger.connection import (
    OutageError,
    Retries,
    Timeouts,
    normalize_url,
    parse_url,
    redact_url,
    secrets_of,
)
from headrace.gate.ledger.error_report import ErrorReport, error_values
from headrace.gate.ledger.outages import (
    described,
    is_busy,
    is_locked_by_others,
    is_outage,
    is_refusal,
    sqlite_reason,
    was_cut,
)
from headrace.gate.ledger.postgresql import (
    DURABLE,
    KEEPALIVES,
    READ_COMMITTED,
    REPEATABLE_READ,
    UNAWAITED,
    has_spoken,
    limit_locks,
    postgresql_engine,
)
from headrace.gate.ledger.sqlite import sqlite_engine, write_ahead_mode
from headrace.gate.ledger.statements import Statement, Values, execute, take_time_from
from headrace.gate.ledger.transitions import new_call_id


class UnknownCommitError(LedgerError):
    """The answer to a commit was lost: it was made, or it was not."""


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


_Answer = TypeVar("_Answer")


class Database:
    """A SQLite file or a PostgreSQL database, shared with other processes.

    Its methods can be called from any thread. Any error of the database becomes a
    :class:`LedgerError` that names it; no secret of its URL is in the message or in its causes.

    `read`, `alone`, `change` and `write` wait if the database cannot be reached, and try again;
    their statements may by then have been executed, with only the answer lost.

    A write with ``durable=False`` is atomic and seen by everybody, but PostgreSQL answers before
    its log is synced: a crash of the server may lose it, though nothing durable that was written
    after it. It is for what its writer repeats, or what is learnt again. SQLite syncs no commit
    that way.
    """

    def __init__(
        self,
        url: str,
        *,
        read_only: bool,
        must_exist: bool = False,
        timeouts: Timeouts,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """Prepare to open a ledger's database; a SQLite file is made unless it must exist.

        Args:
            url: A ledger's.
            read_only: Whether nothing is to be written; then it must exist.
            must_exist: Whether no file is ever made.
            timeouts: Timeouts of the database.
            clock: Replaces the database's own clock (ms since the epoch).

        Raises:
            LedgerError: The URL is not a ledger's.
        """
        parsed = parse_url(url)
        self.name: Final = redact_url(parsed)
        self.url: Final = normalize_url(url)
        self.is_sqlite: Final = parsed.get_backend_name() == "sqlite"
        self._read_only: Final = read_only
        self._secrets: Final = secrets_of(parsed)
        self._timeouts: Final = timeouts
        self._retries: Final = Retries(self.name, timeouts)
        self._lent_in: Final[set[int]] = set()
        with self._explained():
            self._engine = (
                sqlite_engine(parsed, timeouts, read_only=read_only, must_exist=must_exist)
                if self.is_sqlite
                else postgresql_engine(parsed, timeouts)
            )
        self._closed = False
        event.listen(self._engine, "checkin", self._close_late)
        if clock is not None:
            take_time_from(self._engine, clock)
        # A statement alone is its own transaction, which saves PostgreSQL two round trips.
        self._alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._unawaited = self._alone.execution_options(**{DURABLE: False})
        # SQLite takes its lock now: a reader that writes later would fail instead of wait.
        self._begin_writing = (
            "BEGIN IMMEDIATE"
            if self.is_sqlite
            else f"BEGIN; {READ_COMMITTED}; {KEEPALIVES}; {limit_locks(timeouts)}"
        )

    def read(self, work: Callable[[Connection], _Answer]) -> _Answer:
        """Execute statements that only read, each for itself."""
        return self._retrying(self._alone.connect, work)

    def rows(self, statement: Statement, **values: Any) -> Sequence[Row[Any]]:
        """All rows that one statement finds."""
        return self.read(lambda connection: execute(connection, statement, values).all())

    def scalar(self, statement: Statement, **values: Any) -> Any:
        """The first column of the first row that one statement finds; None where it finds none."""
        return self.read(lambda connection: execute(connection, statement, values).scalar())

    def alone(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute one statement that writes; it is durable when this returns, unless not wanted."""
        self._refuse_to_write()
        lend = (self._alone if durable else self._unawaited).connect
        return self._retrying(lend, work, writes=True)

    def change(
        self, statement: Statement, values: Mapping[str, Any], *, durable: bool = True
    ) -> int:
        """Run one statement that writes, as `alone` does; how many rows it changed."""
        return self.alone(
            lambda connection: changed_rows(connection, statement, values), durable=durable
        )

    def write(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute writes within one transaction: durable when this returns, or undone.

        One that need not be durable can still become it: see `make_durable`.
        """
        self._refuse_to_write()
        return self._retrying(partial(self._transaction, durable=durable), work, writes=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a connection for statements that only read, each for itself; without retries."""
        with self._explained(), self._alone.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Lend a connection for statements that read, all of them as of the first one's moment.

        Rows are streamed, so an answer may be larger than the memory; there are no retries.
        """
        begin = f"{REPEATABLE_READ}; {KEEPALIVES}; {limit_locks(self._timeouts)}"
        with self._explained(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN" if self.is_sqlite else begin)
            yield connection.execution_options(yield_per=1_000)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend a connection within one transaction: durable at the end, undone by an exception.

        Without retries.
        """
        self._refuse_to_write()
        with self._explained(), self._transaction() as connection:
            yield connection

    @contextmanager
    def lend(self, end: Callable[[Connection], None]) -> Iterator[Connection]:
        """Lend a connection, within one transaction, to the caller's statements.

        It waits for the database before it begins; the caller repeats statements begun on the
        connection. An exception of the caller undoes everything, and passes as it is. Statements
        that would end the transaction are refused while it is lent; savepoints are allowed. ``end``
        runs last within it.

        Raises:
            UnknownCommitError: The answer to the commit was lost.
            LedgerError: The database refused the commit; everything is undone.
        """
        self._refuse_to_write()
        thread = threading.get_ident()
        with ExitStack() as stack:
            connection, guard = self._retries.wait_out(partial(self._begin, stack))
            self._lent_in.add(thread)
            stack.callback(self._lent_in.discard, thread)
            with guard.lent():
                yield connection
            with self._explained():
                guard.check()
                end(connection)
            try:
                connection.commit()
            except SQLAlchemyError as error:
                # SQLite keeps a transaction open whose commit it has refused.
                connection.invalidate()
                with self._explained(LedgerError if is_refusal(error) else UnknownCommitError):
                    raise

    def use_write_ahead_log(self) -> None:
        """Have a SQLite file's readers and its writer not wait for each other; it stays so.

        Raises:
            LedgerError: The file is no SQLite database, or its file system cannot do this.
        """
        mode = self.read(partial(write_ahead_mode, timeouts=self._timeouts))
        if mode != "wal":
            raise LedgerError(
                f"The ledger {self.name} is on a file system without the shared memory that a "
                "SQLite file needs; put it on a local disk, or use PostgreSQL."
            )

    def shorten_log(self) -> int:
        """Empty a SQLite file's log if nobody reads an old state of it; the bytes that remain."""
        if not self.is_sqlite:
            return 0

        def shorten(connection: Connection) -> None:
            # Nobody is waited for: meanwhile no other process could write.
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.invalidate()

        self.alone(shorten)
        log = Path(f"{self._engine.url.database}-wal")
        return log.stat().st_size if log.exists() else 0

    def close(self) -> None:
        """Close every connection: one that another thread uses, as soon as it is returned."""
        self._closed = True
        self._engine.dispose()

    def _close_late(self, _connection: object, entry: ConnectionPoolEntry) -> None:
        # A pool that was disposed of keeps returned connections until it is collected.
        if self._closed:
            entry.invalidate()

    def _begin(self, stack: ExitStack) -> tuple[Connection, Guard]:
        """Begin a transaction, which ends undone with the stack unless it was committed."""
        with self._explained(retrying=True), ExitStack() as opened:
            connection = opened.enter_context(self._engine.connect())
            opened.callback(restore_session, connection)
            connection.begin()
            if self.is_sqlite:
                connection.exec_driver_sql(self._begin_writing)
            guard = Guard(connection, self._timeouts)
            stack.push(opened.pop_all())
        return connection, guard

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[Connection]:
        waits = durable or self.is_sqlite
        with self._alone.begin() as connection:
            connection.exec_driver_sql(
                self._begin_writing if waits else f"{self._begin_writing}; {UNAWAITED}"
            )
            yield connection

    def _retrying(
        self,
        lend: Callable[[], AbstractContextManager[Connection]],
        work: Callable[[Connection], _Answer],
        *,
        writes: bool = False,
    ) -> _Answer:
        def attempt() -> _Answer:
            with self._explained(retrying=True, writes=writes), lend() as connection:
                return work(connection)

        return self._retries.wait_out(attempt)

    def _refuse_to_write(self) -> None:
        if self._read_only:
            raise LedgerError(f"The ledger {self.name} was opened for reading only.")
        if self.is_sqlite and threading.get_ident() in self._lent_in:
            raise LedgerError(
                f"The ledger {self.name} has one writer at a time, and this thread has a"
                " transaction of it open; end the `with` of batch.transaction() first."
            )

    @contextmanager
    def _explained(
        self,
        kind: type[LedgerError] = LedgerError,
        *,
        retrying: bool = False,
        writes: bool = False,
    ) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            waits = retrying and self._retries and is_outage(error)
            text = self._sentence(error)
            if writes and not self._retries and was_cut(error):
                text = f"{text.removesuffix('.')}; look whether it was done before you repeat it."
            explained = (OutageError if waits else kind)(text)
            try:
                raise explained from error
            finally:
                if self._shows_secret("".join(format_exception(error))):
                    # A traceback of the error also prints its causes.
                    explained.__cause__ = explained.__context__ = None

    def _shows_secret(self, text: str) -> bool:
        return any(secret in text for secret in self._secrets)

    def _sentence(self, error: SQLAlchemyError) -> str:
        driver_error = error.orig if isinstance(error, DBAPIError) else None
        if self.is_sqlite and is_busy(driver_error) and self._lent_in:
            return (
                f"The ledger {self.name} has been locked by a handler of this process that is"
                " within batch.transaction(); keep that `with` short, and read and compute before"
                " it."
            )
        reason = sqlite_reason(driver_error, self._timeouts)
        if reason is not None:
            return f"The ledger {self.name} {reason}."
        if is_locked_by_others(driver_error):
            return (
                f"Rows of the ledger {self.name} have been locked by somebody else's transaction"
                f" for {self._timeouts.lock_s:g} s; find it in pg_stat_activity, where it may be"
                " idle in transaction, and end it."
            )
        said = str(driver_error or error.args[0]).strip().partition("\n")[0].rstrip(".")
        for secret in self._secrets:
            said = said.replace(secret, "***")
        if isinstance(error, IntegrityError):
            return (
                f"The ledger {self.name} has refused what was written, and everything in"
                f" the transaction is undone: {said}."
            )
        return f"The ledger {self.name} cannot be {described(error, said)}."


def changed_rows(
    connection: Connection,
    statement: Statement,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> int:
    """Run a statement that writes; how many rows it changed."""
    return execute(connection, statement, values, counted=True).rowcount


def make_durable(connection: Connection) -> None:
    """Have a transaction that was begun with ``durable=False`` be durable when it has ended."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO DEFAULT")


def lease(lease_ms: int | None) -> dict[str, Any]:
    """Return the value of ``:lease_ms``; None for no lease.

    Raises:
        LedgerError: It is longer than a lease can be.
    """
    if lease_ms is not None and lease_ms > LONGEST_LEASE_MS:
        raise LedgerError(
            f"A lease of {lease_ms} ms is longer than a lease can be; give {LONGEST_LEASE_MS} ms or"
            " less, and renew it."
        )
    return {"lease_ms": lease_ms}


class Store:
    """A database, and where the times of batches come from."""

    def __init__(self, database: Database, clock: WallClock) -> None:
        self._database = database
        self._clock = clock

    def _insert_under(
        self,
        gate_name: str,
        connection: Connection,
        statement: Statement,
        values: dict[str, Any] | list[dict[str, Any]],
    ) -> int:
        """Insert rows that belong to a gate; how many."""
        with self._under(gate_name):
            return changed_rows(connection, statement, values)

    @contextmanager
    def _under(self, gate_name: str) -> Iterator[None]:
        """Explain an insert under a gate that is not there."""
        try:
            yield
        except IntegrityError as error:
            # The gate is all that these tables refer to.
            raise LedgerError(
                f"Gate {gate_name!r} is not declared in the ledger {self._database.name}; "
                "declare it first."
            ) from error

    def _changes(
        self,
        statement: Statement,
        values: Values | Callable[[], Values],
        *,
        durable: bool = True,
    ) -> bool:
        """Run a statement that changes one row, or none; whether it has.

        Values that can be called are called for each try, so that a lease begins with that.
        """

        def change(connection: Connection) -> int:
            return changed_rows(connection, statement, values() if callable(values) else values)

        return self._database.alone(change, durable=durable) == 1

    def _leased(self, lease_ms: int | None) -> Values:
        return {"now_ms": self._clock(), **lease(lease_ms)}

    def _ended(self, batch_key: str, owner: str | None, records: int | None) -> Values:
        return {
            "batch": batch_key,
            "call": new_call_id(),
            "by": owner,
            "ended_ms": self._clock(),
            "counted": records,
        }

    def _failed(
        self, batch_key: str, owner: str | None, error: BaseException | ErrorReport
    ) -> Values:
        return self._ended(batch_key, owner, None) | error_values(ErrorReport.of(error))
