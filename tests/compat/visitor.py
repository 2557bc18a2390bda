"""A program over Spark Connect, which ends as it is told to, and never calls ``spark.stop()``.

    python -m tests.compat.visitor REMOTE FOLDER END

It reads the journal of the folder; END is one of `ENDS`.
"""

import sys
import threading
import traceback
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

import headrace

ENDS: Final = ("finished", "refused", "raised", "interrupted", "killed", "back")


class WrongError(Exception):
    """The program's own mistake."""


def nothing(_df: DataFrame, _batch: headrace.Batch) -> None:
    """Read nothing, so that the server needs no module of the tests."""


def count(df: DataFrame, _batch: headrace.Batch) -> None:
    """Read everything."""
    df.count()


def wrong(_df: DataFrame) -> DataFrame:
    """Fail where the stream is derived."""
    raise WrongError("the program is wrong")


def say_when_it_waits() -> None:
    """Print a line once the main thread has waited for the query to end for several looks."""
    main_thread = threading.main_thread().ident or 0
    looks = 0
    while looks < 10:
        threading.Event().wait(0.05)
        stack = traceback.extract_stack(sys._current_frames()[main_thread])
        functions = {frame.name for frame in stack}
        looks = looks + 1 if {"awaitTermination", "_wait_once"} <= functions else 0
    print("waits", flush=True)  # noqa: T201


def main(remote: str, folder: Path, end: str) -> None:
    """Run one query, and end in this way."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    name = "killed" if end == "back" else end
    gate = headrace.Gate(name, interval="1 second", ledger=f"sqlite:///{folder}/headrace.db")
    df = gate.read(spark, "journal").load(str(folder / "journal"))
    handler = count if name == "killed" else nothing
    writer = gate.write(df, handler, transform=wrong if end == "raised" else None)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = (writer.trigger(availableNow=True) if end in ("finished", "back") else writer).start()
    if end == "refused":
        gate.write(df, nothing).option("checkpointLocation", f"{folder}/second").start()
    threading.Thread(target=say_when_it_waits, daemon=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
