"""A ledger on a PostgreSQL server: how it is opened, perhaps through a pooler, and its sessions.

Code that needs the driver imports it locally: a ledger in a file does without.
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
"""Time that a connection to a server is kept without a use, if there is another one (s)."""

_SILENCE: Final = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Keepalives that detect a dead PostgreSQL machine within half a minute, where TCP alone would wait
for hours. Settings of libpq, in s and ms; the URL's own override them."""

KEEPALIVES: Final = (
    "SELECT set_config('tcp_keepalives_idle', '15', true),"
    " set_config('tcp_keepalives_interval', '5', true),"
    " set_config('tcp_keepalives_count', '3', true),"
    " set_config('tcp_user_timeout', '30s', true)"
)
"""Lets PostgreSQL end, within half a minute, the transaction of a machine that is gone without a
word, and unlock its rows; by itself it would find out after hours. Until the transaction's end."""

UNAWAITED: Final = "SELECT set_config('synchronous_commit', 'off', true)"
"""Has PostgreSQL answer this transaction's commit before its log is synced. Until its end."""

READ_COMMITTED: Final = "SET transaction_isolation = 'read committed'"
"""Has PostgreSQL execute this transaction so, whatever the default is. Until its end."""

REPEATABLE_READ: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""Has PostgreSQL read, in this transaction, everything as of its first statement."""

DURABLE: Final = "headrace_durable"
"""The option of a statement alone that says whether its commit waits for the log's sync."""

_IDLE: Final = 0
"""PostgreSQL's driver: no transaction is open on the connection, or no pipeline."""

_MOVED: Final = "25006"


def postgresql_engine(url: URL, timeouts: Timeouts) -> Engine:
    """Make the engine of a server's database; nothing is connected yet.

    Between the server and us may be a pooler, which gives each transaction any of its sessions.
    Nothing is left on a session: no setting, and no statement that is prepared.

    Raises:
        LedgerError: There is no function of the name that ``password_from`` gives.
        SetupError: The driver is not installed.
    """
    settings: dict[str, Any] = {"connect_timeout": timeouts.connect_s, **_SILENCE}
    has_several = isinstance(url.query.get("host"), tuple)
    if has_several:  # after a failover another one is written
        settings["target_session_attrs"] = "read-write"
    name = url.query.get(PASSWORD_FROM)
    url = url.difference_update_query([PASSWORD_FROM])
    arguments: dict[str, Any] = {
        "application_name": "headrace",
        "prepare_threshold": None,
        "client_encoding": "utf8",  # whatever PGCLIENTENCODING, the role or the database says
    }
    arguments |= {name: value for name, value in settings.items() if name not in url.query}
    with needs_extra("postgresql", "A ledger in PostgreSQL"):
        # The one that was used last, so that those which are not needed any more stay unused.
        # Its transactions are READ COMMITTED, whatever the default of the database is.
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
    """Have each login use the password that a function of the program returns then.

    A token of a cloud is good for minutes, and only while a connection is made.
    """
    setting, driver = f"{PASSWORD_FROM} of the ledger URL", engine.dialect.loaded_dbapi
    try:
        function = load_function(setting, name, A_PASSWORD)
    except OptionError as error:
        raise LedgerError(str(error)) from None

    @event.listens_for(engine, "do_connect")
    def ask(_dialect: object, _entry: object, _positional: object, named: dict[str, Any]) -> None:
        password, raised = call(setting, name, function)
        if raised:  # what it asks may be away for a while: an outage, as a server's
            raise driver.OperationalError(raised)
        if not isinstance(password, str) or not re.fullmatch("[^\0\ud800-\udfff]+", password):
            what = "no password" if isinstance(password, str) else f"a {type(password).__name__}"
            raise LedgerError(
                f"{name}, of {setting}, returned {what}; it must return {A_PASSWORD}."
            )
        named["password"] = password


def _wait_for_each_host(engine: Engine) -> None:
    """Take a refusal for an outage while one of several hosts is away: that one may accept us.

    The driver raises what the last host said alone.
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
    """The statement that gives a transaction of the ledger's in PostgreSQL its ``lock_s``.

    Until the transaction's end, and unless the server or the URL says something else.
    """
    return (
        f"SELECT set_config('lock_timeout', '{round(timeouts.lock_s * 1000)}ms', true)"
        " WHERE current_setting('lock_timeout') = '0'"
    )


def _limit_statements_alone(engine: Engine, limit: str) -> None:
    """Give each statement that is a transaction alone its ``lock_s``, in the same round trip."""
    driver = engine.dialect.loaded_dbapi

    @event.listens_for(engine, "do_execute")
    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        connection = cursor.connection
        is_alone = connection.autocommit and connection.info.transaction_status == _IDLE
        if not is_alone or statement.startswith("BEGIN"):
            return False
        with ExitStack() as sent:  # what is sent up to its end is one transaction
            sent.enter_context(connection.pipeline())
            try:
                connection.execute(READ_COMMITTED)
                connection.execute(limit)
                if not context.execution_options.get(DURABLE, True):
                    connection.execute(UNAWAITED)
                engine.dialect.do_execute(cursor, statement, parameters, context)
            except (driver.Error, IndexError) as error:
                # Otherwise the driver logs a second error, of the end, on a connection that is cut.
                with suppress(driver.Error, IndexError):
                    sent.close()
                if isinstance(error, IndexError):  # psycopg's, which lost count of the answers
                    connection.close()
                    raise driver.OperationalError("the answers were cut off") from error
                if connection.info.pipeline_status != _IDLE:
                    connection.close()  # it cannot leave the pipeline
                raise
        return True


def _refuse_ignored_schema(engine: Engine, url: URL) -> None:
    """Have no connection on which a pooler has ignored the schema that the URL's options name.

    The ledger would be another one, or would be recreated.
    """
    options = str(url.query.get("options", ""))
    wanted = re.search(r"(?:-c\s*|--)search_path=((?:\\.|[^\s\\])*)", options)
    if wanted is None:
        return
    search_path = re.sub(r"\\(.)", r"\1", wanted[1])

    @event.listens_for(engine, "connect")
    def compare(connection: Any, _: object) -> None:
        (found,) = connection.execute("SELECT current_setting('search_path')").fetchone()
        connection.rollback()
        if found != search_path:
            raise LedgerError(
                f"The ledger's URL asks for the search_path {search_path!r}, and a pooler between"
                f" here and the server has ignored it: it is {found!r}; {SET_FOR_THE_ROLE}."
            )


def _refuse_other_encodings(engine: Engine) -> None:
    """Have no connection to a database that cannot store every character.

    The text of an error or of an operator's reason has any, and would be refused when it is kept.
    """

    @event.listens_for(engine, "connect")
    def compare(connection: Any, _: object) -> None:
        # The server tells it when it accepts a connection, so that this asks nothing.
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in {None, "UTF8"}:
            name = connection.info.dbname
            raise LedgerError(
                f"The ledger's database {name!r} has the encoding {encoding}, which cannot store"
                " every character; create one that can, as CREATE DATABASE headrace ENCODING"
                " 'UTF8' TEMPLATE template0, and name it in the ledger's URL."
            )


def _close_unused(engine: Engine, clock: Clock) -> None:
    """Keep open what is in use all the time: one connection, if its threads seldom meet.

    One that was needed for a moment, beside another, is closed when it was unused for a while.
    """
    unused: dict[ConnectionPoolEntry, float] = {}
    changing = threading.RLock()  # closing one calls `closed`

    @event.listens_for(engine, "checkin")
    def returned(_connection: object, entry: ConnectionPoolEntry) -> None:
        now_s = clock.monotonic()
        with changing:
            for old in [each for each, since_s in unused.items() if now_s - since_s > UNUSED_S]:
                del unused[old]
                old.close()
            unused[entry] = now_s

    @event.listens_for(engine, "checkout")
    def lent(connection: Any, entry: ConnectionPoolEntry, _: object) -> None:
        with changing:
            unused.pop(entry, None)
        if connection.closed:  # just now, by another thread
            raise DisconnectionError

    @event.listens_for(engine, "close")
    def closed(_connection: object, entry: ConnectionPoolEntry) -> None:
        with changing:
            unused.pop(entry, None)


def _replace_what_was_cut(engine: Engine) -> None:
    """Have a connection that a restart of the server has cut replaced before it is used.

    SQLAlchemy's own way asks the server before each use, which would be eight of a batch's round
    trips. A server that ends a connection says so on it: only a connection with unexpected input
    needs to be asked.
    """

    @event.listens_for(engine, "checkout")
    def ask_if_it_has_spoken(connection: Any, *_: object) -> None:
        if has_spoken(connection):
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise InvalidatePoolError from error


def has_spoken(connection: Any) -> bool:
    """Whether a server has sent something that nobody has read, such as why it ends a session."""
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def _leave_standbys(engine: Engine) -> None:
    """Drop all connections after an error of a server that became a standby: others can write."""

    @event.listens_for(engine, "handle_error")
    def leave(context: Any) -> None:
        context.is_disconnect |= sqlstate_of(context.original_exception) == _MOVED
