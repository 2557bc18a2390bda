"""Run the handler once before it is watched: for Spark to warm up, and to learn its speed here."""

import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from headgate.cli.demo.audit import OrderAudit
from headgate.cli.demo.orders import OrderBook
from headgate.cli.demo.script import COST_S, Script
from headgate.cli.demo.work import OrderHandler
from headgate.gate import Batch

WARM_UP: Final = 200
MEASURED: Final = 2_000


def rehearse(spark: SparkSession, seconds_left: Callable[[], float]) -> Script:
    """The script of a demo that takes the time left after this, on a machine as fast as this."""
    took_s = 0.0
    for orders in (WARM_UP, MEASURED):
        book = OrderBook("rehearsal", 0, 1)
        df = spark.createDataFrame([(book.write(0)[0],) for _ in range(orders)], "value binary")
        handler = OrderHandler(book.shop, OrderAudit(), COST_S)
        began_s = time.monotonic()
        handler(df, Batch("rehearsal", 0, (), 1, "live"))
        took_s = time.monotonic() - began_s
    return Script.rehearsed(seconds_left(), MEASURED, took_s)
