"""Flows on journals, in a real Spark application."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.journal.journals import fill, values_of
from tests.services.waiting import wait_until

from headrace.control import HopSettings
from headrace.errors import OptionError
from headrace.execution import Batch
from headrace.flow import Flow, journal
from headrace.flow.running import MAX_RESTARTS
from headrace.ledger import Ledger, Status

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


def journals(folder: Path, records: int, pressure: HopSettings | None = None) -> Flow:
    """A flow of journals; ``raw`` has records, which its first stages read."""
    fill(folder / "raw", {0: [records]})
    url = f"sqlite:///{folder}/headrace.db"
    flow = Flow("shop", ledger=url, checkpoints=folder / "c", pressure=pressure)
    for name in ("raw", "clean"):
        flow.channel(name, journal(str(folder / name)))
    return flow


@pytest.fixture
def flow(tmp_path: Path) -> Flow:
    return journals(tmp_path, RECORDS)


def stored_in(rows: list[bytes]) -> bool:
    return len(set(rows)) == RECORDS


@pytest.mark.nightly
def test_stages_in_applications_of_their_own_go_on_where_they_were(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    stored: list[bytes] = []
    flow.channel("kept", journal(str(tmp_path / "kept")))

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
    renamed.channel("kept", journal(str(tmp_path / "kept")))
    renamed.stage("keep", reads="kept")(store)
    with pytest.raises(OptionError, match=r"'keep' .* never run.* 'store' of this flow has read"):
        renamed.start(spark)
    # A stage that is put before it would have it read all records again.
    inserted = Flow("shop", ledger=flow.ledger, checkpoints=tmp_path / "c")
    for name in ("kept", "priced"):
        inserted.channel(name, journal(str(tmp_path / name)))
    inserted.stage("price", reads="kept", writes="priced")(split)
    inserted.stage("store", reads="priced")(store)
    with pytest.raises(OptionError, match=r"'price' .* 'store' .* that reads another channel now"):
        inserted.start(spark, stages=["price"])
    with pytest.raises(OptionError, match=r"'store' .* has read .*/kept, .* it needs another name"):
        inserted.start(spark, stages=["store"])


def test_a_stage_that_fails_stops_the_flow_and_is_named(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    flow.channel("kept", journal(str(tmp_path / "kept")))

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


def declare(flow: Flow, raw: Path, stored: list[bytes]) -> None:
    """A stage whose journal is gone when its planner looks for it, after all was checked."""

    def lose(df: DataFrame) -> DataFrame:
        raw.rename(raw.with_name("away"))
        return df

    @flow.stage("parse", reads="raw", writes="clean", derive=lose)
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        values = df.select("value")
        stored.extend(row.value for row in values.collect())
        return values


def test_a_stage_that_fails_before_its_handler_was_called_is_restarted(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    stored: list[bytes] = []
    raw = tmp_path / "raw"
    declare(flow, raw, stored)
    found_again = When("is restarted", lambda: raw.with_name("away").rename(raw))
    with listening(found_again) as told, flow.start(spark) as running:
        first = running.queries["parse"]
        wait_until(lambda: stored_in(stored), timeout_s=100)
        assert running.queries["parse"] is not first
    (sentence,) = told.messages
    assert sentence.startswith(
        "Stage 'parse' of flow 'shop' failed before its handler was called, and is restarted"
        " (1 of 3): headrace.errors.SourceError: There is no journal at "
    )
    assert len(stored) == RECORDS


def test_a_stage_that_always_fails_before_its_handler_is_called_stops_the_flow_in_the_end(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    declare(flow, tmp_path / "raw", [])
    with (
        listening(When("is restarted")) as told,
        flow.start(spark) as running,
        pytest.raises(StreamingQueryException, match=r"There is no journal at") as caught,
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
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = journals(tmp_path, MANY, pressure=SMALL)
    stored: list[bytes] = []

    @flow.stage("parse", reads="raw", writes="clean", options={"maxRatePerPartition": 800})
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.select("key", "value")

    @flow.stage("store", reads="clean", options={"backpressure.initialRate": 200})
    def store(df: DataFrame, batch: Batch) -> None:
        rows = [row.value for row in df.select("value").collect()]
        time.sleep(len(rows) / 400)  # it can do 400 records a second
        stored.extend(rows)

    with Ledger.open(flow.ledger) as ledger:
        with flow.start(spark) as running:
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
    assert sorted(stored) == sorted(v for v in values_of(0, 0, MANY) if v is not None)


def test_a_last_sink_that_is_away_has_the_stage_before_it_throttled_and_all_goes_on_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = journals(tmp_path, MANY, pressure=SMALL)
    stored: list[bytes] = []
    is_back = threading.Event()

    @flow.stage("parse", reads="raw", writes="clean", options={"maxRatePerPartition": 800})
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.select("key", "value")

    @flow.stage("store", reads="clean", options={"outage.maxRetry": "2 seconds"})
    def store(df: DataFrame, batch: Batch) -> None:
        rows = [row.value for row in df.select("value").collect()]
        if stored and not is_back.is_set():
            raise ConnectionRefusedError("127.0.0.1:5432 refused")
        stored.extend(rows)

    with Ledger.open(flow.ledger) as ledger, flow.start(spark):
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
    assert sorted(stored) == sorted(v for v in values_of(0, 0, MANY) if v is not None)
