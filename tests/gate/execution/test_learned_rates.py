"""The learned law on a real broker and a real Spark, with jobs whose cost is known."""

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.gate.execution.queries import DEADLINE_S, read
from tests.services.kafka import TopicFactory
from tests.services.waiting import wait_until

from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate
from headrace.gate.ledger.ledger import Ledger

LEARNED = {"backpressure.rateEstimator": "learned"}
FIXED_S, PER_S = 0.3, 5_000

INTERVAL_S = 3
"""With much room for what a batch costs on a busy machine, which nobody knows."""


def job(fixed_s: float, **record_s: float) -> Callable[[DataFrame, Batch], None]:
    """A handler that takes so long, and longer for each record of a topic that begins so."""

    def handler(df: DataFrame, _batch: Batch) -> None:
        counts = {row["topic"]: row["count"] for row in df.groupBy("topic").count().collect()}
        costs = [
            cost_s * count
            for name, cost_s in record_s.items()
            for topic, count in counts.items()
            if topic.startswith(name)
        ]
        time.sleep(fixed_s + sum(costs))

    return handler


def start(
    gate: Gate, df: DataFrame, handler: Callable[[DataFrame, Batch], None], checkpoint: Path
) -> StreamingQuery:
    return gate.write(df, handler).option("checkpointLocation", str(checkpoint)).start()


def until(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    """Run a query until this holds."""
    try:
        wait_until(lambda: not query.isActive or condition(), timeout_s=DEADLINE_S)
        assert query.isActive, query.exception()
    finally:
        query.stop()


def cost_of(ledger: Ledger, gate: str) -> SourceCost | None:
    found = ledger.gates.get(gate)
    return SourceCost.from_text(found.batch_cost) if found and found.batch_cost else None


def test_it_knows_after_some_batches_what_one_costs_and_a_restart_begins_with_it(
    spark: SparkSession, topic: TopicFactory, ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    gate = Gate("orders", interval=f"{INTERVAL_S} seconds", ledger=ledger_url)
    orders, handler = topic(prefix="orders"), job(FIXED_S, orders=1 / PER_S)
    orders.produce(*[b"x"] * 150_000)
    df = read(gate, spark, orders, **LEARNED)

    def knows() -> bool:
        cost = cost_of(ledger, "orders")
        return (
            cost is not None
            and len(ledger.rates.history("orders")) >= 6
            and cost.fixed_s > 0.9 * FIXED_S
            and abs(cost.record_s * PER_S - 1) < 0.5
        )

    until(start(gate, df, handler, tmp_path / "checkpoint"), knows)
    before = len(ledger.batches.newest("orders"))
    query = start(gate, df, handler, tmp_path / "checkpoint")
    until(query, lambda: len(ledger.batches.newest("orders")) > before)
    first = ledger.batches.newest("orders")[-before - 1]
    sustained = (INTERVAL_S - FIXED_S) * PER_S
    assert 0.2 * sustained < first.planned_records < 1.2 * sustained
