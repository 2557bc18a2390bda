"""Queries with state whose stopped checkpoint Spark writes for another number of partitions.

Spark adds a batch without records to the checkpoint. With ``enforce_exactly_once_sink=False`` its
offsets lie before those of a batch that failed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from tests.gate.execution.queries import finish, read
from tests.services.kafka import Topic, TopicFactory

from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Verdict
from headrace.gate.source.comparison import compare_with_checkpoint

pytestmark = pytest.mark.nightly

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with the one store whose state Spark writes anew."""
    spark.conf.set(PROVIDER, ROCKSDB)
    yield spark
    spark.conf.unset(PROVIDER)


class Counting:
    """A windowed count behind a gate, started again and again on one checkpoint."""

    def __init__(self, spark: SparkSession, orders: Topic, ledger_url: str, folder: Path) -> None:
        self._spark: Any = spark
        self._orders = orders
        self._gate = Gate("orders", interval="1 second", ledger=ledger_url)
        self.checkpoint = str(folder / "checkpoint")
        self.partitions: set[int] = set()

    def run(self, *values: bytes, fails: bool = False) -> dict[str, int]:
        """Return the counts that a run over these records hands out."""
        self._orders.produce(*values)
        counts = dict[str, int]()

        def handler(df: DataFrame, _batch: Batch) -> None:
            counts.update((row.name, row.n) for row in df.collect())
            if fails:
                raise ValueError("the sink is full")

        df = read(self._gate, self._spark, self._orders).withWatermark("timestamp", "10 minutes")
        name = F.col("value").cast("string").alias("name")
        grouped = df.groupBy(F.window("timestamp", "365 days"), name)
        counted = grouped.agg(F.count("*").alias("n"))
        writer = self._gate.write(counted, handler).outputMode("update")
        writer = writer.option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        finish(query)
        operators = [each for report in query.recentProgress for each in report.stateOperators]
        self.partitions = {each.numShufflePartitions for each in operators}
        return counts

    def repartition(self, partitions: int, *, is_enforced: bool = True) -> None:
        self._spark._streamingCheckpointManager.repartition(
            self.checkpoint, partitions, is_enforced
        )


@pytest.fixture
def counting(
    rocksdb: SparkSession, topic: TopicFactory, ledger_url: str, tmp_path: Path
) -> Counting:
    return Counting(rocksdb, topic(2), ledger_url, tmp_path)


def test_a_count_whose_state_was_repartitioned_goes_on_exactly(
    counting: Counting, ledger: Ledger
) -> None:
    assert counting.run(b"a", b"b", b"a") == {"a": 2, "b": 1}
    assert counting.run(b"a", b"c") == {"a": 3, "c": 1}
    assert counting.partitions == {2}
    counting.repartition(5)
    assert counting.run() == {}
    assert counting.run(b"a", b"b", b"d") == {"a": 4, "b": 2, "d": 1}
    assert counting.partitions == {5}
    assert ledger.proofs.verify("orders").verdict is Verdict.PROVEN
    known = ledger.history.checkpoints("orders")
    compared = compare_with_checkpoint(ledger, "orders", counting.checkpoint, known)
    assert not compared.findings
    assert not compared.contradictions


def test_a_repartition_that_passes_over_a_failed_batch_is_refused(counting: Counting) -> None:
    counting.run(b"a", b"b")
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        counting.run(b"a", fails=True)
    with pytest.raises(Exception, match="LAST_BATCH_FAILED"):
        counting.repartition(5)
    counting.repartition(5, is_enforced=False)
    with pytest.raises(StreamingQueryException, match="restore the newest copy"):
        counting.run()
