"""A gate before a topic: what it promises on each version of Spark, and over Spark Connect.

Over Spark Connect handlers run in another process, so they keep what they are given in files.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from tests.gate.execution.queries import DEADLINE_S, read
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

import headrace
from headrace.errors import OptionError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.policy import Last, OnFailure
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Kind, Status
from headrace.spark_versions import is_remote

BAD = "poison"

pytestmark = pytest.mark.integration  # its fixtures ask for the services by name


@dataclass(frozen=True)
class Sink:
    """Keeps the values of each batch in a file named by its key; poison makes it fail.

    Attributes:
        fails_first: so many calls raise, whatever they are given.
    """

    folder: Path
    column: str = "value"
    fails_first: int = 0

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        with (self.folder / "calls").open("a") as calls:
            calls.write(json.dumps([batch.key, batch.attempt, batch.kind]) + "\n")
        if len(self.calls) <= self.fails_first:
            raise ConnectionError("the database restarts")
        values = [_text(row[self.column]) for row in df.collect()]
        if BAD in map(str.lower, values) and not (self.folder / "healed").exists():
            raise ValueError("this cannot be kept")
        unfinished = self.folder / f"{batch.key}.unfinished"
        unfinished.write_text(json.dumps(values))
        unfinished.rename(self.folder / f"{batch.key}.json")

    def heal(self) -> None:
        """From now on, take poison too."""
        (self.folder / "healed").touch()

    @property
    def calls(self) -> list[list[Any]]:
        """The key, attempt and kind of each call."""
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def values(self) -> list[str]:
        files = list(self.folder.glob("*.json"))
        return sorted(value for file in files for value in json.loads(file.read_text()))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    (tmp_path / "sink").mkdir()
    return Sink(tmp_path / "sink")


@dataclass
class Scene:
    """A gate before a topic, with its ledger."""

    spark: SparkSession
    gate: headrace.Gate
    orders: Topic
    ledger: Ledger
    checkpoint: Path

    def read(self) -> DataFrame:
        return read(self.gate, self.spark, self.orders)

    def start(
        self,
        handler: Callable[[DataFrame, Batch], None],
        on_failure: Last | OnFailure = "stop",
        df: DataFrame | None = None,
        **options: Any,
    ) -> Any:
        stream = self.read() if df is None else df
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


def upper(df: DataFrame) -> DataFrame:
    return df.select(F.upper(F.col("value").cast("string")).alias("text"))


@dataclass(frozen=True)
class Checked:
    """A handler that finds its batch in the ledger before it handles it."""

    ledger_url: str
    sink: Sink

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        with Ledger.open(self.ledger_url) as ledger:
            found = ledger.batches.get(batch.key)
        assert found is not None
        assert found.status is Status.IN_PROGRESS
        self.sink(df, batch)


def test_each_batch_is_in_the_ledger_before_it_runs_and_its_rate_is_learnt(
    scene: Scene, sink: Sink, ledger_url: str
) -> None:
    good = fill(scene.orders, range(700))
    query = scene.start(Checked(ledger_url, sink))
    try:
        scene.wait_for(lambda: sink.values == good, query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
        batches = list(reversed(scene.ledger.batches.newest("orders", limit=1_000)))
        scene.wait_for(lambda: len(scene.ledger.rates.history("orders")) == len(batches), query)
    finally:
        query.stop()
    assert (batches[0].planned_records, batches[0].lag) == (100, 700)
    assert any(each.rate_per_s for each in scene.ledger.rates.history("orders"))
    assert not scene.ledger.proofs.verify("orders").findings


def test_a_query_that_stops_at_a_failure_runs_the_batch_again_when_it_is_started_again(
    scene: Scene, sink: Sink
) -> None:
    good = fill(scene.orders, range(30), 7)
    query = scene.start(sink)
    with pytest.raises(Exception, match="this cannot be kept"):
        query.awaitTermination(DEADLINE_S)
    wait_until(lambda: scene.statuses() == {Status.FAILED})
    sink.heal()
    again = scene.start(sink)
    try:
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, again)
    finally:
        again.stop()
    assert sink.values == sorted([*good, BAD])
    (key, first, _), (same, second, _) = sink.calls
    assert (key, first, second) == (same, 1, 2)


def test_a_batch_is_called_again_in_place(scene: Scene, sink: Sink) -> None:
    good = fill(scene.orders, range(20))
    query = scene.start(Sink(sink.folder, fails_first=2), headrace.retry(2, "10 ms"))
    try:
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
    finally:
        query.stop()
    assert [attempt for _, attempt, _ in sink.calls] == [1, 2, 3]
    assert sink.values == good


def test_a_deferred_batch_is_run_by_the_backfill_and_the_stream_goes_on(
    scene: Scene, sink: Sink
) -> None:
    good = fill(scene.orders, range(250), 120)
    query = scene.start(sink, "defer")
    try:
        scene.wait_for(lambda: Status.FAILED in scene.statuses(), query)
        scene.wait_for(lambda: len(sink.values) >= 100, query)
        sink.heal()
        scene.wait_for(lambda: len(sink.values) > len(good), query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
    finally:
        query.stop()
    assert sink.values == sorted([*good, BAD])
    assert Kind.BACKFILL in {kind for *_, kind in sink.calls}


def test_bad_records_are_isolated_and_all_others_processed(scene: Scene, sink: Sink) -> None:
    good = fill(scene.orders, range(120), 20, 41)  # enough others for both to be proved
    query = scene.start(sink, "isolate")
    try:
        scene.wait_for(lambda: len(scene.letters()) == 2, query)
        scene.wait_for(lambda: sink.values == good, query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
        scene.ledger.operator_limits.stop("orders", "ops")
        wait_until(lambda: not query.isActive, DEADLINE_S)  # by the process that runs the handler
        assert query.exception() is None
    finally:
        query.stop()
    assert sink.values == good
    assert scene.letters() == [(20, BAD.encode()), (41, BAD.encode())]


def test_what_a_stream_derives_by_transform_is_isolated_as_it_was_derived(
    scene: Scene, sink: Sink
) -> None:
    good = fill(scene.orders, range(30), 7)
    query = scene.start(Sink(sink.folder, "text"), "isolate", transform=upper)
    try:
        scene.wait_for(lambda: len(scene.letters()) == 1, query)
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
    finally:
        query.stop()
    assert (sink.values, scene.letters()) == (good, [(7, BAD.encode())])


def test_what_is_derived_before_the_gate_is_refused_where_it_cannot_be_run_again(
    scene: Scene, sink: Sink
) -> None:
    derived, handler = upper(scene.read()), Sink(sink.folder, "text")
    with pytest.raises(OptionError, match="give the DataFrame that load"):
        scene.gate.write(derived, handler, transform=upper)
    if is_remote(scene.spark):
        with pytest.raises(OptionError, match=r"pass the derivation as transform="):
            scene.gate.write(derived, handler, on_failure="isolate")
    else:
        scene.gate.write(derived, handler, on_failure="isolate")


@dataclass(frozen=True)
class Rejecting:
    """A handler that knows poison."""

    sink: Sink

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        batch.reject(df.where("cast(value as string) = 'poison'"), "it is poison")
        self.sink(df.where("cast(value as string) != 'poison'"), batch)


def test_what_a_handler_rejects_by_name_is_kept_with_its_batch(scene: Scene, sink: Sink) -> None:
    good = fill(scene.orders, range(20), 7)
    query = scene.start(Rejecting(sink))
    try:
        scene.wait_for(lambda: len(scene.letters()) == 1, query)
        scene.wait_for(lambda: sink.values == good, query)
    finally:
        query.stop()
    assert scene.letters() == [(7, BAD.encode())]


@dataclass(frozen=True)
class Decoding:
    """A handler that decodes JSON."""

    sink: Sink

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        decoded = headrace.decode(df, headrace.json("n INT"))
        self.sink(decoded.selectExpr("cast(value.n as string) AS value"), batch)


def test_what_cannot_be_decoded_is_kept_as_a_dead_letter(scene: Scene, sink: Sink) -> None:
    values = [b'{"n": %d}' % n for n in range(20)]
    values[7] = b"no json"
    scene.orders.produce(*values)
    query = scene.start(Decoding(sink))
    try:
        scene.wait_for(lambda: len(scene.letters()) == 1, query)
    finally:
        query.stop()
    assert sorted(map(int, sink.values)) == [n for n in range(20) if n != 7]
    assert scene.letters() == [(7, b"no json")]


@dataclass(frozen=True)
class Numbers:
    """A handler whose numbers are decoded, and that cannot process one of them."""

    sink: Sink
    refused: int

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        numbers = [row.n for row in df.select("value.n").collect()]
        if self.refused in numbers:
            raise ValueError(f"no {self.refused} is wanted")
        self.sink(df.selectExpr("cast(value.n as string) AS value"), batch)


def test_what_cannot_be_decoded_by_the_source_is_kept_also_in_an_isolation(
    scene: Scene, sink: Sink
) -> None:
    values = [b'{"n": %d, "unused": 1}' % n for n in range(20)]
    values[7] = b"no json"
    scene.orders.produce(*values)
    form = headrace.json("n INT, unused INT")
    columns = "offset BIGINT, value STRUCT<n: INT>"
    df = read(scene.gate, scene.spark, scene.orders, schema=columns, decode=form)
    query = scene.start(Numbers(sink, 3), headrace.isolate(), df)
    try:
        scene.wait_for(lambda: len(scene.letters()) == 2, query)
        scene.wait_for(lambda: len(sink.values) == 18, query)
    finally:
        query.stop()
    assert sorted(map(int, sink.values)) == [n for n in range(20) if n not in {3, 7}]
    assert scene.letters() == [(3, values[3]), (7, b"no json")]


def test_a_gate_has_one_query(scene: Scene, sink: Sink, tmp_path: Path) -> None:
    fill(scene.orders, range(5))
    query = scene.start(sink)
    try:
        scene.wait_for(lambda: scene.statuses() == {Status.SUCCESS}, query)
        other = scene.gate.write(scene.read(), sink)
        with pytest.raises(headrace.HeadraceError, match="is in use by"):
            other.option("checkpointLocation", str(tmp_path / "other")).start()
    finally:
        query.stop()


@dataclass(frozen=True)
class Slow:
    """A handler that says where it is, and takes long."""

    begun: Path

    def __call__(self, df: DataFrame, _batch: Batch) -> None:
        self.begun.write_text(str(os.getpid()))
        df.mapInArrow(_slowly, df.schema).collect()


def _slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(5)
    yield from batches


def test_a_query_that_is_stopped_in_a_batch_has_not_failed(scene: Scene, tmp_path: Path) -> None:
    fill(scene.orders, range(50))
    query = scene.start(Slow(tmp_path / "begun"), "isolate")
    scene.wait_for((tmp_path / "begun").exists, query)
    query.stop()
    wait_until(lambda: not query.isActive)
    assert scene.letters() == []
    assert {b.progress for b in scene.ledger.batches.newest("orders", limit=1_000)} == {None}
