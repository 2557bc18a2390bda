"""Actions of a handler that do not read all: whether there is anything, and the first rows."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.figures import AtMost, Figure
from bench.made import fill
from bench.pairs import in_turn
from bench.scale import Scale
from bench.sides import HEADRACE, NATIVE, gated_stream, running, stream, wait_for_batches
from bench.small_batch import PLENTY, VALUE_BYTES
from bench.stage import Stage
from headrace.gate.execution.batch import Batch
from headrace.gate.execution.gate import Gate

JOURNAL: Final = "headrace-journal"
PARTITIONS: Final = 4
PROMISED: Final = AtMost(1.3)


def persist_and_count(df: DataFrame) -> None:
    """Ask whether there is anything before it is counted, of rows that are kept for both."""
    kept = df.persist()
    try:
        if not kept.isEmpty():
            kept.count()
    finally:
        kept.unpersist()


ACTIONS: Final[dict[str, Callable[[DataFrame], object]]] = {
    "first()": DataFrame.first,
    "take(5)": lambda df: df.take(5),
    "isEmpty()": DataFrame.isEmpty,
    "limit(5).count()": lambda df: df.limit(5).count(),
    "persist, isEmpty, count": persist_and_count,
}

Times = dict[str, list[float]]
"""Times of each action in the batches of a run (ms)."""


def measure(stage: Stage, scale: Scale) -> Iterator[Figure]:
    """In a handler behind a gate, of Kafka and of a journal; native, in Spark's foreachBatch."""
    rows = scale.small_batch_rows * scale.early_end_batches
    topic = stage.topics.random(PARTITIONS, rows, VALUE_BYTES)
    folder = stage.fresh_folder("journal")
    fill(folder, PARTITIONS, rows)
    writers: dict[str, Callable[[Times], DataStreamWriter]] = {
        NATIVE: partial(_native, stage, topic, scale),
        HEADRACE: partial(_gated, stage, scale, topic=topic),
        JOURNAL: partial(_gated, stage, scale, path=str(folder)),
    }
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in writers}
    in_turn(
        {side: partial(_run, stage, scale, writer, runs[side]) for side, writer in writers.items()},
        scale.pairs,
        warm_ups=min(scale.warm_ups, 1),
    )
    for side, words in ((HEADRACE, "Kafka"), (JOURNAL, "a journal")):
        for action in ACTIONS:
            yield Figure.side_by_side(
                f"{action} over {words}",
                "ms",
                headrace=[run[action] for run in runs[side][-scale.pairs :]],
                native=[run[action] for run in runs[NATIVE][-scale.pairs :]],
                target=PROMISED,
            )


def _native(stage: Stage, topic: str, scale: Scale, times_ms: Times) -> DataStreamWriter:
    df = stream(stage, NATIVE, topic, {"maxOffsetsPerTrigger": scale.small_batch_rows})
    return df.writeStream.foreachBatch(lambda batch, _: _act(batch, times_ms))


def _gated(
    stage: Stage, scale: Scale, times_ms: Times, *, topic: str | None = None, path: str = ""
) -> DataStreamWriter:
    gate = Gate("early-end", interval="1 second", ledger=stage.fresh_ledger())
    options = {
        "maxOffsetsPerTrigger": scale.small_batch_rows,
        "backpressure.initialRate": PLENTY,
        "backpressure.pid.minRate": PLENTY,
    }
    if topic is None:
        begin = {"path": path, "startingOffsets": "earliest"}
        df = gate.read(stage.spark, "journal").options(**options, **begin).load()
    else:
        df = gated_stream(stage, gate, topic, options)

    def handler(rows: DataFrame, _: Batch) -> None:
        _act(rows, times_ms)

    return gate.write(df, handler)


def _act(df: DataFrame, times_ms: Times) -> None:
    for name, action in ACTIONS.items():
        began_s = time.perf_counter()
        action(df)
        times_ms[name].append((time.perf_counter() - began_s) * 1000)


def _run(
    stage: Stage,
    scale: Scale,
    writer: Callable[[Times], DataStreamWriter],
    runs: list[dict[str, float]],
) -> float:
    """One query; the median time of each action goes to ``runs``."""
    times_ms: Times = {name: [] for name in ACTIONS}
    ready = writer(times_ms).trigger(processingTime="0 seconds")
    with running(ready, stage.fresh_folder("checkpoint")) as query:
        wait_for_batches(query, scale.early_end_batches)
    runs.append({name: median(times[1:]) for name, times in times_ms.items()})
    return sum(runs[-1].values())
