"""Effect of `Batch.delta_options` in Delta, in a process that has a Spark that can write it.

    python -m tests.gate.execution.delta_writes FOLDER

Its last line has its findings, as JSON.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.services.lakes import delta_settings
from tests.services.waiting import wait_until

from headrace.gate.execution.batch import Batch
from headrace.operate.local import ensure_java

KEY_LENGTH: Final = 32
RUNS: Final = 4


def batch(name: str) -> Batch:
    return Batch(name.rjust(KEY_LENGTH, "0"), None, (), 1, "live", 1)


class Table:
    """A Delta table, to which batches of one row are written."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self.path = str(path)

    def write(self, batch: Batch, name: str = "") -> None:
        df = self._spark.createDataFrame([(batch.key, name)], "batch string, name string")
        options = batch.delta_options(name)
        df.write.format("delta").mode("append").options(**options).save(self.path)

    def forget_after(self, duration: str) -> None:
        name = "delta.setTransactionRetentionDuration"
        change = f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('{name}' = '{duration}')"
        self._spark.sql(change)

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each batch."""
        counts = self._spark.read.format("delta").load(self.path).groupBy("batch").count()
        return {row["batch"].lstrip("0"): row["count"] for row in counts.collect()}

    def transaction_bytes(self) -> int:
        """The length of the action by which the log knows a batch."""
        (first, *_) = sorted(Path(self.path, "_delta_log").glob("*.json"))
        return next(len(line) for line in first.read_text().splitlines() if '"txn"' in line)


def race(table: Table, number: int) -> list[str]:
    """Runs of one batch at the same time; what those said that failed."""
    together = Barrier(RUNS)

    def run(_number: int) -> str | None:
        together.wait()
        try:
            table.write(batch(f"race {number}"))
        except (PySparkException, Py4JJavaError) as error:
            return str(error)
        return None

    with ThreadPoolExecutor(RUNS) as pool:
        return [told for told in pool.map(run, range(RUNS)) if told is not None]


def main(folder: Path) -> dict[str, Any]:
    """Write, and count what is there."""
    settings = {
        **delta_settings(ensure_java()),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").config(map=dict(settings)).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    table = Table(spark, folder / "table")
    for each in ("50", "10", "50", "10"):
        table.write(batch(each))
    for name in ("orders", "returns", "orders"):
        table.write(batch("named"), name)
    in_the_way = [told for number in range(3) for told in race(table, number)]
    found = {
        "rows": table.rows(),
        "transaction bytes": table.transaction_bytes(),
        "conflicts": ["ConcurrentTransaction" in told for told in in_the_way],
    }
    forgetful = Table(spark, folder / "forgetful")
    forgetful.write(batch("10"))
    forgetful.write(batch("10"))
    found["before it forgets"] = forgetful.rows()
    forgetful.forget_after("interval 1 second")
    wait_until(lambda: writes_again(forgetful))
    return found


def writes_again(table: Table) -> bool:
    """Whether the tenth batch is written once more."""
    table.write(batch("10"))
    return table.rows() == {"10": 2}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))  # noqa: T201
