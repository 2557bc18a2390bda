"""Query listener: it learns the rates of a query's gates from each batch's progress event.

The event describes all Python sources alike, and a join has two of them. So a source is identified
by the gate's name in its own offsets, not by its place in the event. Records are counted from the
offset ranges: if a handler uses its DataFrame twice, ``numInputRows`` counts each record twice. If
``numInputRows`` is 0, the batch was not read, and nothing is learnt.

The sources of a join share the time of a batch, so one law learns from the whole batch. The reports
are then written to the ledger in a separate thread for each gate.
"""

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headrace.core.system import is_gone, is_here
from headrace.core.timing import cancel_when
from headrace.errors import HeadraceError, OptionError
from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.control.law import BatchProgress
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.rates import LearntRate, QueryRates
from headrace.gate.execution.gate_state import all_states, record_end, state_of
from headrace.gate.ledger.error_report import ErrorReport, root_cause
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, QueryEnd, RateSample, batch_key
from headrace.gate.source.stream_offset import StreamOffset
from headrace.spark_versions import PLANS_FROM_START, active_context

Answer = TypeVar("Answer")

_OFFSETS: Final = ("startOffset", "endOffset", "latestOffset")


class JsonStreamingQueryListener(StreamingQueryListener):
    """Listener that fetches the whole progress event from the JVM as JSON, in one call.

    PySpark's own listener fetches each field separately, in about 450 calls. On a busy driver they
    take as long as a small batch, and delay the next plan, which waits for the report.
    """

    @property
    def _jlistener(self) -> Any:
        """Java object that PySpark registers for this listener, created at the first use.

        PySpark reads this private attribute, but never without a JVM. Because the name may change,
        a test compares these events with PySpark's own.
        """
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = active_context()._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_FromJson(self))
        return self._jlistenerobj


class _FromJson(JStreamingQueryListener):
    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.onQueryProgress(progress_event(jevent.progress().json()))


def progress_event(text: str) -> QueryProgressEvent:
    """Parse Spark's JSON of a batch's progress. Rates that are missing in the JSON become NaN."""
    progress = json.loads(text)
    for report in (progress, *progress["sources"]):
        report.setdefault("inputRowsPerSecond", math.nan)
        report.setdefault("processedRowsPerSecond", math.nan)
    for source in progress["sources"]:
        # Before 4.2 PySpark formats an offset that is not text with Python's ``str``.
        for name in _OFFSETS:
            if not isinstance(source[name], str):
                source[name] = json.dumps(source[name])
    return QueryProgressEvent.fromJson({"progress": progress})


@dataclass(frozen=True)
class BatchReport:
    """Spark's report on a batch, for one of its gates."""

    gate: str
    checkpoint_id: str
    """Id of the query's checkpoint."""
    batch: str
    """Key of the batch; empty if the batch has no offsets of the gate."""
    query_batch_id: int
    progress: BatchProgress


def batch_reports(progress: StreamingQueryProgress) -> Iterator[BatchReport]:
    """Yield a report for each source of the batch that has a gate."""
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
    whole_ms = phases["triggerExecution"]
    return max(whole_ms - phases.get("addBatch", whole_ms), 0)


def _epoch_ms(timestamp: str) -> int:
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


_LOG: Final = logging.getLogger("headrace.execution")


class Worker(Protocol):
    """Interface of a queue that runs a gate's tasks one after the other."""

    def do(self, work: Callable[[], None], wait_s: float) -> bool:
        """Queue a task and wait up to ``wait_s`` for it. Return whether it has finished."""


class SerialWorker:
    """Queue that runs tasks one after the other, in a named daemon thread."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = (
            queue.SimpleQueue()
        )
        self._changing = threading.Lock()
        self._open = 0
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def do(self, work: Callable[[], None], wait_s: float) -> bool:
        """Queue a task and wait up to ``wait_s`` for it. Return whether it has finished.

        There is no wait while an earlier task is queued or running. An exception of a task is
        logged.
        """
        finished = threading.Event()
        with self._changing:
            is_next = self._open == 0
            self._open += 1
        self._queue.put((work, finished))
        return finished.wait(wait_s if is_next else 0)

    def _work(self) -> None:
        while True:
            work, finished = self._queue.get()
            try:
                work()
            except Exception:  # noqa: BLE001  (the thread has no caller that could report it)
                _LOG.exception("A batch's report could not be processed.")
            with self._changing:
                self._open -= 1
            finished.set()


_NOT_PROCESSED: Final = "A batch's report was not processed: %s"


@dataclass(frozen=True, slots=True)
class _GateRun:
    ledger: Ledger
    checkpoint_id: str


class GateListener(JsonStreamingQueryListener):
    """Query listener that passes finished batches to the rate laws, and stores the new rates.

    Each run of a query has its own laws. They start with the rate and the cost of a batch from the
    ledger. If an event cannot be processed, the error is logged, and the last rate stays in force.

    Args:
        ledger_of: function that returns the ledger of a gate whose query has this run; None for an
            unknown gate.
        wait_s: maximum time (s) for which a gate may delay the reports of all queries if its ledger
            does not respond, for example because rows are locked. After that, only this gate's
            reports wait.
        new_worker: function that creates the queue for one gate's reports, from a name.
        program: name of this process if Spark notifies it of a query's end; otherwise None.
    """

    def __init__(
        self,
        ledger_of: Callable[[str, UUID], Ledger | None],
        *,
        wait_s: float = 5.0,
        new_worker: Callable[[str], Worker] = SerialWorker,
        program: str | None = None,
    ) -> None:
        self._ledger_of = ledger_of
        self._wait_s = wait_s
        self._new_worker = new_worker
        self._program = program
        self._workers: dict[tuple[str, str], Worker] = {}
        self._watched: dict[tuple[UUID, str], _GateRun | None] = {}
        self._rates: dict[UUID, QueryRates] = {}
        self._newest_run: dict[UUID, UUID] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Record a new run of a query. The query's sources are unknown until a batch has ended."""
        self._newest_run[event.id] = event.runId

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Ignore the event: no batch ran, so nothing is learnt."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Pass a finished batch to the rate laws, and store its reports with the new rates."""
        run = event.progress.runId
        if any(state.is_remote and state.is_run(run) for state in all_states().values()):
            return  # the process on the server that runs the handler has the report, too
        reports = [
            (watched, replace(report, progress=_completed(watched.ledger, report)))
            for report in batch_reports(event.progress)
            if (watched := self._watch(run, report)) is not None
        ]
        rates = self._rates.get(run, QueryRates())
        learnt = rates.finished({report.gate: report.progress for _, report in reports})
        for watched, report in reports:
            if report.batch:
                work = partial(_publish, watched.ledger, report, learnt.get(report.gate))
                self._do(watched.ledger.url, report.gate, work)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Record the end of a query. After an exception, mark its batch in progress as failed.

        If the query fails before its first batch has ended, its gates are not known yet. The batch
        then stays in progress until it is run again.
        """
        for run, gate in [key for key in self._watched if key[0] == event.runId]:
            watched = self._watched.pop((run, gate))
            if event.exception is not None and watched is not None:
                # After the queued reports: the last one may show that the batch went through.
                self._do(watched.ledger.url, gate, partial(self._fail, watched, gate, event))
            if watched is not None and not state_of(watched.ledger.url, gate).is_run(run):
                self._do(watched.ledger.url, gate, partial(self._end, watched, gate, event))
        for (ledger_url, gate), state in all_states().items():
            if state.is_run(event.runId):
                self._do(ledger_url, gate, partial(_record_end, ledger_url, gate, event))
        self._rates.pop(event.runId, None)
        if self._newest_run.get(event.id) == event.runId:
            del self._newest_run[event.id]

    def end_with_the_program(self, is_active: Callable[[UUID], bool], wait_s: float) -> None:
        """Record the end of queries without `Gate.write` whose termination events have not arrived.

        It is called at the program's end. For queries that have already ended, it waits for the
        events, because Spark logs a stack trace for each event that it cannot deliver.
        """
        deadline_s = time.monotonic() + wait_s
        while any(not is_active(run) for run in list(self._newest_run.values())):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
        for (run, gate), watched in list(self._watched.items()):
            if watched is not None and not state_of(watched.ledger.url, gate).is_run(run):
                self._end(watched, gate, None)

    def _do(self, ledger_url: str, gate: str, work: Callable[[], None]) -> None:
        """Queue a task for one gate, to run after the gate's earlier tasks."""
        place = (ledger_url, gate)
        if place not in self._workers:
            self._workers[place] = self._new_worker(f"headrace-reports-{gate}")
        self._workers[place].do(work, self._wait_s)

    def _fail(self, watched: _GateRun, gate: str, event: QueryTerminatedEvent) -> None:
        report = _error_of(event) or ErrorReport("", "", "")
        try:
            # Spark's own end waits for this.
            with cancel_when(lambda: True, "the query ended"):
                left = self._left_open(watched, gate, event)
                if left is not None:
                    # Its handler may have gone through, with only the report missing.
                    watched.ledger.batches.fail(
                        left.batch_key, report, owner=left.owner, outcome_unknown=True
                    )
        except HeadraceError as error:
            _LOG.warning("A batch's failure was not processed: %s", error)

    def _end(self, watched: _GateRun, gate: str, event: QueryTerminatedEvent | None) -> None:
        """Record the end of a query that does not use `Gate.write`, and so has no `StreamState`."""
        try:
            with cancel_when(lambda: True, "the query ended"):
                query, _ = watched.ledger.gates.last_queries([gate]).get(gate, (None, False))
                owner = "" if query is None else query.owner
                is_its = query is None or query.checkpoint_id == watched.checkpoint_id
                if self._program is None or not (is_its or is_gone(owner)):
                    return  # another query of this program by now
                error = None if event is None else _error_of(event)
                ending = QueryEnd.STOPPED if error is None else QueryEnd.FAILED
                line = None if error is None else error.line
                watched.ledger.gates.end(gate, self._program, ending, line, owner)
        except HeadraceError as error:
            _LOG.warning("The end of the query behind gate %r was not recorded: %s", gate, error)

    def _left_open(
        self, watched: _GateRun, gate: str, event: QueryTerminatedEvent
    ) -> BatchRecord | None:
        """Return the batch that a run left in progress; None if another run may process it."""
        batch = watched.ledger.batches.open_batch(gate)
        if (
            batch is None
            or batch.checkpoint_id != watched.checkpoint_id
            or not is_here(batch.owner)
        ):
            return None
        # Check for a newer run last: it starts before it takes the batch.
        has_next = self._newest_run.get(event.id, event.runId) != event.runId
        return None if has_next else batch

    def _watch(self, run: UUID, report: BatchReport) -> _GateRun | None:
        """Return the gate's record in this run, created at the gate's first report."""
        if (run, report.gate) not in self._watched:
            try:
                self._watched[run, report.gate] = self._first_seen(
                    run, report.gate, report.checkpoint_id
                )
            except HeadraceError as error:
                _LOG.warning(_NOT_PROCESSED, error)
                return None
        return self._watched[run, report.gate]

    def _first_seen(self, run: UUID, gate: str, checkpoint_id: str) -> _GateRun | None:
        ledger = self._ledger_of(gate, run)
        declared = None
        if ledger is not None:
            stopped = state_of(ledger.url, gate).is_stopped
            with cancel_when(stopped, "the query was stopped"):
                declared = ledger.gates.get(gate)
        if ledger is None or declared is None:
            _LOG.warning(
                "The gate %r learns no rate, because its ledger is unknown in this process; give"
                " the URL of its option headrace.ledger to headrace.register(spark, ledger=...).",
                gate,
            )
            return None
        try:
            settings = EstimatorSettings.from_text(declared.estimator)
        except OptionError as error:
            _LOG.warning("The gate %r learns no rate: %s", gate, error)
        else:
            rates = self._rates.setdefault(run, QueryRates())
            cost = _known_cost(gate, declared.batch_cost)
            rates.add(gate, settings, declared.interval_ms, cost, declared.rate_per_s)
        return _GateRun(ledger, checkpoint_id)


_STREAMING: Final = "pyspark.errors.exceptions.captured.StreamingQueryException"


def _record_end(ledger_url: str, gate: str, event: QueryTerminatedEvent) -> None:
    record_end(ledger_url, gate, str(event.runId), _error_of(event))


def _error_of(event: QueryTerminatedEvent) -> ErrorReport | None:
    if event.exception is None:
        return None
    cause = root_cause(_STREAMING, event.exception)
    name = event.errorClassOnException or "StreamingQueryException"
    return ErrorReport(*(cause or (name, event.exception)), "")


def _completed(ledger: Ledger, report: BatchReport) -> BatchProgress:
    """Complete a batch's progress with values that Spark does not report.

    This process knows how the handler's run went. The batch's row in the ledger has the number of
    unread offsets, in case Spark does not report the end of the log.
    """
    progress = state_of(ledger.url, report.gate).batch_ended(report.batch, report.progress)
    if report.batch and not progress.records:
        progress = replace(progress, was_rejected=_was_rejected(ledger, report))
    if not report.batch or PLANS_FROM_START:
        return progress
    batch = _row_of(ledger, report)
    if batch is None or batch.lag is None:
        return progress
    return replace(progress, left_over=max(batch.lag - batch.planned_records, 0))


def _row_of(ledger: Ledger, report: BatchReport) -> BatchRecord | None:
    return _read(ledger, report, lambda: ledger.batches.get(report.batch))


def _was_rejected(ledger: Ledger, report: BatchReport) -> bool:
    """Return whether a batch was read although Spark counts no rows: it has rejected records."""
    rejected = partial(ledger.dead_letters.count_rejected, [report.batch])
    return bool(_read(ledger, report, rejected))


def _read(ledger: Ledger, report: BatchReport, read: Callable[[], Answer]) -> Answer | None:
    """Call ``read`` and return its result; log a failure of the ledger, and return None."""
    stopped = state_of(ledger.url, report.gate).is_stopped
    try:
        with cancel_when(stopped, "the query was stopped"):
            return read()
    except HeadraceError as error:
        _LOG.warning(_NOT_PROCESSED, error)
        return None


def _known_cost(gate: str, text: str | None) -> SourceCost | None:
    try:
        return None if text is None else SourceCost.from_text(text)
    except OptionError as error:
        _LOG.warning(
            "The gate %r discards its learned batch cost and learns it again: %s", gate, error
        )
        return None


def _publish(ledger: Ledger, report: BatchReport, learnt: LearntRate | None) -> None:
    """Store the report of a batch, even without a new rate: the planner waits for the report."""
    if learnt is not None and learnt.warning is not None:
        _LOG.warning("The gate %r: %s", report.gate, learnt.warning)
    interval = learnt.interval if learnt is not None else None
    cost = learnt.cost if learnt is not None else None
    try:
        with cancel_when(state_of(ledger.url, report.gate).is_stopped, "the query was stopped"):
            ledger.rates.report(
                report.batch,
                report.query_batch_id,
                report.progress.start_ms,
                None if learnt is None else _sample(report, learnt),
                batch_cost=None if cost is None else cost.to_text(),
                interval_ms=None if interval is None else interval.interval_ms,
            )
    except HeadraceError as error:
        _LOG.warning(_NOT_PROCESSED, error)
        return
    if interval is not None:
        _LOG.info("The gate %r has a new interval: %s.", report.gate, interval.why)


def _sample(report: BatchReport, learnt: LearntRate) -> RateSample:
    """Return the rate sample of a batch. Without a new rate, the sample has the current rate."""
    return RateSample(
        gate=report.gate,
        time_ms=report.progress.end_ms,
        rate_per_s=learnt.rate_per_s,
        records=learnt.stats.num_elements,
        processing_delay_ms=learnt.stats.processing_delay_ms,
        scheduling_delay_ms=learnt.stats.scheduling_delay_ms,
        processing_rate_per_s=learnt.processing_rate_per_s,
        **learnt.terms._asdict(),
        query_batch_id=report.query_batch_id,
        batch_key=report.batch,
    )
