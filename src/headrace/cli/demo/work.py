"""The demo's handler: real work of a known cost on every order."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody who uses Spark names it)

from headrace.cli.demo.audit import Arrived, OffsetAudit, OrderAudit
from headrace.cli.demo.orders import SCHEMA
from headrace.control import TopicPartition
from headrace.execution import Batch

Check = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class OrderHandler:
    """Parses the orders, checks each at a cost, and sums them up by region.

    Args:
        shop: Whose orders to process; what else is in the topic is passed over.
        audit: Is told of every order that was processed.
        cost_s: What the check of one order takes (s).
    """

    def __init__(self, shop: str, audit: OrderAudit, cost_s: float) -> None:
        self._shop = shop
        self._audit = audit
        self._cost_s = cost_s
        self.slowdown = 1.0
        """How many times longer the checks take; may be changed at any time."""
        self.positions: dict[TopicPartition, int] = {}
        """Up to where each partition has been processed."""
        self._settling = threading.Lock()
        self._closed = False

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Process one batch."""
        parsed = df.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("order"))
        ours = parsed.where(F.col("order.shop") == self._shop)
        checked = ours.select("order.id", "order.region", "order.total").mapInArrow(
            check_orders(self._cost_s * self.slowdown), "id long, region string, total double"
        )
        by_region = checked.groupBy("region").agg(
            F.sum("total").alias("revenue"), F.collect_list("id").alias("ids")
        )
        totals = by_region.collect()
        with self._settling:
            if self._closed:
                return
            for _region, _revenue, ids in totals:
                self._audit.add(ids)
            for each in batch.ranges:
                self.positions[each.topic_partition] = each.until

    def close(self) -> None:
        """Count nothing from now on: a batch that a stopped query left behind may still run."""
        with self._settling:
            self._closed = True


class CountingHandler:
    """Counts the records of each partition; for a topic of which nothing is known."""

    def __init__(self, audit: OffsetAudit) -> None:
        self._audit = audit

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Count one batch."""
        counted = df.groupBy("topic", "partition").agg(
            F.count("*"), F.count_distinct("offset"), F.min("offset"), F.max("offset")
        )
        self._audit.add(
            batch.ranges,
            {
                TopicPartition(topic, partition): Arrived(*numbers)
                for topic, partition, *numbers in counted.collect()
            },
        )


def check_orders(cost_s: float) -> Check:
    """A check of orders that takes so long for each, on a core of its own."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for orders in batches:
            hash_for(orders.num_rows * cost_s)
            yield orders

    return check


def hash_for(seconds: float) -> None:
    """Keep a core busy, as a signature check would."""
    until, block = time.perf_counter() + seconds, bytes(64 * 1024)
    while time.perf_counter() < until:
        block = hashlib.sha256(block).digest() * 2048
