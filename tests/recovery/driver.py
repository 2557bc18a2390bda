"""A gated query in a process of its own, which can be killed at any moment and started again.

    python -m tests.recovery.driver JOB

The job is a `Job`, as JSON. It says on its output which moment it has come to, one word a line:
``ready``, when it waits for a line of its input before it starts the query; then for each call of
the handler ``handling``, or ``backfilling`` for a backfill's, and ``raising``, or ``writing`` and
``written``. It ends when it has processed what there is, or when its input ends.

Into the folder go the checkpoint, the ledger ``headrace.db`` if the job names no other one, and the
sink: a file for each batch, named by its key, or what the job names. ``runs`` has a line for every
call of the handler, and a second one if it raises.
"""

import json
import os
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final
from unittest import mock

from pyspark.sql import (
    DataFrame,
    SparkSession,
)
from pyspark.sql import (
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.query import StreamingQuery
from tests.recovery import stops
from tests.recovery.job import GATE, Job
from tests.recovery.sinks import SINKS, jars
from tests.recovery.states import STATES
from tests.services.spark_classes import java_options

import headrace
from headrace.core.backoff import Backoff
from headrace.gate.backfill.monitor import Monitor
from headrace.gate.backfill.schedule import InProcessBudget
from headrace.gate.backfill.scheduler import OwnerSettings
from headrace.gate.control.dead import BackfillLimits
from headrace.gate.execution import stream_writer
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.policy import Last, OnFailure
from headrace.gate.ledger.connection import OF_A_QUERY
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status

EXECUTOR: Final = "reflect('java.lang.ProcessHandle', 'current') AS executor"
"""The process id of the executor that a record was processed in."""

OPEN: Final = (Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING)
HURRIED_LEASE_MS: Final = 2_000
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The one store that transformWithState works on."""


def main(job: Job) -> None:
    """Do the job."""
    if job.stop is not None:
        stops.arm(*job.stop)
    if job.hurried:
        hurry()
    spark = session(job.master, job.sink)
    say("ready")
    if not sys.stdin.readline():
        return
    threading.Thread(target=end_with_input, daemon=True).start()
    query = start(spark, job)
    if job.records:
        stay_until_settled(query, job)
        query.stop()
    query.awaitTermination()


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the query."""
    gate = headrace.Gate(GATE, interval=job.interval, ledger=job.ledger)
    if job.servers:
        form = headrace.json("v STRING NOT NULL") if job.decoded else None
        reader = gate.read(spark, "kafka", decode=form)
        reader = reader.option("kafka.bootstrap.servers", job.servers)
        reader = reader.option("subscribe", job.topic).option("startingOffsets", "earliest")
    else:
        reader = gate.read(spark, "journal").option("path", str(job.path / job.topic))
    df = reader.option("maxOffsetsPerTrigger", 60).load()
    policy: Last | OnFailure = job.on_failure
    if policy == "isolate":
        limits = BackfillLimits(job.max_backfills)
        policy = replace(headrace.isolate(max_runs=job.max_runs), backfills=limits)
    if job.retries:
        policy = headrace.retry(job.retries, "50 ms", then=policy)
    state = STATES.get(job.state)
    df = df if state is None else state.derive(df, job)
    writer = gate.write(df, Sink(job), on_failure=policy)
    writer = writer if state is None else writer.outputMode(state.mode)
    writer = writer.option("checkpointLocation", str(job.path / "checkpoint"))
    return (writer if job.records else writer.trigger(availableNow=True)).start()


def stay_until_settled(query: StreamingQuery, job: Job) -> None:
    """Return when all records have been planned, and no batch is open any more."""
    with Ledger.open(job.ledger, timeouts=OF_A_QUERY) as ledger:
        while not query.awaitTermination(1):
            batches = ledger.batches.newest(GATE, limit=1_000_000)
            if sum(batch.planned_records for batch in batches) < job.records:
                continue
            # Asked last: a batch may have begun after any earlier look, and be the last one.
            if not ledger.batches.newest(GATE, limit=1, statuses=OPEN):
                return


class Refused(Exception):  # noqa: N818  (the tests' own)
    """The exception that the sink raises."""


class Sink:
    """Writes each batch under its key, whole or not at all, over what is there already."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._files = job.path / "sink"
        self._files.mkdir(exist_ok=True)
        self._runs = job.path / "runs"
        self._poison = set(job.poison)
        self._calls_before_it_is_held = job.held
        self._refusals = refusals(job.raises_once_in, random.Random(job.seed))

    def __call__(self, df: DataFrame, batch: headrace.Batch) -> None:
        """Write one batch."""
        say("backfilling" if batch.kind == "backfill" else "handling")
        ranges = [[r.topic, r.partition, r.start, r.until] for r in batch.ranges]
        self._note(
            key=batch.key,
            id=batch.id,
            attempt=batch.attempt,
            kind=batch.kind,
            sequence=batch.sequence,
            ranges=ranges,
        )
        value = F.col("value.v").cast("binary") if self._job.decoded else F.col("value")
        records = df.select(value.alias("value"), F.expr(EXECUTOR)).collect()
        rows = [[bytes(row.value).decode(), row.executor] for row in records]
        if not self._poison.isdisjoint(value for value, _ in rows) or (
            len(rows) > 1 and next(self._refusals)
        ):
            self._note(raised=batch.key)
            say("raising")
            raise Refused(f"{len(rows)} records are refused")
        say("writing")
        if self._job.sink:
            SINKS[self._job.sink](df, batch, self._job)
        else:
            self._write_file(rows, batch)
        say("written")
        self._calls_before_it_is_held -= 1
        if self._calls_before_it_is_held == 0:
            threading.Event().wait()

    def _write_file(self, rows: list[list[str]], batch: headrace.Batch) -> None:
        unfinished = self._files / f"{batch.key}.unfinished"
        with unfinished.open("w") as file:
            json.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._files / f"{batch.key}.json")

    def _note(self, **what: object) -> None:
        with self._runs.open("a") as runs:
            runs.write(json.dumps(what) + "\n")


def refusals(once_in: int, chance: random.Random) -> Iterator[bool]:
    """For each call in turn whether it is to raise: one in so many, at random, none if 0."""
    while True:
        raising = chance.randrange(once_in) if once_in else None
        for call in range(once_in or 1):
            yield call == raising


def session(master: str, sink: str = "") -> SparkSession:
    """A small Spark, with what the sink needs."""
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        # As the driver's; on a cluster executors have a Java of their own.
        "spark.executor.extraJavaOptions": java_options(),
        # On a cluster: begin with all executors, which Spark knows by the cores that they have.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    settings["spark.sql.streaming.stateStore.providerClass"] = ROCKSDB
    settings.update(jars(sink))
    builder = headrace.configure(SparkSession.builder.master(master).config(map=settings))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    headrace.register(spark)
    return spark


def hurry() -> None:
    """Have a batch whose process was killed, or that failed again, wait for a moment only.

    A run that was slow, as the first one is, keeps others from running for no longer.
    """
    for module, name, value in (
        (stream_writer, "RunContext", partial(RunContext, lease_ms=HURRIED_LEASE_MS)),
        (stream_writer, "OwnerSettings", partial(OwnerSettings, lease_ms=HURRIED_LEASE_MS)),
        (
            stream_writer,
            "Monitor",
            partial(Monitor, interval_ms=200, backoff=Backoff(first_ms=100, most_ms=100)),
        ),
        (stream_writer, "InProcessBudget", partial(InProcessBudget, half_life_ms=1_000)),
    ):
        mock.patch.object(module, name, value).start()


def end_with_input() -> None:
    """Do not outlive whoever started this."""
    sys.stdin.read()
    os._exit(1)


def say(moment: str) -> None:
    """Tell the moment."""
    print(moment, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Job.from_json(sys.argv[1]))
