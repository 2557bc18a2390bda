"""The query listener: each batch's progress event becomes the rate of the gates it read through."""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from headrace.control import (
    BatchProgress,
    BatchStats,
    EstimatorSettings,
    FinishedBatch,
    LearntRate,
    QueryRates,
    SourceCost,
    batch_stats,
)
from headrace.control.rate_law import Reason
from headrace.core.timing import cancel_when
from headrace.errors import HeadraceError, OptionError
from headrace.execution.gate_state import BatchEnd, all_states, record_end, state_of
from headrace.execution.progress_events import (
    BatchReport,
    JsonStreamingQueryListener,
    batch_reports,
)
from headrace.ledger import BatchRecord, ErrorReport, Ledger, RateSample, Status
from headrace.ledger.error_report import root_cause
from headrace.processes import is_here
from headrace.spark_versions import PLANS_FROM_START

_LOG: Final = logging.getLogger("headrace.execution")


class Worker(Protocol):
    """Does a gate's work one after the other."""

    def do(self, work: Callable[[], None], wait_s: float) -> bool:
        """Have this done after all that was queued before; whether it is done by now."""


class SerialWorker:
    """Does its work one after the other, in a thread that ends with the process.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = (
            queue.SimpleQueue()
        )
        self._changing = threading.Lock()
        self._open = 0
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def do(self, work: Callable[[], None], wait_s: float) -> bool:
        """Have this done after all that was queued before; an exception of it is logged.

        It is waited for so long (s), unless something else is still before it. Returns whether it
        is done.
        """
        done = threading.Event()
        with self._changing:
            is_next = self._open == 0
            self._open += 1
        self._queue.put((work, done))
        return done.wait(wait_s if is_next else 0)

    def _work(self) -> None:
        while True:
            work, done = self._queue.get()
            try:
                work()
            except Exception:  # noqa: BLE001  (in a thread, where nobody else would see it)
                _LOG.exception("A batch's report could not be processed.")
            with self._changing:
                self._open -= 1
            done.set()


_NOT_PROCESSED: Final = "A batch's report was not processed: %s"

UNREAD_BATCHES: Final = 3
"""Number of batches in a row without a record read that lead to a warning."""


@dataclass(slots=True)
class _GateRun:
    """One gate in one run of a query; it learns nothing where its settings are unreadable."""

    ledger: Ledger
    checkpoint_id: str
    interval_ms: int
    learns: bool
    previous: BatchProgress | None = None
    """The batch before; None where its time says nothing of the job."""
    aside_ms: int = 0
    """The time of all that was not taught: for the estimator it has not passed."""
    unread: int = 0
    """Batches in a row of which the handler has read nothing."""
    has_warned_of_unread: bool = False


class GateListener(JsonStreamingQueryListener):
    """Feeds the rate laws. Sources are distinguished by the gate's name in their own offsets.

    Each run of a query has laws of its own; the initial rate, and the known cost of a batch, come
    from the ledger. Events that cannot be processed are logged, for an exception would only vanish
    in Spark's own log: the planner keeps the last rate then.

    Args:
        ledger_of: the ledger of a gate whose query has this run; None for an unknown gate.
        wait_s: how long the reports of all queries wait for a gate whose ledger does not answer, as
            one whose rows are locked (s); from then on that gate's reports wait by themselves.
        new_worker: makes what processes one gate's reports, by a name for it.
    """

    def __init__(
        self,
        ledger_of: Callable[[str, UUID], Ledger | None],
        *,
        wait_s: float = 5.0,
        new_worker: Callable[[str], Worker] = SerialWorker,
    ) -> None:
        self._ledger_of = ledger_of
        self._wait_s = wait_s
        self._new_worker = new_worker
        self._workers: dict[tuple[str, str], Worker] = {}
        self._watched: dict[tuple[UUID, str], _GateRun | None] = {}
        self._rates: dict[UUID, QueryRates] = {}
        self._newest_run: dict[UUID, UUID] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A run began, before its first batch does; nothing is known of its sources yet."""
        self._newest_run[event.id] = event.runId

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """No batch ran; nothing is learnt."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch ended: resolve its rows, feed the laws, publish their rates."""
        run = event.progress.runId
        reports = [(report, self._watch(run, report)) for report in batch_reports(event.progress)]
        known = [
            (_with_backlog(watched, report), watched)
            for report, watched in reports
            if watched is not None
        ]
        # Help for the batch is help for all of its sources.
        ends = [_ended(watched, report) for report, watched in known]
        ended = BatchEnd(
            all(each.went_through for each in ends), max((e.waited_ms for e in ends), default=0)
        )
        lessons = [
            _lesson(watched, report, ended._replace(is_limited=own.is_limited))
            for (report, watched), own in zip(known, ends, strict=True)
        ]
        learnt = _learn(self._rates.get(run), lessons)
        for (report, watched), each in zip(known, ends, strict=True):
            if each.had_no_sink and watched.learns:
                self._rates[run].restart(report.gate)
        for lesson in lessons:
            if (new := learnt.get(lesson.report.gate)) and new.interval is not None:
                lesson.watched.interval_ms = new.interval.interval_ms
            gate = lesson.report.gate
            self._do(lesson.watched.ledger.url, gate, partial(_process, lesson, learnt.get(gate)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The query ended: what it left in progress because of an exception has failed.

        A query that fails before its first batch has ended is not known by its gates yet; that
        batch stays in progress until it is run again.
        """
        for run, gate in [key for key in self._watched if key[0] == event.runId]:
            watched = self._watched.pop((run, gate))
            if event.exception is not None and watched is not None:
                # Behind its reports, for the last one may say that the batch went through.
                self._do(watched.ledger.url, gate, partial(self._fail, watched, gate, event))
        for (ledger_url, gate), state in all_states().items():
            if state.is_run(event.runId):
                self._do(ledger_url, gate, partial(_record_end, ledger_url, gate, event))
        self._rates.pop(event.runId, None)
        if self._newest_run.get(event.id) == event.runId:
            del self._newest_run[event.id]

    def _do(self, ledger_url: str, gate: str, work: Callable[[], None]) -> None:
        """Do something for a gate, after all that was to be done for it before."""
        place = (ledger_url, gate)
        if place not in self._workers:
            self._workers[place] = self._new_worker(f"headrace-reports-{gate}")
        self._workers[place].do(work, self._wait_s)

    def _fail(self, watched: _GateRun, gate: str, event: QueryTerminatedEvent) -> None:
        """Fail what a run left in progress that ended with an exception."""
        report = ErrorReport(event.errorClassOnException or "", event.exception or "", "")
        try:
            # Spark's own end waits for this.
            with cancel_when(lambda: True, "the query ended"):
                left = self._left_open(watched, gate, event)
                if left is not None:
                    # Its handler may have gone through, and only the report of that be missing.
                    watched.ledger.batches.fail(
                        left.batch_key, report, owner=left.owner, outcome_unknown=True
                    )
        except HeadraceError as error:
            _LOG.warning("A batch's failure was not processed: %s", error)

    def _left_open(
        self, watched: _GateRun, gate: str, event: QueryTerminatedEvent
    ) -> BatchRecord | None:
        """The batch that a run left in progress; None where another run may have it by now."""
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
        """The gate in this run, made at its first report from what the source declared."""
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
                "The gate %r learns no rate, for its ledger is not known here; name the ledger of"
                " its option headrace.ledger in headrace.register(spark, ledger=...).",
                gate,
            )
            return None
        watched = _GateRun(ledger, checkpoint_id, declared.interval_ms, learns=True)
        try:
            settings = EstimatorSettings.from_text(declared.estimator)
        except OptionError as error:
            _LOG.warning("The gate %r learns no rate: %s", gate, error)
            watched.learns = False
            return watched
        rates = self._rates.setdefault(run, QueryRates())
        rates.add(gate, settings, declared.interval_ms, _known_cost(gate, declared.batch_cost))
        return watched


_STREAMING: Final = "pyspark.errors.exceptions.captured.StreamingQueryException"


def _record_end(ledger_url: str, gate: str, event: QueryTerminatedEvent) -> None:
    error = None
    if event.exception is not None:
        cause = root_cause(_STREAMING, event.exception)
        name = event.errorClassOnException or "StreamingQueryException"
        error = ErrorReport(*(cause or (name, event.exception)), "")
    record_end(ledger_url, gate, str(event.runId), error)


def _ended(watched: _GateRun, report: BatchReport) -> BatchEnd:
    """Return how a batch ended, from its row in the ledger if its handler runs elsewhere."""
    state = state_of(watched.ledger.url, report.gate)
    ended = state.batch_ended(report.batch, *report.times_ms)
    if not state.is_remote or not report.batch:
        return ended
    found = _row_of(watched, report)
    at_once = (
        found is not None
        and found.status is Status.SUCCESS
        and found.attempts == 1
        and not watched.ledger.batches.children(report.batch)
    )
    is_limited = found is not None and found.reason.startswith((Reason.LIMITED, Reason.CEILING))
    return BatchEnd(at_once, ended.waited_ms, is_limited)


def _row_of(watched: _GateRun, report: BatchReport) -> BatchRecord | None:
    stopped = state_of(watched.ledger.url, report.gate).is_stopped
    try:
        with cancel_when(stopped, "the query was stopped"):
            return watched.ledger.batches.get(report.batch)
    except HeadraceError as error:
        _LOG.warning(_NOT_PROCESSED, error)
        return None


def _with_backlog(watched: _GateRun, report: BatchReport) -> BatchReport:
    """The report with what its plan left unread, where Spark does not say how far the log went."""
    if PLANS_FROM_START or not report.batch:
        return report
    planned = _row_of(watched, report)
    lag = planned.lag if planned is not None else None
    if planned is None or lag is None:
        return report
    left_over = max(lag - planned.planned_records, 0)
    return replace(report, progress=replace(report.progress, left_over=left_over))


def _known_cost(gate: str, text: str | None) -> SourceCost | None:
    """Return the cost of a batch that earlier runs have learnt."""
    try:
        return None if text is None else SourceCost.from_text(text)
    except OptionError as error:
        _LOG.warning("The gate %r learns the cost of a batch anew: %s", gate, error)
        return None


@dataclass(frozen=True, slots=True)
class _Lesson:
    """Measurement of one gate's part of a batch.

    Attributes:
        present: The batch's times and records.
        stats: The same for the laws, by the clock of what was taught.
        teaches: Whether it says anything of the job.
        is_unread: Whether the batch went through, and no record of it was read.
        is_limited: Whether an operator's limit or a ceiling made it as small as it was.
    """

    watched: _GateRun
    report: BatchReport
    present: BatchProgress
    stats: BatchStats
    teaches: bool
    is_unread: bool
    is_limited: bool


def _lesson(watched: _GateRun, report: BatchReport, ended: BatchEnd) -> _Lesson:
    present = replace(report.progress, waited_ms=ended.waited_ms)
    teaches = ended.went_through and (present.records > 0 or not report.batch)
    previous, watched.previous = watched.previous, present if teaches else None
    watched.aside_ms += present.waited_ms if teaches else present.duration_ms
    stats = batch_stats(previous, present, watched.interval_ms)
    stats = stats._replace(time_ms=stats.time_ms - watched.aside_ms)
    is_unread = ended.went_through and not present.records
    return _Lesson(watched, report, present, stats, teaches, is_unread, ended.is_limited)


def _learn(rates: QueryRates | None, lessons: list[_Lesson]) -> dict[str, LearntRate]:
    """Return the rates by gate that a batch teaches: none if a part says nothing of the job."""
    parts = [lesson for lesson in lessons if lesson.report.batch and lesson.watched.learns]
    if rates is None or not parts or not all(lesson.teaches for lesson in lessons):
        return {}
    newest = parts[0].present
    batch = FinishedBatch(
        newest.end_ms,
        {lesson.report.gate: lesson.present.records for lesson in parts},
        newest.own_ms,
        newest.overhead_ms,
        {lesson.report.gate for lesson in parts if lesson.present.left_over > 0},
    )
    return rates.finished(
        batch,
        {lesson.report.gate: lesson.stats for lesson in parts},
        limited={lesson.report.gate for lesson in parts if lesson.is_limited},
    )


def _process(lesson: _Lesson, learnt: LearntRate | None) -> None:
    report, watched = lesson.report, lesson.watched
    if not report.batch:
        return
    _warn_of_unread(watched, report.gate, is_unread=lesson.is_unread)
    state = state_of(watched.ledger.url, report.gate)
    try:
        with cancel_when(state.is_stopped, "the query was stopped"):
            _publish(lesson, learnt)
    except HeadraceError as error:
        _LOG.warning(_NOT_PROCESSED, error)


def _publish(lesson: _Lesson, learnt: LearntRate | None) -> None:
    """Write down what was learnt; where it is nothing too, for the planner waits for the report."""
    report, watched = lesson.report, lesson.watched
    interval = learnt.interval if learnt is not None else None
    cost = learnt.cost if learnt is not None else None
    watched.ledger.rates.report(
        report.batch,
        report.query_batch_id,
        lesson.present.start_ms,
        _sample(lesson, learnt) if watched.learns else None,
        batch_cost=None if cost is None else cost.to_text(),
        interval_ms=None if interval is None else interval.interval_ms,
    )
    if interval is not None:
        _LOG.info("The gate %r has another interval: %s.", report.gate, interval.why)
    if learnt is not None and learnt.too_short is not None:
        _LOG.warning("The gate %r: %s", report.gate, learnt.too_short)


def _sample(lesson: _Lesson, learnt: LearntRate | None) -> RateSample:
    """Return the measurement; if nothing was learnt, the rate stays what it is."""
    present, stats, processing_rate = lesson.present, lesson.stats, None
    if learnt is not None and stats.processing_delay_ms > 0:
        processing_rate = stats.num_elements / stats.processing_delay_ms * 1000
    known = learnt or LearntRate()
    return RateSample(
        gate=lesson.report.gate,
        time_ms=present.end_ms,
        rate_per_s=known.rate_per_s,
        records=stats.num_elements,
        processing_delay_ms=stats.processing_delay_ms,
        scheduling_delay_ms=stats.scheduling_delay_ms,
        processing_rate_per_s=processing_rate,
        proportional=known.terms.proportional if known.terms else None,
        integral=known.terms.integral if known.terms else None,
        derivative=known.terms.derivative if known.terms else None,
        other_per_s=known.other_per_s,
        query_batch_id=lesson.report.query_batch_id,
        batch_key=lesson.report.batch,
    )


def _warn_of_unread(watched: _GateRun, gate: str, *, is_unread: bool) -> None:
    """Log once in a run that the handler does not read its batches."""
    watched.unread = watched.unread + 1 if is_unread else 0
    if watched.unread == UNREAD_BATCHES and not watched.has_warned_of_unread:
        watched.has_warned_of_unread = True
        _LOG.warning(
            "The gate %r learns no rate: Spark has read no record of its last %d batches, so what"
            " they cost is not known; have the handler read its DataFrame.",
            gate,
            UNREAD_BATCHES,
        )
