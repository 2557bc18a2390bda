"""Hand-made reports of batches, as Spark's listener bus delivers them."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from headrace.core.ranges import OffsetRange, TopicPartition, nested
from headrace.gate.ledger.records import PlannedBatch, PlannedRange
from headrace.gate.source.stream_offset import StreamOffset

RUN = "the checkpoint's life"


def gated_source(
    gate: str | None,
    *ranges: OffsetRange,
    rows: int | None = None,
    unread: int = 0,
    first: bool = False,
) -> dict[str, Any]:
    """A source's part of a batch that read these ranges.

    Args:
        gate: the gate that the offsets name.
        ranges: what was read.
        rows: what Spark says of them. Default: as many as there are offsets.
        unread: how much was there to read beyond, in the last partition.
        first: whether it is the query's first batch, for which Spark reports no start.
    """
    starts = {r.topic_partition: r.start for r in ranges}
    ends = {r.topic_partition: r.until for r in ranges} or {TopicPartition("idle", 0): 7}
    latest = {tp: until + (unread if tp == max(ends) else 0) for tp, until in ends.items()}
    start = StreamOffset(starts or ends, gate, RUN).to_json()
    end = StreamOffset(ends, gate, RUN, begins=starts if first else {}).to_json()
    return source(
        None if first else start,
        end,
        nested(latest),
        sum(r.count for r in ranges) if rows is None else rows,
    )


def source(start: Any, end: Any, latest: Any, rows: int) -> dict[str, Any]:
    """Any source's part of a batch, with offsets that can be written as JSON."""
    return {
        "description": "a source",
        "startOffset": "None" if start is None else json.dumps(start),  # so pyspark makes it
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(latest),
        "numInputRows": rows,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }


def progress(
    *sources: dict[str, Any],
    run: UUID,
    batch_id: int = 0,
    start_ms: int = 1_700_000_000_000,
    duration_ms: int = 1_000,
    overhead_ms: int = 0,
) -> QueryProgressEvent:
    """The report of a batch that read these sources, in their order."""
    started = datetime.fromtimestamp(start_ms / 1000, UTC).isoformat(timespec="milliseconds")
    report: dict[str, Any] = {
        "id": str(uuid4()),
        "runId": str(run),
        "name": "a query",
        "timestamp": started.replace("+00:00", "Z"),
        "batchId": batch_id,
        "batchDuration": duration_ms,
        "durationMs": {"triggerExecution": duration_ms, "addBatch": duration_ms - overhead_ms},
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "a sink", "numOutputRows": -1},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(report))


def started(query: UUID, run: UUID) -> QueryStartedEvent:
    """The report that a query runs."""
    return QueryStartedEvent(query, run, None, "2026-01-01T00:00:00.000Z", set())


def terminated(
    run: UUID, exception: str | None = None, query: UUID | None = None
) -> QueryTerminatedEvent:
    """The report of a query's end."""
    error_class = None if exception is None else "STREAM_FAILED"
    return QueryTerminatedEvent(query or uuid4(), run, exception, error_class)


def planned(gate: str, *ranges: OffsetRange, checkpoint_id: str = RUN) -> PlannedBatch:
    """The batch of these ranges, as the gate's planner begins it."""
    return PlannedBatch(
        gate=gate,
        checkpoint_id=checkpoint_id,
        ranges=tuple(PlannedRange(each) for each in ranges),
        reason="rate",
        bootstrap_servers="localhost:9092",
    )
