"""Records that go between a batch's plan and its read, told from the outside: each record that was
sent is given to the handler, or has a row that says why it was not."""

import json
import logging
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.gate.execution.queries import finish, read
from tests.journal.journals import fill
from tests.journal.samples import damage
from tests.services.changes import create_again, delete_records
from tests.services.kafka import Topic, TopicFactory
from tests.services.queries import sentence
from tests.services.waiting import wait_until
from typer.testing import CliRunner

import headrace
from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.batch_reader import DerivedStream, SparkBatchReader
from headrace.gate.execution.gate import Gate
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import PlannedRange
from headrace.journal import Journal, repair
from headrace.operate.cli.app import app

Handle = Callable[[DataFrame, Batch], None]


def gate_of(folder: Path) -> Gate:
    return Gate("orders", interval="1 second", ledger=f"sqlite:///{folder}/headrace.db")


def start(
    gate: Gate, df: DataFrame, handle: Handle, folder: Path, on_failure: Any = "stop"
) -> None:
    """Run a gated query on what there is; raises what stopped it."""
    writer = gate.write(df, handle, on_failure=on_failure, backfill="manual")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    finish(writer.trigger(availableNow=True).start())


def said(folder: Path, *command: str) -> str:
    """Return the output of a command on the ledger there."""
    answer = CliRunner().invoke(app, [*command, "--ledger", f"sqlite:///{folder}/headrace.db"])
    assert answer.exit_code in {0, 3}, answer.output
    return answer.output


def told(folder: Path, *command: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(folder, *command, "--json"))
    return found


def asked(folder: Path, question: str) -> list[Any]:
    """Return the rows that an SQL query finds in the ledger's tables."""
    with sqlite3.connect(folder / "headrace.db") as file:
        return list(file.execute(question))


def rows_of_lost(folder: Path) -> list[tuple[int, int]]:
    return asked(folder, "SELECT from_offset, until_offset FROM lost ORDER BY 1")


def offsets_of(df: DataFrame) -> list[int]:
    return [row.offset for row in df.select("offset").collect()]


class Deleting:
    """A handler that has records deleted up to an offset when it is called first."""

    def __init__(self, admin: AdminClient, topic: Topic, before: int) -> None:
        self.handled: list[int] = []
        self.calls = 0
        self._delete = partial(delete_records, admin, topic, before)

    def __call__(self, df: DataFrame, _batch: Batch) -> None:
        self.calls += 1
        if self.calls == 1:
            self._delete()
        noop = df.write.format("noop").mode("append")
        noop.save()  # which reads the data frame once more
        self.handled += offsets_of(df)


def test_what_goes_between_plan_and_read_is_counted_as_lost_by_its_batch(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path
) -> None:
    orders, gate = topic(), gate_of(tmp_path)
    orders.produce(*[b"x"] * 100)
    handle = Deleting(admin, orders, before=80)
    start(gate, read(gate, spark, orders, failOnDataLoss=False), handle, tmp_path)
    assert sorted(handle.handled) == list(range(80, 100))
    assert rows_of_lost(tmp_path) == [(0, 80)]
    proof = told(tmp_path, "verify")
    (span,) = proof["spans"]
    assert (span["processed"], span["lost"], proof["verdict"]) == (20, 80, "proven")
    (batch,) = [each for each in [told(tmp_path, "batches")] if each["planned_records"] == 100]
    assert (batch["status"], batch["lost"]) == ("success", 80)
    one = told(tmp_path, "batches", batch["batch_key"])
    assert (one["lost"], one["losses"][0]["until"]) == (80, 80)
    status = told(tmp_path, "status")
    assert (status["lost_records"], status["batches"][0]["lost"]) == (80, 80)
    assert "80 records lost" in said(tmp_path, "batches", batch["batch_key"][:8])
    assert "80 records lost" in said(tmp_path, "batches")


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch_reads_nothing_of_a_topic_that_was_recreated_since_it_was_planned(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path, *, fails: bool
) -> None:
    orders, gate, handled = topic(), gate_of(tmp_path), list[str]()
    orders.produce(*[b"old %d" % n for n in range(20)])
    recreated: list[bool] = []

    def handle(df: DataFrame, _batch: Batch) -> None:
        if handled and not recreated:
            recreated.append(True)
            create_again(admin, orders)
            orders.produce(*[b"new %d" % n for n in range(20)])
        handled.extend(bytes(row.value).decode() for row in df.collect())

    df = read(gate, spark, orders, failOnDataLoss=fails, maxOffsetsPerTrigger=10)
    if fails:
        with pytest.raises(StreamingQueryException) as raised:
            start(gate, df, handle, tmp_path, headrace.retry(2, then="isolate"))
        assert sentence(raised.value).startswith("DataLossError: ")
        assert f"{orders.name}-0 [10, 20)" in sentence(raised.value)
        assert asked(tmp_path, "SELECT count(*) FROM dead_letter") == [(0,)]
        start(gate, read(gate, spark, orders, failOnDataLoss=False), handle, tmp_path)
    else:
        start(gate, df, handle, tmp_path)
        start(gate, df, handle, tmp_path)  # what came meanwhile
    assert handled == [f"old {n}" for n in range(10)] + [f"new {n}" for n in range(20)]
    assert (10, 20) in rows_of_lost(tmp_path)
    spans = told(tmp_path, "verify")["spans"]
    assert (sum(s["processed"] for s in spans), sum(s["lost"] for s in spans)) == (30, 10)


def planned_of(topic: Topic, until: int) -> PlannedRange:
    """A range of a topic as it is now."""
    options = KAFKA.replay_options(
        {"kafka.bootstrap.servers": topic.bootstrap_servers}, [OffsetRange(topic.name, 0, 0, until)]
    )
    known = KAFKA.log(options).topics()[topic.name]
    return PlannedRange(OffsetRange(topic.name, 0, 0, until), topic_id=known.topic_id)


@pytest.mark.parametrize(("moment", "derived"), [("before", True), ("while", False)])
def test_a_batch_that_is_read_again_has_nothing_of_a_topic_that_was_recreated(
    topic: TopicFactory,
    admin: AdminClient,
    spark: SparkSession,
    moment: str,
    *,
    derived: bool,
) -> None:
    headrace.register(spark)
    orders, found = topic(), list[str]()
    orders.produce(*[b"old"] * 20)
    planned = planned_of(orders, 20)
    options = {"kafka.bootstrap.servers": orders.bootstrap_servers}
    stream = spark.readStream.format("headrace-kafka").options(**options, subscribe=orders.name)
    replay = SparkBatchReader(
        spark,
        KAFKA,
        options,
        DerivedStream(stream.load().filter("offset >= 0")) if derived else None,
    )

    def recreate() -> None:
        create_again(admin, orders)
        orders.produce(*[b"new"] * 20)

    def use(df: DataFrame) -> None:
        if moment == "while":
            recreate()
        found.extend(bytes(row.value).decode() for row in df.collect())

    if moment == "before":
        recreate()
    try:
        with pytest.raises(PySparkException) as raised:
            replay.run([planned], use)
    finally:
        replay.close()
    assert found == []
    assert "DataLossError" in str(raised.value)
    assert f"{orders.name}-0 [0, 20)" in str(raised.value)
    if not derived:
        with pytest.raises(DataLossError):
            replay.dead_letter(
                replace(planned, offsets=OffsetRange(orders.name, 0, 3, 4)), OSError("x")
            )


@pytest.mark.parametrize("derived", [pytest.param(False, marks=pytest.mark.soak), True])
def test_isolation_reads_nothing_of_a_topic_that_was_recreated_since_its_batch_was_planned(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path, *, derived: bool
) -> None:
    orders, gate, handled, calls = topic(), gate_of(tmp_path), list[str](), list[str]()
    orders.produce(*[b"old"] * 20)

    def handle(df: DataFrame, batch: Batch) -> None:
        calls.append(batch.key)
        if len(calls) == 1:
            raise ValueError("divide it")
        if len(calls) == 2:
            create_again(admin, orders)
            orders.produce(*[b"new"] * 20)
        handled.extend(bytes(row.value).decode() for row in df.collect())

    df = read(gate, spark, orders, failOnDataLoss=False)
    df = df.filter("offset >= 0") if derived else df
    start(gate, df, handle, tmp_path, headrace.isolate())
    start(gate, df, handle, tmp_path, headrace.isolate())  # what came meanwhile
    # Records that are handled as they were read were read once, when the batch failed.
    assert handled == [*["old"] * (0 if derived else 20), *["new"] * 20]
    assert asked(tmp_path, "SELECT count(*) FROM dead_letter") == [(0,)]
    failed = set(asked(tmp_path, "SELECT error_class FROM batch WHERE status = 'failed'"))
    assert failed == ({("headrace.errors.DataLossError",)} if derived else set())


def test_a_loss_that_stops_the_query_is_no_failure_of_the_handler(
    topic: TopicFactory,
    admin: AdminClient,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    orders, gate = topic(), gate_of(tmp_path)
    policy = headrace.retry(2, then="isolate")
    orders.produce(*[b"x"] * 100)
    handle = Deleting(admin, orders, before=80)
    df = read(gate, spark, orders)
    for calls in (1, 1):  # when it is started again, it is seen before the handler is called
        with pytest.raises(StreamingQueryException) as raised:
            start(gate, df, handle, tmp_path, policy)
        told_of = sentence(raised.value)
        assert told_of.startswith("DataLossError: ")
        assert f"{orders.name}-0 [0, 80)" in told_of
        assert handle.calls == calls
    assert asked(tmp_path, "SELECT status, attempts, backfills FROM batch") == [("failed", 1, 0)]
    assert asked(tmp_path, "SELECT count(*) FROM dead_letter") == [(0,)]
    start(gate, read(gate, spark, orders, failOnDataLoss=False), handle, tmp_path, policy)
    assert sorted(handle.handled) == list(range(80, 100))
    assert told(tmp_path, "verify")["spans"][0]["lost"] == 80


@pytest.mark.nightly
@pytest.mark.parametrize("derived", [pytest.param(True, marks=pytest.mark.soak), False])
def test_what_goes_while_a_batch_is_isolated_is_left_to_a_backfill_and_is_no_dead_letter(
    topic: TopicFactory,
    admin: AdminClient,
    spark: SparkSession,
    tmp_path: Path,
    *,
    derived: bool,
) -> None:
    orders, gate, handled = topic(), gate_of(tmp_path), list[int]()
    orders.produce(*[b"x"] * 60, b"bad", *[b"x"] * 39)

    def handle(df: DataFrame, _batch: Batch) -> None:
        rows = df.collect()
        if not asked(tmp_path, "SELECT 1 FROM batch WHERE progress IS NOT NULL"):
            delete_records(admin, orders, 20)
        if any(row.value == b"bad" for row in rows):
            raise ValueError("this is no order")
        handled.extend(row.offset for row in rows)

    df = read(gate, spark, orders, failOnDataLoss=False)
    start(
        gate,
        df.select("*") if not derived else df.filter("offset >= 0"),
        handle,
        tmp_path,
        headrace.isolate(max_runs=40),
    )
    found = asked(tmp_path, "SELECT topic, partition, offset FROM dead_letter")
    assert found == [(orders.name, 0, 60)]
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger:
        (left,) = ledger.batches.failed("orders")
        still_open = left.open_ranges(ledger.batches.ranges(left.batch_key))
    assert left.error is not None
    assert left.error.error_class == "headrace.errors.DataLossError"
    unread = {at for one in still_open for at in range(one.offsets.start, one.offsets.until)}
    assert set(range(20)) <= unread
    assert sorted([*handled, *unread, 60]) == list(range(100))


def test_a_loss_is_counted_with_any_sink(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path
) -> None:
    orders, gate, seen = topic(), gate_of(tmp_path), list[int]()
    orders.produce(*[b"x"] * 10)

    def sink(df: DataFrame, _number: int) -> None:
        delete_records(admin, orders, 7)
        seen.extend(offsets_of(df))

    df = read(gate, spark, orders, failOnDataLoss=False)
    writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", f"{tmp_path}/ckpt")
    finish(writer.trigger(availableNow=True).start())
    assert (seen, rows_of_lost(tmp_path)) == ([7, 8, 9], [(0, 7)])


def damaged(path: Path) -> Journal:
    """A journal of 60 records in three blocks, of which the second is not what was written."""
    journal = fill(path, {0: [20, 20, 20]})
    damage(journal, 20)
    return journal


@pytest.mark.nightly
def test_a_block_that_is_repaired_under_a_planned_batch_is_seen_by_that_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, gate, handled = tmp_path / "orders", gate_of(tmp_path), list[int]()
    journal = damaged(path)

    def go(**options: bool) -> None:
        df = gate.read(spark, "journal").options(**options).load(str(path))
        start(gate, df, lambda df, _: handled.extend(offsets_of(df)), tmp_path, "isolate")

    with pytest.raises(StreamingQueryException) as raised:
        go()
    assert sentence(raised.value).startswith("CorruptionError: ")
    assert repair(journal)
    with pytest.raises(StreamingQueryException) as raised:
        go()
    assert sentence(raised.value).startswith("DataLossError: ")
    assert "orders-0 [20, 40)" in sentence(raised.value)
    assert handled == []
    assert asked(tmp_path, "SELECT count(*) FROM batch WHERE progress IS NOT NULL") == [(0,)]
    go(failOnDataLoss=False)
    assert sorted(handled) == [*range(20), *range(40, 60)]
    assert rows_of_lost(tmp_path) == [(20, 40)]
    proof = told(tmp_path, "verify")
    (span,) = proof["spans"]
    assert (span["processed"], span["lost"], proof["verdict"]) == (40, 20, "proven")


def test_a_bounded_read_names_what_a_repair_declared_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "orders"
    repair(damaged(path))
    headrace.register(spark)
    reader = spark.read.format("headrace-journal")
    with pytest.raises(PySparkException) as raised:
        reader.load(str(path)).collect()
    assert sentence(raised.value).startswith("DataLossError: ")
    assert "orders-0 [20, 40)" in sentence(raised.value)
    assert reader.option("failOnDataLoss", False).load(str(path)).count() == 40


@pytest.mark.parametrize(
    "losses", [4, pytest.param(1_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])]
)
def test_each_record_is_handled_or_explained_however_many_are_deleted_when(
    topic: TopicFactory,
    admin: AdminClient,
    spark: SparkSession,
    tmp_path: Path,
    losses: int,
) -> None:
    seed = random.randrange(2**32)
    chance, orders, gate = random.Random(seed), topic(2), gate_of(tmp_path)
    sent, handled, caused = [0, 0], set[tuple[int, int]](), 0

    def send() -> None:
        for partition in (0, 1):
            count = chance.randrange(10, 40)
            orders.produce(*[b"x"] * count, partition=partition)
            sent[partition] += count

    def handle(df: DataFrame, batch: Batch) -> None:
        """Delete before, between or while the batch is read; of it, or beyond it."""
        nonlocal caused
        moments = chance.choices(["before", "between", "during"], [5, 2, 3], k=len(batch.ranges))
        deleting: list[Thread] = []
        for moment in ("before", "between", "during"):
            if moment == "between":
                handled.update((r.partition, r.offset) for r in df.collect())
            for r, when in zip(batch.ranges, moments, strict=True):
                if when == moment:
                    before = min(chance.randint(r.start, r.until + 5), sent[r.partition])
                    delete = partial(delete_records, admin, orders, before, r.partition)
                    deleting.append(Thread(target=delete))
                    deleting[-1].start()
                    caused += when != "during" and before > r.start  # else it may come too late
            if moment != "during":
                for each in deleting:
                    each.join()
        handled.update((r.partition, r.offset) for r in df.collect())
        for each in deleting:
            each.join()
        send()

    send()
    df = read(gate, spark, orders, failOnDataLoss=False)
    writer = gate.write(df, handle).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: caused >= losses or not query.isActive, 10 * losses)
        assert query.isActive, query.exception()
    finally:
        query.stop()
    end = dict(
        asked(
            tmp_path,
            "SELECT partition, max(until_offset) FROM batch_range JOIN batch USING (batch_key)"
            " WHERE status = 'success' GROUP BY partition",
        )
    )
    explained = set(lost_places(tmp_path))
    accounted = handled | explained
    for partition, until in end.items():
        for offset in range(until):
            assert (partition, offset) in accounted, f"{partition}:{offset}, seed {seed}"
    assert len(rows_of_lost(tmp_path)) >= losses - 2  # the last batch was cut off
    proof = told(tmp_path, "verify")
    assert proof["verdict"] in {"proven", "open"}
    logging.getLogger("headrace.tests").info(
        "%d losses, %d records handled, %d explained", caused, len(handled), len(explained)
    )


def lost_places(folder: Path) -> Iterator[tuple[int, int]]:
    for partition, begin, end in asked(
        folder, "SELECT partition, from_offset, until_offset FROM lost"
    ):
        yield from ((partition, offset) for offset in range(begin, end))
