"""Flows with signals over the ledger, in a real Spark application."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.services.changes import create_deleted, delete_topic
from tests.services.kafka import Topic, TopicFactory
from tests.services.waiting import wait_until

from headrace.errors import OptionError
from headrace.flow import Flow, kafka
from headrace.flow.kafka_channel import KafkaChannel
from headrace.flow.running import MAX_RESTARTS
from headrace.gate.control.pressure import HopSettings
from headrace.gate.execution.batch import Batch
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

RECORDS = 600
"""Six batches, on a machine that is too slow for more than the lowest rate."""


MANY = 8000
SMALL = HopSettings(
    overload_bytes=15_000,
    light_load_bytes=1500,
    overload_sensitivity_ms=500,
    light_load_sensitivity_ms=500,
    lease_ms=3000,
)


def values(count: int) -> list[bytes]:
    return [b"0:%d" % number for number in range(count)]


def on(topic: Topic) -> KafkaChannel:
    return kafka(topic.name, topic.bootstrap_servers)


def two_topics(raw: Topic, clean: Topic, folder: Path, pressure: HopSettings | None = None) -> Flow:
    """A flow with two topics, and no stages yet."""
    url = f"sqlite:///{folder}/headrace.db"
    flow = Flow("shop", ledger=url, checkpoints=folder / "c", pressure=pressure)
    flow.channel("raw", on(raw))
    flow.channel("clean", on(clean))
    return flow


@pytest.fixture
def raw(topic: TopicFactory) -> Topic:
    made = topic()
    made.produce(*values(RECORDS))
    return made


@pytest.fixture
def flow(raw: Topic, topic: TopicFactory, tmp_path: Path) -> Flow:
    return two_topics(raw, topic(), tmp_path)


@pytest.fixture
def fast(topic: TopicFactory, tmp_path: Path) -> Flow:
    """A flow with many records, whose thresholds are small."""
    raw = topic()
    raw.produce(*values(MANY))
    return two_topics(raw, topic(), tmp_path, pressure=SMALL)


def stored_in(rows: list[bytes]) -> bool:
    return len(set(rows)) == RECORDS


@pytest.mark.nightly
def test_stages_in_applications_of_their_own_go_on_where_they_were(
    spark: SparkSession, flow: Flow, topic: TopicFactory, tmp_path: Path
) -> None:
    stored: list[bytes] = []
    kept = topic()
    flow.channel("kept", on(kept))

    @flow.stage("split", reads="raw", writes=["clean", "kept"])
    def split(df: DataFrame, batch: Batch) -> dict[str, DataFrame]:
        values = df.select("value")
        return {"clean": values.where("value LIKE '%0'"), "kept": values}

    @flow.stage("store", reads="kept")
    def store(df: DataFrame, batch: Batch) -> None:
        stored.extend(row.value for row in df.select("value").collect())

    with flow.start(spark, stages=["split"]) as running:
        wait_until(lambda: running.queries["split"].lastProgress is not None, timeout_s=100)
    with flow.start(spark) as running:
        wait_until(lambda: stored_in(stored), timeout_s=100)
    assert len(stored) == RECORDS
    renamed = Flow("shop", ledger=flow.ledger, checkpoints=tmp_path / "c")
    renamed.channel("kept", on(kept))
    renamed.stage("keep", reads="kept")(store)
    with pytest.raises(OptionError, match=r"'keep' .* never run.* 'store' has read this channel"):
        renamed.start(spark)
    # A stage that is put before it would have it read all records again.
    inserted = Flow("shop", ledger=flow.ledger, checkpoints=tmp_path / "c")
    inserted.channel("kept", on(kept))
    inserted.channel("priced", on(topic()))
    inserted.stage("price", reads="kept", writes="priced")(split)
    inserted.stage("store", reads="priced")(store)
    with pytest.raises(OptionError, match=r"'price' .* 'store' .* and reads another channel now"):
        inserted.start(spark, stages=["price"])
    with pytest.raises(
        OptionError, match=rf"'store' .* with offsets of .* {kept.name} .* another name"
    ):
        inserted.start(spark, stages=["store"])


def test_a_stage_that_fails_stops_the_flow_and_is_named(
    spark: SparkSession, flow: Flow, topic: TopicFactory
) -> None:
    flow.channel("kept", on(topic()))

    @flow.stage("parse", reads="raw", writes=["clean", "kept"])
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df

    @flow.stage("store", reads="clean")
    def store(df: DataFrame, batch: Batch) -> None:
        """It has nothing to read."""

    with (
        flow.start(spark) as running,
        pytest.raises(StreamingQueryException, match=r"must return a DataFrame for each") as caught,
    ):
        running.await_termination()
    assert caught.value.__notes__ == ["It is the query of stage 'parse'."]
    assert not any(query.isActive for query in running.queries.values())


class When(logging.Handler):
    """Does something at each log record that has these words, before whoever logs goes on."""

    def __init__(self, words: str, do: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.messages: list[str] = []
        self._words, self._do = words, do

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self.messages.append(record.getMessage())
            self._do()


@contextmanager
def listening(handler: When) -> Iterator[When]:
    logging.getLogger("headrace.flow").addHandler(handler)
    try:
        yield handler
    finally:
        logging.getLogger("headrace.flow").removeHandler(handler)


def declare(flow: Flow, raw: Topic, admin: AdminClient, stored: list[bytes]) -> None:
    """A stage whose topic is gone when its planner looks for it, after all was checked."""

    def lose(df: DataFrame) -> DataFrame:
        delete_topic(admin, raw)
        return df

    @flow.stage("parse", reads="raw", writes="clean", derive=lose)
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        values = df.select("value")
        stored.extend(row.value for row in values.collect())
        return values


def test_a_stage_that_fails_before_its_handler_was_called_is_restarted(
    spark: SparkSession, flow: Flow, raw: Topic, admin: AdminClient
) -> None:
    stored: list[bytes] = []
    declare(flow, raw, admin, stored)

    def make_again() -> None:
        create_deleted(admin, raw)
        raw.produce(*values(RECORDS))

    with listening(When("is restarted", make_again)) as told, flow.start(spark) as running:
        first = running.queries["parse"]
        wait_until(lambda: stored_in(stored), timeout_s=100)
        assert running.queries["parse"] is not first
    (sentence,) = told.messages
    assert sentence.startswith(
        "Stage 'parse' of flow 'shop' failed before its handler was called, and is restarted"
        " (1 of 3): headrace.errors.SourceError: "
    )
    assert len(stored) == RECORDS


def test_a_stage_that_always_fails_before_its_handler_is_called_stops_the_flow_in_the_end(
    spark: SparkSession, flow: Flow, raw: Topic, admin: AdminClient
) -> None:
    declare(flow, raw, admin, [])
    with (
        listening(When("is restarted")) as told,
        flow.start(spark) as running,
        pytest.raises(StreamingQueryException, match=raw.name) as caught,
    ):
        running.await_termination()
    assert len(told.messages) == MAX_RESTARTS
    assert caught.value.__notes__ == ["It is the query of stage 'parse'."]


def test_a_stream_with_state_cannot_be_deferred_and_nothing_starts(
    spark: SparkSession, flow: Flow
) -> None:
    @flow.stage("parse", reads="raw", writes="clean")
    def parse(df: DataFrame, batch: Batch) -> None:
        raise AssertionError("it is not to start")

    @flow.stage(
        "count",
        reads="clean",
        on_failure="defer",
        derive=lambda df: df.groupBy("partition").count(),
    )
    def count(df: DataFrame, batch: Batch) -> None:
        raise AssertionError("it is not to start")

    with pytest.raises(
        OptionError, match=r"Stage 'count' \(.*test_flow_running.py:\d+\): .* state"
    ):
        flow.start(spark)
    assert not spark.streams.active


@pytest.mark.soak  # its stages must keep up with their senders, which a busy machine prevents
def test_a_stage_that_is_slow_has_the_one_before_it_throttled_and_nothing_is_lost(
    spark: SparkSession, fast: Flow
) -> None:
    stored: list[bytes] = []

    @fast.stage("parse", reads="raw", writes="clean", options={"maxRatePerPartition": 800})
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.select("key", "value")

    @fast.stage("store", reads="clean", options={"backpressure.initialRate": 200})
    def store(df: DataFrame, batch: Batch) -> None:
        rows = [row.value for row in df.select("value").collect()]
        time.sleep(len(rows) / 400)  # it can do 400 records a second
        stored.extend(rows)

    with Ledger.open(fast.ledger) as ledger:
        with fast.start(spark) as running:
            assert list(running.queries) == ["parse", "store"]
            wait_until(
                lambda: (
                    "throttled by store" in {b.reason for b in ledger.batches.newest("shop.parse")}
                ),
                timeout_s=100,
            )
            wait_until(lambda: len(set(stored)) == MANY, timeout_s=100)
            assert not running.await_termination(0)
        assert running.await_termination(0)
        assert {batch.status for batch in ledger.batches.newest()} == {Status.SUCCESS}
        assert ledger.signals.published("shop") == ()
    assert sorted(stored) == sorted(values(MANY))


def test_a_last_sink_that_is_away_has_the_stage_before_it_throttled_and_all_goes_on_by_itself(
    spark: SparkSession, fast: Flow
) -> None:
    stored: list[bytes] = []
    is_back = threading.Event()

    @fast.stage("parse", reads="raw", writes="clean", options={"maxRatePerPartition": 800})
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.select("key", "value")

    @fast.stage("store", reads="clean", options={"outage.maxRetry": "2 seconds"})
    def store(df: DataFrame, batch: Batch) -> None:
        rows = [row.value for row in df.select("value").collect()]
        if stored and not is_back.is_set():
            raise ConnectionRefusedError("127.0.0.1:5432 refused")
        stored.extend(rows)

    with Ledger.open(fast.ledger) as ledger, fast.start(spark):
        wait_until(lambda: ledger.sink_outages.get("shop.store"), timeout_s=100)
        wait_until(
            lambda: "throttled by store" in {b.reason for b in ledger.batches.newest("shop.parse")},
            timeout_s=100,
        )
        is_back.set()
        wait_until(lambda: len(set(stored)) == MANY, timeout_s=100)
        batches = ledger.batches.newest("shop.store", 1_000)
        assert [each.attempts for each in batches if each.attempts > 1] == [2]
        assert {each.progress for each in batches} == {None}
    assert sorted(stored) == sorted(values(MANY))
