"""A ledger in a PostgreSQL server: how it is connected to, and how a cut connection is known."""

import select
from typing import Any, Final

import sqlalchemy
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError

CONNECT_TIMEOUT_S: Final = 5
"""How long PostgreSQL may take to answer, where the URL sets no ``connect_timeout``."""

SILENCE: Final = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How PostgreSQL's machine is known to be gone that says nothing any more: within half a minute,
where TCP alone would wait for hours. Settings of libpq, in s and ms; the URL's own stand above."""

LOCK_TIMEOUT_S: Final = 10
"""How long one of the ledger's statements waits for somebody else's transaction, where the URL or
the server sets no ``lock_timeout``; a transaction of the ledger's takes milliseconds."""

# A machine that is gone without a word leaves its transaction, and the rows that it has locked, to
# the server, which by itself would find out after hours.
_SESSION: Final = {
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
}


def limit_locks(*, within: bool) -> str:
    """The statement that gives the ledger's own statements their `LOCK_TIMEOUT_S`.

    Args:
        within: Whether for the rest of a transaction only; else for the connection.
    """
    return (
        f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_S}s', {str(within).lower()})"
        " WHERE current_setting('lock_timeout') = '0'"
    )


LIMIT_NO_LOCKS: Final = "SET LOCAL lock_timeout TO DEFAULT"
"""Gives a transaction what the server or the URL says: for statements that are not the ledger's, or
that take their time."""


def postgresql_engine(url: URL) -> Engine:
    """Make the engine of a server's database; nothing is connected yet."""
    settings = {"connect_timeout": CONNECT_TIMEOUT_S, **SILENCE}
    engine = sqlalchemy.create_engine(
        url,
        connect_args={"application_name": "headrace"}
        | {name: value for name, value in settings.items() if name not in url.query},
        hide_parameters=True,
    )
    _set_up_sessions(engine)
    _replace_what_was_cut(engine)
    return engine


def _set_up_sessions(engine: Engine) -> None:
    settings = ", ".join(f"set_config('{name}', '{to}', false)" for name, to in _SESSION.items())

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:
        connection.execute(f"SELECT {settings}")
        connection.execute(limit_locks(within=False))
        connection.commit()


def _replace_what_was_cut(engine: Engine) -> None:
    """Have a connection that a restart of the server has cut replaced before it is used.

    SQLAlchemy's own way asks the server before each use, which would be eight of a batch's round
    trips. A server that ends a connection says so on it: only one on which something has come in
    that nobody asked for needs to be asked.
    """

    @event.listens_for(engine, "checkout")
    def ask_if_it_has_spoken(connection: Any, *_: object) -> None:
        if _has_spoken(connection.fileno()):
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise DisconnectionError from error


def _has_spoken(file: int) -> bool:
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(0))
