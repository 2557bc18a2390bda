"""Rows that a handler gives a sink that is not the ledger's database, on real databases.

The sink is read past the code that wrote it.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError
from tests.services.postgresql import NewUrl, url_as_new_role
from tests.services.waiting import wait_until

from headrace.errors import BatchSplitError, OptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.policy import Last
from headrace.gate.ledger.connection import normalize_url
from headrace.gate.ledger.transitions import Status
from headrace.testing import MemoryLog, StreamHarness


def batch(key: str) -> Batch:
    return Batch(key, None, (), 1, "live", 1)


TEN, FIFTY = batch("the tenth"), batch("the fiftieth")

pytestmark = pytest.mark.integration  # over both kinds of database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/sink.db"
    new_url: NewUrl = request.getfixturevalue("new_postgresql_url")
    return normalize_url(new_url())


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (value TEXT)"))
    yield engine
    engine.dispose()


def insert(connection: Connection, value: str) -> None:
    connection.execute(text("INSERT INTO orders VALUES (:value)"), {"value": value})


def write(engine: Engine, batch: Batch, name: str = "") -> bool:
    """As a handler does."""
    with engine.begin() as connection:
        if is_new := batch.once(connection, name):
            insert(connection, batch.key)
    return is_new


def orders(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(text("SELECT value FROM orders")).scalars())


def test_each_batch_is_written_once_in_whatever_order_they_come(engine: Engine) -> None:
    assert [write(engine, each) for each in (FIFTY, TEN, FIFTY, TEN)] == [True, True, False, False]
    assert orders(engine) == [FIFTY.key, TEN.key]


def test_a_key_is_undone_with_the_rows(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError), engine.begin() as connection:
        assert TEN.once(connection)
        insert(connection, TEN.key)
        raise ZeroDivisionError
    assert orders(engine) == []
    assert write(engine, TEN)
    assert orders(engine) == [TEN.key]


def test_a_key_is_not_there_before_the_commit(engine: Engine, url: str) -> None:
    write(engine, FIFTY)  # the table is there
    other = sqlalchemy.create_engine(url)
    with engine.connect() as connection:
        assert TEN.once(connection)
        insert(connection, TEN.key)
        with other.connect() as reader:
            found = reader.execute(text("SELECT batch_key FROM headrace_batches")).scalars().all()
        assert found == [FIFTY.key]
        # The connection goes without a commit, as a killed process's does.
        connection.invalidate()
    other.dispose()
    assert write(engine, TEN)


def test_several_writes_of_one_handler_have_names(engine: Engine) -> None:
    assert write(engine, TEN, "orders")
    assert write(engine, TEN, "returns")
    assert not write(engine, TEN, "orders")
    assert not write(engine, TEN, "returns")
    assert len(orders(engine)) == 2


def test_runs_at_the_same_time_write_each_batch_once(url: str, engine: Engine) -> None:
    """Eight runs of each of four batches, none of which finds the table."""
    engines = [sqlalchemy.create_engine(url) for _ in range(8)]
    together = threading.Barrier(len(engines))

    def run_all(own: Engine) -> int:
        together.wait()
        return sum(write(own, batch(f"batch {number}")) for number in range(4))

    with ThreadPoolExecutor(len(engines)) as pool:
        written = sum(pool.map(run_all, engines))
    for each in engines:
        each.dispose()
    assert written == 4
    assert orders(engine) == [f"batch {number}" for number in range(4)]


def test_another_run_waits_for_the_one_that_has_the_key(url: str, engine: Engine) -> None:
    """And writes if that is undone."""
    write(engine, FIFTY)
    other = sqlalchemy.create_engine(url)
    begun = threading.Event()

    def wait_and_write() -> bool:
        begun.set()
        return write(other, TEN)

    with ThreadPoolExecutor(1) as pool, engine.connect() as connection:
        assert TEN.once(connection)
        insert(connection, TEN.key)
        waiting = pool.submit(wait_and_write)
        begun.wait()
        if engine.dialect.name == "postgresql":
            wait_until(lambda: is_waited_for(connection))
        assert not waiting.done()
        connection.rollback()
        assert waiting.result()
    other.dispose()
    assert orders(engine) == [FIFTY.key, TEN.key]


def is_waited_for(connection: Connection) -> bool:
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return bool(connection.execute(waits).scalar_one())


def test_a_connection_without_transactions_is_refused_before_anything_is_written(
    engine: Engine,
) -> None:
    own = engine.execution_options(isolation_level="AUTOCOMMIT")
    with own.connect() as connection, pytest.raises(OptionError, match="AUTOCOMMIT"):
        TEN.once(connection)
    assert write(engine, TEN)


def test_an_engine_that_begins_sqlites_transactions_itself_is_taken(tmp_path: Path) -> None:
    """As SQLAlchemy's documentation has it, for savepoints."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/own.db")
    sqlalchemy.event.listen(engine, "connect", lambda c, _: setattr(c, "isolation_level", None))
    sqlalchemy.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (value TEXT)"))
    assert [write(engine, TEN), write(engine, TEN)] == [True, False]
    assert orders(engine) == [TEN.key]
    engine.dispose()


def test_a_role_that_may_only_insert_needs_no_right_to_make_tables(
    new_postgresql_url: NewUrl, postgresql: str
) -> None:
    url = new_postgresql_url()
    owner = sqlalchemy.create_engine(normalize_url(url))
    with owner.begin() as connection:
        connection.execute(text("CREATE TABLE orders (value TEXT)"))
    write(owner, FIFTY)
    role = url_as_new_role(url, postgresql, "INSERT", "SELECT")
    writer = sqlalchemy.create_engine(normalize_url(role))
    assert [write(writer, TEN), write(writer, TEN)] == [True, False]
    assert orders(owner) == [FIFTY.key, TEN.key]
    for each in (owner, writer):
        each.dispose()


def test_a_database_of_another_kind_refuses_the_second_key_itself(
    new_postgresql_url: NewUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what SQL everywhere has: a primary key, and a savepoint around the refusal."""
    engine = sqlalchemy.create_engine(normalize_url(new_postgresql_url()))
    with engine.begin() as begun:
        begun.execute(text("CREATE TABLE orders (value TEXT)"))
    monkeypatch.setattr(engine.dialect, "name", "another")
    assert [write(engine, each) for each in (FIFTY, TEN, FIFTY, TEN)] == [True, True, False, False]
    with engine.begin() as begun:
        assert not TEN.once(begun)
        insert(begun, "after the refusal")  # the transaction goes on
    assert orders(engine) == ["after the refusal", FIFTY.key, TEN.key]
    engine.dispose()


def test_a_strict_transaction_that_was_too_late_fails_and_is_run_again(
    new_postgresql_url: NewUrl,
) -> None:
    url = normalize_url(new_postgresql_url())
    engine = sqlalchemy.create_engine(url, isolation_level="SERIALIZABLE")
    with engine.begin() as begun:
        begun.execute(text("CREATE TABLE orders (value TEXT)"))
    write(engine, FIFTY)
    with engine.connect() as late:
        late.execute(text("SELECT 1 FROM orders"))  # what it sees is decided now
        assert write(engine, TEN)
        with pytest.raises(OperationalError, match="could not serialize"):
            TEN.once(late)
    assert not write(engine, TEN)
    assert orders(engine) == [FIFTY.key, TEN.key]
    engine.dispose()


@pytest.mark.parametrize("policy", ["isolate", "defer"])
def test_a_batch_that_failed_although_it_was_committed_is_not_written_again_by_its_children(
    engine: Engine, policy: Last
) -> None:
    """As when the answer to a commit is lost. It is a bad batch besides, and so split as well."""
    log = MemoryLog("1", "2", "bad", "4")
    commits_lost = [True]

    def handler(df: Any, batch: Batch) -> None:
        with engine.begin() as connection:
            if not batch.once(connection):
                return
            for row in df.collect():
                insert(connection, bytes(row.value).decode())
        if commits_lost.pop() if commits_lost else False:
            raise ConnectionError("the server has gone away")

    with StreamHarness(handler, log, on_failure=policy) as stream:
        stream.run()
        stream.backfill()
        assert set(stream.statuses().values()) == {Status.SUCCESS}
    assert orders(engine) == ["1", "2", "4", "bad"]


def test_a_child_is_written_if_no_batch_that_it_was_split_off_is(engine: Engine) -> None:
    good = [f"{number:02}" for number in range(1, 40)]
    log = MemoryLog(*good[:2], "bad", *good[2:])

    def handler(df: Any, batch: Batch) -> None:
        with engine.begin() as connection:
            if batch.once(connection):
                for value in (bytes(row.value).decode() for row in df.collect()):
                    insert(connection, value)
                    if value == "bad":
                        raise ValueError(value)

    with StreamHarness(handler, log, on_failure="isolate") as stream:
        stream.run()
        assert len(stream.ledger.dead_letters.oldest("tested", limit=9)) == 1
    assert sorted(orders(engine)) == good


WHOLE = batch("whole")
HALVES = [Batch(f"half {n}", None, (), 1, "live", 1, parent_keys=("whole",)) for n in (1, 2)]
QUARTER = Batch("quarter", None, (), 1, "live", 1, parent_keys=("half 1", "whole"))


def test_a_batch_is_not_written_once_a_part_of_it_is(engine: Engine) -> None:
    """By a process that was frozen while another took the batch over and split it."""
    assert write(engine, QUARTER)
    for late in (WHOLE, HALVES[0]):
        with pytest.raises(BatchSplitError, match=f"parts of batch '{late.key}', so the batch"):
            write(engine, late)
    assert write(engine, HALVES[1])
    assert not write(engine, QUARTER)
    assert write(engine, WHOLE, "returns"), "that is another write"
    assert orders(engine) == ["half 2", "quarter", "whole"]


def test_nothing_is_written_as_a_whole_and_in_parts_whoever_is_faster(
    url: str, engine: Engine
) -> None:
    """Two processes at the same moment, one of which has split the batch."""
    for turn in range(30):
        whole = batch(f"whole {turn}")
        parts = [
            Batch(
                f"part {turn}.{n}", None, (), 1, "live", 1, parent_keys=(f"half {turn}", whole.key)
            )
            for n in range(3)
        ]
        other = sqlalchemy.create_engine(url)
        together = threading.Barrier(2)

        def write_whole(whole: Batch = whole, together: threading.Barrier = together) -> bool:
            together.wait()
            try:
                return write(engine, whole)
            except BatchSplitError:
                return False

        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(write_whole)
            together.wait()
            in_parts = [write(other, part) for part in parts]
            assert in_parts == [not late.result()] * 3
        other.dispose()
    assert len(orders(engine)) == len(set(orders(engine)))


def test_each_batch_is_an_application_of_deltas_with_one_version() -> None:
    assert TEN.delta_options() == {"txnAppId": "headrace-the tenth", "txnVersion": "1"}
    assert TEN.delta_options("returns")["txnAppId"] == "headrace-the tenth-returns"
    assert FIFTY.delta_options()["txnAppId"] != TEN.delta_options()["txnAppId"]
