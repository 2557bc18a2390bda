"""A ledger on a PostgreSQL server, with or without a pooler: its engine and its sessions.

Functions import the driver locally, because a ledger in a SQLite file needs no driver.
"""

import re
import select
import threading
from contextlib import ExitStack, suppress
from itertools import zip_longest
from typing import Any, Final

import sqlalchemy
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DisconnectionError,
    InvalidatePoolError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.core.named_functions import call, load_function
from headrace.core.system import needs_extra
from headrace.core.timing import Clock
from headrace.errors import LedgerError, OptionError
from headrace.gate.ledger.connection import A_PASSWORD, PASSWORD_FROM, Timeouts
from headrace.gate.ledger.outages import SET_FOR_THE_ROLE, answers, refuses, sqlstate_of

UNUSED_S: Final = 15
"""Time after which an additional, unused connection to a server is closed (s)."""

_SILENCE: Final = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Settings of libpq, in s and ms, that detect an unreachable PostgreSQL server within half a
minute; TCP alone would take hours. The URL's own settings override them."""

KEEPALIVES: Final = (
    "SELECT set_config('tcp_keepalives_idle', '15', true),"
    " set_config('tcp_keepalives_interval', '5', true),"
    " set_config('tcp_keepalives_count', '3', true),"
    " set_config('tcp_user_timeout', '30s', true)"
)
"""Statement that makes PostgreSQL detect a vanished client within half a minute, and unlock its
rows; by default this takes hours. It applies to the current transaction."""

UNAWAITED: Final = "SELECT set_config('synchronous_commit', 'off', true)"
"""Statement that makes PostgreSQL answer the current transaction's commit before its log is
synced."""

READ_COMMITTED: Final = "SET transaction_isolation = 'read committed'"
"""Statement that sets the current transaction's isolation level to read committed, independent of
the default."""

REPEATABLE_READ: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""Statement that makes a transaction read-only, and makes all its reads see the database as of the
first statement."""

DURABLE: Final = "headrace_durable"
"""Execution option of a statement in autocommit: whether its commit waits for the sync of the
log."""

_IDLE: Final = 0
"""Code of psycopg for two states of a connection: no open transaction, and no open pipeline."""

_MOVED: Final = "25006"


def postgresql_engine(url: URL, timeouts: Timeouts) -> Engine:
    """Return the engine of a PostgreSQL database, without connecting.

    A pooler between the server and this process may give each transaction another session. So no
    setting and no prepared statement is left on a session.

    LedgerError is raised if the function named by ``password_from`` does not exist, and SetupError
    if the driver is not installed.
    """
    settings: dict[str, Any] = {"connect_timeout": timeouts.connect_s, **_SILENCE}
    has_several = isinstance(url.query.get("host"), tuple)
    if has_several:  # After a failover, another host is the primary.
        settings["target_session_attrs"] = "read-write"
    name = url.query.get(PASSWORD_FROM)
    url = url.difference_update_query([PASSWORD_FROM])
    arguments: dict[str, Any] = {
        "application_name": "headrace",
        "prepare_threshold": None,
        "client_encoding": "utf8",  # overrides PGCLIENTENCODING, and the role's and database's
    }
    arguments |= {name: value for name, value in settings.items() if name not in url.query}
    with needs_extra("postgresql", "A ledger in PostgreSQL"):
        # LIFO lends the most recently used connection, so that additional connections stay unused.
        # Transactions are READ COMMITTED, independent of the database's default.
        engine = sqlalchemy.create_engine(
            url,
            connect_args=arguments,
            hide_parameters=True,
            isolation_level="READ COMMITTED",
            pool_use_lifo=True,
        )
    if name is not None:
        _ask_for_passwords(engine, str(name))
    if has_several:
        _wait_for_each_host(engine)
    _close_unused(engine, timeouts.clock)
    _refuse_ignored_schema(engine, url)
    _refuse_other_encodings(engine)
    _replace_what_was_cut(engine)
    _leave_standbys(engine)
    _limit_statements_alone(engine, limit_locks(timeouts))
    return engine


def _ask_for_passwords(engine: Engine, name: str) -> None:
    """Call a function of the user's program for the password of each login.

    A cloud provider's token is valid for minutes, so each new connection needs a new token.
    """
    setting, driver = f"{PASSWORD_FROM} of the ledger URL", engine.dialect.loaded_dbapi
    try:
        function = load_function(setting, name, A_PASSWORD)
    except OptionError as error:
        raise LedgerError(str(error)) from None

    @event.listens_for(engine, "do_connect")
    def ask(_dialect: object, _entry: object, _positional: object, named: dict[str, Any]) -> None:
        password, raised = call(setting, name, function)
        if raised:  # The function's own service may be down: an outage, like the server's.
            raise driver.OperationalError(raised)
        if not isinstance(password, str) or not re.fullmatch("[^\0\ud800-\udfff]+", password):
            defect = "no password" if isinstance(password, str) else f"a {type(password).__name__}"
            raise LedgerError(
                f"{name}, of {setting}, returned {defect}; it must return {A_PASSWORD}."
            )
        named["password"] = password


def _wait_for_each_host(engine: Engine) -> None:
    """Treat a refused login as an outage while one of several hosts is unreachable.

    The unreachable host may be the primary, and accept the login later. The driver raises the error
    of the last host only.
    """
    driver = engine.dialect.loaded_dbapi

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _entry: object, positional: Any, named: dict[str, Any]) -> Any:
        try:
            return dialect.connect(*positional, **named)
        except driver.OperationalError as error:
            ports = str(named.get("port", "")).split(",")
            places = zip_longest(named["host"].split(","), ports, fillvalue="")
            hosts = [{**named, "host": host, "port": port} for host, port in places]
            if refuses(error) and not all(map(answers, hosts)):
                raise driver.OperationalError(str(error)) from None
            raise


def limit_locks(timeouts: Timeouts) -> str:
    """Return a statement that sets ``lock_timeout`` for one transaction to ``lock_s``.

    The statement has no effect if the server or the URL sets another ``lock_timeout``.
    """
    return (
        f"SELECT set_config('lock_timeout', '{round(timeouts.lock_s * 1000)}ms', true)"
        " WHERE current_setting('lock_timeout') = '0'"
    )


def _limit_statements_alone(engine: Engine, limit: str) -> None:
    """Send the statement ``limit`` with each statement in autocommit, in the same round trip."""
    driver = engine.dialect.loaded_dbapi

    @event.listens_for(engine, "do_execute")
    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        connection = cursor.connection
        is_alone = connection.autocommit and connection.info.transaction_status == _IDLE
        if not is_alone or statement.startswith("BEGIN"):
            return False
        with ExitStack() as sent:  # The statements of one pipeline are one transaction.
            sent.enter_context(connection.pipeline())
            try:
                connection.execute(READ_COMMITTED)
                connection.execute(limit)
                if not context.execution_options.get(DURABLE, True):
                    connection.execute(UNAWAITED)
                engine.dialect.do_execute(cursor, statement, parameters, context)
            except (driver.Error, IndexError) as error:
                # End the pipeline here; otherwise the driver logs a second error at the end of a
                # cut connection's pipeline.
                with suppress(driver.Error, IndexError):
                    sent.close()
                if isinstance(error, IndexError):  # psycopg lost count of the answers.
                    connection.close()
                    raise driver.OperationalError("the connection was cut") from error
                if connection.info.pipeline_status != _IDLE:
                    connection.close()  # The connection cannot leave the pipeline.
                raise
        return True


def _refuse_ignored_schema(engine: Engine, url: URL) -> None:
    """Refuse a connection if a pooler has ignored the ``search_path`` in the URL's options.

    With another ``search_path``, Headrace would read or create another ledger.
    """
    options = str(url.query.get("options", ""))
    wanted = re.search(r"(?:-c\s*|--)search_path=((?:\\.|[^\s\\])*)", options)
    if wanted is None:
        return
    search_path = re.sub(r"\\(.)", r"\1", wanted[1])

    @event.listens_for(engine, "connect")
    def compare(connection: Any, _: object) -> None:
        (current,) = connection.execute("SELECT current_setting('search_path')").fetchone()
        connection.rollback()
        if current != search_path:
            raise LedgerError(
                f"The ledger's URL sets the search_path {search_path!r}, but a pooler has ignored"
                f" the setting, and the search_path is {current!r}; {SET_FOR_THE_ROLE}."
            )


def _refuse_other_encodings(engine: Engine) -> None:
    """Refuse a connection to a database whose encoding is not UTF-8.

    The text of an error or of an operator may contain any character, and a database with another
    encoding may refuse it.
    """

    @event.listens_for(engine, "connect")
    def compare(connection: Any, _: object) -> None:
        # The server reports its encoding when it accepts a connection: no round trip.
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in {None, "UTF8"}:
            name = connection.info.dbname
            raise LedgerError(
                f"The ledger's database {name!r} has the encoding {encoding}, which cannot store"
                " every character; create a database with CREATE DATABASE headrace ENCODING"
                " 'UTF8' TEMPLATE template0, and name that database in the ledger's URL."
            )


def _close_unused(engine: Engine, clock: Clock) -> None:
    """Close additional connections that have been unused for `UNUSED_S`.

    If threads seldom use the ledger at the same time, one connection does all work and stays open.
    """
    unused: dict[ConnectionPoolEntry, float] = {}
    changing = threading.RLock()  # Closing a connection calls `closed` in the same thread.

    @event.listens_for(engine, "checkin")
    def returned(_connection: object, entry: ConnectionPoolEntry) -> None:
        now_s = clock.monotonic()
        with changing:
            for old in [late for late, since_s in unused.items() if now_s - since_s > UNUSED_S]:
                del unused[old]
                old.close()
            unused[entry] = now_s

    @event.listens_for(engine, "checkout")
    def lent(connection: Any, entry: ConnectionPoolEntry, _: object) -> None:
        with changing:
            unused.pop(entry, None)
        if connection.closed:  # Another thread has just closed the connection.
            raise DisconnectionError

    @event.listens_for(engine, "close")
    def closed(_connection: object, entry: ConnectionPoolEntry) -> None:
        with changing:
            unused.pop(entry, None)


def _replace_what_was_cut(engine: Engine) -> None:
    """Replace a connection that the server has ended, before its next use.

    SQLAlchemy's pre-ping queries the server before each use, which costs eight round trips for a
    batch. A server that ends a connection sends its reason first, so only a connection with unread
    input is pinged.
    """

    @event.listens_for(engine, "checkout")
    def ask_if_it_has_spoken(connection: Any, *_: object) -> None:
        if has_spoken(connection):
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise InvalidatePoolError from error


def has_spoken(connection: Any) -> bool:
    """Return whether a connection has unread data, such as the reason for a session's end."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _leave_standbys(engine: Engine) -> None:
    """Close all connections if an error shows that the server has become a read-only standby."""

    @event.listens_for(engine, "handle_error")
    def leave(context: Any) -> None:
        context.is_disconnect |= sqlstate_of(context.original_exception) == _MOVED
