"""A ledger's database: transactions, error messages and the base class of the stores."""

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
    """The error of a commit whose answer was lost: the transaction may be durable or undone."""


_SAVEPOINT: Final = "headrace_lent"

_ABORTED: Final = "25P02"
"""SQLSTATE of PostgreSQL: a statement failed, and so the whole transaction is aborted."""

_NO_SAVEPOINT: Final = frozenset({"3B001", "25P01"})
"""SQLSTATEs of PostgreSQL: the transaction has no such savepoint, or there is no transaction."""

_ENDED: Final = "it was ended within, as by a COMMIT that was executed"

_ROLLED_BACK: Final = "a conflict that rolls back (INSERT OR ROLLBACK, RAISE(ROLLBACK))"

_FORGET: Final = "; ".join(
    (
        "CLOSE ALL",
        "SET CONSTRAINTS ALL IMMEDIATE",  # A pending check would keep a temporary table.
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
    """Guard that keeps the borrower of a connection from ending the lent transaction.

    SQLAlchemy's own commit and rollback are refused at once. A COMMIT as a statement, or on the
    driver's own connection, is detected at the end: the savepoint from the beginning is gone then.
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
        """Refuse, within the ``with``, every call that would end the transaction."""
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            if not self._is_whole() and not self._connection.closed:
                # SQLAlchemy treats the transaction as ended and would not roll it back.
                self._connection.invalidate()

    def check(self) -> None:
        """Check that the transaction is still the original one and can be committed.

        On a server this also resets the session: after the commit, a pooler may give the session to
        another client.

        LedgerError is raised if the transaction was ended, or a failed statement was not undone.
        The error is also raised after a refused attempt to end the transaction, even if the
        borrower caught the refusal.
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
    """Undo an open transaction and reset the settings of its session after lending.

    A session that cannot be restored is closed, so that it is not lent again.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        if connection.dialect.name == "sqlite":
            connection.rollback()
            # No statement undoes all pragmas, so the connection is closed. Another connection opens
            # the file first: with the last connection SQLite deletes the log, by which readers know
            # that the file is in use.
            with connection.engine.connect() as another:
                another.exec_driver_sql("PRAGMA user_version")
                connection.invalidate()
        elif connection.in_transaction():
            # Send both at once: after the transaction, a pooler gives the session to another
            # client.
            driver: Any = connection.connection.driver_connection
            driver.execute(f"ROLLBACK; {_FORGET}")
    except (connection.dialect.loaded_dbapi.Error, SQLAlchemyError, LedgerError):
        connection.invalidate()


_Answer = TypeVar("_Answer")


class Database:
    """A SQLite file or a PostgreSQL database that several processes share.

    Methods can be called from any thread. Any error of the database becomes a :class:`LedgerError`
    that names the database; neither the message nor its causes contain a secret of the URL.

    `read`, `alone`, `change` and `write` wait while the database cannot be reached, and repeat
    their statements. A repeated statement may have been executed before, with only the answer lost.

    A write with ``durable=False`` is atomic and visible to everybody, but PostgreSQL answers before
    its log is synced. A crash of the server may lose the write, but no later durable write. Use
    ``durable=False`` for data that the writer repeats or learns again. SQLite syncs no commit of
    this kind.
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
        """Prepare to open a ledger's database; a SQLite file is created unless ``must_exist``.

        ``read_only`` refuses all writes, and the ledger must exist then. ``clock`` replaces the
        database's own clock (ms since the epoch). LedgerError is raised for a URL that is not a
        ledger's.
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
        # A single statement is its own transaction, which saves PostgreSQL two round trips.
        self._alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._unawaited = self._alone.execution_options(**{DURABLE: False})
        # Lock a SQLite file at the beginning: a reader that writes later would fail, not wait.
        self._begin_writing = (
            "BEGIN IMMEDIATE"
            if self.is_sqlite
            else f"BEGIN; {READ_COMMITTED}; {KEEPALIVES}; {limit_locks(timeouts)}"
        )

    def read(self, work: Callable[[Connection], _Answer]) -> _Answer:
        """Execute statements that only read, each in its own transaction; return the result."""
        return self._retrying(self._alone.connect, work)

    def rows(self, statement: Statement, **values: Any) -> Sequence[Row[Any]]:
        """Return all rows of one statement."""
        return self.read(lambda connection: execute(connection, statement, values).all())

    def scalar(self, statement: Statement, **values: Any) -> Any:
        """Return the first column of a statement's first row; None if there is no row."""
        return self.read(lambda connection: execute(connection, statement, values).scalar())

    def alone(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute one statement that writes; return its result once the write is durable.

        With ``durable=False`` the write may become durable later.
        """
        self._refuse_to_write()
        lend = (self._alone if durable else self._unawaited).connect
        return self._retrying(lend, work, writes=True)

    def change(
        self, statement: Statement, values: Mapping[str, Any], *, durable: bool = True
    ) -> int:
        """Run one statement that writes, as `alone` does; return the number of changed rows."""
        return self.alone(
            lambda connection: changed_rows(connection, statement, values), durable=durable
        )

    def write(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute writes within one transaction: durable when this returns, or undone.

        `make_durable` makes a transaction that began with ``durable=False`` durable after all.
        """
        self._refuse_to_write()
        return self._retrying(partial(self._transaction, durable=durable), work, writes=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a connection for reading statements, each its own transaction; without retries."""
        with self._explained(), self._alone.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Lend a connection whose reads all see the moment of the first statement.

        Rows are streamed, so a result may be larger than the memory; there are no retries.
        """
        begin = f"{REPEATABLE_READ}; {KEEPALIVES}; {limit_locks(self._timeouts)}"
        with self._explained(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN" if self.is_sqlite else begin)
            yield connection.execution_options(yield_per=1_000)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend a connection within one transaction: durable at the end, undone by an exception.

        There are no retries.
        """
        self._refuse_to_write()
        with self._explained(), self._transaction() as connection:
            yield connection

    @contextmanager
    def lend(self, end: Callable[[Connection], None]) -> Iterator[Connection]:
        """Lend a connection, within one transaction, for the caller's statements.

        The call waits for an unreachable database before the transaction begins; later the caller
        repeats failed statements. An exception of the caller undoes everything and is passed on
        unchanged. Statements that would end the transaction are refused while it is lent;
        savepoints are allowed. ``end`` runs last within the transaction.

        UnknownCommitError is raised if the answer to the commit was lost, and LedgerError if the
        database refused the commit; everything is undone then.
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
                # After a refused commit, SQLite keeps the transaction open.
                connection.invalidate()
                with self._explained(LedgerError if is_refusal(error) else UnknownCommitError):
                    raise

    def use_write_ahead_log(self) -> None:
        """Switch a SQLite file to a write-ahead log, so that readers and the writer do not block.

        The file keeps the mode. LedgerError is raised if the file is not a SQLite database, or if
        its file system does not support the mode.
        """
        mode = self.read(partial(write_ahead_mode, timeouts=self._timeouts))
        if mode != "wal":
            raise LedgerError(
                f"The ledger {self.name} is on a file system without the shared memory that a "
                "SQLite file needs; put it on a local disk, or use PostgreSQL."
            )

    def shorten_log(self) -> int:
        """Empty a SQLite file's log unless a reader needs it; return the bytes that remain."""
        if not self.is_sqlite:
            return 0

        def shorten(connection: Connection) -> None:
            # Wait for no lock: during a wait no other process could write.
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.invalidate()

        self.alone(shorten)
        log = Path(f"{self._engine.url.database}-wal")
        return log.stat().st_size if log.exists() else 0

    def close(self) -> None:
        """Close every connection; a connection in use by another thread is closed at its return."""
        self._closed = True
        self._engine.dispose()

    def _close_late(self, _connection: object, entry: ConnectionPoolEntry) -> None:
        # A disposed pool keeps returned connections until the pool is garbage-collected.
        if self._closed:
            entry.invalidate()

    def _begin(self, stack: ExitStack) -> tuple[Connection, Guard]:
        """Begin a transaction that is undone at the end of the stack unless it was committed."""
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
        message = str(driver_error or error.args[0]).strip().partition("\n")[0].rstrip(".")
        for secret in self._secrets:
            message = message.replace(secret, "***")
        if isinstance(error, IntegrityError):
            return (
                f"The ledger {self.name} has refused what was written, and everything in"
                f" the transaction is undone: {message}."
            )
        return f"The ledger {self.name} cannot be {described(error, message)}."


def changed_rows(
    connection: Connection,
    statement: Statement,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> int:
    """Run a statement that writes; return the number of changed rows."""
    return execute(connection, statement, values, counted=True).rowcount


def make_durable(connection: Connection) -> None:
    """Make the commit of a transaction durable that was begun with ``durable=False``."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO DEFAULT")


def lease(lease_ms: int | None) -> dict[str, Any]:
    """Return the value of ``:lease_ms``; None for no lease.

    LedgerError is raised for a lease above `LONGEST_LEASE_MS`.
    """
    if lease_ms is not None and lease_ms > LONGEST_LEASE_MS:
        raise LedgerError(
            f"A lease of {lease_ms} ms is longer than a lease can be; give {LONGEST_LEASE_MS} ms or"
            " less, and renew it."
        )
    return {"lease_ms": lease_ms}


class Store:
    """Base class of the stores: a database, and the clock for the times of batches."""

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
        """Insert rows that belong to a gate; return their number."""
        with self._under(gate_name):
            return changed_rows(connection, statement, values)

    @contextmanager
    def _under(self, gate_name: str) -> Iterator[None]:
        """Raise a `LedgerError` that explains an insert for an undeclared gate."""
        try:
            yield
        except IntegrityError as error:
            # The only foreign key of these tables is the gate.
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
        """Run a statement that changes at most one row; return whether a row changed.

        Callable values are called anew for each try, so that a lease begins with the try.
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
