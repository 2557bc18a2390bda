"""Whether memory stays flat over a long run, and bounded on a backlog of any size."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from bench.figures import AtMost, Figure
from bench.pairs import Spread
from bench.scale import Scale
from bench.sides import DEADLINE_S, HEADRACE, discard, gated_stream, running, stream
from bench.stage import Stage
from headrace.errors import HeadraceError
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

PARTITIONS: Final = 4
VALUE_BYTES: Final = 100
BATCH_ROWS: Final = 2_000
SAMPLE_S: Final = 0.2
PLENTY: Final = 1_000_000
FLAT: Final = AtMost(1.10)
BOUNDED: Final = AtMost(1.25)
PART: Final = 4

DRIVER: Final = "driver"
PLANNER: Final = "planner"
WORKER: Final = "largest worker"
ROLES: Final = {
    "python_streaming_source_runner": PLANNER,
    "pyspark.daemon pyspark.worker": WORKER,
}
"""Role of a Python process that Spark has started, by text in its command."""

Sample = Mapping[str, float]


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """Many small batches behind a gate; then one batch of a backlog, and one of four times it."""
    samples = _long_run(stage, scale.long_run_batches)
    for role in (DRIVER, PLANNER, WORKER):
        sizes_mb = [sample[role] for sample in samples if role in sample]
        name = f"{role} over {scale.long_run_batches} batches"
        yield Figure(name, "MB", Spread.of(sizes_mb), details={"samples_mb": sizes_mb})
        yield Figure(f"{role}, end over start", "", Spread.of([growth(sizes_mb)]), target=FLAT)
    peaks_mb = {}
    for rows in (scale.backlog_rows // PART, scale.backlog_rows):
        peaks_mb[rows] = max(sample.get(WORKER, 0.0) for sample in _backlog(stage, rows))
        name = f"{WORKER}, {rows} rows at once, at most"
        yield Figure(name, "MB", Spread.of([peaks_mb[rows]]))
    part, whole = peaks_mb.values()
    yield Figure(
        f"{WORKER}, {PART} times the backlog", "", Spread.of([whole / part]), target=BOUNDED
    )


def growth(sizes: Sequence[float]) -> float:
    """The last fifth of a run over its second: what it begins with is no leak.

    >>> growth([50, 50, 100, 100, 100, 100, 100, 100, 120, 120])
    1.2
    """
    fifth = max(len(sizes) // 5, 1)
    return median(sizes[-fifth:]) / median(sizes[fifth : 2 * fifth] or sizes)


def sizes_mb() -> dict[str, float]:
    """The resident memory of this process and of Spark's Python processes below it, by role."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,rss=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
    parents = {int(pid): int(parent) for pid, parent, *_ in rows}
    found: dict[str, float] = {}
    for pid, _, size_kb, *command in rows:
        role = _role(int(pid), " ".join(command))
        if role is not None and _is_below_us(int(pid), parents):
            found[role] = max(found.get(role, 0.0), int(size_kb) / 1024)
    return found


def _role(pid: int, command: str) -> str | None:
    if pid == os.getpid():
        return DRIVER
    return next((role for part, role in ROLES.items() if part in command), None)


def _is_below_us(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()


def _long_run(stage: Stage, batches: int) -> list[Sample]:
    """Everything a gate does, batch after batch."""

    def handler(df: DataFrame, _batch: Batch) -> None:
        discard(df)

    topic = stage.topics.random(PARTITIONS, batches * BATCH_ROWS, VALUE_BYTES)
    gate = Gate("memory", interval="1 second", ledger=stage.fresh_ledger())
    options = {"maxOffsetsPerTrigger": BATCH_ROWS, "backpressure.initialRate": PLENTY}
    df = gated_stream(stage, gate, topic, options | {"backpressure.pid.minRate": PLENTY})
    writer = gate.write(df, handler).trigger(availableNow=True)
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        return _watched(query)


def _backlog(stage: Stage, rows: int) -> list[Sample]:
    topic = stage.topics.random(PARTITIONS, rows, VALUE_BYTES)
    writer = stream(stage, HEADRACE, topic).writeStream.format("noop").trigger(availableNow=True)
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        return _watched(query)


def _watched(query: StreamingQuery) -> list[Sample]:
    """Samples until the query ends by itself; what stopped it is raised."""
    deadline_s = time.monotonic() + DEADLINE_S
    samples: list[Sample] = []
    while query.isActive:
        samples.append(sizes_mb())
        if time.monotonic() > deadline_s:
            raise HeadraceError(
                f"The benchmark's query did not end within {DEADLINE_S} s; "
                "try it on a machine with less to do."
            )
        time.sleep(SAMPLE_S)
    query.awaitTermination()
    return samples
