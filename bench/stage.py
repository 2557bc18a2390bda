"""Place of all measurements: one broker and one Spark session for both sides."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from tests.services.connector import connector_jars

import headrace
from bench.machine import cores
from bench.topics import Topics
from headrace.operate.local import KafkaBroker, ensure_java, kafka_server_jars
from headrace.operate.local.session import local_spark


class SteadyBroker(KafkaBroker):
    """Broker whose Java compiles well, for it runs long enough."""

    java_options = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Services that a benchmark runs on.

    Attributes:
        spark: A session with Headrace registered.
        native: Another one of the same Spark, without it: its listener is work too.
        topics: Topics of the broker.
        folder: For checkpoints and ledgers; deleted at the end.
        postgresql: The URL of a ledger to measure beside SQLite's; None for none.
    """

    spark: SparkSession
    native: SparkSession
    topics: Topics
    folder: Path
    postgresql: str | None = None

    def fresh_folder(self, kind: str) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.folder))

    def fresh_ledger(self) -> str:
        """The URL of a ledger that is not there yet."""
        return f"sqlite:///{self.fresh_folder('ledger')}/headrace.db"


@contextmanager
def open_stage(postgresql: str | None = None) -> Iterator[Stage]:
    """Start a broker and a session; both end with the block, and their files go."""
    java = ensure_java()
    jars = connector_jars(java)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as name,
        SteadyBroker(java, kafka_server_jars(java)) as broker,
    ):
        folder = Path(name)
        with local_spark(folder, "headrace bench", cores(), *jars) as spark:
            native = spark.newSession()
            headrace.register(spark)
            yield Stage(spark, native, Topics(broker.bootstrap_servers), folder, postgresql)
