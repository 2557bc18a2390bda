"""A program with a gated query, which handles three batches and is held up in the fourth.

    python -m tests.gate.execution.quiet_program JOURNAL FOLDER

Each batch takes longer than the interval. The program prints a line for each batch, and ``end``.
"""

import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Row, SparkSession

import headrace

HELD: Final = 3
"""The batch in whose task the program waits to be stopped."""


def wait_for_the_end(_row: Row) -> None:
    """Wait until Spark ends this worker."""
    threading.Event().wait()


def write(df: DataFrame, batch: headrace.Batch) -> None:
    """Count the records, or wait in a task."""
    print(batch.id, flush=True)  # noqa: T201
    if batch.id == HELD:
        df.foreach(wait_for_the_end)
    df.count()


def main(journal: str, folder: str) -> None:
    """Process the journal until somebody stops the program."""
    spark = headrace.configure(SparkSession.builder.master("local[1]")).getOrCreate()
    gate = headrace.Gate("orders", interval="10 ms", ledger=f"sqlite:///{folder}/headrace.db")
    orders = gate.read(spark, "journal").option("maxOffsetsPerTrigger", 1).load(journal)
    writer = gate.write(orders, write).option("checkpointLocation", str(Path(folder, "checkpoint")))
    writer.queryName("orders").start().awaitTermination()
    print("end", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
