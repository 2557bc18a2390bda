"""An application for ``spark-submit``: receivers on executors, and two gates into one database.

    spark-submit ... tests/recovery/cluster_driver.py JOB

The job is a `Job`, whose sink is PostgreSQL. One gate reads its topic into the table ``arrived``,
as `tests.recovery.driver` does; the other reads the journal ``events``, which two HTTP receivers
write, into ``received``. It says on its output which moment it has come to, and once ``receiving``;
where the receivers are stands in the file ``addresses``. It ends when the file ``stop`` is there
and both gates have processed all that there is.

As long as the file ``hold`` is there, a task of the first gate waits before its first record, and
says so with a file in ``holding`` that is named by its process.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import sqlalchemy
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.recovery.driver import Sink, end_with_input, say
from tests.recovery.job import GATE, Job

import headrace
from headrace.gate.ledger.connection import normalize_url
from headrace.journal.receivers import Hosting, HttpReceiver, HttpSettings, IntakeSettings
from headrace.journal.receivers.spark import HostedReceivers

LANES: Final = 2
EVENTS: Final = "events"
_POLL_S: Final = 0.05


class Hold:
    """Wait of a task before its records, so that a test can find it in the middle of a batch."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        folder = Path(self._folder)
        while (folder / "hold").exists():
            (folder / "holding" / str(os.getpid())).touch()
            time.sleep(_POLL_S)
        yield from batches


def orders(spark: SparkSession, job: Job) -> StreamingQuery:
    """The query of the topic."""
    sink, hold = Sink(job), Hold(job.folder)

    def handler(df: DataFrame, batch: headrace.Batch) -> None:
        sink(df.mapInArrow(hold, df.schema), batch)

    gate = headrace.Gate(GATE, interval=job.interval, ledger=job.ledger)
    reader = gate.read(spark, "kafka").option("kafka.bootstrap.servers", job.servers)
    reader = reader.option("subscribe", job.topic).option("startingOffsets", "earliest")
    df = reader.option("maxOffsetsPerTrigger", 60).load()
    writer = gate.write(df, handler, on_failure=job.on_failure)
    return writer.option("checkpointLocation", str(job.path / "checkpoint")).start()


def events(spark: SparkSession, job: Job) -> StreamingQuery:
    """The query of the journal."""
    engine = sqlalchemy.create_engine(normalize_url(job.sink_url))
    insert = sqlalchemy.text("INSERT INTO received (value, batch) VALUES (:value, :batch)")

    def handler(df: DataFrame, batch: headrace.Batch) -> None:
        with engine.begin() as connection:
            if batch.once(connection):
                for row in df.select(df.value.cast("string")).collect():
                    connection.execute(insert, {"value": row.value, "batch": batch.key})

    gate = headrace.Gate(EVENTS, interval=job.interval, ledger=job.ledger)
    df = gate.read(spark, "journal").load(str(job.path / EVENTS))
    writer = gate.write(df, handler, on_failure=job.on_failure)
    return writer.option("checkpointLocation", str(job.path / "checkpoint-of-events")).start()


def tell_addresses(hosted: HostedReceivers, file: Path) -> None:
    """Write where the receivers are, as long as they are anywhere."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([each.address for each in hosted.status()]))
    unfinished.rename(file)


def main(job: Job) -> None:
    """Run until the test says stop."""
    threading.Thread(target=end_with_input, daemon=True).start()
    spark = headrace.configure(SparkSession.builder.appName("cluster")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    hosting = Hosting(str(job.path / EVENTS), intake=IntakeSettings(block_interval_ms=20))
    with headrace.Receivers(spark) as receivers:
        hosted = receivers.start(HttpReceiver(HttpSettings(port=0)), LANES, hosting)
        hosted.wait_until_receiving(timeout_s=120)
        queries = [orders(spark, job), events(spark, job)]
        tell_addresses(hosted, job.path / "addresses")
        say("receiving")
        while not (job.path / "stop").exists():
            tell_addresses(hosted, job.path / "addresses")
            time.sleep(_POLL_S)
            if stopped := [query.name for query in queries if not query.isActive]:
                raise SystemExit(f"the queries {stopped} have stopped")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Job.from_json(sys.argv[1]))
