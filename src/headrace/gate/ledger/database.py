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
    """The answer to a commit was lost, so the transaction may be committed or rolled back."""


_SAVEPOINT: Final = "headrace_lent"

_ABORTED: Final = "25P02"
"""SQLSTATE of PostgreSQL: an earlier statement of the transaction has failed, so the transaction is
aborted."""

_NO_SAVEPOINT: Final = frozenset({"3B001", "25P01"})
"""SQLSTATEs of PostgreSQL: the savepoint does not exist, or there is no open transaction."""

_ENDED: Final = "it was ended inside of the `with`, for example by an executed COMMIT"

_ROLLED_BACK: Final = "by a conflict that rolls back (INSERT OR ROLLBACK, RAISE(ROLLBACK))"

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
"""Statements that reset a PostgreSQL session within a transaction, where ``DISCARD ALL`` is not
allowed."""


class Guard:
    """Guard that prevents a borrower from ending the transaction of a lent connection.

    ``commit()`` and ``rollback()`` of SQLAlchemy are refused at once. A borrower can also execute
    COMMIT as a statement, or commit on the driver's connection. The guard detects this at the end,
    because the savepoint that it set at the beginning no longer exists.
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
        """Refuse, within the ``with`` block, every SQLAlchemy call that ends the transaction."""
        self._lent = True
        try:
            yield
        finally:
            self._lent = False
            if not self._is_whole() and not self._connection.closed:
                # SQLAlchemy treats the transaction as ended and would not roll it back.
                self._connection.invalidate()

    def check(self) -> None:
        """Check that the lent transaction is still open, and can be committed.

        On PostgreSQL this also resets the session, because a pooler may give the session to another
        client after the commit.

        LedgerError is raised if the transaction was ended, or a failed statement was not rolled
        back. It is also raised after a refused call, even if the borrower caught the refusal's
        exception.
        """
        if self._refused is not None:
            self._refuse(self._refused)
        if not self._is_whole():
            self._refuse("it was ended inside of the `with`")
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
                    "a statement in it failed (do not catch the statement's exception, or run the"
                    " statement in connection.begin_nested())"
                )
            if state not in _NO_SAVEPOINT:
                raise
            self._refuse(_ENDED)

    def _is_whole(self) -> bool:
        now = self._connection.get_transaction()
        return now is not None and now is self._transaction and now.is_active

    def _on_commit(self, _connection: Connection) -> None:
        if self._lent:
            self._refuse("commit() was called inside of the `with`")

    def _on_rollback(self, _connection: Connection) -> None:
        if self._lent:
            self._refuse("rollback() or close() was called inside of the `with`")

    def _on_statement(self, _connection: Connection, *_others: Any) -> None:
        if self._lent and self._is_server:
            driver: Any = self._connection.connection.driver_connection
            if has_spoken(driver):
                # The reason for an ended session would be lost in the pipeline of `executemany`.
                driver.execute("")

    def _refuse(self, what: str) -> NoReturn:
        self._refused = what
        raise LedgerError(
            f"The transaction of batch.transaction() is not committed, because {what}. The end of"
            " the `with` commits the transaction together with the batch's success; to roll it"
            " back, raise an exception that leaves the `with`."
        )


def restore_session(connection: Connection) -> None:
    """Roll back a lent connection's open transaction, and reset its session.

    If this fails, the connection is closed, so that no other caller gets it.
    """
    if connection.closed or connection.invalidated:
        return
    try:
        if connection.dialect.name == "sqlite":
            connection.rollback()
            # No statement resets all pragmas, so the connection is closed. Another connection opens
            # the file first, because SQLite deletes the log when the last connection closes, and
            # readers treat a file without a log as not in use.
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

    Methods can be called from any thread. Every error of the database becomes a
    :class:`LedgerError` whose message names the database. The message and the error's causes
    contain no secret of the URL.

    `read`, `alone`, `change` and `write` wait while the database cannot be reached, and then repeat
    their statements. The first execution of a repeated statement may have taken effect, if only its
    answer was lost.

    A write with ``durable=False`` is atomic and visible to all clients, but PostgreSQL answers
    before it has synced its log. A crash of the server may lose this write, but never a durable
    write. Use ``durable=False`` for data that the writer repeats or learns again. SQLite ignores
    ``durable``, and syncs every commit.
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
        """Prepare to open a ledger's database, without connecting.

        A missing SQLite file is created unless ``must_exist`` or ``read_only`` is set.
        ``read_only`` refuses all writes. ``clock`` replaces the database's own clock (ms since the
        epoch). LedgerError is raised if the URL is not a ledger URL.
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
        # In autocommit, each statement is its own transaction; this saves PostgreSQL two round
        # trips.
        self._alone = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._unawaited = self._alone.execution_options(**{DURABLE: False})
        # Lock a SQLite file at the beginning: a transaction that first reads and then writes would
        # fail instead of waiting for the lock.
        self._begin_writing = (
            "BEGIN IMMEDIATE"
            if self.is_sqlite
            else f"BEGIN; {READ_COMMITTED}; {KEEPALIVES}; {limit_locks(timeouts)}"
        )

    def read(self, work: Callable[[Connection], _Answer]) -> _Answer:
        """Execute reading statements, each in its own transaction; return ``work``'s result."""
        return self._retrying(self._alone.connect, work)

    def rows(self, statement: Statement, **values: Any) -> Sequence[Row[Any]]:
        """Return all rows of one statement."""
        return self.read(lambda connection: execute(connection, statement, values).all())

    def scalar(self, statement: Statement, **values: Any) -> Any:
        """Return the first column of a statement's first row; None if there is no row."""
        return self.read(lambda connection: execute(connection, statement, values).scalar())

    def alone(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute one writing statement; return the result of ``work`` once the write is durable.

        With ``durable=False`` the method returns before the write is durable.
        """
        self._refuse_to_write()
        lend = (self._alone if durable else self._unawaited).connect
        return self._retrying(lend, work, writes=True)

    def change(
        self, statement: Statement, values: Mapping[str, Any], *, durable: bool = True
    ) -> int:
        """Execute one writing statement, as `alone` does; return the number of changed rows."""
        return self.alone(
            lambda connection: changed_rows(connection, statement, values), durable=durable
        )

    def write(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute statements in one transaction; return the result of ``work`` after the commit.

        An exception rolls back the transaction. With ``durable=False`` the commit may become
        durable later, unless ``work`` calls `make_durable`.
        """
        self._refuse_to_write()
        return self._retrying(partial(self._transaction, durable=durable), work, writes=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a connection for reads, each in its own transaction. There are no retries."""
        with self._explained(), self._alone.connect() as connection:
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Lend a connection on which all reads see the database as of the first statement.

        Rows are streamed, so a result may be larger than the memory. There are no retries.
        """
        begin = f"{REPEATABLE_READ}; {KEEPALIVES}; {limit_locks(self._timeouts)}"
        with self._explained(), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN" if self.is_sqlite else begin)
            yield connection.execution_options(yield_per=1_000)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend a connection with one transaction, committed at the end of the ``with``.

        An exception rolls the transaction back. There are no retries.
        """
        self._refuse_to_write()
        with self._explained(), self._transaction() as connection:
            yield connection

    @contextmanager
    def lend(self, end: Callable[[Connection], None]) -> Iterator[Connection]:
        """Lend a connection with one transaction for statements of a user's handler.

        Before the transaction begins, the method waits for an unreachable database; afterwards it
        repeats nothing. An exception of the caller rolls back everything and is passed on
        unchanged. Inside of the ``with``, statements that would end the transaction are refused;
        savepoints are allowed. ``end`` is called last, within the transaction.

        UnknownCommitError is raised if the answer to the commit was lost. LedgerError is raised if
        the database refused the commit, which rolls back everything.
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
        """Switch a SQLite file to a write-ahead log, so that readers do not block the writer.

        The setting is stored in the file. LedgerError is raised if the file is not a SQLite
        database, or if its file system does not support write-ahead logs.
        """
        mode = self.read(partial(write_ahead_mode, timeouts=self._timeouts))
        if mode != "wal":
            raise LedgerError(
                f"The ledger {self.name} is on a file system without the shared memory that a "
                "SQLite file needs; put it on a local disk, or use PostgreSQL."
            )

    def shorten_log(self) -> int:
        """Truncate a SQLite file's ``-wal`` unless a reader needs it.

        Return the size of the ``-wal`` afterwards (bytes); 0 for PostgreSQL.
        """
        if not self.is_sqlite:
            return 0

        def shorten(connection: Connection) -> None:
            # Do not wait for a lock: no other process could write during the wait.
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.invalidate()

        self.alone(shorten)
        log = Path(f"{self._engine.url.database}-wal")
        return log.stat().st_size if log.exists() else 0

    def close(self) -> None:
        """Close every connection; a connection in use is closed when its thread returns it."""
        self._closed = True
        self._engine.dispose()

    def _close_late(self, _connection: object, entry: ConnectionPoolEntry) -> None:
        # A disposed pool keeps returned connections until the pool is garbage-collected.
        if self._closed:
            entry.invalidate()

    def _begin(self, stack: ExitStack) -> tuple[Connection, Guard]:
        """Begin a guarded transaction that is rolled back when the stack ends without a commit."""
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
                f"This thread is already in batch.transaction(), and the ledger {self.name} has"
                " only one writer at a time; end the `with` of batch.transaction() first."
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
                text = (
                    f"{text.removesuffix('.')}; check whether the write took effect before you"
                    " repeat it."
                )
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
                " in batch.transaction(); keep its `with` block short: read and compute before the"
                " block."
            )
        reason = sqlite_reason(driver_error, self._timeouts)
        if reason is not None:
            return f"The ledger {self.name} {reason}."
        if is_locked_by_others(driver_error):
            return (
                f"Rows of the ledger {self.name} have been locked by another client's transaction"
                f" for {self._timeouts.lock_s:g} s; find that transaction in pg_stat_activity (its"
                " state may be 'idle in transaction'), and end it."
            )
        message = str(driver_error or error.args[0]).strip().partition("\n")[0].rstrip(".")
        for secret in self._secrets:
            message = message.replace(secret, "***")
        if isinstance(error, IntegrityError):
            return (
                f"The ledger {self.name} has refused a write, and the whole transaction was rolled"
                f" back: {message}."
            )
        return f"The ledger {self.name} cannot be {described(error, message)}."


def changed_rows(
    connection: Connection,
    statement: Statement,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> int:
    """Execute a writing statement; return the number of changed rows."""
    return execute(connection, statement, values, counted=True).rowcount


def make_durable(connection: Connection) -> None:
    """Make a transaction that began with ``durable=False`` wait for the sync at its commit."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO DEFAULT")


def lease(lease_ms: int | None) -> dict[str, Any]:
    """Return the value of the statements' parameter ``:lease_ms``; None means no lease.

    LedgerError is raised for a lease above `LONGEST_LEASE_MS`.
    """
    if lease_ms is not None and lease_ms > LONGEST_LEASE_MS:
        raise LedgerError(
            f"A lease of {lease_ms} ms is too long; choose at most {LONGEST_LEASE_MS} ms, and renew"
            " the lease before it ends."
        )
    return {"lease_ms": lease_ms}


class Store:
    """Base class of the stores, with the database and the clock for the times of batches."""

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
        """Insert rows that refer to a gate; return their number.

        LedgerError is raised if the gate is not declared.
        """
        with self._under(gate_name):
            return changed_rows(connection, statement, values)

    @contextmanager
    def _under(self, gate_name: str) -> Iterator[None]:
        """Convert the foreign-key error of an undeclared gate to a `LedgerError`."""
        try:
            yield
        except IntegrityError as error:
            # The only foreign key of these tables is the gate.
            raise LedgerError(
                f"Gate {gate_name!r} is not declared in the ledger {self._database.name}; "
                "start its query, which declares the gate."
            ) from error

    def _changes(
        self,
        statement: Statement,
        values: Values | Callable[[], Values],
        *,
        durable: bool = True,
    ) -> bool:
        """Execute a statement that changes at most one row; return whether a row changed.

        If ``values`` is callable, each attempt calls it, so that a lease begins at the attempt.
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
