"""A gated query in a process of its own, which can be killed at any moment and started again.

    python driver.py SERVERS TOPIC FOLDER MASTER

It says on its output which moment it has come to, one word a line: ``ready``, when it waits for a
line of its input before it starts the query; then for each batch ``handling``, ``writing`` and
``written``. It ends when it has processed what is there, or when its input ends.

Into the folder go the checkpoint, the ledger ``headgate.db``, and the sink: a file for each batch,
named by its key. ``runs`` has a line for every call of the handler.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headgate

EXECUTOR: Final = "reflect('java.lang.ProcessHandle', 'current') AS executor"
"""The process id of the executor that a record was processed in."""


def main(servers: str, topic: str, folder: Path, master: str) -> None:
    """Process what is there now."""
    spark = session(master)
    say("ready")
    if not sys.stdin.readline():
        return
    threading.Thread(target=end_with_input, daemon=True).start()
    gate = headgate.Gate("orders", interval="500 ms", ledger=f"sqlite:///{folder}/headgate.db")
    df = (
        gate.read(spark, "kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 60)
        .load()
    )
    query = (
        gate.write(df, Sink(folder))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


class Sink:
    """Writes each batch under its key, whole or not at all, over what is there already."""

    def __init__(self, folder: Path) -> None:
        self._files = folder / "sink"
        self._files.mkdir(exist_ok=True)
        self._runs = folder / "runs"

    def __call__(self, df: DataFrame, batch: headgate.Batch) -> None:
        """Write one batch."""
        say("handling")
        ranges = [[r.topic, r.partition, r.start, r.until] for r in batch.ranges]
        run = {"key": batch.key, "id": batch.id, "attempt": batch.attempt, "ranges": ranges}
        with self._runs.open("a") as runs:
            runs.write(json.dumps(run) + "\n")
        records = df.select("value", F.expr(EXECUTOR)).collect()
        rows = [[bytes(row.value).decode(), row.executor] for row in records]
        say("writing")
        unfinished = self._files / f"{batch.key}.unfinished"
        with unfinished.open("w") as file:
            json.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._files / f"{batch.key}.json")
        say("written")


def session(master: str) -> SparkSession:
    """A small Spark."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # Start soon rather than run fast.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # On a cluster: begin with all executors.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    builder = headgate.configure(SparkSession.builder.master(master).config(map=settings))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    headgate.register(spark)
    return spark


def end_with_input() -> None:
    """Do not outlive whoever started this."""
    sys.stdin.read()
    os._exit(1)


def say(moment: str) -> None:
    """Tell the moment."""
    print(moment, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
