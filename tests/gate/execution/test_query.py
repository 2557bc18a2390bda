"""Gated queries on a real broker and a real Spark."""

import threading
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import (
    DataFrame,
    Row,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.listener import QueryTerminatedEvent
from tests.gate.execution.queries import (
    DEADLINE_S,
    Handled,
    everything_in,
    finish,
    read,
    statuses,
    wait_until_reported,
    wait_until_statuses,
    write,
)
from tests.services.kafka import TopicFactory

import headrace
from headrace.core.ranges import OffsetRange
from headrace.gate.control.rate_law import Reason
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.listener import GateListener
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

INITIAL = 200  # records: backpressure.pid.minRate, 100 records/s, for an interval of 2 s


@pytest.fixture
def gate(ledger_url: str) -> Gate:
    """With an interval that leaves batches on a slow machine time to spare."""
    return Gate("orders", interval="2 seconds", ledger=ledger_url)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_a_backlog_is_taken_up_gently_and_then_as_fast_as_the_job_can(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, checkpoint: Path
) -> None:
    orders, handled = topic(), Handled()
    orders.produce(*[b"x"] * 5_000)
    finish(write(gate, read(gate, spark, orders), handled, checkpoint))
    wait_until_reported(ledger, "orders")
    batches = list(reversed(ledger.batches.newest("orders")))
    assert (batches[0].planned_records, batches[0].reason) == (INITIAL, Reason.INITIAL_RATE)
    assert batches[1].planned_records <= 8 * INITIAL
    assert [batch.lag for batch in batches[:2]] == [5_000, 5_000 - INITIAL]
    assert max(batch.planned_records for batch in batches) > INITIAL
    assert batches[-1].reason == Reason.EVERYTHING
    for batch in batches:
        assert batch.records == batch.planned_records
        assert batch.reason != Reason.RATE or batch.planned_records == 2 * (batch.rate_per_s or 0)
    assert set(statuses(ledger, "orders")) == {Status.SUCCESS}
    assert handled.records == everything_in((orders, 5_000))


def test_a_small_batch_is_read_by_as_many_tasks_as_the_session_runs_at_once(
    spark: SparkSession, topic: TopicFactory, gate: Gate, checkpoint: Path
) -> None:
    orders, tasks = topic(4), []
    for partition in range(4):
        orders.produce(*[b"x"] * 10, partition=partition)

    def count_tasks(df: DataFrame, _batch: Batch) -> None:
        tasks.append(df.rdd.getNumPartitions())

    finish(write(gate, read(gate, spark, orders), count_tasks, checkpoint))
    assert tasks == [spark.sparkContext.defaultParallelism] == [2]


def test_functions_that_run_in_tasks_can_use_the_batch(
    spark: SparkSession, topic: TopicFactory, gate: Gate, checkpoint: Path
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 10)
    sequences: list[int] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        number = F.udf(lambda _offset: batch.sequence, "long")
        sequences.extend(row[0] for row in df.select(number("offset")).collect())

        def send(_rows: Iterable[Row]) -> None:
            assert batch.key
            assert batch.ranges

        df.foreachPartition(send)

    finish(write(gate, read(gate, spark, orders), handler, checkpoint))
    assert sequences == [1] * 10


def test_a_handler_that_raises_stops_the_query_and_its_batch_comes_first_at_the_restart(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, checkpoint: Path
) -> None:
    orders, failing = topic(), Handled(fails=lambda batch: batch.id == 1)
    orders.produce(*[b"x"] * 500)
    source = read(gate, spark, orders, maxOffsetsPerTrigger=INITIAL)
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        finish(write(gate, source, failing, checkpoint))
    assert statuses(ledger, "orders") == [Status.SUCCESS, Status.FAILED]
    (failed,) = ledger.batches.newest("orders", 1)
    assert failed.error is not None
    assert failed.error.message == "the sink is full"

    handled = Handled()
    finish(write(gate, source, handled, checkpoint))
    assert handled.batches[0] == Batch(
        failed.batch_key, 1, (OffsetRange(orders.name, 0, INITIAL, 2 * INITIAL),), 2, "live", 3
    )
    assert failing.batches[1].key == handled.batches[0].key
    assert failing.records + handled.records == everything_in((orders, 500))
    assert set(statuses(ledger, "orders")) == {Status.SUCCESS}


def test_an_end_that_is_reported_late_leaves_alone_what_the_next_run_has_taken(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, checkpoint: Path
) -> None:
    taken, told = threading.Event(), threading.Event()
    tell = GateListener.onQueryTerminated

    def tell_late(listener: GateListener, event: QueryTerminatedEvent) -> None:
        taken.wait(DEADLINE_S)
        tell(listener, event)
        told.set()

    def fails(batch: Batch) -> bool:
        taken.set()
        return not told.wait(DEADLINE_S)

    orders, failing, handled = topic(), Handled(lambda batch: batch.id == 1), Handled(fails)
    orders.produce(*[b"x"] * 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GateListener, "onQueryTerminated", tell_late)
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            finish(write(gate, read(gate, spark, orders), failing, checkpoint))
        finish(write(gate, read(gate, spark, orders), handled, checkpoint))
    assert failing.records + handled.records == everything_in((orders, 500))
    assert set(statuses(ledger, "orders")) == {Status.SUCCESS}


def test_a_query_that_begins_at_the_end_is_handed_an_empty_batch_first(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, checkpoint: Path
) -> None:
    orders, handled = topic(), Handled()
    orders.produce(b"before")
    df = read(gate, spark, orders, startingOffsets="latest")
    finish(write(gate, df, handled, checkpoint))
    orders.produce(b"after")
    finish(write(gate, df, handled, checkpoint))
    assert [batch.ranges for batch in handled.batches] == [
        (),
        (OffsetRange(orders.name, 0, 1, 2),),
    ]
    assert len(ledger.batches.newest("orders")) == 1


@pytest.mark.parametrize("sink", ["memory", "parquet"])
def test_any_other_sinks_batches_are_resolved_and_teach_the_rate(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, sink: str
) -> None:
    orders = topic()
    orders.produce(*[b"x"] * 500)
    with TemporaryDirectory() as folder:
        writer = read(gate, spark, orders).writeStream.format(sink).queryName("settled")
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        writer = writer.trigger(availableNow=True)
        finish(writer.start(None if sink == "memory" else f"{folder}/out"))
    wait_until_reported(ledger, "orders")
    assert set(statuses(ledger, "orders")) == {Status.SUCCESS}
    batches = list(reversed(ledger.batches.newest("orders")))
    assert [batch.query_batch_id for batch in batches] == list(range(len(batches)))
    assert sum(batch.records or 0 for batch in batches) == 500
    assert ledger.rates.current("orders") is not None


def test_a_sink_that_fails_leaves_its_batch_failed_with_the_reason(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, checkpoint: Path
) -> None:
    orders = topic()
    orders.produce(*[b"1"] * INITIAL, b"poison")
    number = F.raise_error("poisoned").cast("int")
    df = read(gate, spark, orders).select(
        F.when(F.expr("value = 'poison'"), number).otherwise(F.lit(1)).alias("number")
    )
    writer = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException, match="poisoned"):
        finish(writer.trigger(availableNow=True).start())
    wait_until_statuses(ledger, "orders", Status.SUCCESS, Status.FAILED)
    (failed,) = ledger.batches.newest("orders", 1)
    assert failed.error is not None
    assert "poisoned" in failed.error.message


def test_a_gate_by_options_alone_learns_with_the_ledger_of_the_session(
    spark: SparkSession, topic: TopicFactory, ledger: Ledger, ledger_url: str, checkpoint: Path
) -> None:
    with chdir(checkpoint.parent):  # the ledger is found again from any other folder
        headrace.register(spark, ledger="sqlite:///headrace.db")
    orders = topic()
    orders.produce(*[b"x"] * 500)
    df = (
        spark.readStream.format("headrace-kafka")
        .option("kafka.bootstrap.servers", orders.bootstrap_servers)
        .option("subscribe", orders.name)
        .option("startingOffsets", "earliest")
        .option("headrace.gate", "by-options")
        .option("headrace.ledger", ledger_url)
        .load()
    )
    writer = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    finish(writer.trigger(availableNow=True).start())
    wait_until_reported(ledger, "by-options")
    assert set(statuses(ledger, "by-options")) == {Status.SUCCESS}
    assert ledger.rates.current("by-options") is not None


def test_two_gates_in_one_query_both_learn_and_both_have_their_batches_resolved(
    spark: SparkSession, topic: TopicFactory, ledger: Ledger, ledger_url: str, checkpoint: Path
) -> None:
    orders, payments = topic(), topic()
    orders.produce(*[b"x"] * 500)
    payments.produce(*[b"x"] * 450)
    of_orders = Gate("orders", interval="2 seconds", ledger=ledger_url)
    of_payments = Gate("payments", interval="2 seconds", ledger=ledger_url)

    def both() -> DataFrame:
        return read(of_orders, spark, orders).union(read(of_payments, spark, payments))

    failing = Handled(fails=lambda batch: batch.id == 1)
    with pytest.raises(StreamingQueryException):
        finish(write(of_orders, both(), failing, checkpoint))
    for name in ("orders", "payments"):
        wait_until_statuses(ledger, name, Status.SUCCESS, Status.FAILED)

    handled = Handled()
    finish(write(of_orders, both(), handled, checkpoint))
    read_in_all = failing.records + handled.records
    assert sorted(read_in_all) == sorted(everything_in((orders, 500), (payments, 450)))
    for name in ("orders", "payments"):
        wait_until_reported(ledger, name)
        assert set(statuses(ledger, name)) == {Status.SUCCESS}
        assert ledger.rates.current(name) is not None
    assert [batch.topic for batch in failing.batches[0].ranges] == [orders.name]

    payments.produce(*[b"x"] * 10)  # a batch in which the writing gate has nothing
    handled = Handled()
    finish(write(of_orders, both(), handled, checkpoint))
    assert [batch.ranges for batch in handled.batches] == [()]
    assert handled.records == [(payments.name, 0, offset) for offset in range(450, 460)]
    wait_until_reported(ledger, "payments")
    assert set(statuses(ledger, "payments")) == {Status.SUCCESS}
