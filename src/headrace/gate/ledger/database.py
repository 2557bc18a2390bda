"""A ledger's database: transactions, errors in one sentence each, and the base of its stores."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from traceback import format_exception
from typing import Any, Final, TypeVar

import sqlalchemy
from sqlalchemy import (
    Connection,
    Executable,
    Insert,
    Row,
    Table,
    bindparam,
    column,
    event,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.core.timing import WallClock
from headrace.errors import LedgerError
from headrace.gate.ledger.batch_rows import Values, error_values
from headrace.gate.ledger.connection import (
    PASSWORD_FROM,
    OutageError,
    Retries,
    Timeouts,
    normalize_url,
    parse_url,
    redact_url,
    secrets_of,
)
from headrace.gate.ledger.engines import (
    DURABLE,
    KEEPALIVES,
    READ_COMMITTED,
    REPEATABLE_READ,
    SEE_SERVER,
    UNAWAITED,
    advice_on_a_pooler,
    is_busy,
    is_locked_by_others,
    is_of_the_pool,
    is_outage,
    is_refusal,
    limit_locks,
    postgresql_engine,
    remedy,
    sqlite_engine,
    sqlite_reason,
    was_cut,
    write_ahead_mode,
)
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.lending import Guard, restore_session
from headrace.gate.ledger.tables import lease, take_time_from
from headrace.gate.ledger.transitions import new_call_id


class UnknownCommitError(LedgerError):
    """The answer to a commit was lost: it was made, or it was not."""


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

    def rows(self, statement: Executable, **values: Any) -> Sequence[Row[Any]]:
        """All rows that one statement finds."""
        return self.read(lambda connection: connection.execute(statement, values).all())

    def scalar(self, statement: Executable, **values: Any) -> Any:
        """The first column of the first row that one statement finds; None where it finds none."""
        return self.read(lambda connection: connection.scalar(statement, values))

    def alone(self, work: Callable[[Connection], _Answer], *, durable: bool = True) -> _Answer:
        """Execute one statement that writes; it is durable when this returns, unless not wanted."""
        self._refuse_to_write()
        lend = (self._alone if durable else self._unawaited).connect
        return self._retrying(lend, work, writes=True)

    def change(
        self, statement: Executable, values: Mapping[str, Any], *, durable: bool = True
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

    def insert(self, table: sqlalchemy.Table) -> sqlite.Insert | postgresql.Insert:
        """Start an ``INSERT`` that can say ``ON CONFLICT``."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

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
        return f"The ledger {self.name} cannot be {_described(error, said)}."


def _described(error: SQLAlchemyError, said: str) -> str:
    """Say that a database cannot be reached, or not be used, and the remedy."""
    advice, is_lost = None, is_of_the_pool(error)
    if isinstance(error, DBAPIError):
        advice = remedy(error.orig)
        is_connecting = isinstance(error, OperationalError) and error.statement is None
        is_lost = error.connection_invalidated or is_connecting
    if f", of {PASSWORD_FROM} " in said:
        return f"reached: {said}"
    if (of_pooler := advice_on_a_pooler(said)) is not None:
        return f"used: {said}; {of_pooler}"
    if advice == SEE_SERVER or (advice is None and is_lost):
        return f"reached: {said}; {SEE_SERVER}"
    return f"used: {said}; {advice}" if advice else f"used: {said}"


def changed_rows(
    connection: Connection,
    statement: Executable,
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> int:
    """Run a statement that writes; how many rows it changed."""
    asked = {"preserve_rowcount": True}  # without it, an INSERT does not tell
    return connection.execute(statement, values, execution_options=asked).rowcount


def make_durable(connection: Connection) -> None:
    """Have a transaction that was begun with ``durable=False`` be durable when it has ended."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO DEFAULT")


def insert_rows(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows that all name the same columns.

    SQLite takes them one by one, for it is called and not spoken to. PostgreSQL takes one array for
    each column: for 500 rows that is twice as fast as a pipeline of 500 statements.
    """
    if connection.dialect.name == "sqlite":
        connection.execute(sqlalchemy.insert(table), rows)
    else:
        names = tuple(rows[0])
        arrays = {name: [row[name] for row in rows] for name in names}
        connection.execute(_insert_from_arrays(table, names), arrays)


@cache
def _insert_from_arrays(table: Table, names: tuple[str, ...]) -> Insert:
    arrays = [bindparam(name, type_=ARRAY(table.c[name].type)) for name in names]
    rows = func.unnest(*arrays).table_valued(*map(column, names)).render_derived()
    return sqlalchemy.insert(table).from_select(names, select(rows), include_defaults=False)


class Store:
    """A database, and where the times of batches come from."""

    def __init__(self, database: Database, clock: WallClock) -> None:
        self._database = database
        self._clock = clock

    def _insert_under(
        self,
        gate_name: str,
        connection: Connection,
        statement: Executable,
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
        statement: Executable,
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
