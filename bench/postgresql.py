"""A PostgreSQL to measure on, and what it says about itself meanwhile."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import sqlalchemy
from sqlalchemy import Connection, Engine
from tests.services.postgresql import postgresql_server
from tests.services.processes import descendants

from bench.processes import cpu_seconds
from bench.stage import Stage
from headrace.gate.ledger.connection import normalize_url

_SAMPLE_S: Final = 0.1
_ACTIVE: Final = sqlalchemy.text(
    "SELECT coalesce(wait_event_type || ': ' || wait_event, 'computing') AS does, count(*)"
    " FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend' GROUP BY 1"
)
_CONNECTED: Final = sqlalchemy.text(
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    " AND pid <> pg_backend_pid()"
)
_COUNTED: Final = sqlalchemy.text(
    "SELECT xact_commit, (SELECT wal_bytes FROM pg_stat_wal) AS wal_bytes"
    " FROM pg_stat_database WHERE datname = current_database()"
)


@contextmanager
def a_postgresql(stage: Stage) -> Iterator[str]:
    """The URL of the one that was named, or of one that is there as long as the block."""
    if stage.postgresql is not None:
        yield stage.postgresql
    else:
        with postgresql_server() as server:
            yield server.url


@contextmanager
def fresh_schema(url: str, *, awaits_syncs: bool = True) -> Iterator[str]:
    """The URL of a schema of PostgreSQL that is there as long as the block.

    Connections by this URL do not wait for the log to be synced, unless ``awaits_syncs``.
    """
    name = f"headrace_bench_{time.time_ns()}"
    database = sqlalchemy.make_url(normalize_url(url))
    engine = sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
        settings = "" if awaits_syncs else " -csynchronous_commit=off"
        options = {"options": f"-csearch_path={name}{settings}"}
        try:
            yield database.update_query_dict(options).render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
    engine.dispose()


@dataclass
class Watched:
    """Activity of a server while it was watched.

    Attributes:
        commits: Transactions.
        wal_bytes: Written to its log.
        connections: The most at a time.
        does: Number of times that a look found its connections doing each activity.
        cpu_s: Processor time of all of its processes; None if it is on another machine.
        seconds: Time that it was watched.
    """

    commits: int = 0
    wal_bytes: int = 0
    connections: int = 0
    does: Counter[str] = field(default_factory=Counter)
    cpu_s: float | None = None
    seconds: float = 0.0


@contextmanager
def watching(url: str) -> Iterator[Watched]:
    """Watch a server as long as the block; complete after it."""
    database = sqlalchemy.make_url(normalize_url(url))
    engine = sqlalchemy.create_engine(database, isolation_level="AUTOCOMMIT")
    found, done = Watched(), threading.Event()
    thread = threading.Thread(target=_watch, args=(engine, found, done), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        engine.dispose()


def _watch(engine: Engine, found: Watched, done: threading.Event) -> None:
    with engine.connect() as connection:
        began_s, before, server = time.monotonic(), _counted(connection), _server(connection)
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        while not done.wait(_SAMPLE_S):
            found.does.update({row.does: row.count for row in connection.execute(_ACTIVE)})
            connected = connection.execute(_CONNECTED).scalar_one()
            found.connections = max(found.connections, connected)
            for process in () if server is None else (server, *descendants(server)):
                _note_cpu(process, first, last)
        after = _counted(connection)
        found.seconds = time.monotonic() - began_s
        found.commits = after.xact_commit - before.xact_commit
        found.wal_bytes = int(after.wal_bytes - before.wal_bytes)
        if server is not None:
            found.cpu_s = sum(last.values()) - sum(first.values())


def _counted(connection: Connection) -> Any:
    return connection.execute(_COUNTED).one()


def _server(connection: Connection) -> int | None:
    """The process of the server; None if it is not on this machine, as far as can be seen."""
    backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    status = Path(f"/proc/{backend}/status")
    if not status.exists() or not status.read_text().startswith("Name:\tpostgres"):
        return None
    return next(int(line[5:]) for line in status.read_text().splitlines() if line[:5] == "PPid:")


def _note_cpu(process: int, first: dict[int, float], last: dict[int, float]) -> None:
    try:
        last[process] = cpu_seconds(process)
    except OSError:  # it has ended
        return
    first.setdefault(process, last[process])
