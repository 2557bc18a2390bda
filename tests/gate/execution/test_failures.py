"""Queries whose handler fails, on a real broker and a real Spark: the stream goes on."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import DEADLINE_S, read
from tests.gate.ledger.samples import stored
from tests.services.kafka import Topic, TopicFactory
from tests.services.ledgers import gate_now
from tests.services.waiting import wait_until

import headrace
from headrace.errors import OptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.execution.policy import Last, OnFailure
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

BAD = b"poison"


@pytest.fixture
def gate(ledger_url: str) -> Gate:
    return Gate("orders", interval="1 second", ledger=ledger_url)


class KeyedFiles:
    """A sink that keeps the values of each batch in a file named by its key; poison makes it fail.

    Attributes:
        heal: once set, it takes poison too.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.heal = False
        self.batches: list[Batch] = []
        folder.mkdir()

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        values = [bytes(row.value).decode() for row in df.select("value").collect()]
        if BAD.decode() in values and not self.heal:
            raise ValueError("this cannot be kept")
        unfinished = self.folder.with_name(batch.key)  # ``values`` may be asked for meanwhile
        unfinished.write_text(json.dumps(values))
        unfinished.rename(self.folder / batch.key)

    @property
    def values(self) -> list[str]:
        return sorted(v for file in self.folder.iterdir() for v in json.loads(file.read_text()))


@pytest.fixture
def sink(tmp_path: Path) -> KeyedFiles:
    return KeyedFiles(tmp_path / "sink")


def fill(topic: Topic, good: int, *poison_at: int) -> list[str]:
    """Produce records, poison among them; the good ones."""
    values = [f"{n:04}".encode() for n in range(good)]
    with_poison = list(values)
    for place in poison_at:
        with_poison.insert(place, BAD)
    topic.produce(*with_poison)
    return [value.decode() for value in values]


@dataclass
class Scene:
    """A gate before a topic."""

    spark: SparkSession
    gate: Gate
    orders: Topic
    checkpoint: Path

    def read(self) -> DataFrame:
        return read(self.gate, self.spark, self.orders)

    def start(
        self,
        df: DataFrame,
        handler: Callable[[DataFrame, Batch], None],
        on_failure: Last | OnFailure,
    ) -> StreamingQuery:
        writer = self.gate.write(df, handler, on_failure=on_failure)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()


@pytest.fixture
def scene(spark: SparkSession, topic: TopicFactory, gate: Gate, tmp_path: Path) -> Scene:
    return Scene(spark, gate, topic(), tmp_path / "checkpoint")


def first_record(topic: Topic) -> Message:
    """Wait for the first record of a topic's partition 0."""
    settings = {"bootstrap.servers": topic.bootstrap_servers, "group.id": "t", "log_level": 0}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    try:
        found = wait_until(lambda: consumer.poll(1), DEADLINE_S)
    finally:
        consumer.close()
    assert found is not None
    return found


def statuses(ledger: Ledger) -> set[Status]:
    return {batch.status for batch in ledger.batches.newest("orders", limit=1_000)}


def test_a_batch_that_is_deferred_is_run_again_beside_the_stream_with_its_own_key(
    scene: Scene, ledger: Ledger, sink: KeyedFiles
) -> None:
    good = fill(scene.orders, 250, 120)
    query = scene.start(scene.read(), sink, "defer")
    try:
        wait_until(lambda: Status.FAILED in statuses(ledger), DEADLINE_S)
        wait_until(lambda: len(sink.values) >= 100, DEADLINE_S)  # the stream has gone on
        sink.heal = True
        wait_until(lambda: len(sink.values) > len(good), DEADLINE_S)  # each record has its batch
        wait_until(lambda: statuses(ledger) == {Status.SUCCESS}, DEADLINE_S)
    finally:
        query.stop()
    assert sink.values == sorted([*good, BAD.decode()])
    assert query.exception() is None
    backfilled = [batch for batch in sink.batches if batch.kind == "backfill"]
    assert {batch.key for batch in backfilled} <= {
        b.batch_key for b in ledger.batches.newest("orders")
    }
    assert min(batch.attempt for batch in backfilled) == 2


def test_what_cannot_be_processed_stands_alone_and_the_rest_is_processed_now(
    scene: Scene, ledger: Ledger, sink: KeyedFiles
) -> None:
    good = fill(scene.orders, 120, 20, 41)  # enough others for both to be proved
    query = scene.start(scene.read(), sink, headrace.isolate(max_time="10 minutes"))
    try:
        wait_until(lambda: len(ledger.dead_letters.oldest("orders")) == 2, DEADLINE_S)
        wait_until(lambda: sink.values == good, DEADLINE_S)
        wait_until(lambda: statuses(ledger) == {Status.SUCCESS}, DEADLINE_S)
    finally:
        query.stop()
    letters = [each.letter for each in ledger.dead_letters.oldest("orders")]
    assert [(letter.partition, letter.offset) for letter in letters] == [(0, 20), (0, 41)]
    assert {letter.value for letter in letters} == {BAD}
    assert {letter.error.message for letter in letters} == {"this cannot be kept"}
    assert {letter.headers for letter in letters} <= {(), None}


@pytest.mark.soak
def test_a_record_from_after_the_year_9999_is_kept_like_any_other(
    scene: Scene, topic: TopicFactory, ledger: Ledger, sink: KeyedFiles
) -> None:
    """As of a producer that takes microseconds for milliseconds, or worse."""
    orders = topic(1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    times_ms = [1_790_000_000_000_000, 2**63 - 1]
    for time_ms in times_ms:
        orders.produce(BAD, timestamp_ms=time_ms)
    orders.produce(*[b"good"] * 20)
    query = scene.start(read(scene.gate, scene.spark, orders), sink, "isolate")
    try:
        wait_until(lambda: len(ledger.dead_letters.oldest("orders")) == 2, DEADLINE_S)
        wait_until(lambda: statuses(ledger) == {Status.SUCCESS}, DEADLINE_S)
    finally:
        query.stop()
    assert sink.values == ["good"] * 20
    found = [each.letter.timestamp_ms for each in ledger.dead_letters.oldest("orders")]
    assert found == [times_ms[0], (2**63 - 1) // 1000]


def test_a_batch_that_is_isolated_teaches_no_rate_nor_does_the_one_after_it(
    scene: Scene, ledger: Ledger, sink: KeyedFiles
) -> None:
    """Isolating takes much longer than the interval, and all that time records wait."""
    good = fill(scene.orders, 600, 450)
    df = read(scene.gate, scene.spark, scene.orders, maxOffsetsPerTrigger=100)
    query = scene.start(df, sink, "isolate")
    try:
        wait_until(lambda: sink.values == good, DEADLINE_S)
        wait_until(lambda: statuses(ledger) == {Status.SUCCESS}, DEADLINE_S)
        live = ledger.batches.newest("orders", limit=100)
        wait_until(lambda: len(ledger.rates.history("orders")) == len(live), DEADLINE_S)
    finally:
        query.stop()
    samples = {sample.batch_key: sample for sample in ledger.rates.history("orders")}
    order = [batch.batch_key for batch in reversed(live)]
    isolated = ledger.batches.isolated("orders", 0)
    at = next(n for n, batch in enumerate(order) if batch in isolated)
    assert samples[order[at]].rate_per_s is None
    assert samples[order[at]].processing_delay_ms > 1_000
    after = order[at + 1]
    assert samples[after].scheduling_delay_ms == 0
    # The next batch was planned at the rate from before.
    before = next(s.rate_per_s for b in reversed(order[:at]) if (s := samples[b]).rate_per_s)
    planned = stored(ledger, after)
    assert planned.rate_per_s == int(before)


@pytest.mark.nightly
def test_a_topic_receives_what_stands_alone(
    scene: Scene, topic: TopicFactory, ledger: Ledger, sink: KeyedFiles
) -> None:
    fill(scene.orders, 20, 7)
    dead = topic()
    query = scene.start(scene.read(), sink, headrace.isolate(topic=dead.name))
    try:
        told = first_record(dead)
    finally:
        query.stop()
    (kept,) = ledger.dead_letters.oldest("orders")
    assert (told.value(), kept.letter.offset) == (BAD, 7)
    headers = dict(told.headers() or ())
    assert headers["headrace.dead-letter.topic"] == scene.orders.name.encode()
    assert headers["headrace.dead-letter.offset"] == b"7"
    assert headers["headrace.error.message"] == b"this cannot be kept"


@pytest.mark.nightly
def test_a_stream_that_is_derived_without_state_is_run_again_as_it_was_derived(
    scene: Scene, ledger: Ledger
) -> None:
    fill(scene.orders, 30, 7)
    kept: dict[str, list[str]] = {}

    def keep(df: DataFrame, batch: Batch) -> None:
        assert df.columns == ["text"]
        texts = [row.text for row in df.collect()]
        if BAD.decode().upper() in texts:
            raise ValueError("this cannot be kept")
        kept[batch.key] = texts

    df = scene.read().select(F.upper(F.col("value").cast("string")).alias("text"))
    query = scene.start(df, keep, "isolate")
    try:
        wait_until(lambda: len(ledger.dead_letters.oldest("orders")) == 1, DEADLINE_S)
        wait_until(lambda: statuses(ledger) == {Status.SUCCESS}, DEADLINE_S)
    finally:
        query.stop()
    (letter,) = ledger.dead_letters.oldest("orders")
    assert (letter.letter.offset, letter.letter.value) == (7, BAD)
    assert sorted(text for texts in kept.values() for text in texts) == [
        f"{n:04}" for n in range(30)
    ]
    assert [gate.name for gate in ledger.gates.all()] == ["orders", "payments"]


def test_a_retry_in_place_helps_through_what_passes_by_itself(
    scene: Scene, ledger: Ledger, sink: KeyedFiles
) -> None:
    fill(scene.orders, 20)
    attempts: list[int] = []

    def fail_twice(df: DataFrame, batch: Batch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) < 3:
            raise RuntimeError("a lock was waited for too long")  # not that the sink is away
        sink(df, batch)

    policy = headrace.retry(2, "10 ms")  # and not once less
    query = scene.start(scene.read(), fail_twice, policy)
    try:
        (sample,) = wait_until(lambda: ledger.rates.history("orders"), DEADLINE_S)
    finally:
        query.stop()
    assert sample.rate_per_s is None
    assert attempts == [1, 2, 3]
    (batch,) = ledger.batches.newest("orders")
    assert (batch.status, batch.attempts, len(sink.values)) == (Status.SUCCESS, 3, 20)


@pytest.mark.parametrize("last", ["defer", "isolate"])
@pytest.mark.parametrize(
    ("derive", "operator"),
    [
        (lambda df: df.groupBy("key").count(), "Aggregate"),
        (lambda df: df.dropDuplicates(["key"]), "Deduplicate"),
        (lambda df: df.distinct(), "Deduplicate"),
        (
            lambda df: df.withWatermark("timestamp", "1 minute").dropDuplicatesWithinWatermark(
                ["key"]
            ),
            "DeduplicateWithinWatermark",
        ),
        (lambda df: df.limit(5), "GlobalLimit"),
    ],
)
def test_a_stream_with_state_cannot_go_on_without_a_batch(
    scene: Scene,
    sink: KeyedFiles,
    last: Last,
    derive: Callable[[DataFrame], DataFrame],
    operator: str,
) -> None:
    df, gate = derive(scene.read()), scene.gate
    with pytest.raises(OptionError, match=rf"on_failure is '{last}'.*with state \({operator}\)"):
        gate.write(df, sink, on_failure=last)
    gate.write(df, sink, on_failure=headrace.retry(2))


def test_two_streams_in_one_query_cannot_either(
    spark: SparkSession, topic: TopicFactory, gate: Gate, sink: KeyedFiles
) -> None:
    df = read(gate, spark, topic())
    other = spark.readStream.format("headrace-kafka").options(subscribe=topic().name)
    other = other.option("kafka.bootstrap.servers", topic().bootstrap_servers)
    with pytest.raises(OptionError, match="of more than one stream"):
        gate.write(df.union(other.load()), sink, on_failure="defer")


def test_a_batch_that_kills_its_python_worker_is_halved_without_a_retry(
    spark: SparkSession, topic: TopicFactory, gate: Gate, ledger: Ledger, tmp_path: Path
) -> None:
    orders, sizes = topic(), list[int]()

    def die(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(137)

    def heavy(df: DataFrame, batch: Batch) -> None:
        sizes.append(df.count())
        if sizes[-1] > 300:
            df.select("value").mapInArrow(die, "value binary").count()

    orders.produce(*[b"x"] * 564)
    stream = read(gate, spark, orders, **{"backpressure.initialRate": 564})
    policy = headrace.retry(3, "1 second", then="isolate")
    writer = gate.write(stream, heavy, on_failure=policy)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(DEADLINE_S)
    assert sizes[0] == 564
    assert sum(sizes[1:]) == 564
    assert max(sizes[1:]) == 282
    assert gate_now(ledger).ceiling is not None
