"""Progress events as the listener wants them: whole, soon, and by gate."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headrace.control import BatchProgress
from headrace.errors import HeadraceError
from headrace.ledger import batch_key
from headrace.source.stream_offset import StreamOffset
from headrace.spark_versions import active_context

_OFFSETS: Final = ("startOffset", "endOffset", "latestOffset")


class JsonStreamingQueryListener(StreamingQueryListener):
    """A listener that receives the progress event soon after the batch's end.

    PySpark asks the JVM for each field of a batch's progress, in some 450 calls; on a busy driver
    they take as long as a small batch does. This one asks once, for all of it.
    """

    @property
    def _jlistener(self) -> Any:
        """Java object that PySpark registers for this listener; always the same one."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = active_context()._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_FromJson(self))
        return self._jlistenerobj


class _FromJson(JStreamingQueryListener):
    """Listener that the JVM calls."""

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.onQueryProgress(progress_event(jevent.progress().json()))


def progress_event(text: str) -> QueryProgressEvent:
    """A batch's progress from Spark's JSON, which leaves out a rate that is no finite number."""
    progress = json.loads(text)
    for report in (progress, *progress["sources"]):
        report.setdefault("inputRowsPerSecond", math.nan)
        report.setdefault("processedRowsPerSecond", math.nan)
    for source in progress["sources"]:
        # Before 4.2 PySpark writes an offset that is no text as Python's ``str`` would.
        for name in _OFFSETS:
            if not isinstance(source[name], str):
                source[name] = json.dumps(source[name])
    return QueryProgressEvent.fromJson({"progress": progress})


@dataclass(frozen=True)
class BatchReport:
    """Report of the engine on a batch, for one gate."""

    gate: str
    checkpoint_id: str
    """The identity of the query's checkpoint."""
    batch: str
    """Its key; empty where the gate had nothing in it."""
    query_batch_id: int
    progress: BatchProgress


def batch_reports(progress: StreamingQueryProgress) -> Iterator[BatchReport]:
    """The reports for the sources that stand behind a gate."""
    for source in progress.sources:
        end = _offset(source.endOffset)
        if end is None or end.gate is None:
            continue
        ranges = end.ranges_from(_offset(source.startOffset) or StreamOffset(positions={}))
        batch = batch_key(end.gate, end.checkpoint_id, ranges, end.topic_ids) if ranges else ""
        times = BatchProgress(
            start_ms=_epoch_ms(progress.timestamp),
            duration_ms=progress.durationMs["triggerExecution"],
            records=sum(r.count for r in ranges) if source.numInputRows > 0 else 0,
            left_over=_left_over(end, _offset(source.latestOffset)),
            overhead_ms=_overhead_ms(progress.durationMs),
            is_empty=not ranges,
        )
        yield BatchReport(end.gate, end.checkpoint_id, batch, progress.batchId, times)


def _offset(text: str | dict[str, Any] | None) -> StreamOffset | None:
    """A source's offset in a progress event; None where it is null or another kind of source's."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
        return StreamOffset.from_json(offset) if isinstance(offset, dict) else None
    except (json.JSONDecodeError, HeadraceError):
        return None


def _left_over(end: StreamOffset, latest: StreamOffset | None) -> int:
    if latest is None:
        return 0
    return sum(
        max(offset - end.positions.get(tp, offset), 0) for tp, offset in latest.positions.items()
    )


def _overhead_ms(phases: Mapping[str, int]) -> int:
    """Return the time that a batch's trigger spent outside the sink (ms)."""
    whole_ms = phases["triggerExecution"]
    return max(whole_ms - phases.get("addBatch", whole_ms), 0)


def _epoch_ms(timestamp: str) -> int:
    """Spark's ``2026-01-31T12:00:00.123Z`` in milliseconds since the epoch."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
