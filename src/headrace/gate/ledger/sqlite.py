"""A ledger in a SQLite file: the engine, its settings, and the check of the path."""

import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, NullPool, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    OperationalError,
)

from headrace.errors import LedgerError, NoLedgerError
from headrace.gate.ledger.connection import Timeouts
from headrace.gate.ledger.outages import is_busy

_RETRY_S: Final = 0.01


def sqlite_engine(
    url: URL, timeouts: Timeouts, *, read_only: bool, must_exist: bool = False
) -> Engine:
    """Return the engine of a SQLite file.

    The first connection creates a missing file unless ``must_exist`` or ``read_only`` is set.
    LedgerError is raised if the path cannot name a file, or if the file is missing but must exist.
    """
    path = Path(str(url.database))
    _check(path, must_exist=read_only or must_exist)
    if read_only:
        # Open a connection for each read: the mode depends on other processes' use of the file.
        return sqlalchemy.create_engine(
            url,
            creator=lambda: _reader(path, timeouts.lock_s),
            poolclass=NullPool,
            hide_parameters=True,
        )
    options = {"creator": lambda: _writer(path, timeouts.lock_s)} if must_exist else {}
    engine = sqlalchemy.create_engine(
        url, connect_args={"timeout": timeouts.lock_s}, hide_parameters=True, **options
    )
    event.listen(engine, "connect", _configure)
    _keep_to_the_file(engine, path)
    return engine


def write_ahead_mode(connection: Connection, timeouts: Timeouts) -> str:
    """Switch a file to a write-ahead log; return its journal mode, ``wal`` if supported.

    OperationalError is raised if another process keeps the file locked.
    """
    deadline = timeouts.clock.monotonic() + timeouts.lock_s
    while True:
        try:
            mode: str = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        except OperationalError as error:
            # This pragma does not wait for another process that writes.
            if not is_busy(error.orig) or timeouts.clock.monotonic() > deadline:
                raise
            timeouts.clock.sleep(_RETRY_S)
        else:
            return mode


OTHER_LEDGER: Final = (
    "a gated query creates it at its start; to read another ledger, name it with --ledger or"
    " HEADRACE_LEDGER"
)
"""Advice in errors about a missing ledger."""


def _check(path: Path, *, must_exist: bool) -> None:
    try:
        if path.is_dir():
            raise LedgerError(
                f"The ledger {path} is a folder; name a file in it, such as {path}/ledger.db."
            )
        if not path.parent.is_dir():
            raise LedgerError(
                f"The ledger {path} cannot be created, because its folder does not exist; create"
                " the folder."
            )
        if must_exist and not path.exists():
            raise NoLedgerError(f"There is no ledger {path}; {OTHER_LEDGER}.")
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} cannot be accessed: {error.strerror}; check the path and its"
            " permissions."
        ) from error


def _writer(path: Path, lock_s: float) -> sqlite3.Connection:
    """Open an existing file for writing; a deleted file is never recreated."""
    uri = f"file:{quote(str(path))}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=lock_s, check_same_thread=False)


def _reader(path: Path, lock_s: float) -> sqlite3.Connection:
    """Open a file for reading, without writing or creating any file.

    A normal reader of a database with a write-ahead log creates files beside the database, and a
    later writer may have no right to write these files. If no ``-wal`` file exists, no other
    process has the database open. The database is then opened as immutable, which creates no files
    and needs no write permission.
    """
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=lock_s)


LOG_BYTES: Final = 4_194_304
"""Limit of the write-ahead log (bytes). At about this size SQLite copies the log into the database,
and it truncates a larger log to this size when no reader needs the log any more."""


def _configure(connection: sqlite3.Connection, _: object) -> None:
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    # FULL: committed data stays committed, even when the machine loses its power.
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
        # SQLite keeps using a deleted file, and would lose all writes with the file.
        if opened is not None and _identity(path) != opened:
            raise LedgerError(
                f"The ledger {path} was deleted or replaced while it was open; put the old file"
                " back and restart this program; if you replaced the file with a backup on purpose,"
                " only restart this program."
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return a file's device and inode, which differ after a replacement; None if missing."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
