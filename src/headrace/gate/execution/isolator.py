"""Runs a batch in parts: halves what fails until what cannot be processed stands alone."""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Final

from headrace.core.ranges import OffsetRange
from headrace.errors import BatchSplitError, DataLossError, HeadraceError, LedgerError
from headrace.gate.control.bisection import (
    AwaitControl,
    Bisection,
    Isolated,
    IsolationBudget,
    Run,
    Step,
)
from headrace.gate.control.parts import WHOLE, Progress, above, ranges_of, size
from headrace.gate.execution.batch_reader import BatchReader
from headrace.gate.execution.handler_errors import ends_query, no_connection, not_the_records
from headrace.gate.execution.handler_runs import BatchPart, HandlerRuns, RunContext
from headrace.gate.execution.sink_waiting import is_away
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.records import BatchRecord, DeadLetter, PlannedRange, without
from headrace.gate.ledger.transitions import Status

_LOG: Final = logging.getLogger("headrace.execution")

Cause = Exception | ErrorReport
"""Why a batch, or a part of it, failed."""

_LOOK_S: Final = 0.05
"""Interval at which another batch is checked for its success (s)."""

_NOT_RUN: Final = ErrorReport("NotRun", "It is a part of a batch that failed, and was not run.", "")


@dataclass(frozen=True)
class IsolationTerms:
    """Limits of one isolation.

    Attributes:
        budget: Runs and time. Default: the policy's.
        control_wait_s: How long to wait for a run of another batch that passes (s). Default: 0.
        final: Whether a single record has been tried as often as it may be.
        max_records: Offsets that may be run. Default: all.
        isolates: Whether a part that fails is halved. Default: True.
        unknown_failed: Whether a run whose outcome is unknown is assumed to have failed. Default:
            False; then a part of such a run is run as one, for the sink may have it under its key.
        gone: What of the batch has left the source, and is counted as lost. Default: nothing.
    """

    budget: IsolationBudget | None = None
    control_wait_s: float = 0
    final: bool = False
    max_records: int = sys.maxsize
    isolates: bool = True
    unknown_failed: bool = False
    gone: tuple[OffsetRange, ...] = ()


class Isolator:
    """Runs the parts of one batch; what was done of them stands in its row.

    A part is written down as running before the handler is called with it, and as done before the
    next one is: after a crash that part runs first, under its own key. A record becomes a dead
    letter when a test has convicted it; what is not proved or not run is left. So is the rest when
    a part could not be run, or nothing passes any more: that says nothing of its records.

    Args:
        context: How the gate's batches are run.
        runs: Runs of its handler.
        reader: Reads the parts.
        batch: This owner's; its row is left in its status.
        terms: How much this may take.

    Attributes:
        progress: What was done of the batch, as the ledger has it at the end of `run`.
    """

    def __init__(
        self,
        context: RunContext,
        runs: HandlerRuns,
        reader: BatchReader,
        batch: BatchRecord,
        terms: IsolationTerms,
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._health = context.health
        self._runs = runs
        self._reader = reader
        self._batch = batch
        planned = self._ledger.batches.ranges(batch.batch_key)
        self._planned = [one.offsets for one in planned]
        self._topic_ids = {one.offsets.topic_partition: one.topic_id for one in planned}
        self._terms = terms
        self._letters = reader.dead_letter_topic(context.policy.topic)
        self._work: Callable[..., Bisection[Cause]] = partial(
            Bisection,
            batch.planned_records,
            terms.budget or context.policy.budget,
            shuffle=context.dice.shuffle,
            can_wait=terms.control_wait_s > 0,
            final=terms.final,
            max_records=terms.max_records,
        )
        self.progress = batch.parts

    def run(self, error: Exception | None) -> Isolated[Cause]:
        """Run the parts of a batch that failed with this error; None to go on with its parts.

        Raises:
            LedgerError: the batch is not this owner's any more.
            DataLossError, CorruptionError: a part cannot be read, and the stream stops at that.
            OptionError, SetupError: the handler's program is wrong.
            Exception: what the handler raised with which the query ends.
        """
        if error is not None:
            work = self._work()
            if self._batch.planned_records > 1:
                self.progress = replace(self.progress, halved=frozenset({WHOLE}))
            work.begin(error)
        else:
            work = self._work(not_run=[(part, self._why) for part in self._open()])
        began = time.monotonic()
        with self._health:
            while (step := self._next_step(work, began)) is not None:
                match step:
                    case Run(part):
                        self._run_part(work, part)
                    case AwaitControl():
                        self._await_control(work)
        return self._resolve(work.result)

    @property
    def _why(self) -> ErrorReport:
        return self._batch.error or _NOT_RUN

    def _open(self) -> list[str]:
        """What is not done, in order; first what was interrupted, of which nobody knows."""
        running = self.progress.running
        if running is not None:
            unknown = self.progress.unknown | ({running} if running else set())
            self.progress = replace(self.progress, running=None, unknown=unknown)
        parts = self.progress.open
        return sorted(parts, key=lambda part: (part != running, part))

    def _next_step(self, work: Bisection[Cause], began_s: float) -> Step | None:
        elapsed_ms = round((time.monotonic() - began_s) * 1000)
        return work.next_step(elapsed_ms, self._health.passes)

    def _await_control(self, work: Bisection[Cause]) -> None:
        passes, failures = self._health.passes, self._health.failures

        def has_ended() -> bool:
            return self._health.passes > passes or self._health.failures > failures

        self._context.wait(self._terms.control_wait_s, has_ended, look_s=_LOOK_S)
        if has_ended():
            work.record_other(passed=self._health.failures == failures)
        else:
            work.give_up_waiting()

    def _run_part(self, work: Bisection[Cause], part: str) -> None:
        before = self.progress
        is_unknown = part in before.unknown
        done = replace(before.with_done(part), runs=before.runs + 1)
        ranges = self._ranges(part)
        if not ranges:
            self.progress = done
            work.record(part, None)
            return
        failed = replace(before, unknown=done.unknown, runs=done.runs)
        self._keep(replace(failed, running=part))
        call = BatchPart(self._batch, ranges, part, done)
        error = self._runs.again(call, self._reader)
        if error is None:
            self.progress = done
            work.record(part, None)
            return
        if (end := self._context.end_report(error)) is not None:
            self._abandon(end, outcome_unknown=True)
            raise error
        is_split = isinstance(error, BatchSplitError)
        # What it is within does not run as one again: nobody would know then that it failed.
        failed = replace(failed, halved=failed.halved.union(above(part)))
        known = is_split or self._terms.unknown_failed or self._runs.has_asked(call.key)
        if is_unknown and not known:
            failed = replace(failed, unknown=failed.unknown | {part})
        self.progress = failed
        if is_split:  # parts of it are in the sink, which lost the answer to their commits
            self._halve(work, part, error)
        elif (unread := ends_query(error)) is not None:
            self._leave_unread(unread)
            work.leave(part, unread)
        elif (blameless := not_the_records(error)) is not None:
            work.defer(part, blameless)
        elif part in failed.unknown or not self._terms.isolates:
            # It may be in the sink, under its own key; or nobody asked which record it is.
            work.leave(part, error)
        else:
            self._halve(work, part, error)

    def _is_spared(self, part: str, why: Cause) -> bool:
        """Whether this is one record that could not reach its part of the sink, and may wait."""
        is_lone = size(self._batch.planned_records, part) == 1
        return is_lone and no_connection(why) and not self._terms.final

    def _halve(self, work: Bisection[Cause], part: str, error: Exception) -> None:
        if size(self._batch.planned_records, part) > 1:
            self.progress = replace(self.progress, halved=self.progress.halved | {part})
        work.record(part, error)
        if self._is_spared(part, error):
            work.spare(part)

    def _keep(self, progress: Progress, *letters: DeadLetter) -> None:
        """Write the progress down; what it takes back is not kept."""
        key = self._batch.batch_key
        if not self._ledger.batches.keep_progress(key, self._context.owner, progress, *letters):
            raise LedgerError(
                f"Batch {key} of gate {self._batch.gate!r} does not belong to this process any"
                " more, so the rest of it is not run here; whoever owns it now runs it."
            )
        self.progress = progress

    def _resolve(self, result: Isolated[Cause]) -> Isolated[Cause]:
        """Keep who is convicted, and leave the others; a batch without others is a success.

        Also left, but for its last backfill, is what could not reach its part of the sink. A batch
        of which nothing is done is whole again.
        """
        for part, why in sorted(result.alone, key=itemgetter(0)):
            if self._is_spared(part, why) or not self._keep_dead_letter(part, why):
                result.alone.remove((part, why))
                result.left.append((part, why))
        if self._letters is not None:
            self._letters.flush()
        if not result.left:
            self._succeed()
        elif nothing_passes(result) and not (self.progress.done or self.progress.unknown):
            self._keep(Progress())
        else:
            self._keep(self.progress)
        return result

    def _leave_unread(self, why: HeadraceError) -> None:
        goes_on = isinstance(why, DataLossError) and self._reader.passes_over_losses
        if self._batch.status is Status.BACKFILLING or goes_on:
            return
        self._keep(self.progress)
        self._abandon(self._context.end_report(why) or ErrorReport.of(why))
        raise why from None

    def _abandon(self, report: ErrorReport, *, outcome_unknown: bool = False) -> None:
        """Fail the batch; it is run again when the query is started again."""
        key, owner = self._batch.batch_key, self._context.owner
        self._ledger.batches.fail(key, report, owner=owner, outcome_unknown=outcome_unknown)

    def _keep_dead_letter(self, part: str, why: Cause) -> bool:
        """Keep a convicted record; False where it cannot be kept, and is left."""
        done = self.progress.with_done(part)
        ranges = self._ranges(part)
        if not ranges:
            self.progress = done
            return True
        (planned,) = ranges
        try:
            letter = self._reader.dead_letter(planned, why)
        except Exception as unread:  # noqa: BLE001  (Spark, too, may be gone by now)
            _LOG.warning("The record %s is not kept, and stays failed: %s", planned.offsets, unread)
            return False
        if letter is None:  # There is nothing at this offset.
            self.progress = done
            return True
        self._keep(done, letter)
        if self._letters is not None:
            self._letters.send(letter)
        _LOG.error(
            "The record %s of gate %r cannot be processed and is kept as a dead letter: %s: %r",
            planned.offsets,
            self._batch.gate,
            letter.error.error_class,
            letter.error.message,
        )
        return True

    def _succeed(self) -> None:
        batches, key, owner = self._ledger.batches, self._batch.batch_key, self._context.owner
        if self._batch.status is Status.BACKFILLING:
            batches.backfilled(key, owner)
        else:
            batches.succeed(key, owner=owner)

    def _ranges(self, part: str) -> tuple[PlannedRange, ...]:
        """What a part reads, without what has left the source."""
        ranges = [
            PlannedRange(offsets, topic_id=self._topic_ids[offsets.topic_partition])
            for offsets in ranges_of(self._planned, part)
        ]
        return without(ranges, self._terms.gone)


def nothing_passes(result: Isolated[Cause]) -> bool:
    """Whether no part has passed, and it is the sink that keeps them."""
    whys = [result.down, *(why for _, why in result.left)]
    away = any(isinstance(why, Exception) and is_away(why) for why in whys)
    return not result.has_passed and (result.down is not None or away)
