"""``python -m headrace.cli.demo.driver FOLDER``: both lanes' queries, as a user would write them.

A process of its own, for it is killed in the middle.
"""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody who uses Spark names it)
from pyspark.sql.streaming.query import StreamingQuery

from headrace.cli.demo.shop import GATED, UNGATED, Shop
from headrace.cli.exits import leave
from headrace.execution import Batch, Gate
from headrace.local.session import local_spark

GATE: Final = "headrace-demo"
INTERVAL_S: Final = 2
MIN_RATE_PER_S: Final = 400
"""Less than even a slow handler can process: from a slow first batch on, the way up is short."""

_LOOK_S: Final = 0.2


class Lanes:
    """The handlers of both lanes: the same work, with and without what a gate knows."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    def gated(self, df: DataFrame, batch: Batch) -> None:
        """Put bad orders aside; write each of the others once."""
        run = self._shop.begin(GATED)
        orders, bad = _read(df)
        if bad:
            batch.reject(bad, "it is no order")
        self._shop.process(run, len(orders) + len(bad))
        with self._shop.engine.begin() as connection:
            if batch.once(connection):
                self._shop.store(connection, GATED, orders)
        self._shop.end(run)

    def ungated(self, df: DataFrame, _batch_id: int) -> None:
        """Stop at a bad order, as ``foreachBatch`` does; write what there is."""
        run = self._shop.begin(UNGATED)
        orders, bad = _read(df)
        if bad:
            error = f"partition {bad[0]['partition']} offset {bad[0]['offset']} is no order"
            self._shop.fail(run, error)
            raise ValueError(error)
        self._shop.process(run, len(orders))
        with self._shop.engine.begin() as connection:
            self._shop.store(connection, UNGATED, orders)
        self._shop.end(run)


def _read(df: DataFrame) -> tuple[list[int], list[dict[str, object]]]:
    """The numbers of a batch's orders, and where those are that cannot be read."""
    order = F.from_json(F.col("value").cast("string"), "id long")
    table = df.select("topic", "partition", "offset", order["id"].alias("id")).toArrow()
    bad = table.filter(pc.is_null(table["id"]))
    orders: list[int] = pc.drop_null(table["id"]).to_pylist()
    return orders, bad.select(["topic", "partition", "offset"]).to_pylist()


def start(spark: SparkSession, folder: Path, shop: Shop) -> StreamingQuery:
    """Start both queries; answers the one behind the gate."""
    settings = json.loads((folder / "driver.json").read_text())
    lanes = Lanes(shop)
    gate = Gate(GATE, interval=f"{INTERVAL_S} seconds", ledger=settings["ledger"])
    orders = (
        gate.read(spark, settings["source"])
        .options(**settings["options"])
        .option("backpressure.pid.minRate", str(MIN_RATE_PER_S))
        .load()
    )
    name = f"headrace-{settings['source']}"
    # Spark's first read takes longer than any other, and would be the first batch's.
    _read(spark.read.format(name).options(**settings["options"]).load().limit(1))
    checkpoint = str(folder / "checkpoints" / "gated")
    gated = gate.write(orders, lanes.gated).option("checkpointLocation", checkpoint).start()
    while gated.isActive and gated.lastProgress is None:
        time.sleep(_LOOK_S)  # to start both at once would take both as long as one after the other
    plain = spark.readStream.format(name).options(**settings["options"]).load()
    writer = plain.writeStream.foreachBatch(lanes.ungated)
    writer = writer.trigger(processingTime=f"{INTERVAL_S} seconds")
    writer.option("checkpointLocation", str(folder / "checkpoints" / "ungated")).start()
    return gated


def main(folder: Path) -> None:
    """Run until SIGTERM, or until the query behind the gate stops."""
    signal.signal(signal.SIGTERM, leave)
    with Shop(folder) as shop, local_spark(folder, "headrace demo", 2) as spark:
        query = start(spark, folder, shop)
        while query.isActive:
            time.sleep(_LOOK_S)
        sys.stderr.write(f"The query stopped: {query.exception()}\n")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception:  # noqa: BLE001  (it is printed)
        traceback.print_exc()
    finally:
        # A handler may still work for a minute, of which nobody wants anything any more.
        sys.stderr.flush()
        os._exit(1)
