"""The two sides: the same reads through Spark's own connector and through Headrace."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.stage import Stage
from headrace.errors import HeadraceError
from headrace.gate.execution.gate import Gate

NATIVE: Final = "kafka"
HEADRACE: Final = "headrace-kafka"

POLL_S: Final = 0.25
"""Interval between looks at a query: long, because a look is work too."""

DEADLINE_S: Final = 300


def bounded(
    stage: Stage,
    source: str,
    topic: str,
    schema: str | None = None,
    options: Mapping[str, object] | None = None,
) -> DataFrame:
    """All of a topic, as a bounded read; of these columns alone, which Headrace understands."""
    reader = _session(stage, source).read.format(source)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**_options(stage, topic, options)).load()


def stream(
    stage: Stage, source: str, topic: str, options: Mapping[str, object] | None = None
) -> DataFrame:
    """A topic from its beginning, as a stream without a gate."""
    reader = _session(stage, source).readStream.format(source)
    return reader.options(**_options(stage, topic, options)).load()


def gated_stream(stage: Stage, gate: Gate, topic: str, options: Mapping[str, object]) -> DataFrame:
    """The same behind a gate."""
    return gate.read(stage.spark, "kafka").options(**_options(stage, topic, options)).load()


def _session(stage: Stage, source: str) -> SparkSession:
    return stage.native if source == NATIVE else stage.spark


def _options(
    stage: Stage, topic: str, options: Mapping[str, object] | None = None
) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": stage.topics.servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **{name: str(value) for name, value in (options or {}).items()},
    }


def discard(df: DataFrame) -> None:
    """Compute every row and column, and keep nothing."""
    df.write.format("noop").mode("overwrite").save()


def seconds_to_discard(df: DataFrame) -> float:
    """Return the time that `discard` takes."""
    began_s = time.perf_counter()
    discard(df)
    return time.perf_counter() - began_s


def stream_rate(stage: Stage, df: DataFrame, rows: int) -> float:
    """Rows a second of a stream that reads so many rows in one batch and discards them.

    With the time of the batches alone, for a query's start is the same work on both sides.
    """
    writer = df.writeStream.format("noop").trigger(availableNow=True)
    with running(writer, stage.fresh_folder("checkpoint")) as query:
        query.awaitTermination()
        progress = query.recentProgress
    took_ms = sum(p.durationMs["triggerExecution"] for p in progress)
    assert sum(p.numInputRows for p in progress) == rows, "the stream did not read all there is"
    return rows / took_ms * 1000


@contextmanager
def running(writer: DataStreamWriter, checkpoint: Path) -> Iterator[StreamingQuery]:
    """Run a query until the block ends."""
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def wait_for_batches(query: StreamingQuery, count: int) -> list[StreamingQueryProgress]:
    """Wait until a query has run so many batches; the progress of the last 100 of them.

    Raises:
        StreamingQueryException: it stopped.
        HeadraceError: it did not run so many in time.
    """
    deadline_s = time.monotonic() + DEADLINE_S
    while (last := query.lastProgress) is None or last.batchId < count - 1:
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline_s:
            raise HeadraceError(
                f"The benchmark's query did not run {count} batches within {DEADLINE_S} s; "
                "try it on a machine with less to do."
            )
        time.sleep(POLL_S)
    return [progress for progress in query.recentProgress if progress.batchId < count]
