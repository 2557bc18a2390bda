"""A program that starts a stream, in a process that is as fresh as a user's; run as a module."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

_POLL_S = 0.01


def run(side: str, options: dict[str, str], folder: str, settings: dict[str, str]) -> None:
    """Write how long it took to load the stream, and until its first batch had ended (s).

    The session has been started before. With ``gated`` the ledger is a new one.
    """
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    began_s = time.perf_counter()
    df = _loaded(spark, side, options, folder)
    loaded_s = time.perf_counter()
    writer = df.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(processingTime="0 seconds").start()
    while (progress := query.lastProgress) is None:
        if not query.isActive:
            raise SystemExit(str(query.exception()))
        time.sleep(_POLL_S)
    ended_s = time.perf_counter()
    found: dict[str, Any] = {"load_s": loaded_s - began_s, "first_batch_s": ended_s - began_s}
    print(json.dumps(found | {"rows": progress.numInputRows}), flush=True)
    query.stop()
    spark.stop()


def _loaded(spark: SparkSession, side: str, options: dict[str, str], folder: str) -> DataFrame:
    if side == "kafka":
        return spark.readStream.format("kafka").options(**options).load()
    import headrace  # noqa: PLC0415  (it is measured)

    headrace.register(spark)
    if side == "gated":
        ledger = f"sqlite:///{Path(folder)}/headrace.db"
        gate = headrace.Gate("first-batch", interval="1 second", ledger=ledger)
        return gate.read(spark, "kafka").options(**options).load()
    return spark.readStream.format(side).options(**options).load()


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
