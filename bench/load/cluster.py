"""A gated query on a cluster of executors in processes of their own; run as a module."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.services.spark_home import spark_home

import headrace

_POLL_S = 0.1
_WAITS_S = 20e-6
"""Time for a record in a job that waits for its sink."""


def run(
    executors: int,
    options: dict[str, str],
    folder: str,
    ledger: str,
    *,
    batches: int,
    skipped: int,
    waits: bool,
) -> None:
    """Write the median time of the batches after the first ones (ms), and their rows.

    Args:
        executors: Number of executors, each with a core.
        options: Options of the source.
        folder: For the checkpoint, and for what Spark writes.
        ledger: The URL of a new one.
        batches: So many are run.
        skipped: So many at the start do not count.
        waits: Whether tasks wait for each record, as for a sink, and compute nothing.
    """
    os.environ["SPARK_HOME"] = str(spark_home(Path(folder)))
    spark = _session(executors)
    spark.sparkContext.setLogLevel("ERROR")
    gate = headrace.Gate("cluster", interval="1 second", ledger=ledger)
    df = gate.read(spark, "kafka").options(**options).load()

    def handler(df: DataFrame, _batch: headrace.Batch) -> None:
        waited = df.mapInArrow(_waiting, df.schema) if waits else df
        waited.write.format("noop").mode("overwrite").save()

    writer = gate.write(df, handler).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(processingTime="0 seconds").start()
    _wait_for(query, batches)
    progress = [each for each in query.recentProgress if skipped <= each.batchId < batches]
    query.stop()
    spark.stop()
    took_ms = median(each.durationMs["triggerExecution"] for each in progress)
    print(json.dumps({"ms": took_ms, "rows": progress[0].numInputRows}), flush=True)


def _session(executors: int) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    master = f"local-cluster[{executors},1,1024]"
    builder = SparkSession.builder.master(master).config(map=settings)
    return headrace.configure(builder).getOrCreate()


def _waiting(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(batch.num_rows * _WAITS_S)
        yield batch


def _wait_for(query: StreamingQuery, batches: int) -> None:
    while (last := query.lastProgress) is None or last.batchId < batches - 1:
        if not query.isActive:
            raise SystemExit(str(query.exception()))
        time.sleep(_POLL_S)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
