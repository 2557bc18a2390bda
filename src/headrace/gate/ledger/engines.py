"""The databases of a ledger: how each is opened, and the meaning of its errors.

Code that needs the PostgreSQL driver imports it locally: a ledger in a file does without.
"""

import re
import select
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import Connection, Engine, NullPool, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    InvalidatePoolError,
    InvalidRequestError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from headrace.core.named_functions import call, load_function
from headrace.core.system import needs_extra
from headrace.core.timing import Clock
from headrace.errors import LedgerError, NoLedgerError, OptionError
from headrace.gate.ledger.connection import A_PASSWORD, PASSWORD_FROM, Timeouts

_RETRY_S: Final = 0.01

UNUSED_S: Final = 15
"""Time that a connection to a server is kept without a use, if there is another one (s)."""

_REASONS: Final = {
    "SQLITE_BUSY": "has been locked by another process for {lock_s:g} s; find out which program "
    "holds a transaction open in it, and end that",
    "SQLITE_CANTOPEN": "cannot be opened; let this user read and write the file and its folder",
    "SQLITE_CORRUPT": "is damaged; restore it from a copy, or start with a new file",
    "SQLITE_FULL": "cannot grow, for its disk is full; make room there",
    "SQLITE_IOERR": "cannot be read or written by its disk; see the system's log, and make room",
    "SQLITE_NOTADB": "is a file that is not a SQLite database; name another file",
    "SQLITE_READONLY": "cannot be written; let this user write the file and its folder",
}

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

SET_FOR_THE_ROLE: Final = (
    "take the options out of the URL and set them for the role, as ALTER ROLE headrace SET"
    " search_path = headrace"
)
"""Advice for a pooler that rejects session options."""

READ_COMMITTED: Final = "SET transaction_isolation = 'read committed'"
"""Has PostgreSQL execute this transaction so, whatever the default is. Until its end."""

REPEATABLE_READ: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
"""Has PostgreSQL read, in this transaction, everything as of its first statement."""

DURABLE: Final = "headrace_durable"
"""The option of a statement alone that says whether its commit waits for the log's sync."""

_OF_AN_ADDRESS: Final = frozenset({"host", "hostaddr", "port", "dbname", "user", "connect_timeout"})
"""Options of PostgreSQL's client that say where a server is, and for whom it is asked."""

_IDLE: Final = 0
"""PostgreSQL's driver: no transaction is open on the connection, or no pipeline."""

SEE_SERVER: Final = "see that its server runs, and that the URL is right"

SQLSTATES: Final = {
    "08": SEE_SERVER,
    "25006": "let its URL lead to a server that can be written, as the primary after a failover",
    "25P03": "see what holds its sessions up",
    "25P04": "raise transaction_timeout for its role",
    "40": "",
    "53000": "give its server more resources",
    "53100": "make room on its server's disk",
    "53200": "give its server more memory",
    "53300": "end connections of others, or raise max_connections",
    "55P03": "",
    "57014": "raise statement_timeout for its role, or end the transaction that holds the lock",
    "57P01": SEE_SERVER,
    "57P02": SEE_SERVER,
    "57P03": SEE_SERVER,
    "57P05": "raise idle_session_timeout for its role",
    "58000": "see its server's log",
    "58030": "see the disk of its server",
}
"""Outages of PostgreSQL by the beginning of their SQLSTATE, each with its remedy; an error with any
other state is permanent. https://www.postgresql.org/docs/current/errcodes-appendix.html"""

_SQLITE_OUTAGES: Final = (
    *("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR_READ", "SQLITE_IOERR_WRITE"),
    *("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_SHMSIZE"),  # the latter: no room to open a file
)
"""Outages of SQLite by the beginning of their name. https://www.sqlite.org/rescode.html"""

_FULL_SERVER: Final = re.compile(
    "too many clients|too many connections|remaining connection slots|no more connections allowed"
)
"""Texts of state 53300 while connecting, where libpq hides the state: PostgreSQL's, PgBouncer's."""

_REFUSED_BY_A_POOLER: Final = {
    "unsupported startup parameter": SET_FOR_THE_ROLE,
    "transaction blocks not allowed": "have the pooler lend its connections for transactions or"
    " sessions, as with PgBouncer's pool_mode = transaction",
}
"""Texts of PgBouncer's that no waiting cures, each with its remedy; their states are outages'."""

_UNKNOWN: Final = frozenset({"40003"})
_LOCKED: Final = frozenset({"55P03", "40P01"})
_MOVED: Final = "25006"
_CONNECTION_EXCEPTION: Final = "08"


def is_outage(error: SQLAlchemyError) -> bool:
    """Whether waiting may cure an error: the database is away, full, read-only or locked.

    Not so if a server is there and refuses: a wrong password, a database that does not exist.
    """
    if not isinstance(error, DBAPIError):
        return is_of_the_pool(error)
    if advice_on_a_pooler(str(error.orig)) is not None:
        return False
    if error.connection_invalidated or remedy(error.orig) is not None:
        return True
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_name(error.orig).startswith(_SQLITE_OUTAGES)
    is_connecting = isinstance(error, OperationalError) and _state(error.orig) is None
    return is_connecting and not _refuses(error.orig)


def was_cut(error: SQLAlchemyError) -> bool:
    """Whether a connection was lost that had been made, with perhaps only the answer."""
    return isinstance(error, DBAPIError) and error.connection_invalidated


def is_of_the_pool(error: SQLAlchemyError) -> bool:
    """Whether the pool had no connection in time, or each new connection was cut at once."""
    return isinstance(error, PoolTimeoutError) or type(error) is InvalidRequestError


def remedy(error: BaseException | None) -> str | None:
    """The remedy of an outage of PostgreSQL, perhaps empty; None where it is no outage."""
    state = _state(error) or ("53300" if _FULL_SERVER.search(str(error)) else "")
    return next((advice for key, advice in SQLSTATES.items() if state.startswith(key)), None)


def advice_on_a_pooler(said: str) -> str | None:
    """The remedy for what a pooler refuses; None where no pooler has."""
    return next((advice for text, advice in _REFUSED_BY_A_POOLER.items() if text in said), None)


def is_refusal(error: SQLAlchemyError) -> bool:
    """Whether the database has answered a commit with an error, so that everything is undone.

    Not so if it ended the connection, or says that the outcome of the commit is unknown.
    """
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    driver_error: Any = error.orig
    if isinstance(driver_error, sqlite3.Error):
        return isinstance(driver_error, sqlite3.IntegrityError) or is_busy(driver_error)
    state = _state(driver_error)
    if state is None or state in _UNKNOWN or state.startswith(_CONNECTION_EXCEPTION):
        return False
    return bool(driver_error.diag.severity_nonlocalized == "ERROR")


def is_locked_by_others(error: BaseException | None) -> bool:
    """Whether a driver's error says that another transaction was waited for too long."""
    return is_busy(error) or _state(error) in _LOCKED


def sqlite_engine(
    url: URL, timeouts: Timeouts, *, read_only: bool, must_exist: bool = False
) -> Engine:
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
    """Switch a file to a write-ahead log; the mode that it has then, ``wal`` if that was possible.

    Raises:
        OperationalError: Another process kept the file locked.
    """
    deadline = timeouts.clock.monotonic() + timeouts.lock_s
    while True:
        try:
            mode: str = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
        except OperationalError as error:
            # SQLite does not wait by itself here for another process that writes.
            if not is_busy(error.orig) or timeouts.clock.monotonic() > deadline:
                raise
            timeouts.clock.sleep(_RETRY_S)
        else:
            return mode


def sqlite_reason(error: BaseException | None, timeouts: Timeouts) -> str | None:
    """Explain a SQLite error and its remedy; None if its own text must do."""
    reason = _REASONS.get(_sqlite_cause(error))
    return reason and reason.format(lock_s=timeouts.lock_s)


def is_busy(error: BaseException | None) -> bool:
    """Whether another process kept a file locked for longer than SQLite waits."""
    return _sqlite_cause(error) == "SQLITE_BUSY"


def _sqlite_cause(error: BaseException | None) -> str:
    """SQLite's name of the cause, such as ``SQLITE_BUSY``; nothing for any other error."""
    name = _sqlite_name(error) if isinstance(error, sqlite3.Error) else ""
    return "_".join(name.split("_")[:2])  # SQLITE_READONLY_DIRECTORY is a SQLITE_READONLY


def _sqlite_name(error: sqlite3.Error) -> str:
    name: str = getattr(error, "sqlite_errorname", "")
    return name


OTHER_LEDGER: Final = (
    "a gated query makes it when it starts, and --ledger or HEADRACE_LEDGER names another one to a"
    " command"
)
"""Advice if there is no ledger."""


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
            raise NoLedgerError(f"There is no ledger {path}; {OTHER_LEDGER}.")
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be looked for: {error.strerror}.") from error


def _writer(path: Path, lock_s: float) -> sqlite3.Connection:
    """Open a file to write it; it is never made, not even where it was deleted just now."""
    uri = f"file:{quote(str(path))}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=lock_s, check_same_thread=False)


def _reader(path: Path, lock_s: float) -> sqlite3.Connection:
    """Open a file to read it, and change nothing.

    Beside a database with a write-ahead log even a reader makes files, and it leaves them to a
    writer who perhaps may not write them. Therefore, without a log, and so without another process
    that has the file open, it is read as it lies there; this user then needs no right to write,
    either.
    """
    how = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, timeout=lock_s)


LOG_BYTES: Final = 4_194_304
"""Size to which SQLite cuts a write-ahead log back once no reader needs more of it (bytes); about
the size at which SQLite moves the log into the file."""


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
        # SQLite goes on with a file that was deleted, and its writes are lost with it.
        if opened is not None and _identity(path) != opened:
            raise LedgerError(
                f"The ledger {path} was deleted or replaced while it was open; put it back, unless "
                "you have restored a copy of it, and start this program again."
            )


def _identity(path: Path) -> tuple[int, int] | None:
    """Identity of a file (device and inode), to detect a replacement; None if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


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
            if _refuses(error) and not all(map(_answers, hosts)):
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
        context.is_disconnect |= _state(context.original_exception) == _MOVED


def _state(error: BaseException | None) -> str | None:
    """The SQLSTATE of an error of PostgreSQL's driver; None where the server said nothing."""
    state: str | None = getattr(error, "sqlstate", None)
    return state


def _answers(options: Mapping[str, Any]) -> bool:
    """Whether a server is there and accepts connections; it is asked as a stranger would ask.

    So without TLS's conditions, which its certificate may not meet, and without a secret.
    """
    from psycopg import conninfo, pq  # noqa: PLC0415  (a server's driver)

    address = {name: each for name, each in options.items() if name in _OF_AN_ADDRESS and each}
    stranger = conninfo.make_conninfo(**address, sslmode="prefer").encode()
    return pq.PGconn.ping(stranger) == pq.Ping.OK


def _refuses(error: Any) -> bool:
    """Whether a server answers where none could be connected to, and does not want us.

    libpq does not tell the code of an error while connecting, and its text may be in any language.
    But it can ask a server whether it accepts connections, without logging in.
    """
    from psycopg import conninfo, pq  # noqa: PLC0415  (a server's driver)

    if error.pgconn is None:  # the time was over, or there was no address, before a server was met
        return False
    # Without the rights of the session: a standby that cannot write yet belongs to a failover.
    options = {
        option.keyword.decode(): option.val.decode()
        for option in error.pgconn.info
        if option.val and option.keyword != b"target_session_attrs"
    }
    if not _answers(options):
        return False
    asked = conninfo.make_conninfo(**options).encode()
    # The server may be reachable again by now, and then accepts the connection.
    connection = pq.PGconn.connect(asked)
    try:
        return connection.status != pq.ConnStatus.OK
    finally:
        connection.finish()
