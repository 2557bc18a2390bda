"""Handlers' writes in ``batch.transaction()``: the sink's rows and the ledger's word agree.

The sink's table and the batch's row are read with SQL, past the ledger.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy
from pyspark.sql import DataFrame
from sqlalchemy import Connection, Engine, text
from tests.gate.execution.events import planned
from tests.gate.execution.readers import READER
from tests.services.ledgers import new_ledger
from tests.services.postgresql import NewUrl
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.errors import HandlerExitError, LedgerError
from headrace.gate.backfill.monitor import Done
from headrace.gate.backfill.schedule import UnlimitedBudget
from headrace.gate.backfill.scheduler import BackfillScheduler, OwnerSettings
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.gate_state import shared_ledger
from headrace.gate.execution.handler import GatedHandler
from headrace.gate.execution.policy import parse_on_failure, retry
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.ledger import Ledger

DF = cast(DataFrame, None)
HERE = OffsetRange("orders-topic", 0, 0, 8)

pytestmark = pytest.mark.integration  # over both kinds of database

Handler = Callable[[DataFrame, Batch], None]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    new_url: NewUrl = request.getfixturevalue("new_postgresql_url")
    return new_url()


@dataclass
class Scene:
    """A gate with a sink in its ledger's database."""

    url: str
    ledger: Ledger
    engine: Engine
    calls: list[int] = field(default_factory=list)

    def begin(self, offsets: OffsetRange = HERE) -> str:
        return self.ledger.batches.begin(planned("orders", offsets)).batch_key

    def gated(self, handler: Handler, policy: str = "stop") -> GatedHandler:
        def counted(df: DataFrame, batch: Batch) -> None:
            self.calls.append(batch.attempt)
            handler(df, batch)

        named = retry(2, "1 ms") if policy == "retry" else parse_on_failure(policy)
        context = RunContext(
            ledger=shared_ledger(self.url),
            handler=counted,
            policy=named,
            reader=READER,
            sleep=lambda _s: None,
        )
        return GatedHandler("orders", context)

    def run(self, handler: Handler, policy: str = "stop") -> BaseException | None:
        """Run one batch; what reaches Spark."""
        gated = self.gated(handler, policy)
        self.begin()
        try:
            gated(DF, 0)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def start_again(self, handler: Handler) -> None:
        """Run what a query repeats that is started again."""
        gated = self.gated(handler)
        self.begin()
        gated(DF, 0)

    @property
    def sink(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.scalars(text("SELECT name FROM sink ORDER BY name")))

    @property
    def row(self) -> tuple[str, str | None, str | None]:
        """The status of the whole batch, and its error."""
        query = "SELECT status, error_class, error_message FROM batch"
        with self.engine.connect() as connection:
            status, error, message = connection.execute(text(query)).one()
        return status, error, message


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    with open_scene(url) as opened:
        yield opened


@contextmanager
def open_scene(url: str) -> Iterator[Scene]:
    engine = sqlalchemy.create_engine(normalize_url(url))
    with new_ledger(url) as ledger:
        settings = EstimatorSettings().to_text()
        ledger.gates.declare("orders", interval_ms=1_000, source="kafka", estimator=settings)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE sink (name TEXT UNIQUE)"))
        yield Scene(url, ledger, engine)
    engine.dispose()


def put(connection: Connection, name: str = "tea") -> None:
    connection.execute(text("INSERT INTO sink VALUES (:name)"), {"name": name})


def write(_df: DataFrame, batch: Batch) -> None:
    with batch.transaction() as connection:
        put(connection)


def write_and_raise(df: DataFrame, batch: Batch) -> None:
    write(df, batch)
    raise ValueError("the mail server is away")


def write_twice(df: DataFrame, batch: Batch) -> None:
    write(df, batch)
    with batch.transaction() as connection:
        put(connection, "milk")


def write_and_exit(df: DataFrame, batch: Batch) -> None:
    write(df, batch)
    raise SystemExit(3)


def test_the_rows_and_the_success_are_there_together(scene: Scene) -> None:
    assert scene.run(write) is None
    assert scene.sink == ["tea"]
    assert scene.row == ("success", None, None)


@pytest.mark.parametrize("policy", ["stop", "retry", "defer", "isolate"])
@pytest.mark.parametrize("handler", [write_and_raise, write_twice])
def test_what_is_raised_after_the_commit_is_kept_with_the_batch_which_is_not_run_again(
    scene: Scene, caplog: pytest.LogCaptureFixture, handler: Handler, policy: str
) -> None:
    error, words = ("ValueError", "the mail server is away")
    if handler is write_twice:
        error, words = ("headrace.errors.LedgerError", "is used a second time")
    reached_spark = scene.run(handler, policy)
    assert (reached_spark is None) == (policy in ("defer", "isolate"))
    status, kept, message = scene.row
    assert (status, kept) == ("success", error)
    assert words in (message or "")
    assert scene.sink == ["tea"]
    assert "already committed" in caplog.text
    assert "deferred" not in caplog.text
    assert scene.ledger.batches.unresolved() == ()
    scene.start_again(handler)
    assert scene.calls == [1]


def test_what_ends_a_program_after_the_commit_ends_the_query_and_nothing_is_run_again(
    scene: Scene,
) -> None:
    assert isinstance(scene.run(write_and_exit, "defer"), HandlerExitError)
    assert scene.row[:2] == ("success", "headrace.errors.HandlerExitError")
    assert "SystemExit: 3" in (scene.row[2] or "")
    scene.start_again(write_and_exit)
    assert (scene.calls, scene.sink) == ([1], ["tea"])


def leave_open(_df: DataFrame, batch: Batch) -> None:
    put(batch.transaction().__enter__())


OPEN: list[object] = []


def leave_open_and_keep(_df: DataFrame, batch: Batch) -> None:
    lent = batch.transaction()
    OPEN.append(lent)  # so that nothing ends it by forgetting it
    put(lent.__enter__())


def swallow_around(_df: DataFrame, batch: Batch) -> None:
    with suppress(sqlalchemy.exc.IntegrityError), batch.transaction() as connection:
        put(connection)
        put(connection)


def within(end: Callable[[Connection, Batch], object]) -> Handler:
    def handler(_df: DataFrame, batch: Batch) -> None:
        with batch.transaction() as connection:
            put(connection)
            end(connection, batch)
            put(connection, "milk")

    return handler


def swallowed(end: Callable[[Connection, Batch], object]) -> Handler:
    def handler(_df: DataFrame, batch: Batch) -> None:
        with batch.transaction() as connection:
            put(connection)
            try:
                end(connection, batch)
            except LedgerError:
                return

    return handler


def commit(connection: Connection, _batch: Batch) -> None:
    connection.commit()


def end_the_transaction(connection: Connection, _batch: Batch) -> None:
    transaction = connection.get_transaction()
    assert transaction is not None
    transaction.commit()


def leave_an_orphan(connection: Connection, _batch: Batch) -> None:
    """Write a row that the database refuses at the commit."""
    for statement in (
        "CREATE TABLE parent (id INTEGER PRIMARY KEY)",
        "CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO child VALUES (1)",
    ):
        connection.execute(text(statement))


def nest(_connection: Connection, batch: Batch) -> None:
    with batch.transaction() as another:
        put(another, "sugar")


def roll_back_by_the_driver(connection: Connection, _batch: Batch) -> None:
    driver = connection.connection.dbapi_connection
    assert driver is not None
    driver.rollback()


REFUSED: dict[str, tuple[Callable[[Connection, Batch], object], str]] = {
    "commit": (commit, "commit\\(\\) was called inside.*The end of the `with`"),
    "rollback": (lambda c, _: c.rollback(), "rollback\\(\\) or close\\(\\) was called inside"),
    "close": (lambda c, _: c.close(), "rollback\\(\\) or close\\(\\) was called inside"),
    "of the transaction": (end_the_transaction, "commit\\(\\) was called inside"),
}


@pytest.mark.parametrize("policy", ["stop", "defer"])
@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (leave_open, "closed"),
        (leave_open_and_keep, "returned with batch.transaction\\(\\) open"),
        (swallow_around, "was not committed"),
        (within(leave_an_orphan), "(?i)foreign key"),
        (within(nest), "a second time.*begin_nested"),
        (within(roll_back_by_the_driver), "ended inside of .*an executed COMMIT"),
        *(pytest.param(within(end), words, id=name) for name, (end, words) in REFUSED.items()),
        *(
            pytest.param(swallowed(end), words, id=f"{name}, swallowed")
            for name, (end, words) in REFUSED.items()
        ),
    ],
)
def test_what_is_not_committed_is_a_failure_and_leaves_nothing(
    scene: Scene,
    caplog: pytest.LogCaptureFixture,
    handler: Handler,
    words: str,
    policy: str,
) -> None:
    with caplog.at_level(logging.INFO):
        reached_spark = scene.run(handler, policy)
    assert (reached_spark is None) == (policy == "defer")
    status, _, message = scene.row
    assert status == "failed"
    assert re.search(words, message or ""), message
    assert "another process" not in caplog.text + str(message)
    assert scene.sink == []
    # The database is free, and the batch is run again.
    scene.start_again(write)
    assert scene.sink == ["tea"]
    assert scene.row == ("success", None, None)


@pytest.mark.parametrize("statement", [" commit ", "-- the end\n COMMIT", "ROLLBACK"])
def test_a_transaction_that_a_statement_ends_is_found_at_its_end(
    scene: Scene, statement: str
) -> None:
    handler = within(lambda connection, _: connection.exec_driver_sql(statement))
    scene.run(handler, "defer")
    status, _, message = scene.row
    assert status == "failed"
    assert "ended inside of the `with`, for example by an executed COMMIT" in (message or "")


def test_a_commit_that_the_database_refuses_is_named_as_what_it_is(scene: Scene) -> None:
    """The answer to it was not lost, so nobody need be in doubt about it."""
    raised = scene.run(within(leave_an_orphan))
    assert type(raised) is LedgerError
    _, error, message = scene.row
    assert error == "headrace.errors.LedgerError"
    assert re.search("(?i)refused a write.*rolled back.*foreign key", message or "")


def test_savepoints_are_the_handlers_to_use(scene: Scene) -> None:
    def handler(_df: DataFrame, batch: Batch) -> None:
        with batch.transaction() as connection:
            put(connection)
            for name in ("milk", "tea", "sugar"):
                try:
                    with connection.begin_nested():
                        put(connection, name)
                except sqlalchemy.exc.IntegrityError:
                    continue
            connection.begin_nested().rollback()

    assert scene.run(handler) is None
    assert scene.sink == ["milk", "sugar", "tea"]
    assert scene.row == ("success", None, None)


def test_a_statement_that_failed_within_is_named_where_the_database_gives_up(
    scene: Scene,
) -> None:
    def handler(_df: DataFrame, batch: Batch) -> None:
        with batch.transaction() as connection:
            put(connection)
            with suppress(sqlalchemy.exc.IntegrityError):
                put(connection)

    raised = scene.run(handler)
    if scene.ledger.url.startswith("sqlite"):
        assert (raised, scene.sink) == (None, ["tea"])  # it goes on after a statement that failed
    else:
        assert "a statement in it failed" in str(raised)
        assert scene.row[0] == "failed"
        assert scene.sink == []


def put_many(connection: Connection) -> None:
    connection.execute(text("INSERT INTO sink VALUES (:name)"), [{"name": "tea"}, {"name": "milk"}])


def put_in_a_savepoint(connection: Connection) -> None:
    with connection.begin_nested():
        put(connection)


@pytest.mark.parametrize("timeout", ["idle_in_transaction_session_timeout", "transaction_timeout"])
@pytest.mark.parametrize("put_late", [put, put_many, put_in_a_savepoint, lambda _connection: None])
def test_a_transaction_that_the_server_ends_for_its_age_is_no_outage(
    new_postgresql_url: NewUrl, timeout: str, put_late: Callable[[Connection], None]
) -> None:
    def handler(_df: DataFrame, batch: Batch) -> None:
        with batch.transaction() as connection:
            # It takes longer than the server allows.
            connection.exec_driver_sql(f"SET LOCAL {timeout} = '50ms'")
            pid = connection.scalar(text("SELECT pg_backend_pid()"))
            wait_until(lambda: not is_connected(pid))
            put_late(connection)

    def is_connected(pid: int | None) -> bool:
        with scene.engine.connect() as connection:
            found = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
            return bool(connection.scalar(found, {"pid": pid}))

    with open_scene(new_postgresql_url()) as scene:
        assert scene.run(handler) is not None
        assert (scene.calls, scene.sink) == ([1], [])
        status, _, message = scene.row
    assert status == "failed"
    assert message is not None
    assert message.startswith("The transaction was open too long; read and compute before it: ")
    assert "terminating connection due to" in message


def test_on_sqlite_the_ledger_refuses_to_be_written_by_a_thread_that_has_it_locked(
    scene: Scene,
) -> None:
    refused: list[LedgerError] = []

    def handler(_df: DataFrame, batch: Batch) -> None:
        with batch.transaction() as connection:
            put(connection)
            if scene.url.startswith("sqlite"):
                with pytest.raises(LedgerError, match="This thread is already in") as caught:
                    shared.batches.begin(planned("orders", OffsetRange("orders-topic", 0, 8, 9)))
                refused.append(caught.value)

    shared = shared_ledger(scene.url)
    assert scene.run(handler) is None
    assert scene.sink == ["tea"]
    assert len(refused) == scene.url.startswith("sqlite")


def test_a_batch_lends_nothing_once_its_handler_has_returned(scene: Scene) -> None:
    kept: list[Batch] = []
    assert scene.run(lambda _df, batch: kept.append(batch)) is None
    with pytest.raises(LedgerError, match="has returned"), kept[0].transaction() as connection:
        put(connection)
    assert scene.sink == []


@pytest.mark.parametrize(
    ("handler", "status", "error"),
    [
        (write, "success", None),
        (write_and_raise, "success", "ValueError"),
        (leave_open_and_keep, "failed", "headrace.errors.LedgerError"),
        (within(commit), "failed", "headrace.errors.LedgerError"),
    ],
)
def test_a_backfill_says_what_happened_too(
    scene: Scene, handler: Handler, status: str, error: str | None
) -> None:
    key = scene.begin()
    scene.ledger.batches.fail(key, ValueError("it was down"))
    executor = scene.gated(handler, "defer").runner("a backfill")
    scheduler = BackfillScheduler(
        scene.ledger,
        executor.run,
        READER,
        OwnerSettings("a backfill"),
        limits=executor.limits,
        budget=UnlimitedBudget(),
        clock=lambda: 0,
    )
    ended = scheduler.run_batch(key)
    assert isinstance(ended, Done) == (status == "success")
    assert scene.row[:2] == (status, error)
    assert scene.sink == (["tea"] if status == "success" else [])


def test_each_part_of_an_isolated_batch_is_lent_a_transaction_of_its_own(scene: Scene) -> None:
    """Record 3 cannot be written; after the others something is raised that is too late."""

    def handler(_df: DataFrame, batch: Batch) -> None:
        offsets = [offset for r in batch.ranges for offset in range(r.start, r.until)]
        with batch.transaction() as connection:
            for offset in offsets:
                put(connection, str(offset))
            if 3 in offsets:
                raise ValueError("this cannot be written")
        raise ValueError("too late")

    assert scene.run(handler, "isolate") is None
    assert scene.sink == [str(offset) for offset in range(8) if offset != 3]
    assert scene.row[0] == "success"
    (letter,) = scene.ledger.dead_letters.oldest()
    assert letter.letter.offset == 3


def test_what_is_rejected_is_there_with_the_rows_of_the_transaction_or_neither_is(
    scene: Scene,
) -> None:
    def reject(_df: DataFrame, batch: Batch) -> None:
        batch.reject([("orders-topic", 0, 3)], "no")
        with batch.transaction() as connection:
            put(connection)
            if len(scene.calls) == 1:
                raise ValueError("the sink is full")

    assert isinstance(scene.run(reject), ValueError)
    assert (scene.sink, scene.ledger.dead_letters.oldest()) == ([], ())
    scene.start_again(reject)
    (letter,) = scene.ledger.dead_letters.oldest()
    assert (letter.letter.offset, letter.letter.value) == (3, b"an order")
    assert (scene.sink, scene.row[0]) == (["tea"], "success")


def test_what_is_rejected_without_a_transaction_is_there_with_the_success(scene: Scene) -> None:
    assert scene.run(lambda _df, batch: batch.reject([("orders-topic", 0, 3)], "no")) is None
    (letter,) = scene.ledger.dead_letters.oldest()
    assert (letter.letter.offset, scene.row[0]) == (3, "success")
