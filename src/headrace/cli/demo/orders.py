"""The demo's orders: made and sent by a thread, processed by a handler, and counted."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody who uses Spark names it)

from headrace.cli.demo.targets import PARTITIONS, Target
from headrace.core.ranges import TopicPartition
from headrace.execution import Batch

SCHEMA: Final = "id long, region string, total double"
COST_S: Final = 0.0002
"""What the handler takes for each order: it waits, as for a service that it calls."""

_REGIONS: Final = ("north", "east", "south", "west", "overseas")
_WEIGHTS: Final = (30, 25, 20, 12, 8, 5)
"""How the orders spread over the topic's partitions: as unevenly as keys do."""

_TICK_S: Final = 0.05
_CATCH_UP_S: Final = 1


def missing_and_twice(times: Mapping[int, int], produced: int, waiting: int) -> tuple[int, int]:
    """How many orders were lost, and how many came more than once or were never sent.

    ``times`` is how often each order arrived, by its number; the orders 0 up to ``produced`` were
    sent, and ``waiting`` of them still wait to be read.
    """
    seen = sum(number < produced for number in times)
    twice = sum(often > 1 or number >= produced for number, often in times.items())
    return max(produced - seen - waiting, 0), twice


class OrderHandler:
    """Sums orders up by region, at a cost for each, and counts them by their numbers."""

    def __init__(self) -> None:
        self.slowdown = 1
        """How many times longer an order takes; may be changed at any time."""
        self.times: Counter[int] = Counter()
        self.arrived = 0
        self.positions: dict[TopicPartition, int] = {}
        """Up to where each partition has been processed."""

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Process one batch."""
        order = F.from_json(F.col("value").cast("string"), SCHEMA).alias("order")
        by_region = df.select(order).groupBy("order.region")
        totals = by_region.agg(F.sum("order.total"), F.collect_list("order.id"))
        ids = [number for _region, _total, ids in totals.collect() for number in ids]
        time.sleep(len(ids) * COST_S * self.slowdown)
        self.times.update(ids)
        self.arrived += len(ids)
        self.positions |= {each.topic_partition: each.until for each in batch.ranges}


class OrderSender(AbstractContextManager["OrderSender"]):
    """Sends orders to a target: a backlog at once, then a steady stream from a thread."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._random = random.Random(20_260_101)  # noqa: S311  (nothing secret)
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "orders")
        self._running: Future[None] | None = None
        self.produced = 0
        """Orders handed over so far; after `stop` all are acknowledged."""

    def send(self, orders: int) -> None:
        """Send so many, and wait until all are acknowledged."""
        written = []
        for number in range(self.produced, self.produced + orders):
            total = self._random.randrange(99, 20_000) / 100
            order = {"id": number, "region": self._random.choice(_REGIONS), "total": total}
            written.append(json.dumps(order).encode())
        partitions = self._random.choices(range(PARTITIONS), _WEIGHTS, k=orders)
        self.produced += orders
        self._target.send(list(zip(written, partitions, strict=True)))

    def start(self, orders_per_s: float) -> None:
        """Send on at a steady rate, or as fast as the target lets it."""
        self._running = self._thread.submit(self._stream, orders_per_s)

    def check(self) -> None:
        """Raise what has stopped the stream, if anything has."""
        if self._running is not None and self._running.done():
            self._running.result()

    def stop(self) -> None:
        """Stop, and wait until everything is acknowledged; a second call does nothing."""
        self._stopped.set()
        if self._running is not None:
            self._running.result()

    def __exit__(self, *_raised: object) -> None:
        self._stopped.set()
        self._thread.shutdown()

    def _stream(self, orders_per_s: float) -> None:
        last_s = time.monotonic()
        while not self._stopped.wait(_TICK_S):
            # What pressure has delayed for long is not sent later all at once.
            last_s = max(last_s, time.monotonic() - _CATCH_UP_S)
            due = int((time.monotonic() - last_s) * orders_per_s)
            self.send(due)
            last_s += due / orders_per_s
