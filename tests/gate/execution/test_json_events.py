"""Events that come as JSON: the same as those that PySpark makes field by field."""

import json
import math
from pathlib import Path
from typing import Any
from uuid import UUID

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from tests.gate.execution.events import gated_source, progress
from tests.services.waiting import wait_until

from headrace.core.ranges import OffsetRange
from headrace.gate.execution.listener import JsonStreamingQueryListener, progress_event


class _Notes:
    """Keeps what a listener is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.told.append(("started", str(event.runId)))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.told.append(("progress", event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """It depends on the time whether there is one."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.told.append(("terminated", str(event.runId)))


class Usual(_Notes, StreamingQueryListener):
    pass


class FromJson(_Notes, JsonStreamingQueryListener):
    pass


def test_a_query_is_reported_as_pyspark_itself_reports_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    usual, ours = Usual(), FromJson()
    for listener in (usual, ours):
        spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="7").load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(processingTime="0 seconds").start()
        wait_until(lambda: len(query.recentProgress) > 1)
        query.stop()
        end = ("terminated", query.runId)
        wait_until(lambda: end in usual.told and end in ours.told)
    finally:
        for listener in (usual, ours):
            spark.streams.removeListener(listener)
    assert [word for word, _ in ours.told] == [word for word, _ in usual.told]
    for (_, one), (_, other) in zip(ours.told[1:-1], usual.told[1:-1], strict=True):
        for name in ("runId", "batchId", "timestamp", "durationMs"):
            assert one[name] == other[name]
        for source, expected in zip(one.sources, other.sources, strict=True):
            assert json.loads(source.endOffset) == json.loads(expected.endOffset)
            assert source.numInputRows == expected.numInputRows == 7


def test_a_rate_that_spark_leaves_out_since_it_is_not_finite_is_no_number() -> None:
    event = progress(gated_source("orders", OffsetRange("t", 0, 0, 5)), run=UUID(int=1))
    left_out = json.loads(event.progress.json)
    for part in (left_out, *left_out["sources"]):
        part.pop("inputRowsPerSecond", None)
        part.pop("processedRowsPerSecond", None)
    told = progress_event(json.dumps(left_out)).progress
    assert math.isnan(told.processedRowsPerSecond)
    assert math.isnan(told.sources[0].inputRowsPerSecond)
    assert told.sources[0].endOffset == event.progress.sources[0].endOffset
