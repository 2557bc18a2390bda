"""Where everything is measured: one broker and one Spark session for both sides."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import headgate
from bench.topics import Topics
from headgate.local import KafkaBroker, connector_jars, ensure_java, kafka_server_jars


@dataclass(frozen=True, slots=True)
class Stage:
    """What a benchmark runs on.

    Attributes:
        spark: A session that knows both sources.
        topics: Of the broker.
        folder: For checkpoints and ledgers; deleted at the end.
        postgresql: The URL of a ledger to measure beside SQLite's; None for none.
    """

    spark: SparkSession
    topics: Topics
    folder: Path
    postgresql: str | None = None

    def fresh_folder(self, kind: str) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.folder))

    def fresh_ledger(self) -> str:
        """The URL of a ledger that is not there yet."""
        return f"sqlite:///{self.fresh_folder('ledger')}/headgate.db"


@contextmanager
def open_stage(postgresql: str | None = None) -> Iterator[Stage]:
    """Start a broker and a session; both end with the block, and their files go."""
    java = ensure_java()
    jars = connector_jars(java)
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as name,
        # Compiled well: a benchmark's broker runs long enough.
        KafkaBroker(java, kafka_server_jars(java), quick_start=False) as broker,
    ):
        folder = Path(name)
        spark = _session(folder, jars)
        try:
            yield Stage(spark, Topics(broker.bootstrap_servers), folder, postgresql)
        finally:
            spark.stop()


def _session(folder: Path, jars: tuple[Path, ...]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        headgate.configure(SparkSession.builder)
        .master("local[*]")
        .appName("headgate bench")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", str(os.cpu_count()))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    headgate.register(spark)
    return spark
