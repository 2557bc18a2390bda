"""What errors of a database mean: that it is away for a while, or that it has answered with no."""

import sqlite3

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.ledger.sqlite_file import is_busy


def is_outage(error: SQLAlchemyError) -> bool:
    """Whether the database could not be reached, or cut the connection, or is locked by another.

    Not so if a server is there and refuses: a wrong password, a database that does not exist.
    """
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or is_busy(error.orig):
        return True
    if isinstance(error.orig, sqlite3.Error):
        return False
    from headrace.ledger.server_outages import is_server_outage  # noqa: PLC0415  (a server's driver)

    return is_server_outage(error.orig)


def is_refusal(error: SQLAlchemyError) -> bool:
    """Whether the database has answered a commit with an error, so that everything is undone."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    if isinstance(error.orig, sqlite3.Error):
        return isinstance(error.orig, sqlite3.IntegrityError) or is_busy(error.orig)
    from headrace.ledger.server_outages import is_server_refusal  # noqa: PLC0415  (a server's driver)

    return is_server_refusal(error.orig)


def is_locked_by_others(error: BaseException | None) -> bool:
    """Whether a driver's error says that somebody else's transaction was waited for too long."""
    if error is None or isinstance(error, sqlite3.Error):
        return is_busy(error)
    from headrace.ledger.server_outages import is_locked  # noqa: PLC0415  (a server's driver)

    return is_locked(error)
