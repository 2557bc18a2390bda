"""A ledger in a SQLite file: how it is opened, and what SQLite's errors mean for it."""

import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, NullPool, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from headrace.errors import LedgerError

LOCK_TIMEOUT_S: Final = 10
"""How long SQLite waits for another process's transaction; one takes milliseconds."""

_RETRY_S: Final = 0.01

_REASONS: Final = {
    "SQLITE_BUSY": f"has been locked by another process for {LOCK_TIMEOUT_S} s; find out which "
    "program holds a transaction open in it, and end that",
    "SQLITE_CANTOPEN": "cannot be opened; let this user read and write the file and its folder",
    "SQLITE_CORRUPT": "is damaged; restore it from a copy, or start with a new file",
    "SQLITE_FULL": "cannot grow, for its disk is full; make room there",
    "SQLITE_NOTADB": "is a file that is not a SQLite database; name another file",
    "SQLITE_READONLY": "cannot be written; let this user write the file and its folder",
}


def sqlite_engine(url: URL, *, read_only: bool, must_exist: bool = False) -> Engine:
    """Make the engine of a file; the first connection makes the file, unless it must exist.

    Raises:
        LedgerError: There cannot be a file at this path; or there is none, and it must exist, as
            with ``read_only``.
    """
    path = Path(str(url.database))
    _check(path, must_exist=read_only or must_exist)
    if read_only:
        # A connection for each read, because how to open the file depends on who else has it open.
        return sqlalchemy.create_engine(
            url, creator=lambda: _reader(path), poolclass=NullPool, hide_parameters=True
        )
    options = {"creator": lambda: _writer(path)} if must_exist else {}
    engine = sqlalchemy.create_engine(
        url, connect_args={"timeout": LOCK_TIMEOUT_S}, hide_parameters=True, **options
    )
    event.listen(engine, "connect", _configure)
    _keep_to_the_file(engine, path)
    return engine


def _configure(connection: sqlite3.Connection, _: object) -> None:
    # FULL: what is committed stays committed, even when the machine loses its power.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _keep_to_the_file(engine: Engine, path: Path) -> None:
    opened: tuple[int, int] | None = None

    @event.listens_for(engine, "connect")
    def remember(*_: object) -> None:
        nonlocal opened
        opened = opened or _identity(path)

    @event.listens_for(engine, "do_connect")
    @event.listens_for(engine, "checkout")
    def refuse_another(*_: object) -> None:
        # SQLite goes on with a file that was deleted, and what it writes there is lost with it.
        if opened is not None and _identity(path) != opened:
            raise LedgerError(
                f"The ledger {path} was deleted or replaced while it was open; put it back, and "
                "start what used it again."
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from a later one at the same path; None where there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def write_ahead_mode(connection: Connection) -> str:
    """Switch a file to a write-ahead log; the mode that it has then, ``wal`` if that was possible.

    Raises:
        OperationalError: Another process kept the file locked.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            mode: str = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        except OperationalError as error:
            # SQLite does not wait by itself here for another process that writes.
            if not is_busy(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return mode


def sqlite_reason(error: BaseException | None) -> str | None:
    """What SQLite's error means for the file, and what to do; None where its own text must do."""
    return _REASONS.get(_cause(error))


def is_busy(error: BaseException | None) -> bool:
    """Whether another process kept the file locked for longer than SQLite waits."""
    return _cause(error) == "SQLITE_BUSY"


def _cause(error: BaseException | None) -> str:
    """SQLite's name of the cause, such as ``SQLITE_BUSY``; nothing for any other error."""
    if not isinstance(error, sqlite3.Error):
        return ""
    name: str = getattr(error, "sqlite_errorname", "")
    return "_".join(name.split("_")[:2])  # SQLITE_READONLY_DIRECTORY is a SQLITE_READONLY


def _check(path: Path, *, must_exist: bool) -> None:
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


def _writer(path: Path) -> sqlite3.Connection:
    """Open a file to write it; it is never made, not even where it was deleted just now."""
    uri = f"file:{quote(str(path))}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S, check_same_thread=False)


def _reader(path: Path) -> sqlite3.Connection:
    """Open a file to read it, and change nothing.

    Beside a database with a write-ahead log even a reader makes files, and it leaves them to a
    writer who perhaps may not write them. Therefore, where there is no log, and so nobody who has
    the file open, it is read as it lies there; this user then needs no right to write, either.
    """
    how = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    uri = f"file:{quote(str(path))}?{how}"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S)
