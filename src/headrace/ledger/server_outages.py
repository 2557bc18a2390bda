"""What errors of PostgreSQL mean: that it is away for a while, or that it has answered with no."""

from typing import Final

import psycopg
from psycopg import pq

# Connection exceptions; admin_shutdown, crash_shutdown and cannot_connect_now.
_CONNECTION_EXCEPTION: Final = "08"
_UNKNOWN: Final = frozenset({"40003"})  # statement_completion_unknown
_LOCKED: Final = frozenset({"55P03", "40P01"})  # lock_not_available, deadlock_detected
_SHUTTING_DOWN: Final = frozenset({"57P01", "57P02", "57P03"})


def is_server_outage(error: BaseException | None) -> bool:
    """Whether the server could not be reached, cut the connection, or others kept rows locked.

    Not so if it refuses.
    """
    if not isinstance(error, psycopg.OperationalError):
        return False
    state = error.sqlstate
    if state is None:
        return not _refuses(error)
    return state in _SHUTTING_DOWN | _LOCKED or state.startswith(_CONNECTION_EXCEPTION)


def is_locked(error: BaseException | None) -> bool:
    """Whether others kept rows locked for longer than a statement of the ledger waits."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _LOCKED


def is_server_refusal(error: BaseException | None) -> bool:
    """Whether the server has answered a statement with an error, and goes on.

    Not so if it ended the connection, or says that it does not know what became of the statement.
    """
    if not isinstance(error, psycopg.Error) or error.sqlstate is None:
        return False
    is_unknown = error.sqlstate in _UNKNOWN or error.sqlstate.startswith(_CONNECTION_EXCEPTION)
    return error.diag.severity_nonlocalized == "ERROR" and not is_unknown


def _refuses(error: psycopg.OperationalError) -> bool:
    """Whether a server answers where none could be connected to, and does not want us.

    libpq does not tell the code of an error while connecting, and its text may be in any language.
    But it can ask a server whether it accepts connections, without logging in.
    """
    if error.pgconn is None:  # the time was over, or there was no address, before a server was met
        return False
    asked = _conninfo(error.pgconn)
    # It may have come back just now; then it does want us.
    return pq.PGconn.ping(asked) == pq.Ping.OK and not _connects(asked)


def _connects(conninfo: bytes) -> bool:
    connection = pq.PGconn.connect(conninfo)
    try:
        return connection.status == pq.ConnStatus.OK
    finally:
        connection.finish()


def _conninfo(connection: pq.abc.PGconn) -> bytes:
    """Where it was connected to, and as whom.

    Not with which rights of the session: a standby that has none to write yet is a failover's.
    """
    given = {
        option.keyword.decode(): option.val.decode()
        for option in connection.info
        if option.val and option.keyword != b"target_session_attrs"
    }
    return psycopg.conninfo.make_conninfo(**given).encode()
