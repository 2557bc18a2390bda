"""Records that a handler rejects, on a real broker, a real journal and a real Spark."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from tests.gate.execution.queries import finish, read
from tests.journal.journals import fill
from tests.services.changes import delete_records
from tests.services.kafka import Topic, TopicFactory

import headrace
from headrace.core.ranges import OffsetRange
from headrace.errors import BrokerError, DataLossError, RejectionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.batch_reader import SparkBatchReader
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.policy import Last, OnFailure
from headrace.gate.execution.verdicts import ends_query, unreachable_source
from headrace.gate.kafka.kafka_source import KAFKA
from headrace.gate.ledger.dead_letters import Headers
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.gate.ledger.records import DeadLetter, PlannedRange
from headrace.gate.ledger.transitions import Status

WHY = ErrorReport("Rejected", "no", "")
HEADERS: Headers = (("trace", b"1"), ("none", None))


@pytest.fixture
def gate(ledger_url: str) -> Gate:
    return Gate("orders", interval="1 second", ledger=ledger_url)


@dataclass
class Scene:
    """A gate with its ledger, and a topic before it."""

    spark: SparkSession
    gate: Gate
    ledger: Ledger
    checkpoint: Path
    orders: Topic

    def run(
        self,
        handler: Callable[[DataFrame, Batch], None],
        on_failure: Last | OnFailure = "stop",
        df: DataFrame | None = None,
    ) -> None:
        """Process what is there."""
        stream = read(self.gate, self.spark, self.orders) if df is None else df
        writer = self.gate.write(stream, handler, on_failure=on_failure)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        finish(writer.trigger(availableNow=True).start())

    def letters(self) -> list[DeadLetter]:
        return [each.letter for each in self.ledger.dead_letters.oldest("orders", limit=1_000)]

    def proven(self) -> tuple[int, int]:
        """Count the processed records and the explained ones; assert that there are no others."""
        found = self.ledger.proofs.verify("orders")
        assert found.verdict is Verdict.PROVEN
        return sum(s.processed for s in found.spans), sum(s.dead for s in found.spans)


@pytest.fixture
def scene(
    spark: SparkSession, topic: TopicFactory, ledger: Ledger, gate: Gate, tmp_path: Path
) -> Scene:
    return Scene(spark, gate, ledger, tmp_path / "checkpoint", topic())


def is_even(df: DataFrame) -> Any:
    return df.value.cast("string").cast("int") % 2 == 0


def produce(topic: Topic, count: int) -> None:
    topic.produce(*[f"{n}".encode() for n in range(count)], headers=list(HEADERS))


@pytest.mark.parametrize("policy", ["stop", "isolate"])
def test_rows_of_a_data_frame_are_kept_whole_each_with_its_own_reason(
    scene: Scene, policy: Last
) -> None:
    kept: list[int] = []
    produce(scene.orders, 20)

    def handler(df: DataFrame, batch: Batch) -> None:
        bad = df.where(~is_even(df)).withColumn("why", F.concat(F.lit("odd at "), "offset"))
        batch.reject(bad, F.col("why"))
        kept.extend(int(row.value) for row in df.where(is_even(df)).collect())

    scene.run(handler, policy)
    assert kept == list(range(0, 20, 2))
    found = scene.letters()
    assert [(each.offset, each.value) for each in found] == [
        (n, f"{n}".encode()) for n in range(1, 20, 2)
    ]
    assert {each.headers for each in found} == {HEADERS}
    assert [each.error.message for each in found] == [f"odd at {n}" for n in range(1, 20, 2)]
    assert scene.proven() == (10, 10)


def test_a_journal_s_records_are_rejected_too(scene: Scene, tmp_path: Path) -> None:
    fill(tmp_path / "journal", {0: [20, 20]})

    def handler(df: DataFrame, batch: Batch) -> None:
        batch.reject(df.where("offset IN (3, 25)"), "no")

    df = scene.gate.read(scene.spark, "journal").load(str(tmp_path / "journal"))
    scene.run(handler, df=df)
    raw = scene.spark.read.format("headrace-journal").load(str(tmp_path / "journal"))
    expected = [bytes(row.value) for row in raw.orderBy("offset").collect()]
    assert [(each.offset, each.value) for each in scene.letters()] == [
        (3, expected[3]),
        (25, expected[25]),
    ]
    assert scene.proven() == (38, 2)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (lambda df: df.select("value"), "have no column 'topic', but value; keep the columns"),
        (lambda df: df.withColumn("offset", F.col("offset") + 1_000), "at 1000 is not of batch"),
        (lambda df: df.withColumn("topic", F.lit(None)), r"of the types \(NoneType, int, int\)"),
    ],
)
def test_a_data_frame_that_cannot_be_rejected_is_refused(
    scene: Scene, rows: Callable[[DataFrame], DataFrame], sentence: str
) -> None:
    produce(scene.orders, 1)
    refused: list[str] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        with pytest.raises(RejectionError, match=sentence) as raised:
            batch.reject(rows(df), "no")
        refused.append(str(raised.value))

    scene.run(handler)
    assert len(refused) == 1
    assert "\n" not in refused[0]
    assert scene.letters() == []


def reader_of(spark: SparkSession, topic: Topic, **options: str) -> SparkBatchReader:
    access = {"kafka.bootstrap.servers": topic.bootstrap_servers, "subscribe": topic.name}
    return SparkBatchReader(spark, KAFKA, access | options)


def test_what_is_far_apart_is_read_by_itself(spark: SparkSession, topic: TopicFactory) -> None:
    orders = topic()
    produce(orders, 5_000)
    places = [(orders.name, 0, offset) for offset in (4_999, 0, 2_500)]
    whole = [PlannedRange(OffsetRange(orders.name, 0, 0, 5_000))]
    found = reader_of(spark, orders).rejected(whole, dict.fromkeys(places, WHY))
    assert sorted((each.offset, each.value) for each in found) == [
        (0, b"0"),
        (2_500, b"2500"),
        (4_999, b"4999"),
    ]
    assert {each.headers for each in found} == {HEADERS}


def test_records_that_are_gone_or_brokers_that_are_away_are_not_the_batch_s_fault(
    spark: SparkSession, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    orders = topic()
    produce(orders, 3)
    recreated = [PlannedRange(OffsetRange(orders.name, 0, 0, 3), topic_id="Wp2Pi0AaQQ2bZ0Xr0LRMrg")]
    reasons = {(orders.name, 0, 1): WHY}
    with pytest.raises(DataLossError, match="was deleted and recreated") as gone:
        reader_of(spark, orders).rejected(recreated, reasons)
    assert ends_query(gone.value) is gone.value
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.pollTimeoutMs": "500"}
    away = reader_of(spark, orders, **nowhere)
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(BrokerError) as raised:
        away.rejected([PlannedRange(OffsetRange(orders.name, 0, 0, 3))], reasons)
    assert unreachable_source(raised.value) is raised.value


def test_a_source_that_is_away_while_rejected_records_are_read_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(scene.orders, 3)
    read_rejected, outages = SparkBatchReader.rejected, list[BrokerError]()

    def away(*arguments: Any) -> list[DeadLetter]:
        if outages:
            return read_rejected(*arguments)
        outages.append(BrokerError("The brokers are away."))
        outages[0].add_note(headrace.errors.READ)
        raise outages[0]

    monkeypatch.setattr(SparkBatchReader, "rejected", away)

    def handler(df: DataFrame, batch: Batch) -> None:
        batch.reject(df.limit(1), "no")

    scene.run(handler, "isolate")
    (batch,) = scene.ledger.batches.newest("orders")
    assert (batch.status, batch.attempts) == (Status.SUCCESS, 2)
    assert len(scene.letters()) == len(outages) == 1


@pytest.mark.parametrize("in_transaction", [False, True])
def test_rejected_records_that_have_left_kafka_are_lost_where_the_stream_goes_on_without_such(
    scene: Scene, admin: AdminClient, in_transaction: bool
) -> None:
    produce(scene.orders, 10)
    handled: list[int] = []

    def handler(df: DataFrame, batch: Batch) -> None:
        handled.extend(row.offset for row in df.select("offset").collect())
        batch.reject(df.where("offset IN (1, 2, 3, 7)"), "no")
        delete_records(admin, scene.orders, before=3)
        if in_transaction:
            with batch.transaction():
                pass

    df = read(scene.gate, scene.spark, scene.orders, failOnDataLoss="false")
    scene.run(handler, "isolate", df=df)
    assert handled == list(range(10))
    assert [letter.offset for letter in scene.letters()] == [3, 7]
    (loss,) = scene.ledger.history.losses("orders")
    assert (loss.offsets.start, loss.offsets.until) == (1, 3)
    assert loss.reason is not None
    assert loss.reason.startswith("it was rejected, and is gone before it was kept: ")
    assert scene.proven() == (6, 2)


def test_a_rejected_record_that_has_left_kafka_ends_a_stream_that_is_to_end_then(
    scene: Scene, admin: AdminClient
) -> None:
    produce(scene.orders, 10)

    def handler(df: DataFrame, batch: Batch) -> None:
        batch.reject(df.where("offset = 1"), "no")
        delete_records(admin, scene.orders, before=3)

    with pytest.raises(Exception, match="set the option failOnDataLoss to false"):
        scene.run(handler)
    assert (scene.letters(), scene.ledger.history.losses("orders")) == ([], ())
