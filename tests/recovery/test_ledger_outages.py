"""A PostgreSQL server that goes away under a gated query: the stream waits, and goes on."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import Handled, read, wait_until_statuses
from tests.recovery.drivers import Driver
from tests.recovery.evidence import collect, require_sound
from tests.recovery.job import Job
from tests.recovery.stories import fill
from tests.services.kafka import Topic, TopicFactory
from tests.services.postgresql import PostgresqlServer
from tests.services.waiting import wait_until

from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

PARTITIONS = 2
RECORDS = 120  # in each partition: four batches or more
WAITS = "Headrace retries for up to"
DEADLINE_S = 100


def a_job(topic: Topic, folder: Path, own_postgresql: PostgresqlServer) -> Job:
    return Job(
        servers=topic.bootstrap_servers,
        topic=topic.name,
        folder=str(folder),
        ledger_url=own_postgresql.url,
    )


@pytest.mark.parametrize("outage", [PostgresqlServer.stopped, PostgresqlServer.read_only])
def test_a_stream_waits_for_its_ledger_at_its_first_start_and_later_and_goes_on(
    topic: TopicFactory,
    tmp_path: Path,
    own_postgresql: PostgresqlServer,
    outage: Callable[[PostgresqlServer], AbstractContextManager[None]],
) -> None:
    orders = topic(PARTITIONS)
    produced = fill(orders, 4 * RECORDS)  # It is not to be done before the server is stopped.
    job = a_job(orders, tmp_path / "job", own_postgresql)
    with Driver(job) as driver:
        with outage(own_postgresql):
            driver.let_go()
            wait_until(lambda: driver.count(WAITS), DEADLINE_S)
        driver.wait_for("written")
        with outage(own_postgresql):
            wait_until(lambda: driver.count(WAITS) > 1, DEADLINE_S)
        driver.finish()
    require_sound(collect(job, produced))


def test_a_query_can_be_stopped_while_its_planner_waits_for_the_ledger(
    spark: SparkSession, topic: TopicFactory, tmp_path: Path, own_postgresql: PostgresqlServer
) -> None:
    orders, handled = topic(), Handled()
    orders.produce(b"x")
    gate = Gate("orders", interval="100 ms", ledger=own_postgresql.url)
    writer = gate.write(read(gate, spark, orders), handled)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    stopping = threading.Thread(target=query.stop, daemon=True)
    try:
        wait_until(lambda: query.lastProgress, DEADLINE_S)
        own_postgresql.stop("fast")
        orders.produce(b"y")
        # Every trigger asks the ledger.
        wait_until(lambda: query.status["message"].startswith("Getting offsets"), DEADLINE_S)
    finally:
        stopping.start()
        stopping.join(DEADLINE_S)
        own_postgresql.start()  # to which the planner tells its last, and ends
    assert not stopping.is_alive()
    assert query.exception() is None
    assert len(handled.batches) == 1


@pytest.mark.soak
def test_a_query_can_be_stopped_while_its_handler_waits_for_the_ledger(
    spark: SparkSession,
    topic: TopicFactory,
    tmp_path: Path,
    own_postgresql: PostgresqlServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    orders, keys = topic(), list[str]()
    orders.produce(b"x")
    gate = Gate("orders", interval="100 ms", ledger=own_postgresql.url)

    def handle(_df: DataFrame, batch: Batch) -> None:
        keys.append(batch.key)
        if len(keys) == 1:
            own_postgresql.stop("fast")

    def start() -> StreamingQuery:
        writer = gate.write(read(gate, spark, orders), handle)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    stopping = threading.Thread(target=query.stop, daemon=True)
    try:
        wait_until(lambda: WAITS in caplog.text, DEADLINE_S)
        stopping.start()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
    finally:
        own_postgresql.start()
    assert "because the query was stopped" in str(query.exception())
    query = start()
    try:
        with Ledger.open(own_postgresql.url) as ledger:
            wait_until_statuses(ledger, gate.name, Status.SUCCESS)
    finally:
        query.stop()
    assert keys == keys[:1] * 2
