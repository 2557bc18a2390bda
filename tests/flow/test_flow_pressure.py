"""Pressure from stage to stage, in a real Spark application."""

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.journal.journals import fill, values_of
from tests.services.waiting import wait_until

from headrace.control import HopSettings
from headrace.execution import Batch
from headrace.flow import Flow, journal
from headrace.ledger import Ledger, Status

RECORDS = 8000
SMALL = HopSettings(
    overload_bytes=15_000,
    light_load_bytes=1500,
    overload_sensitivity_ms=500,
    light_load_sensitivity_ms=500,
    lease_ms=3000,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/headrace.db"


@pytest.fixture
def flow(tmp_path: Path, url: str) -> Flow:
    """A flow of journals; ``raw`` has records, which its first stages are to read."""
    fill(tmp_path / "raw", {0: [RECORDS]})
    flow = Flow("shop", ledger=url, checkpoints=tmp_path / "checkpoints", pressure=SMALL)
    for name in ("raw", "clean"):
        flow.channel(name, journal(str(tmp_path / name)))
    return flow


def stored_in(rows: list[bytes]) -> bool:
    return len(set(rows)) == RECORDS


@pytest.mark.soak  # its stages must keep up with their senders, which a busy machine prevents
def test_a_stage_that_is_slow_has_the_one_before_it_held_back_and_nothing_is_lost(
    spark: SparkSession, flow: Flow, url: str
) -> None:
    stored: list[bytes] = []

    @flow.stage("parse", reads="raw", writes="clean", options={"maxRatePerPartition": 800})
    def parse(df: DataFrame, batch: Batch) -> DataFrame:
        return df.select("key", "value")

    @flow.stage("store", reads="clean", options={"backpressure.initialRate": 200})
    def store(df: DataFrame, batch: Batch) -> None:
        rows = [row.value for row in df.select("value").collect()]
        time.sleep(len(rows) / 400)  # it can do 400 records a second
        stored.extend(rows)

    with Ledger.open(url) as ledger:
        with flow.start(spark) as running:
            assert list(running.queries) == ["parse", "store"]
            wait_until(
                lambda: "held back by store" in {b.reason for b in ledger.batches("shop.parse")},
                timeout_s=100,
            )
            wait_until(lambda: stored_in(stored), timeout_s=100)
            assert not running.await_termination(0)
        assert running.await_termination(0)
        assert {batch.status for batch in ledger.batches()} == {Status.SUCCESS}
        assert ledger.shown_stages("shop") == ()
    assert sorted(stored) == sorted(v for v in values_of(0, 0, RECORDS) if v is not None)
