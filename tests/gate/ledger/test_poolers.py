"""A ledger behind a real PgBouncer, in both of its modes.

In transaction mode each transaction, and each statement alone, may get another connection to the
server, and what one of them leaves on its session is found by somebody else.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import psycopg
import pytest
import sqlalchemy
from tests.gate.ledger.samples import batch_number
from tests.gate.ledger.test_lent_transactions import SERVER_SETTINGS, session
from tests.gate.ledger.test_server_outages import GATES, Stream, check
from tests.services.pgbouncer import MODES, PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.waiting import wait_until

from headrace.errors import LedgerError
from headrace.gate.ledger.connection import OF_A_QUERY, Timeouts, normalize_url
from headrace.gate.ledger.database import Database
from headrace.gate.ledger.gates import GateStore
from headrace.gate.ledger.ledger import Ledger

pytestmark = pytest.mark.nightly

PREPARED = "SELECT name FROM pg_prepared_statements"
CHECKED_LATER = (
    "CREATE TEMP TABLE pair (a INT UNIQUE DEFERRABLE INITIALLY DEFERRED);"
    " INSERT INTO pair VALUES (1), (2); UPDATE pair SET a = 3 - a"
)
UNPREPARED = {"application_name": "headrace", "prepare_threshold": None}

_numbers = itertools.count()


@pytest.fixture(scope="module", params=MODES)
def pooler(request: pytest.FixtureRequest, postgresql: str) -> Iterator[PgBouncer]:
    with PgBouncer(postgresql, request.param) as started:
        yield started


@pytest.fixture
def name(postgresql: str) -> str:
    """The name of a new database, which has a pool of its own."""
    name = f"pooled_{next(_numbers)}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return name


@contextmanager
def sessions(url: str) -> Iterator[list[object]]:
    """Yield the visible state of all sessions that the pooler lends, each in a transaction."""
    seen: list[object] = []
    with ExitStack() as stack:
        for _ in range(2):
            engine = sqlalchemy.create_engine(normalize_url(url), connect_args=UNPREPARED)
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())
            seen.append([session(connection), connection.exec_driver_sql(PREPARED).all()])
        yield seen


@pytest.fixture
def url(pooler: PgBouncer, name: str) -> str:
    return pooler.url(name)


def test_streams_go_on_over_restarts_of_the_pooler(pooler: PgBouncer, url: str) -> None:
    is_over = threading.Event()
    with ExitStack() as stack:
        ledgers = [stack.enter_context(Ledger.open(url, timeouts=OF_A_QUERY)) for _ in range(2)]
        for gate in GATES:
            ledgers[0].gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
        streams = [Stream(ledgers[number % 2], gate, is_over) for number, gate in enumerate(GATES)]
        pool = stack.enter_context(ThreadPoolExecutor(len(GATES)))
        runs = [pool.submit(stream.run) for stream in streams]

        def went_on(before: list[int]) -> bool:
            """Whether each has done some more, or one has failed."""
            more = [len(s.done) >= done + 10 for s, done in zip(streams, before, strict=True)]
            return all(more) or any(run.done() for run in runs)

        try:
            for end in (pooler.stop, pooler.kill):
                wait_until(partial(went_on, [len(stream.done) for stream in streams]))
                end()
                pooler.start()
            wait_until(partial(went_on, [len(stream.done) for stream in streams]))
        finally:
            is_over.set()
        for gate, stream, run in zip(GATES, streams, runs, strict=True):
            run.result()
            check(ledgers[0], gate, stream.done)


@pytest.mark.parametrize("ends", ["committed", "undone"])
def test_nothing_is_left_on_a_session_of_the_server(url: str, ends: str) -> None:
    with sessions(url) as before:
        pass
    Ledger.open(url).close()
    database = Database(url, read_only=False, timeouts=Timeouts())
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE sink (name TEXT)")
    for statement in (*SERVER_SETTINGS, "PREPARE mine AS SELECT 1", CHECKED_LATER):
        with suppress(ZeroDivisionError), database.lend(lambda _connection: None) as connection:
            connection.exec_driver_sql("INSERT INTO sink VALUES ('tea')")
            connection.exec_driver_sql(statement)
            if ends == "undone":
                raise ZeroDivisionError
        with sessions(url) as after:
            assert after == before, statement
    database.close()


def test_who_is_locked_out_hears_of_it_after_the_ledgers_own_time(url: str) -> None:
    declare = partial(GateStore.declare, interval_ms=1_000, source="kafka", estimator="pid")
    with Ledger.open(url, timeouts=Timeouts(lock_s=0.05)) as ledger, psycopg.connect(url) as other:
        declare(ledger.gates, "orders")
        other.execute("LOCK TABLE gate")
        for work in (
            ledger.gates.all,  # a statement that reads
            partial(declare, ledger.gates, "orders"),  # one that writes
            lambda: ledger.batches.begin(batch_number(0)),  # a transaction
        ):
            with pytest.raises(LedgerError, match="locked by another client's transaction"):
                work()


def test_a_schema_that_the_pooler_does_not_take_from_the_url_is_refused(url: str) -> None:
    with pytest.raises(
        LedgerError, match=r"cannot be used: .* parameter: options; .*ALTER ROLE headrace SET"
    ):
        Ledger.open(f"{url}&options=-csearch_path%3Dheadrace", timeouts=OF_A_QUERY)


def test_a_schema_that_the_pooler_ignores_is_refused(postgresql: str, name: str) -> None:
    with (
        PgBouncer(postgresql, "transaction", "ignore_startup_parameters = options") as pooler,
        pytest.raises(LedgerError, match=r"search_path 'headrace', but a pooler .* ALTER ROLE"),
    ):
        Ledger.open(f"{pooler.url(name)}&options=-csearch_path%3Dheadrace", timeouts=OF_A_QUERY)


def test_a_server_that_is_away_behind_a_new_pooler_is_waited_for(
    own_postgresql: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A pooler that has never reached the server lets no client's login end."""
    with (
        PgBouncer(own_postgresql.url, "transaction") as pooler,
        Ledger.open(f"{pooler.url('postgres')[:-2]}1", timeouts=OF_A_QUERY) as ledger,
        ThreadPoolExecutor(1) as pool,
    ):
        pooler.kill()
        own_postgresql.stop("fast")
        pooler.launch()
        gates = pool.submit(ledger.gates.all)
        wait_until(lambda: "Headrace retries" in caplog.text or gates.done())
        own_postgresql.start()
        assert gates.result() == ()
