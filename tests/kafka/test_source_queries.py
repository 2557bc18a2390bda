"""The source under what Spark does with streams: state, watermarks, joins of two gated sources."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.services.kafka import TopicFactory
from tests.services.queries import available_now, running, stream_of

from headrace.control import OffsetRange
from headrace.ledger import Ledger

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


def test_counts_by_window_survive_a_restart_and_are_final_behind_the_watermark(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders = topic(2, {"retention.ms": "-1"})
    noon_ms = round(NOON.timestamp() * 1000)
    counts = (
        stream_of(spark, orders)
        .withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "1 minute"), "value")
        .count()
        .select("value", "count")
    )
    for partition in (0, 1):
        orders.produce(b"tea", b"tea", partition=partition, timestamp_ms=noon_ms)
    assert available_now(counts, tmp_path).rows == []
    orders.produce(b"tea", b"milk", timestamp_ms=noon_ms)
    orders.produce(b"later", timestamp_ms=noon_ms + 180_000)
    rows = available_now(counts, tmp_path).rows
    assert {(row.value, row["count"]) for row in rows} == {(b"tea", 5), (b"milk", 1)}


def test_two_gated_sources_are_joined_and_each_keeps_its_own_books(
    topic: TopicFactory, spark: SparkSession, tmp_path: Path
) -> None:
    orders, payments = topic(), topic()
    url = f"sqlite:///{tmp_path}/headrace.db"

    def gated(name: str) -> dict[str, object]:
        return {
            "headrace.gate": name,
            "headrace.ledger": url,
            "backpressure.initialRate": 10,
            "backpressure.pid.minRate": 10,
            "includeHeaders": True,
        }

    joined = (
        stream_of(spark, orders, gated("orders"))
        .join(stream_of(spark, payments, gated("payments")).drop("topic"), "value")
        .select("value")
    )
    names = [f"order {n:02}" for n in range(30)]
    orders.produce(*(name.encode() for name in names))
    payments.produce(*(name.encode() for name in names[10:15]))
    with running(joined, tmp_path / "checkpoint") as collected:
        collected.wait_for(lambda c: len(c.rows) >= 5)
        payments.produce(names[29].encode())
        collected.wait_for(lambda c: len(c.rows) >= 6)
    assert collected.values == [*names[10:15], names[29]]
    with Ledger.open(url) as ledger:
        for gate, of, count in (("orders", orders, 30), ("payments", payments, 6)):
            batches = [ledger.ranges(b.schedule_id) for b in reversed(ledger.batches(gate))]
            ranges = [planned.offsets for (planned,) in batches]
            assert all(r.count <= 10 for r in ranges)
            starts = [0, *(r.until for r in ranges)]
            assert ranges == [
                OffsetRange(of.name, 0, start, until) for start, until in pairwise(starts)
            ]
            assert starts[-1] == count
