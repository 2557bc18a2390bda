"""Records that go between a batch's plan and its read, told from the outside: each record that was
sent is given to the handler or has a row that says why it was not."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.cli.commands import run
from tests.gate.queries import finish, read, write
from tests.journal.journals import fill
from tests.services.changes import delete_records
from tests.services.kafka import Topic, TopicFactory
from tests.services.queries import sentence

import headgate
from headgate.gate import Batch, Gate
from headgate.journal import Journal, repair

Handle = Callable[[DataFrame, Batch], None]


def gate_of(folder: Path) -> Gate:
    return Gate("orders", interval="1 second", ledger=f"sqlite:///{folder}/headgate.db")


def told(folder: Path, *command: str) -> dict[str, object]:
    """What a command answers in JSON of the ledger there."""
    answer = run(*command, "--json", folder=folder)
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def rows_of_lost(folder: Path) -> list[tuple[int, int]]:
    """Which offsets the ledger's table says are lost."""
    with sqlite3.connect(folder / "headgate.db") as file:
        found = file.execute("SELECT from_offset, until_offset FROM lost ORDER BY 1")
        return list(found)


class Deleting:
    """A handler that has its first batch's records deleted up to an offset before it reads."""

    def __init__(self, admin: AdminClient, topic: Topic, before: int) -> None:
        self.handled: list[int] = []
        self.calls = 0
        self._delete = lambda: delete_records(admin, topic, before)

    def __call__(self, df: DataFrame, _batch: Batch) -> None:
        self.calls += 1
        if self.calls == 1:
            self._delete()
        self.handled += [row.offset for row in df.select("offset").collect()]


def test_what_goes_between_plan_and_read_is_counted_as_lost_by_its_batch(
    topic: TopicFactory, admin: AdminClient, spark: SparkSession, tmp_path: Path
) -> None:
    orders, gate = topic(), gate_of(tmp_path)
    orders.produce(*[b"x"] * 100)
    handle = Deleting(admin, orders, before=80)
    df = read(gate, spark, orders, failOnDataLoss=False)
    finish(write(gate, df, handle, tmp_path / "checkpoint"))
    assert sorted(handle.handled) == list(range(80, 100))
    assert rows_of_lost(tmp_path) == [(0, 80)]
    proof = told(tmp_path, "verify")
    (span,) = proof["spans"]
    assert (span["processed"], span["lost"]) == (20, 80)


def damaged(path: Path) -> Journal:
    """A journal of 60 records in three blocks, of which the second is not what was written."""
    journal = fill(path, {0: [20, 20, 20]})
    (block,) = path.glob("**/00000000000000000020.block")
    data = bytearray(block.read_bytes())
    data[-1] ^= 0xFF
    data[len(data) // 2] ^= 0xFF
    block.chmod(0o644)
    block.write_bytes(data)
    return journal


def test_a_block_that_is_repaired_under_a_planned_batch_is_seen_by_that_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, gate, handled = tmp_path / "orders", gate_of(tmp_path), list[int]()
    journal = damaged(path)

    def handle(df: DataFrame, _batch: Batch) -> None:
        handled.extend(row.offset for row in df.select("offset").collect())

    def start(**options: object) -> None:
        reader = gate.read(spark, "journal").options(**options)
        writer = gate.write(reader.load(str(path)), handle)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())

    with pytest.raises(StreamingQueryException) as raised:
        start()
    assert "CorruptionError" in sentence(raised.value)
    assert repair(journal)
    with pytest.raises(StreamingQueryException) as raised:
        start()
    assert "DataLossError" in sentence(raised.value)
    assert "orders-0 [20, 40)" in sentence(raised.value)
    assert handled == []
    start(failOnDataLoss=False)
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
    headgate.register(spark)
    reader = spark.read.format("headgate-journal")
    with pytest.raises(PySparkException) as raised:
        reader.load(str(path)).collect()
    assert "DataLossError" in sentence(raised.value)
    assert "orders-0 [20, 40)" in sentence(raised.value)
    assert reader.option("failOnDataLoss", False).load(str(path)).count() == 40
