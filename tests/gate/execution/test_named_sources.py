"""Gated queries whose sources have names, as Spark's source evolution asks for."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from tests.gate.execution.queries import DEADLINE_S, finish
from tests.services.kafka import TopicFactory
from tests.services.waiting import wait_until

from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

pytestmark = pytest.mark.nightly

EVOLVES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
BAD = "17"


@pytest.fixture
def evolving(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(EVOLVES, "true")
    try:
        yield spark
    finally:
        spark.conf.unset(EVOLVES)


def as_it_was_read(df: DataFrame) -> DataFrame:
    return df


def derived(df: DataFrame) -> DataFrame:
    return df.select(F.col("value"), F.upper(F.col("topic")).alias("topic"))


@pytest.mark.parametrize("derive", [as_it_was_read, pytest.param(derived, marks=pytest.mark.soak)])
def test_a_query_with_a_named_source_starts_isolates_backfills_and_starts_again(
    evolving: SparkSession,
    topic: TopicFactory,
    ledger_url: str,
    ledger: Ledger,
    tmp_path: Path,
    *,
    derive: Callable[[DataFrame], DataFrame],
) -> None:
    orders, kept, down = topic(), list[str](), [True]
    orders.produce(*[str(n).encode() for n in range(40)])
    gate = Gate("orders", interval="1 second", ledger=ledger_url)
    reader = gate.read(evolving, "kafka").name("orders").option("subscribe", orders.name)
    reader = reader.option("kafka.bootstrap.servers", orders.bootstrap_servers)
    df = derive(reader.option("startingOffsets", "earliest").load())

    def handle(df: DataFrame, batch: Batch) -> None:
        values = [bytes(row.value).decode() for row in df.collect()]
        if BAD in values:
            raise ValueError("this cannot be kept")
        if down[0] and "100" in values:
            raise RuntimeError("not yet")
        kept.extend(values)

    def run() -> None:
        writer = gate.write(df, handle, on_failure="isolate", backfill="manual")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())

    def statuses() -> set[Status]:
        return {batch.status for batch in ledger.batches.newest("orders", limit=1_000)}

    run()
    letters = ledger.dead_letters.oldest("orders")
    assert [each.letter.offset for each in letters] == [17]
    orders.produce(b"100")
    run()
    assert ledger.batches.failed("orders") != ()
    down[0] = False
    writer = gate.write(df, handle, on_failure="isolate")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_until(lambda: statuses() == {Status.SUCCESS}, DEADLINE_S)
    finally:
        query.stop()
    assert sorted(map(int, kept)) == [*(n for n in range(40) if n != 17), 100]
