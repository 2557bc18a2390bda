"""A PostgreSQL server that goes away as the sink of a gated query, which holds and goes on."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import DEADLINE_S, read
from tests.services.kafka import Topic, TopicFactory
from tests.services.postgresql import PostgresqlServer
from tests.services.waiting import wait_until

from headrace.core.timing import wall_clock_ms
from headrace.gate.control.hold import SinkOutage
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status
from headrace.operate.status.needs import headline
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.states import GateState


class Rows:
    """A sink in a database, a row for each record, in the order in which they came."""

    def __init__(self, server: PostgresqlServer) -> None:
        self.server = server
        with self.connected() as sink:
            sink.execute("CREATE TABLE orders (number serial, place bigint, batch text)")

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        with closing(psycopg.connect(self.server.url, connect_timeout=2)) as connection:
            yield connection
            connection.commit()

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        rows = [(row.offset, batch.key) for row in df.select("offset").orderBy("offset").collect()]
        with self.connected() as sink:
            sink.cursor().executemany("INSERT INTO orders (place, batch) VALUES (%s, %s)", rows)

    @property
    def places(self) -> list[int]:
        with self.connected() as sink:
            return [each[0] for each in sink.execute("SELECT place FROM orders ORDER BY number")]


@contextmanager
def producing(topic: Topic) -> Iterator[list[int]]:
    """Fifty records a second, in the background; how many so far."""
    sent, done = [0], threading.Event()

    def produce() -> None:
        while not done.wait(0.2):
            topic.produce(*[b"an order"] * 10)
            sent[0] += 10

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("away_ms", "longest_wait"),
    [
        (0, "1 second"),
        pytest.param(1_800_000, "1 minute", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ],
)
def test_a_sink_that_is_shut_down_holds_the_stream_over_a_restart_and_nothing_is_split(
    spark: SparkSession,
    topic: TopicFactory,
    tmp_path: Path,
    own_postgresql: PostgresqlServer,
    *,
    away_ms: int,
    longest_wait: str,
) -> None:
    ledger_url = f"sqlite:///{tmp_path / 'headrace.db'}"
    gate = Gate("orders", interval="500 ms", ledger=ledger_url)
    orders = topic()

    def start(sink: Rows) -> StreamingQuery:
        waits = {"outage.retry": "100 ms", "outage.maxRetry": longest_wait}
        df = read(gate, spark, orders, **waits)
        writer = gate.write(df, sink, on_failure="isolate")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def is_waiting() -> GateSnapshot | None:
        status = gate.status()
        return status if status.state is GateState.WAITING else None

    def wait_until_it_waits() -> SinkOutage:
        status = wait_until(is_waiting, DEADLINE_S)
        assert status is not None and status.waiting is not None
        assert headline(status).startswith("Waiting for its sink since ")
        return status.waiting

    with producing(orders) as sent:
        sink = Rows(own_postgresql)
        query = start(sink)
        try:
            wait_until(lambda: len(sink.places) > 50, DEADLINE_S)
            own_postgresql.stop("fast")
            began = wait_until_it_waits()
            assert "OperationalError" in began.error
            wait_until(lambda: wait_until_it_waits().runs > 5, DEADLINE_S)
        finally:
            query.stop()
        query = start(sink)
        try:
            later = wait_until_it_waits()
            assert (later.since_ms, later.batch) == (began.since_ms, began.batch)
            assert later.runs > 5
            wait_until(
                lambda: wall_clock_ms() >= began.since_ms + away_ms, DEADLINE_S + away_ms / 1000
            )
            own_postgresql.start()
            target = sent[0]
            wait_until(lambda: len(sink.places) >= target, DEADLINE_S)
            wait_until(lambda: gate.status().waiting is None, DEADLINE_S)
        finally:
            query.stop()
        places = sink.places
    assert places == list(range(len(places)))
    with Ledger.open(ledger_url) as ledger:
        batches = ledger.batches.newest("orders", 1_000)
    assert {each.progress for each in batches} == {None}
    assert [each.batch_key for each in batches if each.attempts > 1] == [began.batch]
    assert {each.status for each in batches} <= {Status.SUCCESS, Status.IN_PROGRESS} | (
        {batches[0].status} if batches[0].interrupted else set()
    )
