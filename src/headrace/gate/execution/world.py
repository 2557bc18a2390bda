"""Execution of the steps of a batch's life: reads, handler calls, ledger writes and log lines.

`headrace.gate.control.life` decides the next step of a batch, and this module executes it. A query,
a backfill and a command each use one `BatchRunner`. It creates a `_World` for each batch.
"""

import itertools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from pyspark.sql import DataFrame

from headrace.core.ranges import OffsetRange
from headrace.errors import LedgerError, OptionError
from headrace.gate.control.bisection import Isolated
from headrace.gate.control.dead import BackfillLimits, why_dead
from headrace.gate.control.hold import Held, SinkOutage
from headrace.gate.control.life import (
    Call,
    End,
    Ending,
    Failure,
    Life,
    Pause,
    Reject,
    Terms,
    Verdict,
    Waited,
    live,
)
from headrace.gate.control.parts import WHOLE, Progress, ranges_of
from headrace.gate.execution.batch_reader import BatchReader
from headrace.gate.execution.call import BatchPart, HandlerCalls, RunContext
from headrace.gate.ledger.error_report import FAILS_AS_A_WHOLE, ErrorReport, query_stopped
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import Attached, BatchRecord, PlannedRange, without

_LOG: Final = logging.getLogger("headrace.execution")

Cause = Exception | ErrorReport
"""Reason why a batch or a part failed: an exception, or its stored report."""

_SURELY_RAISES: Final = 10
"""From this number of backfills of a batch on, a call with an unknown outcome counts as failed, and
every run of another batch counts as a control. This many backfills take some hours."""

_LOOK_S: Final = 0.05
"""Interval at which a backfill checks whether a call for another batch has ended (s)."""

_LOOKS_A_QUERY: Final = 4
"""A waiting batch queries the ledger once in this number of checks (about 2 s), because many gates
may wait for one sink."""

_LOG_MS: Final = 60_000

_NOT_RUN: Final = ErrorReport("NotRun", "It is a part of a batch that failed, and was not run.", "")


class BatchRunner:
    """Runner of a gate's batches, new or failed, under the failure policy.

    Args:
        context: Settings and services of the gate's runs.
        control_wait_s: Maximum time (s) for which a backfill waits for a control: after a record
            has failed alone, another record must pass in the stream. Default: 0.
        on_isolated: Function called after the isolation of a batch that failed because of its
            records or its size.

    Attributes:
        had_no_sink: Whether the last live batch waited for an unreachable sink.
    """

    def __init__(
        self,
        context: RunContext,
        *,
        control_wait_s: float = 0,
        on_isolated: Callable[[BatchRecord, Isolated[Any]], None] = lambda _batch, _isolated: None,
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._control_wait_s = control_wait_s
        self._on_isolated = on_isolated
        self._calls = HandlerCalls(context)
        self._hold = _Hold(context.ledger)
        self.had_no_sink = False

    @property
    def rate_after_outage(self) -> float | None:
        """Rate after the last live batch's outage (records/s); None if it is unchanged."""
        return self._hold.rate_after_outage

    @property
    def limits(self) -> BackfillLimits:
        """Limits of backfills, from the failure policy."""
        return self._context.policy.backfills

    def run_live(self, df: DataFrame, attached: Attached, number: int) -> bool:
        """Run a newly attached batch of the stream, and store the batch's outcome.

        Returns:
            Whether the batch passed at once. If not, the rate law must not learn from its duration.

        Raises:
            LedgerError: the outcome cannot be stored.
            DataLossError, CorruptionError: the records cannot be read, under any policy.
            OptionError, SetupError: the handler's program is wrong, under any policy.
            Exception: the exception of the handler, if the policy is to stop.
        """
        batch, policy = attached.batch, self._context.policy
        held = self._hold.resume(batch)
        first = (df, number, attached.sequence if held is None else None)
        world = _World(self._context, self._calls, self._hold, batch, attached.ranges, first=first)
        terms = Terms(
            batch.planned_records,
            policy.last,
            tuple(policy.backoff.wait_ms(retry) for retry in range(1, policy.retries + 1)),
            policy.outage,
            policy.budget,
            keeps_key=self._calls.is_unknown(batch),
        )
        with self._context.leases(batch.batch_key):
            end, life = self._live(terms, world, held)
            self.had_no_sink = waited = held is not None or self._hold.outage is not None
            if not end.is_stopped:
                self._hold.note_end(batch, end, life)
            world.end_live(end, life)
        return not (world.failures or waited or batch.progress is not None)

    def run(
        self, batch: BatchRecord, allowed: int = sys.maxsize, gone: Sequence[OffsetRange] = ()
    ) -> Cause | None:
        """Run a failed batch again. It must be ``backfilling`` and belong to this owner.

        Args:
            batch: The batch.
            allowed: Maximum number of records to run now. A larger batch is run in parts. Default:
                no limit.
            gone: Ranges of the batch that the source no longer has. They are not read.

        Returns:
            The reason of the failure if nothing was processed, or None for success; the caller
            stores this outcome. Also None for a batch that was run in parts: its outcome is already
            stored, and its remaining parts are available to the next backfill.
        """
        policy, is_final = self._context.policy, why_dead(batch, self.limits) is not None
        # A whole that a backfill has run keeps its key, so that its sink recognizes the key.
        goes_whole = batch.progress is None and batch.backfills > 0
        max_records = sys.maxsize if goes_whole else allowed
        world = _World(
            self._context,
            self._calls,
            self._hold,
            batch,
            self._ledger.batches.ranges(batch.batch_key),
            gone=tuple(gone),
            control_wait_s=self._control_wait_s,
            max_records=max_records,
        )
        terms = Terms(
            batch.planned_records,
            policy.last,
            budget=policy.budget,
            is_live=False,
            keeps_key=self._calls.is_unknown(batch),
            unknown_failed=is_final or batch.backfills + 1 >= _SURELY_RAISES,
            max_records=max_records,
            is_final=is_final,
            can_wait=self._control_wait_s > 0
            and not self._context.health.is_idle(self._control_wait_s),
        )
        with self._context.leases(batch.batch_key):
            try:
                return world.end_again(*self._live(terms, world))
            except LedgerError:
                raise
            except Exception as raised:  # noqa: BLE001  (Spark could not read the batch again)
                return raised

    def _live(self, terms: Terms, world: "_World", held: Held | None = None) -> tuple[End, Life]:
        life = Life(
            terms,
            world.batch.parts,
            Failure(Verdict.RECORDS, None, world.batch.error or _NOT_RUN),
            held,
            in_parts=self._hold.in_parts,
            now_ms=self._ledger.database_time_ms,
            timer_ms=lambda: round(time.monotonic() * 1000),
            shuffle=self._context.dice.shuffle,
            chance=self._context.dice.random,
        )
        try:
            end = live(life, world)
        finally:
            world.release()
        # A sink that returns while the parts run is no evidence against the batch's size.
        cause = life.cause
        if life.isolated is not None and cause is not None and cause.verdict is not Verdict.AWAY:
            self._on_isolated(world.batch, life.isolated)
        return end, life


class _Hold:
    """Hold of a gate's live batch: its wait for a sink. The ledger stores the hold for a restart.

    Attributes:
        outage: Outage for which the batch waits; None if no batch waits.
        in_parts: Error classes of outages in which some parts of a batch passed, and others failed
            because the sink was away.
        rate_after_outage: See `BatchRunner.rate_after_outage`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.outage: SinkOutage | None = None
        self.in_parts: set[str] = set()
        self.rate_after_outage: float | None = None
        self._has_looked = False
        self._is_eased = False
        """Whether the law has reduced the rate after an outage, and no batch has passed since."""

    def resume(self, batch: BatchRecord) -> Held | None:
        """Return this batch's hold from an earlier run. If another batch has the hold, end it."""
        self.rate_after_outage = None
        if not self._has_looked:
            self._has_looked = True
            self.outage = self._ledger.sink_outages.get(batch.gate)
        if self.outage is not None and self.outage.batch != batch.batch_key:
            self._forget(batch.gate)
        if self.outage is None:
            return None
        _LOG.warning(
            "Batch %s of gate %r has been waiting for %s: %s",
            batch.batch_key,
            batch.gate,
            _span(self._ledger.database_time_ms() - self.outage.since_ms),
            self.outage.error,
        )
        return self.outage.held

    def note_end(self, batch: BatchRecord, end: End, life: Life) -> None:
        """End the hold of a batch that has ended. Log whether the batch passed."""
        passed = end.kind is Ending.SUCCESS
        passed = passed or (life.isolated is not None and life.isolated.has_passed)
        outage = self.outage
        if outage is None:
            self._is_eased &= not passed
            return
        waited = _span(self._ledger.database_time_ms() - outage.since_ms)
        self._forget(batch.gate)
        if passed and end.kind is not Ending.SUCCESS:
            _LOG.warning(
                "Gate %r continues after waiting for %s. Parts of batch %s passed; a backfill will"
                " run its remaining %d records: %s",
                batch.gate,
                waited,
                outage.batch,
                life.records_left,
                outage.error,
            )
        elif passed:
            _LOG.warning(
                "Gate %r continues after waiting for %s: batch %s succeeded (failed runs: %d).",
                batch.gate,
                waited,
                outage.batch,
                outage.runs,
            )
        else:
            _LOG.warning(
                "Batch %s of gate %r no longer waits, after %s and %d failed runs; on_failure"
                " applies now: %s",
                outage.batch,
                batch.gate,
                waited,
                outage.runs + 1,
                outage.error,
            )

    def _forget(self, gate: str) -> None:
        """End the outage in the ledger. Let the law reduce the rate if the sink was certainly away.

        A sink that returns may be slow at first. If only the handler was wrong, the rate stays.
        """
        outage, self.outage = self.outage, None
        by_law = outage is not None and outage.is_certain and not self._is_eased
        self._is_eased |= by_law
        self.rate_after_outage = self._ledger.sink_outages.end(gate, by_law=by_law)

    def keep(self, gate: str, outage: SinkOutage) -> None:
        """Store in the ledger that a batch waits for its sink."""
        self._ledger.sink_outages.keep(gate, outage)
        self.outage = outage


class _World:
    """One batch during its run: its row in the ledger, progress, persisted records and calls."""

    def __init__(
        self,
        context: RunContext,
        calls: HandlerCalls,
        hold: _Hold,
        batch: BatchRecord,
        planned: Sequence[PlannedRange],
        *,
        first: tuple[DataFrame, int, int | None] | None = None,
        gone: tuple[OffsetRange, ...] = (),
        control_wait_s: float = 0,
        max_records: int = sys.maxsize,
    ) -> None:
        self.batch = batch
        self.failures = 0
        self._context, self._ledger, self._calls = context, context.ledger, calls
        self._hold = hold
        self._planned = tuple(planned)
        self._first = first
        self._gone = gone
        self._control_wait_s = control_wait_s
        self._max_records = max_records
        self._kept = batch.parts
        self._logged_ms = 0
        self._parts = ExitStack()
        self._reader: BatchReader | None = None

    @property
    def passes(self) -> int:
        """Number of handler calls that have passed with at least one record."""
        return self._context.health.passes

    @property
    def is_down(self) -> bool:
        """Whether the sink seems down: no part of an isolation has passed, and no later call."""
        return self._context.policy.skips and self._context.health.down is not None

    # Calls.

    def call(self, call: Call) -> Failure | None:
        """Call the handler with the whole batch, or with a part. Return the failure or None.

        Before a call with a part, the ledger stores that the part is running.
        """
        if call.part == WHOLE and call.before.running is None:
            failure = self._call_whole()
        else:
            failure = self._call_part(call)
        self.failures += failure is not None
        return failure

    def _call_whole(self) -> Failure | None:
        if self._first is None:
            part = BatchPart(self.batch, without(self._planned, self._gone))
            return self._calls.again(part, self._readable)
        df, number, sequence = self._first
        self._first = (df, number, None)
        return self._calls.live(df, BatchPart(self.batch, self._planned), number, sequence)

    def _call_part(self, call: Call) -> Failure | None:
        ranges = self._ranges(call.part)
        if not ranges:  # all of it has left the source
            return None
        reader = self._part_reader()
        self._keep(call.before)
        return self._calls.again(BatchPart(self.batch, ranges, call.part, call.done), reader)

    @property
    def _readable(self) -> BatchReader:
        if self._context.reader is None:
            raise OptionError(
                "A batch of this query was run in parts by on_failure='isolate' and is unfinished;"
                " start the query once more with on_failure='isolate' to finish it."
            )
        return self._context.reader

    def _part_reader(self) -> BatchReader:
        """Return the reader for parts of the batch, created at the first call.

        If the limit of records allows all open ranges to run, the reader reads them once for all
        parts. Otherwise it reads each part separately.
        """
        if self._reader is None:
            reader = self._readable
            self._parts.enter_context(self._context.health)
            self._parts.callback(reader.close)
            row = replace(self.batch, progress=self._kept.to_text())
            still_open = without(row.open_ranges(self._planned), self._gone)
            if sum(planned.offsets.count for planned in still_open) <= self._max_records:
                reader = self._parts.enter_context(reader.persisted(still_open))
            self._reader = reader
        return self._reader

    def release(self) -> None:
        """Release the persisted rows of the batch."""
        self._parts.close()
        self._reader = None

    def _ranges(self, part: str) -> tuple[PlannedRange, ...]:
        """Return the ranges of a part, without offsets that the source no longer has."""
        ids = {planned.offsets.topic_partition: planned.topic_id for planned in self._planned}
        ranges = [
            PlannedRange(offsets, topic_id=ids[offsets.topic_partition])
            for offsets in ranges_of([planned.offsets for planned in self._planned], part)
        ]
        return without(ranges, self._gone)

    def _keep(self, progress: Progress, *letters: Any) -> None:
        """Store progress and dead letters; raise `LedgerError` if another process has the batch."""
        key, owner = self.batch.batch_key, self._context.owner
        if not self._ledger.batches.keep_progress(key, owner, progress, *letters):
            raise LedgerError(
                f"Another process now owns batch {key} of gate {self.batch.gate!r}, so this process"
                " does not run the rest of the batch; the new owner does."
            )
        self._kept = progress

    def reject(self, reject: Reject) -> bool:
        """Store a convicted record as a dead letter. Return whether it was stored."""
        ranges = self._ranges(reject.part)
        if not ranges:
            return True
        (planned,) = ranges
        reader = self._part_reader()
        try:
            letter = reader.dead_letter(planned, reject.why.report)
        except Exception as unread:  # noqa: BLE001  (Spark may have ended, too)
            _LOG.warning(
                "The record %s could not be stored as a dead letter, and stays failed: %s",
                planned.offsets,
                unread,
            )
            return False
        if letter is None:  # the offset has no record
            return True
        self._keep(reject.done, letter)
        topic = reader.dead_letter_topic(self._context.policy.topic)
        if topic is not None:
            topic.send(letter)
            self._parts.callback(topic.flush)
        _LOG.error(
            "The record %s of gate %r cannot be processed and is kept as a dead letter: %s: %r",
            planned.offsets,
            self.batch.gate,
            letter.error.error_class,
            letter.error.message,
        )
        return True

    # Waits.

    def await_other(self) -> bool | None:
        """Wait until another batch's call ends. Return whether it passed; None after a timeout."""
        self._part_reader()
        health = self._context.health

        def ended() -> tuple[int, int]:
            # A stream may never run a single record, so after enough backfills any run counts.
            if self.batch.backfills + 1 >= _SURELY_RAISES:
                return health.passes, health.failures
            return health.controls_passed, health.controls_failed

        before = ended()
        self._context.wait(self._control_wait_s, lambda: ended() != before, look_s=_LOOK_S)
        return None if ended() == before else ended()[1] == before[1]

    def pause(self, pause: Pause, progress: Progress) -> Waited:
        """Store hold and progress, and wait before the next call. Return how the wait ended."""
        self.release()
        if progress != self._kept:
            self._keep(progress)
        failure, whole = pause.failure, pause.whole
        if whole is not None and self._is_wrong(whole, pause.of_parts):
            return Waited.WRONG
        if pause.held is None and failure is not None:
            return self._retry(pause, failure)
        if failure is not None and not self._wait_on(pause, failure):
            return Waited.NOT_OURS
        outage = self._hold.outage
        assert outage is not None  # noqa: S101  (read at a restart, or stored just now)
        wait_ms = pause.ms if failure else outage.next_ms - self._ledger.database_time_ms()
        looks = itertools.count(1)

        def is_asked() -> bool:
            is_due = next(looks) % _LOOKS_A_QUERY == 0
            return is_due and self._ledger.sink_outages.is_asked(self.batch.gate)

        if not self._context.wait(wait_ms / 1000, is_asked):
            return Waited.STOPPED
        return Waited.OVER if failure is None or self._is_ours() else Waited.NOT_OURS

    def _is_ours(self) -> bool:
        """Read the batch's row again. Return whether this owner still has the batch."""
        self.batch = self._ledger.batches.get(self.batch.batch_key) or self.batch
        return self.batch.owner == self._context.owner

    def _add_attempt(self) -> bool:
        key, context = self.batch.batch_key, self._context
        return self._ledger.batches.retry(key, context.owner, context.lease_ms)

    def _retry(self, pause: Pause, failure: Failure) -> Waited:
        _LOG.warning(
            "Batch %s of gate %r failed and is run again in %d ms (retry %d of %d): %s",
            self.batch.batch_key,
            self.batch.gate,
            pause.ms,
            pause.retry,
            self._context.policy.retries,
            ErrorReport.of(failure.error).line,
        )
        if not self._context.wait(pause.ms / 1000):
            return Waited.STOPPED
        return Waited.OVER if self._add_attempt() and self._is_ours() else Waited.NOT_OURS

    def _wait_on(self, pause: Pause, failure: Failure) -> bool:
        """Store a failed handler call of a hold. Return False if another process owns the batch.

        All calls during a hold count as one attempt.
        """
        before, held, batch = self._hold.outage, pause.held, self.batch
        if before is None and not self._add_attempt():
            return False
        assert held is not None  # noqa: S101  (checked by the caller)
        line = ErrorReport.of(failure.error).line
        outage = SinkOutage.of(batch.batch_key, held, line)
        self._hold.keep(batch.gate, outage)
        now_ms = held.next_ms - pause.ms
        if before is None:
            self._logged_ms = now_ms
            settings = self._context.policy.outage
            how_long = "a few times"
            if held.is_certain:
                most_ms = settings.max_hold_ms
                how_long = f"for {_span(most_ms)} at most" if most_ms else "until it goes through"
            _LOG.warning(
                "Batch %s of gate %r waits, and the gate admits nothing more, because %s. The batch"
                " is run again after pauses of up to %s, %s: %s",
                batch.batch_key,
                batch.gate,
                f"{outage.awaited} is away" if held.is_certain else "no part of it passes",
                _span(settings.max_retry_ms),
                how_long,
                line,
            )
        elif now_ms - self._logged_ms >= _LOG_MS:
            self._logged_ms = now_ms
            _LOG.warning(
                "Batch %s of gate %r has waited for %s, and was run %d times: %s",
                batch.batch_key,
                batch.gate,
                _span(now_ms - held.since_ms),
                held.calls,
                line,
            )
        return True

    def _is_wrong(self, whole: Failure, of_parts: Failure | None) -> bool:
        parts = None if of_parts is None else of_parts.report
        if not self._context.health.is_wrong(whole.error, parts):
            return False
        _LOG.error(
            "The handler of gate %r has processed nothing since its query was started, and fails"
            " with the same error for all records, so the query is stopped. Correct the handler,"
            " and start the query again; a backfill runs the failed batches. %s",
            self.batch.gate,
            ErrorReport.of(whole.error).line,
        )
        return True

    # Ends.

    def end_live(self, end: End, life: Life) -> None:
        """Store the outcome of a batch of the stream. Raise the error if it ends the query."""
        batches, key, owner = self._ledger.batches, self.batch.batch_key, self._context.owner
        if not end.is_unknown and life.progress != self._kept:
            self._keep(life.progress)
        if end.kind is Ending.SUCCESS:
            batches.succeed(key, owner=owner)
        elif end.kind is Ending.RAISED:
            self._raise(end)
        else:
            why = self._why(end, life)
            moved = batches.fail(key, why, owner=owner)
            if life.isolated is None:
                _LOG.warning(
                    "Batch %s of gate %r failed and is deferred, to be run again by a backfill: %s"
                    if moved
                    else "Batch %s of gate %r failed, but is not this process's any more; whoever"
                    " owns it now runs it: %s",
                    key,
                    self.batch.gate,
                    ErrorReport.of(why).line,
                )
        self._log_isolated(life)
        if end.whole is not None and self._is_wrong(end.whole, end.of_parts):
            raise end.whole.error

    def _raise(self, end: End) -> None:
        failure = end.failure
        error = InterruptedError("The query was stopped.") if failure is None else failure.error
        why = error if failure is None else failure.report
        if end.is_stopped and not end.is_unknown:
            why = query_stopped(error)
        self._ledger.batches.fail(
            self.batch.batch_key, why, owner=self._context.owner, outcome_unknown=end.is_unknown
        )
        if failure is not None and failure.verdict is Verdict.WRONG:
            # No failure of the handler: the query's next start runs the batch again.
            raise failure.report from None
        raise error

    def end_again(self, end: End, life: Life) -> Cause | None:
        """Store the outcome of a batch whose parts a backfill has run.

        Returns:
            The result of `BatchRunner.run`.
        """
        batches, key, owner = self._ledger.batches, self.batch.batch_key, self._context.owner
        if end.kind is Ending.RAISED and end.failure is not None:
            stopped: Exception = end.failure.error
            return stopped
        done_before = self.batch.done_records
        if life.progress != self._kept:
            self._keep(life.progress)
        self._log_isolated(life)
        if end.kind is Ending.SUCCESS:
            if life.isolated is not None:
                batches.backfilled(key, owner)
            return None
        row = batches.get(key)
        if row is not None and row.done_records > done_before:
            batches.put_back(key, owner)
            return None
        return self._why(end, life)

    def _why(self, end: End, life: Life) -> Cause:
        assert end.failure is not None  # noqa: S101  (only a success has none)
        health = self._context.health
        why: Cause = end.failure.report
        if not end.is_down:
            return why
        if health.down is None or life.held is not None or end.of_parts is not None:
            return health.stopped_by(why)
        return health.down

    def _log_isolated(self, life: Life) -> None:
        batch, isolated = self.batch, life.isolated
        if isolated is None:
            return
        if life.cause is not None and not (isolated.left or isolated.alone):
            # No record is at fault alone.
            report = ErrorReport.of(life.cause.error)
            _LOG.warning(
                "Batch %s of gate %r fails as a whole, but all of its parts pass (%d runs): %s",
                batch.batch_key,
                batch.gate,
                isolated.runs,
                report.line,
            )
            self._ledger.batches.keep_error(
                batch.batch_key, replace(report, message=f"{FAILS_AS_A_WHOLE}: {report.message}")
            )
        else:
            _LOG.warning(
                "Batch %s of gate %r failed and ran in parts: %d runs, %d records isolated, %d"
                " records deferred.",
                batch.batch_key,
                batch.gate,
                isolated.runs,
                len(isolated.alone),
                life.records_left,
            )


def _span(ms: int) -> str:
    return f"{max(ms, 0)} ms" if ms < 1_000 else str(timedelta(seconds=round(ms / 1000)))
