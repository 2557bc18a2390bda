"""A gated query in a process of its own, over Spark Connect or not; run as a module."""

import json
import sys
import time
from statistics import median

from pyspark.sql import DataFrame, SparkSession

import headrace

_POLL_S = 0.1


def handler(df: DataFrame, _batch: headrace.Batch) -> None:
    """Read all there is, and keep nothing."""
    df.write.format("noop").mode("overwrite").save()


def run(
    remote: str | None,
    settings: dict[str, str],
    options: dict[str, str],
    folder: str,
    ledger: str,
    *,
    batches: int,
    skipped: int,
) -> None:
    """Write the median time of the batches after the first ones (ms), and their rows.

    Args:
        remote: The Spark Connect server; None for a session with a JVM.
        settings: Settings of the session with a JVM.
        options: Options of the source.
        folder: For the checkpoint.
        ledger: The URL of a new one.
        batches: So many are run.
        skipped: So many at the start do not count.
    """
    builder: SparkSession.Builder = SparkSession.builder
    if remote is not None:
        builder = builder.remote(remote)
    else:
        for name, value in settings.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    gate = headrace.Gate("connect", interval="1 second", ledger=ledger)
    df = gate.read(spark, "kafka").options(**options).load()
    writer = gate.write(df, handler).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(processingTime="0 seconds").start()
    while (last := query.lastProgress) is None or last.batchId < batches - 1:
        if not query.isActive:
            raise SystemExit(str(query.exception()))
        time.sleep(_POLL_S)
    progress = [each for each in query.recentProgress if skipped <= each.batchId < batches]
    query.stop()
    spark.stop()
    took_ms = median(each.durationMs["triggerExecution"] for each in progress)
    print(
        json.dumps(
            {"ms": took_ms, "rows": sum(source.numInputRows for source in progress[0].sources)}
        ),
        flush=True,
    )


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
