"""A ledger's database: how it is opened, its transactions, and its errors in one sentence each."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from headgate.errors import LedgerError
from headgate.ledger.urls import parse_url, redact_url, secrets_of

LOCK_TIMEOUT_S: Final = 10
"""How long SQLite waits for another process's transaction; one takes milliseconds."""

CONNECT_TIMEOUT_S: Final = 5
"""How long PostgreSQL may take to answer, where the URL sets no ``connect_timeout``."""

_RETRY_S: Final = 0.01


class Database:
    """A SQLite file or a PostgreSQL database, shared with other processes.

    Its methods can be called from any thread. Whatever goes wrong inside :meth:`reading` and
    :meth:`writing` becomes a :class:`LedgerError` that names the database without its secrets.
    """

    def __init__(self, url: str, *, read_only: bool) -> None:
        """Open the database; a SQLite file is made unless ``read_only``.

        Raises:
            LedgerError: The URL is not a ledger's, or the database cannot be reached or used.
        """
        self.url: Final = parse_url(url)
        self.name: Final = redact_url(self.url)
        self._secrets: Final = secrets_of(self.url)
        self.read_only: Final = read_only
        self.is_sqlite: Final = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            _check_path(Path(str(self.url.database)), must_exist=read_only)
            self._engine = _sqlite_engine(self.url, read_only)
        else:
            self._engine = _postgresql_engine(self.url)
        # A single statement needs no transaction, and without one PostgreSQL saves two round trips.
        self._reads = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a connection for statements that only read, each for itself."""
        with self._explained(), self._reads.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Lend a connection within one transaction: durable at the end, undone by an exception."""
        if self.read_only:
            raise LedgerError(f"The ledger {self.name} was opened for reading only.")
        with self._explained(), self._engine.begin() as connection:
            if self.is_sqlite:
                # The lock now: a reader that turns into a writer later would fail instead of wait.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    def insert(self, table: sqlalchemy.Table) -> sqlite.Insert | postgresql.Insert:
        """Start an ``INSERT`` that can say ``ON CONFLICT``."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def use_write_ahead_log(self) -> None:
        """Have a SQLite file's readers and its writer not wait for each other; it stays so.

        Raises:
            LedgerError: The file is no SQLite database, or its file system cannot do this.
        """
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        with self._explained(), self._reads.connect() as connection:
            while True:
                try:
                    mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
                    break
                except OperationalError as error:
                    # While another process does the same, SQLite does not wait by itself.
                    if _cause(error) != "SQLITE_BUSY" or time.monotonic() > deadline:
                        raise
                    time.sleep(_RETRY_S)
        if mode != "wal":
            raise LedgerError(
                f"The ledger {self.name} is on a file system without the shared memory that a "
                "SQLite file needs; put it on a local disk, or use PostgreSQL."
            )

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = error if not any(secret in str(error) for secret in self._secrets) else None
            raise LedgerError(self._sentence(error)) from cause

    def _sentence(self, error: SQLAlchemyError) -> str:
        reason = _REASONS.get(_cause(error))
        if reason is not None:
            return f"The ledger {self.name} {reason}."
        said = str(error.orig if isinstance(error, DBAPIError) else error.args[0])
        said = said.strip().partition("\n")[0].rstrip(".")
        for secret in self._secrets:
            said = said.replace(secret, "***")
        if isinstance(error, OperationalError) and error.statement is None:
            return (
                f"The ledger {self.name} cannot be reached: {said}; "
                "see that its server runs, and that the URL is right."
            )
        return f"The ledger {self.name} cannot be used: {said}."


_REASONS: Final = {
    "SQLITE_BUSY": f"has been locked by another process for {LOCK_TIMEOUT_S} s; find out which "
    "program holds a transaction open in it, and end that",
    "SQLITE_CANTOPEN": "cannot be opened; let this user read and write the file and its folder",
    "SQLITE_CORRUPT": "is damaged; restore it from a copy, or start with a new file",
    "SQLITE_FULL": "cannot grow, for its disk is full; make room there",
    "SQLITE_NOTADB": "is a file that is not a SQLite database; name another file",
    "SQLITE_READONLY": "cannot be written; let this user write the file and its folder",
}


def _cause(error: SQLAlchemyError) -> str:
    """SQLite's name of the cause, such as ``SQLITE_BUSY``; nothing for any other."""
    driver_error = error.orig if isinstance(error, DBAPIError) else None
    if not isinstance(driver_error, sqlite3.Error):
        return ""
    name: str = getattr(driver_error, "sqlite_errorname", "")
    return "_".join(name.split("_")[:2])  # SQLITE_READONLY_DIRECTORY is a SQLITE_READONLY


def _check_path(path: Path, *, must_exist: bool) -> None:
    try:
        if path.is_dir():
            raise LedgerError(
                f"The ledger {path} is a folder; name a file in it, as {path}/ledger.db."
            )
        if not path.parent.is_dir():
            raise LedgerError(
                f"The ledger {path} cannot be made: its folder does not exist; make it."
            )
        if must_exist and not path.exists():
            raise LedgerError(f"There is no ledger {path}; a gated query makes it when it starts.")
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be looked for: {error.strerror}.") from error


def _sqlite_engine(url: URL, read_only: bool) -> Engine:
    mode = "ro" if read_only else "rwc"
    file = URL.create("sqlite", database=f"file:{quote(str(url.database))}")
    engine = sqlalchemy.create_engine(
        file.update_query_dict({"mode": mode, "uri": "true"}),
        connect_args={"timeout": LOCK_TIMEOUT_S},
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        # FULL: what is committed stays committed, even when the machine loses its power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    return engine


def _postgresql_engine(url: URL) -> Engine:
    timeout = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
    return sqlalchemy.create_engine(
        url,
        connect_args={"application_name": "headgate"} | timeout,
        hide_parameters=True,
        # A connection that a restart of the server has cut is replaced before it is used.
        pool_pre_ping=True,
    )
