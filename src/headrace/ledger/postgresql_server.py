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


def postgresql_engine(url: URL) -> Engine:
    """Make the engine of a server's database; nothing is connected yet."""
    settings = {"connect_timeout": CONNECT_TIMEOUT_S, **SILENCE}
    engine = sqlalchemy.create_engine(
        url,
        connect_args={"application_name": "headrace"}
        | {name: value for name, value in settings.items() if name not in url.query},
        hide_parameters=True,
    )
    _replace_what_was_cut(engine)
    return engine


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
