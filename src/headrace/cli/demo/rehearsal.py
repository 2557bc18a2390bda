"""Run the handler once before it is watched: for Spark to warm up, and to learn its speed here."""

import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from headrace.cli.demo.audit import OrderAudit
from headrace.cli.demo.orders import OrderBook
from headrace.cli.demo.script import CORES, COST_S, Script
from headrace.cli.demo.work import OrderHandler
from headrace.execution import Batch

FEW: Final = 200
MANY: Final = 4_000
"""The sizes of the batches that are measured: what they differ by is the cost of the orders."""

TIMES: Final = 2
"""Of so many measurements the shortest counts: other work on the machine only makes them longer."""


def rehearse(spark: SparkSession, seconds_left: Callable[[], float]) -> Script:
    """The script of a demo that takes the time left after this, on a machine as fast as this."""
    _seconds_for(spark, FEW)  # Spark's first job takes much longer than any other
    few_s = min(_seconds_for(spark, FEW) for _ in range(TIMES))
    many_s = min(_seconds_for(spark, MANY) for _ in range(TIMES))
    per_order_s = max((many_s - few_s) / (MANY - FEW), COST_S / CORES)
    return Script.rehearsed(seconds_left(), max(few_s - FEW * per_order_s, 0), per_order_s)


def _seconds_for(spark: SparkSession, orders: int) -> float:
    """How long the handler takes for so many orders."""
    book = OrderBook("rehearsal", 0, 1)
    df = spark.createDataFrame([(book.write(0)[0],) for _ in range(orders)], "value binary")
    handler = OrderHandler(book.shop, OrderAudit(), COST_S)
    began_s = time.monotonic()
    handler(df, Batch("rehearsal", 0, (), 1, "live", 1))
    return time.monotonic() - began_s
