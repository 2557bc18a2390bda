"""A real PostgreSQL server that goes and comes back while a ledger is in use."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from tests.gate.ledger.samples import a_sample, batch_number, everything_of
from tests.services.ledgers import patient, report_sample
from tests.services.postgresql import CUT, NewUrl, PostgresqlServer
from tests.services.waiting import wait_until

from headrace.errors import LedgerError
from headrace.gate.ledger.connection import OF_A_QUERY, normalize_url
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.outages import is_outage
from headrace.gate.ledger.transitions import Status
from headrace.testing import ManualClock

GATES = ("a", "b", "c", "d")
LEASE_MS = 60_000
ERROR = ErrorReport("ValueError", "no", "")
WAITS = "Headrace retries for up to"

WAYS_TO_GO: dict[str, Callable[[PostgresqlServer], None]] = {
    "stopped": lambda server: server.stop("fast"),
    "crashed": lambda server: server.stop("immediate"),
    "killed": PostgresqlServer.kill,
}


class Stream:
    """Runs one batch of its gate after the other, of which each second one fails at first."""

    def __init__(self, ledger: Ledger, gate: str, is_over: threading.Event) -> None:
        self._ledger = ledger
        self._gate = gate
        self._is_over = is_over
        self.done: list[str] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            self._run_one(len(self.done))

    def _run_one(self, number: int) -> None:
        ledger, me = self._ledger, self._gate
        batch = ledger.batches.begin(batch_number(number, self._gate))
        key = batch.batch_key
        # Nobody else has anything to do with these batches: every answer is known.
        assert (batch.status, batch.attempts) == (Status.IN_PROGRESS, 1)
        assert ledger.batches.attach(key, number, owner=me, lease_ms=LEASE_MS)
        assert ledger.gates.last_begun(self._gate) == (number + 1, ledger.batches.get(key))
        if number % 2:
            assert ledger.batches.fail(key, ERROR, owner=me)
            assert ledger.batches.claim(key, me, LEASE_MS) is not None
            assert ledger.batches.backfilled(key, me)
        else:
            assert ledger.batches.succeed(key, owner=me)
        report_sample(ledger, a_sample(number, gate=self._gate, batch_key=key))
        self.done.append(key)


def check(ledger: Ledger, gate: str, done: list[str]) -> None:
    batches = ledger.batches.newest(gate, limit=len(done) + 1)[::-1]
    assert [batch.batch_key for batch in batches] == done
    assert {(batch.status, batch.attempts) for batch in batches} == {(Status.SUCCESS, 1)}
    for number, key in enumerate(done):
        assert ledger.batches.ranges(key) == batch_number(number, gate).ranges
    samples = ledger.rates.history(gate, limit=len(done) + 1)[::-1]
    # A crash may lose the samples of the moment before it: they are committed without a sync.
    learnt = {sample.batch_key for sample in samples}
    assert [sample.batch_key for sample in samples] == [key for key in done if key in learnt]
    begun = ledger.gates.last_begun(gate)
    assert begun == (len(done), batches[-1])


Outage = Callable[[PostgresqlServer], AbstractContextManager[object]]


def gone(go: Callable[[PostgresqlServer], None]) -> Outage:
    @contextmanager
    def outage(server: PostgresqlServer) -> Iterator[None]:
        go(server)
        yield
        server.start()

    return outage


def altered(setting: str) -> Outage:
    return lambda server: server.with_default(setting)


def failing(state: str) -> Outage:
    """Have every insert of a batch fail as on a disk without room, which takes rights to make."""

    @contextmanager
    def outage(server: PostgresqlServer) -> Iterator[None]:
        server.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '{state}'; END $$",
            "CREATE TRIGGER fails BEFORE INSERT ON batch EXECUTE FUNCTION fail()",
        )
        yield
        server.execute("DROP FUNCTION fail CASCADE")

    return outage


@contextmanager
def without_connections(server: PostgresqlServer) -> Iterator[None]:
    """Use all that the server allows, and cut those of the ledger."""
    with ExitStack() as taken:
        admin = taken.enter_context(psycopg.connect(server.url, autocommit=True))
        while True:
            admin.execute(CUT.encode())
            try:
                taken.enter_context(psycopg.connect(server.url))
            except psycopg.OperationalError:
                # Those of the ledger may have been faster.
                if admin.execute(CUT.encode()).rowcount == 0:
                    break
        yield


@contextmanager
def locked(server: PostgresqlServer) -> Iterator[None]:
    """Lock the rows of the gates, and have statements end after a second."""
    with server.with_default("statement_timeout = '1s'"), psycopg.connect(server.url) as other:
        other.execute("SELECT FROM gate FOR UPDATE")
        yield


@contextmanager
def cut_again_and_again(server: PostgresqlServer) -> Iterator[None]:
    is_over = threading.Event()

    def cut() -> None:
        with psycopg.connect(server.url, autocommit=True) as admin:
            while not is_over.wait(0.02):
                admin.execute(CUT.replace(", 60000", "").encode())

    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(cut)
        try:
            yield
        finally:
            is_over.set()
        cutting.result()


OUTAGES: dict[str, tuple[Outage, str]] = {
    **{name: (gone(go), "") for name, go in WAYS_TO_GO.items()},
    "read-only": (PostgresqlServer.read_only, "ReadOnlySqlTransaction"),
    "too many connections": (without_connections, "too many clients"),
    "disk full": (failing("53100"), "DiskFull"),
    "out of memory": (failing("53200"), "OutOfMemory"),
    "input or output fails": (failing("58030"), "IoError"),
    "statement timeout": (locked, "QueryCanceled"),
    "cut again and again": (cut_again_and_again, ""),
}
"""Each with what the driver says in it."""

UNSEEN: dict[str, Outage] = {
    "stopped by a signal": PostgresqlServer.frozen,
    "serializable": altered("default_transaction_isolation = serializable"),
    "repeatable read": altered("default_transaction_isolation = 'repeatable read'"),
}
"""In which no statement fails."""


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """Errors of all databases, as the driver raises them."""
    seen: list[str] = []

    def add(context: sqlalchemy.ExceptionContext) -> None:
        seen.append(repr(context.original_exception))

    sqlalchemy.event.listen(sqlalchemy.Engine, "handle_error", add)
    yield seen
    sqlalchemy.event.remove(sqlalchemy.Engine, "handle_error", add)


@pytest.mark.parametrize("name", [*OUTAGES, *UNSEEN])
def test_what_was_answered_as_done_in_outages_was_done_once(
    own_postgresql: PostgresqlServer, name: str, errors: list[str]
) -> None:
    is_over = threading.Event()
    outage, error = OUTAGES[name] if name in OUTAGES else (UNSEEN[name], None)
    with (
        Ledger.open(own_postgresql.url, timeouts=OF_A_QUERY) as ledger,
        ThreadPoolExecutor(len(GATES)) as pool,
    ):
        for gate in GATES:
            ledger.gates.declare(gate, interval_ms=1_000, source="kafka", estimator="pid")
        streams = [Stream(ledger, gate, is_over) for gate in GATES]
        runs = [pool.submit(stream.run) for stream in streams]

        def went_on(before: list[int]) -> bool:
            """Whether each has done some more, or one has failed."""
            more = [len(s.done) >= done + 10 for s, done in zip(streams, before, strict=True)]
            return all(more) or any(run.done() for run in runs)

        def failed() -> bool:
            text = "".join(errors)
            return (bool(text) and str(error) in text) or any(run.done() for run in runs)

        def wait_until_they_went_on() -> None:
            wait_until(partial(went_on, [len(stream.done) for stream in streams]))

        try:
            wait_until_they_went_on()
            with outage(own_postgresql):
                if error is not None:
                    wait_until(failed)
                elif name != "stopped by a signal":
                    wait_until_they_went_on()
            wait_until_they_went_on()
        finally:
            is_over.set()
        for gate, stream, run in zip(GATES, streams, runs, strict=True):
            run.result()
            check(ledger, gate, stream.done)
    assert "SerializationFailure" not in "".join(errors)


@pytest.mark.parametrize("name", ["stopped", "read-only", "too many connections"])
def test_a_first_start_waits(
    own_postgresql: PostgresqlServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def start() -> int:
        with Ledger.open(own_postgresql.url, timeouts=OF_A_QUERY) as ledger:
            ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator="pid")
            return ledger.batches.begin(batch_number(0)).attempts

    with ThreadPoolExecutor(1) as pool:
        with OUTAGES[name][0](own_postgresql):
            started: Future[int] = pool.submit(start)
            wait_until(lambda: WAITS in caplog.text or started.done())
        assert started.result() == 1


def test_a_connection_on_which_the_driver_lost_count_of_the_answers_is_replaced(
    new_postgresql_url: NewUrl, monkeypatch: pytest.MonkeyPatch, time: ManualClock
) -> None:
    execute: Callable[..., None] = PGDialect_psycopg.do_execute
    lost: list[object] = []

    def lose_count(dialect: PGDialect_psycopg, cursor: psycopg.Cursor, *others: Any) -> None:
        if not lost:
            lost.append(cursor)
            raise IndexError("pop from an empty deque")  # psycopg's, out of its pipeline
        execute(dialect, cursor, *others)

    with Ledger.open(new_postgresql_url(), timeouts=patient(time)) as ledger:
        monkeypatch.setattr(PGDialect_psycopg, "do_execute", lose_count)
        assert ledger.gates.all() == ()
    assert len(lost) == 1
    assert time.monotonic() > 0


def test_a_server_that_refuses_a_password_is_raised_at_once(
    own_postgresql: PostgresqlServer, time: ManualClock
) -> None:
    with psycopg.connect(own_postgresql.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE app LOGIN SUPERUSER PASSWORD 'hunter2'")
        own_postgresql.ask_for_the_password_of("app")
        url = own_postgresql.url.replace("postgres:@", "app:hunter2@")
        with Ledger.open(url, timeouts=OF_A_QUERY) as ledger:
            assert ledger.gates.all() == ()
            connection.execute("ALTER ROLE app PASSWORD 'hunter3'")
            connection.execute(CUT)
            with pytest.raises(LedgerError, match="password authentication failed") as caught:
                ledger.gates.all()
    assert time.monotonic() == 0
    assert "hunter2" not in everything_of(caught.value)


def test_a_server_that_may_not_write_yet_is_waited_for(own_postgresql: PostgresqlServer) -> None:
    url = sqlalchemy.make_url(normalize_url(own_postgresql.url))
    # The other way round, for this server is no standby.
    engine = sqlalchemy.create_engine(url.update_query_dict({"target_session_attrs": "read-only"}))
    with pytest.raises(sqlalchemy.exc.OperationalError, match="session is not read-only") as caught:
        engine.connect()
    assert is_outage(caught.value)
    engine.dispose()


def test_a_server_that_came_back_while_it_was_asked_has_not_refused(
    own_postgresql: PostgresqlServer,
) -> None:
    engine = sqlalchemy.create_engine(normalize_url(own_postgresql.url))
    own_postgresql.stop("fast")
    with pytest.raises(sqlalchemy.exc.OperationalError) as caught:
        engine.connect()
    assert is_outage(caught.value)
    own_postgresql.start()
    assert is_outage(caught.value)
    engine.dispose()
