"""The driver's ear: each batch's progress event becomes the rate of the gates it read through."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headgate.control.estimator import PIDRateEstimator, RateEstimator
from headgate.control.settings import EstimatorSettings
from headgate.control.timing import BatchProgress, BatchStats, batch_stats
from headgate.errors import HeadgateError
from headgate.kafka.positions import StreamOffset
from headgate.ledger import ErrorReport, Ledger, RateSample, Status, schedule_id

_LOG: Final = logging.getLogger("headgate.gate")


@dataclass(slots=True)
class _Watched:
    """One gate in one run of a query."""

    interval_ms: int
    estimator: RateEstimator
    previous: BatchProgress | None = None


class GateListener(StreamingQueryListener):
    """Feeds the estimators. Sources are told apart by the gate's name in their own offsets.

    Args:
        ledger_of: the ledger of a gate; None for a gate that this application does not know.
    """

    def __init__(self, ledger_of: Callable[[str], Ledger | None]) -> None:
        self._ledger_of = ledger_of
        self._watched: dict[tuple[UUID, str], _Watched] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known of the query's sources yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No batch ran; nothing is learnt."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch ended: settle its rows, tell the estimators, publish their rates."""
        for source in event.progress.sources:
            try:
                self._on_source(event.progress, source)
            except HeadgateError as error:
                # The planner keeps the last rate. Raising here would only vanish in Spark's log.
                _LOG.warning("A batch's report was not taken in: %s", error)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The query ended: what it left in progress because of an exception has failed."""
        for run, gate in [key for key in self._watched if key[0] == event.runId]:
            del self._watched[run, gate]
            ledger = self._ledger_of(gate)
            if event.exception is None or ledger is None:
                continue
            last = ledger.last_batch(gate)
            if last is not None and last.status is Status.IN_PROGRESS:
                report = ErrorReport(event.errorClassOnException or "", event.exception, "")
                ledger.fail(last.schedule_id, report)

    def _on_source(self, progress: StreamingQueryProgress, source: SourceProgress) -> None:
        end = _offset(source.endOffset)
        ledger = self._ledger_of(end.gate) if end is not None and end.gate is not None else None
        if end is None or end.gate is None or ledger is None:
            return
        watched = self._watch(ledger, progress.runId, end.gate)
        if watched is None:
            return
        ranges = end.ranges_from(_offset(source.startOffset) or StreamOffset(positions={}))
        batch = schedule_id(end.gate, end.run, ranges)
        if ranges:
            ledger.attach(batch, progress.batchId)
            ledger.succeed(batch)
        present = BatchProgress(
            start_ms=_epoch_ms(progress.timestamp),
            duration_ms=progress.durationMs["triggerExecution"],
            records=sum(r.count for r in ranges) if source.numInputRows > 0 else 0,
            left_over=_left_over(end, _offset(source.latestOffset)),
        )
        stats = batch_stats(watched.previous, present, watched.interval_ms)
        watched.previous = present
        if ranges:
            ledger.publish_rate(_sample(end.gate, batch, progress.batchId, stats, watched))

    def _watch(self, ledger: Ledger, run: UUID, gate: str) -> _Watched | None:
        """The gate's estimator, made at its first report in a run from what the source declared."""
        if (run, gate) not in self._watched:
            declared = next((g for g in ledger.gates() if g.name == gate), None)
            if declared is None:
                return None
            settings = EstimatorSettings.from_text(declared.estimator)
            self._watched[run, gate] = _Watched(
                declared.interval_ms, settings.create(declared.interval_ms)
            )
        return self._watched[run, gate]


def _sample(
    gate: str, batch: str, query_batch_id: int, stats: BatchStats, watched: _Watched
) -> RateSample:
    rate = watched.estimator.compute(
        stats.time_ms, stats.num_elements, stats.processing_delay_ms, stats.scheduling_delay_ms
    )
    pid = watched.estimator
    terms = pid.terms if rate is not None and isinstance(pid, PIDRateEstimator) else None
    return RateSample(
        gate=gate,
        time_ms=stats.time_ms,
        rate_per_s=rate,
        records=stats.num_elements,
        processing_delay_ms=stats.processing_delay_ms,
        scheduling_delay_ms=stats.scheduling_delay_ms,
        processing_rate_per_s=stats.num_elements / stats.processing_delay_ms * 1000
        if stats.processing_delay_ms > 0
        else None,
        proportional=terms.proportional if terms else None,
        integral=terms.integral if terms else None,
        derivative=terms.derivative if terms else None,
        query_batch_id=query_batch_id,
        schedule_id=batch,
    )


def _offset(text: str | dict[str, Any] | None) -> StreamOffset | None:
    """A source's offset in a progress event; None where it is null or another kind of source's."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
        return StreamOffset.from_json(offset) if isinstance(offset, dict) else None
    except (json.JSONDecodeError, HeadgateError):
        return None


def _left_over(end: StreamOffset, latest: StreamOffset | None) -> int:
    if latest is None:
        return 0
    return sum(
        max(offset - end.positions.get(tp, offset), 0) for tp, offset in latest.positions.items()
    )


def _epoch_ms(timestamp: str) -> int:
    """Spark's ``2026-01-31T12:00:00.123Z`` in milliseconds since the epoch."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)
