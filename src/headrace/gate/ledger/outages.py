"""Classification of database errors: outages, in which a retry helps, and their remedies."""

import re
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy.exc import (
    DBAPIError,
    InvalidRequestError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)

from headrace.gate.ledger.connection import PASSWORD_FROM, Timeouts

_REASONS: Final = {
    "SQLITE_BUSY": "has been locked by another process for {lock_s:g} s; find the program that "
    "keeps a transaction open in the file, and end that program",
    "SQLITE_CANTOPEN": "cannot be opened; let this user read and write the file and its folder",
    "SQLITE_CORRUPT": "is damaged; restore it from a backup, or start with a new file",
    "SQLITE_FULL": "cannot grow, because its disk is full; free space on the disk",
    "SQLITE_IOERR": "cannot be read or written because of a disk error; check the system's log, "
    "and free space on the disk",
    "SQLITE_NOTADB": "is a file that is not a SQLite database; name another file",
    "SQLITE_READONLY": "cannot be written; let this user write the file and its folder",
}

_OF_AN_ADDRESS: Final = frozenset({"host", "hostaddr", "port", "dbname", "user", "connect_timeout"})
"""Options of libpq that name a server, a database and a user."""

SET_FOR_THE_ROLE: Final = (
    "remove the options from the URL and set them for the role, as in ALTER ROLE headrace SET"
    " search_path = headrace"
)
"""Remedy if a pooler refuses or ignores the session options of the URL."""

SEE_SERVER: Final = "check that its server runs, and that the URL is right"

SQLSTATES: Final = {
    "08": SEE_SERVER,
    "25006": "name a server that accepts writes in its URL, such as the primary after a failover",
    "25P03": "find out why its sessions were idle in a transaction",
    "25P04": "raise transaction_timeout for its role",
    "40": "",
    "53000": "give its server more resources",
    "53100": "free space on its server's disk",
    "53200": "give its server more memory",
    "53300": "close other programs' connections, or raise max_connections",
    "55P03": "",
    "57014": "raise statement_timeout for its role, or end the transaction that holds the lock",
    "57P01": SEE_SERVER,
    "57P02": SEE_SERVER,
    "57P03": SEE_SERVER,
    "57P05": "raise idle_session_timeout for its role",
    "58000": "check its server's log",
    "58030": "check its server's disk",
}
"""Remedy for each outage of PostgreSQL, by the beginning of its SQLSTATE. An error with another
SQLSTATE is permanent. https://www.postgresql.org/docs/current/errcodes-appendix.html"""

_SQLITE_OUTAGES: Final = (
    *("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR_READ", "SQLITE_IOERR_WRITE"),
    *("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHMSIZE"),  # SHMSIZE: no disk space to open a file
)
"""SQLite's result codes that are outages. Each item is the beginning of a code's name.
https://www.sqlite.org/rescode.html"""

_FULL_SERVER: Final = re.compile(
    "too many clients|too many connections|remaining connection slots|no more connections allowed"
)
"""Pattern of the error texts of PostgreSQL and PgBouncer for SQLSTATE 53300. During a login, libpq
reports the text but not the SQLSTATE."""

_REFUSED_BY_A_POOLER: Final = {
    "unsupported startup parameter": SET_FOR_THE_ROLE,
    "transaction blocks not allowed": "have the pooler lend its connections for transactions or"
    " sessions, as with PgBouncer's pool_mode = transaction",
}
"""Remedy for each permanent error of PgBouncer, by a part of the error's text. The SQLSTATEs of
these errors are also used for outages."""

_UNKNOWN: Final = frozenset({"40003"})

_LOCKED: Final = frozenset({"55P03", "40P01"})

_CONNECTION_EXCEPTION: Final = "08"


def is_outage(error: SQLAlchemyError) -> bool:
    """Return whether an error is an outage, so that a retry may succeed.

    An outage is an unreachable, full, read-only or locked database. A wrong password or a missing
    database is a permanent error.
    """
    if not isinstance(error, DBAPIError):
        return is_of_the_pool(error)
    if advice_on_a_pooler(str(error.orig)) is not None:
        return False
    if error.connection_invalidated or remedy(error.orig) is not None:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_name(error.orig).startswith(_SQLITE_OUTAGES)
    is_connecting = isinstance(error, OperationalError) and sqlstate_of(error.orig) is None
    return is_connecting and not refuses(error.orig)


def was_cut(error: SQLAlchemyError) -> bool:
    """Return whether an open connection was cut; its statement may have taken effect."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def is_of_the_pool(error: SQLAlchemyError) -> bool:
    """Return whether SQLAlchemy's pool had no usable connection in time."""
    return isinstance(error, PoolTimeoutError) or type(error) is InvalidRequestError


def remedy(error: BaseException | None) -> str | None:
    """Return the remedy of a PostgreSQL outage, perhaps an empty text; None for other errors."""
    state = sqlstate_of(error) or ("53300" if _FULL_SERVER.search(str(error)) else "")
    return next((advice for key, advice in SQLSTATES.items() if state.startswith(key)), None)


def advice_on_a_pooler(said: str) -> str | None:
    """Return the remedy for PgBouncer's permanent error in a text; None for other texts."""
    return next((advice for text, advice in _REFUSED_BY_A_POOLER.items() if text in said), None)


def is_refusal(error: SQLAlchemyError) -> bool:
    """Return whether an error of a commit means that the transaction was rolled back.

    The result is False if the database cut the connection, or reports that the outcome of the
    commit is unknown.
    """
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    driver_error: Any = error.orig
    if isinstance(driver_error, sqlite3.Error):
        return isinstance(driver_error, sqlite3.IntegrityError) or is_busy(driver_error)
    state = sqlstate_of(driver_error)
    if state is None or state in _UNKNOWN or state.startswith(_CONNECTION_EXCEPTION):
        return False
    return bool(driver_error.diag.severity_nonlocalized == "ERROR")


def is_locked_by_others(error: BaseException | None) -> bool:
    """Return whether the error of a driver is a lock timeout or a deadlock."""
    return is_busy(error) or sqlstate_of(error) in _LOCKED


def sqlite_reason(error: BaseException | None, timeouts: Timeouts) -> str | None:
    """Return the explanation and the remedy of a SQLite error; None for other errors."""
    reason = _REASONS.get(_sqlite_cause(error))
    return reason and reason.format(lock_s=timeouts.lock_s)


def is_busy(error: BaseException | None) -> bool:
    """Return whether an error means that another process kept the SQLite file locked too long."""
    return _sqlite_cause(error) == "SQLITE_BUSY"


def _sqlite_cause(error: BaseException | None) -> str:
    """Return SQLite's primary result code, such as ``SQLITE_BUSY``; "" for other errors."""
    name = _sqlite_name(error) if isinstance(error, sqlite3.Error) else ""
    return "_".join(name.split("_")[:2])  # SQLITE_READONLY_DIRECTORY is a SQLITE_READONLY


def _sqlite_name(error: sqlite3.Error) -> str:
    name: str = getattr(error, "sqlite_errorname", "")
    return name


def sqlstate_of(error: BaseException | None) -> str | None:
    """Return the SQLSTATE of a PostgreSQL driver's error; None if the server sent none."""
    state: str | None = getattr(error, "sqlstate", None)
    return state


def answers(options: Mapping[str, Any]) -> bool:
    """Return whether a server accepts connections, without a login.

    The request contains no secret, and does not require TLS, so the server's certificate is not
    checked.
    """
    from psycopg import conninfo, pq  # noqa: PLC0415  (a server's driver)

    address = {name: value for name, value in options.items() if name in _OF_AN_ADDRESS and value}
    stranger = conninfo.make_conninfo(**address, sslmode="prefer").encode()
    return pq.PGconn.ping(stranger) == pq.Ping.OK


def refuses(error: Any) -> bool:
    """Return whether the server of a failed connection is running, and so refused the login.

    libpq does not report the SQLSTATE of an error during a login, and the error's text may be in
    any language. But libpq can query whether a server accepts connections, without a login.
    """
    from psycopg import conninfo, pq  # noqa: PLC0415  (a server's driver)

    if error.pgconn is None:  # No server answered: a timeout, or no address.
        return False
    # Leave out target_session_attrs: a standby that is not writable yet is part of a failover.
    options = {
        option.keyword.decode(): option.val.decode()
        for option in error.pgconn.info
        if option.val and option.keyword != b"target_session_attrs"
    }
    if not answers(options):
        return False
    address = conninfo.make_conninfo(**options).encode()
    # The server may accept the connection by now.
    connection = pq.PGconn.connect(address)
    try:
        return connection.status != pq.ConnStatus.OK
    finally:
        connection.finish()


def described(error: SQLAlchemyError, said: str) -> str:
    """Return the end of an error message, after "The ledger ... cannot be", with a remedy."""
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
