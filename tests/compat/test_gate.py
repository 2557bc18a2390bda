"""A gate before a topic: what it promises on each version of Spark, and over Spark Connect."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.execution.queries import DEADLINE_S, read
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

import headrace
from headrace.execution import Batch, OnFailure
from headrace.ledger import Kind, Ledger, Status, verify

BAD = "poison"


@dataclass
class Sink:
    """Keeps the values of each batch under its key; poison makes it fail unless it is healed."""

    is_healed: bool = False
    column: str = "value"
    kept: dict[str, list[str]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        self.batches.append(batch)
        values = [_text(row[self.column]) for row in df.collect()]
        if BAD in values and not self.is_healed:
            raise ValueError("this cannot be kept")
        self.kept[batch.key] = values

    @property
    def values(self) -> list[str]:
        return sorted(value for values in list(self.kept.values()) for value in values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


@dataclass
class Scene:
    """A gate before a topic, with its ledger."""

    spark: SparkSession
    gate: headrace.Gate
    orders: Topic
    ledger: Ledger
    checkpoint: Path

    def start(
        self,
        handler: Callable[[DataFrame, Batch], None],
        on_failure: str | OnFailure = "stop",
        df: DataFrame | None = None,
        **options: Any,
    ) -> Any:
        stream = read(self.gate, self.spark, self.orders) if df is None else df
        writer = self.gate.write(stream, handler, on_failure=on_failure, **options)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def statuses(self) -> set[Status]:
        return {batch.status for batch in self.ledger.batches.newest("orders", limit=1_000)}

    def wait_for(self, condition: Callable[[], Any], query: Any) -> None:
        """Wait for this; an exception that stops the query is raised here."""

        def holds() -> bool:
            if (error := query.exception()) is not None:
                raise error
            return bool(condition())

        wait_until(holds, DEADLINE_S)

    def letters(self) -> list[tuple[int, bytes | None]]:
        found = self.ledger.dead_letters.oldest("orders", limit=1_000)
        return sorted((each.letter.offset, each.letter.value) for each in found)


@pytest.fixture
def scene(
    spark: SparkSession, topic: TopicFactory, ledger_url: str, ledger: Ledger, tmp_path: Path
) -> Scene:
    headrace.register(spark)
    gate = headrace.Gate("orders", interval="1 second", ledger=ledger_url)
    return Scene(spark, gate, topic(), ledger, tmp_path / "checkpoint")


def fill(topic: Topic, good: range, *poison_at: int) -> list[str]:
    """Produce records, poison among them; the good ones."""
    values = [f"{n:04}" for n in good]
    with_poison = list(values)
    for place in poison_at:
        with_poison.insert(place, BAD)
    topic.produce(*(value.encode() for value in with_poison))
    return values


def test_each_batch_is_in_the_ledger_before_it_runs_and_its_rate_is_learnt(scene: Scene) -> None:
    good, sink = fill(scene.orders, range(700)), Sink()

    def handle(df: DataFrame, batch: Batch) -> None:
        found = scene.ledger.batches.get(batch.key)
        assert found is not None
        assert found.status is Status.IN_PROGRESS
        sink(df, batch)

    query = scene.start(handle)
    try:
        scene.wait_for(lambda: sink.values == good, query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
        batches = list(reversed(scene.ledger.batches.newest("orders", limit=1_000)))
        scene.wait_for(lambda: len(scene.ledger.rates.history("orders")) == len(batches), query)
    finally:
        query.stop()
    assert (batches[0].planned_records, batches[0].lag) == (100, 700)
    assert max(s.rate_per_s or 0 for s in scene.ledger.rates.history("orders")) > 100
    assert not verify(scene.ledger, "orders").findings


def test_a_query_that_stops_at_a_failure_runs_the_batch_again_when_it_is_started_again(
    scene: Scene,
) -> None:
    good, sink = fill(scene.orders, range(30), 7), Sink()
    query = scene.start(sink)
    with pytest.raises(Exception, match="this cannot be kept"):
        query.awaitTermination(DEADLINE_S)
    wait_until(lambda: scene.statuses() == {Status.FAILED})
    sink.is_healed = True
    again = scene.start(sink)
    try:
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, again)
    finally:
        again.stop()
    assert sink.values == sorted([*good, BAD])
    first, second = sink.batches
    assert (first.key, first.attempt, second.key, second.attempt) == (first.key, 1, first.key, 2)


def test_a_batch_is_called_again_in_place(scene: Scene) -> None:
    good, sink, attempts = fill(scene.orders, range(20)), Sink(), list[int]()

    def fail_twice(df: DataFrame, batch: Batch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) < 3:
            raise ConnectionError("the database restarts")
        sink(df, batch)

    query = scene.start(fail_twice, headrace.retry(2, "10 ms"))
    try:
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
    finally:
        query.stop()
    assert (attempts, sink.values) == ([1, 2, 3], good)


def test_a_deferred_batch_is_run_by_the_backfill_and_the_stream_goes_on(scene: Scene) -> None:
    good, sink = fill(scene.orders, range(250), 120), Sink()
    query = scene.start(sink, "defer")
    try:
        scene.wait_for(lambda: Status.FAILED in scene.statuses(), query)
        scene.wait_for(lambda: len(sink.values) >= 100, query)
        sink.is_healed = True
        scene.wait_for(lambda: len(sink.values) > len(good), query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
    finally:
        query.stop()
    assert sink.values == sorted([*good, BAD])
    assert Kind.BACKFILL in {batch.kind for batch in sink.batches}


def test_bad_records_are_isolated_and_all_others_processed(scene: Scene) -> None:
    good, sink = fill(scene.orders, range(60), 20, 41), Sink()
    query = scene.start(sink, "isolate")
    try:
        scene.wait_for(lambda: len(scene.letters()) == 2, query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS, Status.DEAD}, query)
    finally:
        query.stop()
    assert sink.values == good
    assert scene.letters() == [(20, BAD.encode()), (41, BAD.encode())]


def test_what_a_handler_rejects_by_name_is_kept_with_its_batch(scene: Scene) -> None:
    good, sink = fill(scene.orders, range(20), 7), Sink(is_healed=True)

    def handle(df: DataFrame, batch: Batch) -> None:
        batch.reject(df.where("cast(value as string) = 'poison'"), "it is poison")
        sink(df.where("cast(value as string) != 'poison'"), batch)

    query = scene.start(handle)
    try:
        scene.wait_for(lambda: len(scene.letters()) == 1, query)
        scene.wait_for(lambda: sink.values == good, query)
    finally:
        query.stop()
    assert scene.letters() == [(7, BAD.encode())]


def test_what_cannot_be_decoded_is_kept_as_a_dead_letter(scene: Scene) -> None:
    values = [b'{"n": %d}' % n for n in range(20)]
    values[7] = b"no json"
    scene.orders.produce(*values)
    found: list[int] = []

    def handle(df: DataFrame, _batch: Batch) -> None:
        decoded = headrace.decode(df, headrace.json("n INT"))
        found.extend(row.n for row in decoded.select("value.n").collect())

    query = scene.start(handle)
    try:
        scene.wait_for(lambda: len(scene.letters()) == 1, query)
    finally:
        query.stop()
    assert sorted(found) == [n for n in range(20) if n != 7]
    assert scene.letters() == [(7, b"no json")]


def test_a_gate_has_one_query(scene: Scene, tmp_path: Path) -> None:
    fill(scene.orders, range(5))
    sink = Sink()
    query = scene.start(sink)
    try:
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
        df = read(scene.gate, scene.spark, scene.orders)
        other = scene.gate.write(df, Sink())
        with pytest.raises(headrace.HeadraceError, match="is in use by"):
            other.option("checkpointLocation", str(tmp_path / "other")).start()
    finally:
        query.stop()


def test_a_query_that_is_stopped_in_a_batch_has_not_failed(scene: Scene) -> None:
    fill(scene.orders, range(50))
    begun = threading.Event()

    def handle(df: DataFrame, _batch: Batch) -> None:
        begun.set()
        df.mapInArrow(_wait_long, df.schema).collect()

    query = scene.start(handle, "isolate")
    assert begun.wait(DEADLINE_S)
    query.stop()
    wait_until(lambda: not query.isActive)
    assert scene.letters() == []
    assert {b.parent for b in scene.ledger.batches.newest("orders", limit=1_000)} == {None}


def _wait_long(batches: Any) -> Any:
    threading.Event().wait(5)
    yield from batches
