"""Queries with state, on each version of Spark: a batch that was not committed keeps its state.

Spark commits a batch after the gate's ledger has it. A driver that dies in between leaves a batch
that its next run computes again, without handing it out. Here its commit is deleted, in its place.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from tests.gate.execution.queries import finish, read
from tests.services.kafka import Topic, TopicFactory

import headrace
from headrace.gate.execution.batch import Batch

pytestmark = pytest.mark.integration  # its fixtures ask for the services by name

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Count(StatefulProcessor):
    """Counts the records of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], _timers: Any) -> Iterator[Any]:
        before = self._count.get() or (0,)
        count = before[0] + sum(len(part) for part in rows)
        self._count.update((count,))
        yield pd.DataFrame({"value": [f"{key[0]}={count}"]})

    def close(self) -> None:
        """Keep nothing."""


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("value").count().select(F.expr("concat(value, '=', count) AS value"))


def deduplicated(df: DataFrame) -> DataFrame:
    return df.dropDuplicates(["value"])


def transformed(df: DataFrame) -> DataFrame:
    grouped = df.groupBy("value")
    return grouped.transformWithStateInPandas(Count(), "value STRING", "Update", "None")


Derive = Callable[[DataFrame], DataFrame]
COUNTS = [["a=2", "b=1"], [], ["a=3", "c=1"]]


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """The one store that transformWithState works on."""
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(
    ("derive", "mode", "expected"),
    [
        (counted, "update", COUNTS),
        (deduplicated, "append", [["a", "b"], [], ["c"]]),
        (transformed, "update", COUNTS),
    ],
)
def test_a_batch_that_was_not_committed_is_computed_and_not_handed_out(
    spark: SparkSession,
    topic: TopicFactory,
    ledger_url: str,
    tmp_path: Path,
    *,
    derive: Derive,
    mode: str,
    expected: list[list[str]],
) -> None:
    headrace.register(spark)
    gate, orders = headrace.Gate("orders", interval="1 second", ledger=ledger_url), topic()

    def handed_out(orders: Topic, *values: bytes) -> list[str]:
        """Return the values that a run hands out, over all its batches."""
        orders.produce(*values)
        file = tmp_path / "values"
        file.unlink(missing_ok=True)

        def handler(df: DataFrame, _batch: Batch) -> None:
            with file.open("a") as lines:
                lines.writelines(f"{json.dumps(row.value)}\n" for row in df.collect())

        text = read(gate, spark, orders).select(F.col("value").cast("string").alias("value"))
        writer = gate.write(derive(text), handler).outputMode(mode)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())
        return sorted(map(json.loads, file.read_text().split())) if file.exists() else []

    first = handed_out(orders, b"a", b"b", b"a")
    (tmp_path / "checkpoint/commits/0").unlink()
    (tmp_path / "checkpoint/commits/.0.crc").unlink(missing_ok=True)
    assert [first, handed_out(orders), handed_out(orders, b"a", b"c")] == expected
