"""``python -m bench.bottleneck``: what a second worker does for three jobs, as the law learns it.

A job that computes, one that calls a service for each record, and one that writes to a sink that
takes only so many records a second from all tasks together. A worker with one core joins a
standalone cluster while the query runs. Arguments are the jobs to run: computes, calls, writes.
"""

import fcntl
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.services.spark_home import surroundings
from tests.services.standalone import StandaloneCluster, standalone_cluster

import headrace
from headrace.gate.ledger.ledger import Ledger
from headrace.journal import Journal, Records
from headrace.operate.local import ensure_java
from headrace.operate.status.trends import batch_cost_of

LANES: Final = 4
RECORDS: Final = 1_500_000
TASKS: Final = 4
ROUNDS: Final = 300
"""Hashes of a record in the job that computes."""
SINK_PER_S: Final = 4_000
"""Records that the sink takes a second from all tasks together."""
PHASE_S: Final = 60.0
COUNTED_S: Final = 30.0
"""The last part of each phase, whose batches count."""

CALL_S: Final = 200e-6
"""Time that the service of the second job takes for a record (s)."""

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def computes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take the processor's time for each record."""
    for batch in batches:
        for value in batch.column("value").to_pylist():
            digest = value
            for _ in range(ROUNDS):
                digest = hashlib.sha256(digest).digest()
        yield batch


def calls(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Wait for the answer to each record, which other tasks' records do not delay."""
    for batch in batches:
        time.sleep(batch.num_rows * CALL_S)
        yield batch


def writes(batches: Iterable[pa.RecordBatch], *, lock: str) -> Iterator[pa.RecordBatch]:
    """Write through one sink, which serves one task after the other."""
    for batch in batches:
        with Path(lock).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(batch.num_rows / SINK_PER_S)
        yield batch


def run(task: Task, folder: Path) -> list[str]:
    """Return the row of one job: with one worker, and after a second one has joined."""
    ledger = f"sqlite:///{folder}/headrace.db"
    with standalone_cluster(folder / "cluster", cores=1) as cluster:
        cluster.add_worker()
        spark = _session(cluster)
        gate = headrace.Gate("orders", interval="2 seconds", ledger=ledger)
        reader = gate.read(spark, "journal").option("minPartitions", TASKS)
        df = reader.load(str(folder.parent / "orders"))

        def handler(df: DataFrame, _batch: headrace.Batch) -> None:
            df.mapInArrow(task, df.schema).write.format("noop").mode("overwrite").save()

        writer = gate.write(df, handler).option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.trigger(processingTime="0 seconds").start()
        row = []
        for join in (False, True):
            if join:
                cluster.add_worker()
            time.sleep(PHASE_S)
            assert query.isActive, query.exception()
            row += _learnt(ledger)
        query.stop()
        spark.stop()
    return row


def _session(cluster: StandaloneCluster) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    builder = SparkSession.builder.master(cluster.url).config(map=settings)
    spark = headrace.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _learnt(url: str) -> list[str]:
    """The capacity of late (records/s), and a (ms) and b (µs) as learnt."""
    with Ledger.open(url, create=False) as ledger:
        since_ms = ledger.database_time_ms() - COUNTED_S * 1000
        history = ledger.rates.history("orders", 100)
        rates = [each.processing_rate_per_s for each in history if each.time_ms >= since_ms]
        gate = ledger.gates.get("orders")
    cost = None if gate is None else batch_cost_of(gate)
    capacity = statistics.median(filter(None, rates))
    assert cost is not None
    return [f"{capacity:,.0f}", f"{cost.fixed_s * 1e3:.0f}", f"{cost.record_s * 1e6:.0f}"]


def main(folder: Path, names: Sequence[str]) -> None:
    """Print a row for each job."""
    ensure_java()
    os.environ.update(surroundings())
    lanes = Journal.open(str(folder / "orders"), create=True)
    for lane in range(LANES):
        with lanes.writer(lane) as writer:
            for _ in range(RECORDS // LANES // 1_000):
                writer.append(Records.of([b"%0200d" % lane] * 1_000, timestamp_ms=1))
    jobs: dict[str, Task] = {
        "computes": computes,
        "calls": calls,
        "writes": partial(writes, lock=str(folder / "lock")),
    }
    for name in names or jobs:
        (folder / name).mkdir()
        print(name, *run(jobs[name], folder / name), sep=" | ", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made), sys.argv[1:])
