"""Runs a batch, live or again, whole or in parts, and does what the failure policy says."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from pyspark.sql import DataFrame

from headrace.core.ranges import OffsetRange
from headrace.errors import BatchSplitError, LedgerError, NotProcessedError, OptionError
from headrace.gate.control.bisection import UNLIKE, Isolated, IsolationBudget
from headrace.gate.control.dead import BackfillLimits, why_dead
from headrace.gate.control.parts import size
from headrace.gate.control.sink_outage import OnOutage
from headrace.gate.execution.batch_reader import BatchReader
from headrace.gate.execution.handler_errors import ends_query, not_the_records, took_too_much
from headrace.gate.execution.handler_runs import BatchLeases, BatchPart, HandlerRuns, RunContext
from headrace.gate.execution.isolator import (
    Cause,
    IsolationTerms,
    Isolator,
    nothing_passes,
)
from headrace.gate.execution.sink_waiting import SinkWaiting, is_away
from headrace.gate.ledger.error_report import FAILS_AS_A_WHOLE, ErrorReport
from headrace.gate.ledger.records import Attached, BatchRecord, without
from headrace.gate.ledger.transitions import Status

_LOG: Final = logging.getLogger("headrace.execution")

_SURELY_RAISES: Final = 10
"""Number of failed backfills of a batch, over some hours, after which a run of it, or of a part,
whose outcome is unknown is assumed to have failed too.
"""


class BatchExecutor:
    """A gate's handler, with what an exception in it does.

    Args:
        context: How the gate's batches are run.
        control_wait_s: How long a backfill waits for the stream to process something, before it
            says that a record failed alone while others passed (s). Default: 0.
        on_isolated: Called when a batch that failed has been isolated, in one go.
    """

    def __init__(
        self,
        context: RunContext,
        *,
        control_wait_s: float = 0,
        on_isolated: Callable[[BatchRecord, Isolated[Cause]], None] = lambda _batch, _isolated: (
            None
        ),
    ) -> None:
        self._context = context
        self._ledger = context.ledger
        self._policy = context.policy
        self._health = context.health
        self._usual = IsolationTerms(isolates=context.policy.last == "isolate")
        self._control_wait_s = control_wait_s
        self._on_isolated = on_isolated
        self._runs = HandlerRuns(context)
        self._waiting = SinkWaiting(context)
        self._in_parts = False
        """Whether parts of the live batch are done, or may be."""
        self._left = 0
        """Records of it that a backfill is to run."""
        self.had_no_sink = False
        """Whether the last live batch waited for a sink that was away."""
        self.rate_after_outage: float | None = None
        """The rate in force since it did (records/s); None where the outage has not changed it."""

    def run_live(self, df: DataFrame, attached: Attached, number: int) -> bool:
        """Run a batch of the stream, attached to this owner just now, and write its outcome down.

        Returns:
            Whether it went through at once. If not, how long it took says nothing of the job.

        Raises:
            LedgerError: its outcome cannot be written down.
            DataLossError, CorruptionError: its records cannot be read, whatever the policy.
            OptionError, SetupError: the handler's program is wrong, whatever the policy.
            Exception: what the handler raised, where the policy stops then.
        """
        batch = attached.batch
        may_try = self._policy.skips and not self._runs.is_unknown(batch)

        def run(row: BatchRecord, sequence: int | None = None) -> Exception | None:
            if self._in_parts:
                return self._try_parts(batch, None)
            return self._runs.live(df, BatchPart(row, attached.ranges), number, sequence)

        with self._leases(batch):
            # Step 4: wait on for a sink that was away, call the handler, and retry in place.
            self._in_parts, self._left = batch.progress is not None, 0
            was_in_parts = self._in_parts
            waited = self._waiting.resume(batch, waits=not was_in_parts)
            error = run(batch, None if waited else attached.sequence)
            at_once = error is None and not waited and not was_in_parts
            if error is not None and not self._in_parts:
                error = self._retry(error, batch, run)
            # Step 5: hold the gate while the sink is away.
            if error is not None:
                error = self._waiting.hold(
                    batch,
                    error,
                    run=run,
                    try_parts=partial(self._try_parts, batch) if may_try else None,
                    has_parts=batch.planned_records >= UNLIKE,
                )
            self.had_no_sink = self._waiting.end(is_back=error is None, left=self._left)
            self.rate_after_outage = self._waiting.rate_after_outage
            # Step 6: write down the success, or do what the failure policy says.
            if error is None:
                self._ledger.batches.succeed(batch.batch_key, owner=self._context.owner)
            elif self._in_parts and not self._context.is_ended_by(error):
                self._isolate(self._row(batch), None, self._usual)
            else:
                self._apply_policy(batch, error)
            return at_once

    def _try_parts(self, batch: BatchRecord, error: Exception | None) -> Exception | None:
        """Run parts of a batch that failed; None where some passed, and it has its outcome.

        Else the answer is what was raised last, and the batch is whole again, unless a part may be
        in the sink: then its parts are run when this is called again.
        """
        # Without isolation, run a few parts, only to see whether any of them passes.
        asks = self._policy.last != "isolate" and not self._in_parts
        terms = IsolationTerms(IsolationBudget(max_runs=UNLIKE)) if asks else self._usual
        why = None if self._in_parts else error
        isolated = self._isolate(self._row(batch), why, terms, undo=True)
        if not nothing_passes(isolated):
            self._in_parts = False
            self._left = sum(size(batch.planned_records, part) for part, _ in isolated.left)
            return None
        self._in_parts = self._row(batch).progress is not None
        if error is not None and self._health.is_wrong(error, isolated.down):
            self._fail(batch, error)
            self._stop(batch, error)
        raised = [isolated.down, *(why for _, why in reversed(isolated.left)), error]
        return next(
            (why for why in raised if isinstance(why, Exception)),
            NotProcessedError("No part of the batch was run."),
        )

    def _row(self, batch: BatchRecord) -> BatchRecord:
        """The batch as the ledger has it now."""
        return self._ledger.batches.get(batch.batch_key) or batch

    def run(
        self, batch: BatchRecord, allowed: int = sys.maxsize, gone: Sequence[OffsetRange] = ()
    ) -> Exception | ErrorReport | None:
        """Run a batch that had failed: ``backfilling``, and this owner's.

        Args:
            batch: The batch.
            allowed: Records that may be run now; a batch with more is run in parts. Default: all.
            gone: What of it has left the source, and is lost.

        Returns:
            Why nothing of it was done; the caller writes that. None where it has passed, which the
            caller writes too; or was run in parts, and has its outcome: the rest of it is put back.
        """
        # A whole that may be in the sink keeps its key, and one that a backfill has run.
        keeps_key = self._runs.is_unknown(batch) or batch.backfills > 0
        is_too_large = batch.planned_records > allowed and not keeps_key
        final = self._is_last(batch)
        terms = IsolationTerms(
            final=final,
            max_records=allowed,
            isolates=self._policy.last == "isolate",
            unknown_failed=self._has_surely_raised(batch),
            gone=tuple(gone),
        )
        with self._leases(batch):
            if batch.progress is not None or is_too_large:
                return self._run_parts(batch, None, terms)
            planned = without(self._ledger.batches.ranges(batch.batch_key), gone)
            error = self._runs.again(BatchPart(batch, planned), self._reader)
            if isinstance(error, BatchSplitError):
                return self._run_parts(batch, error, replace(terms, max_records=sys.maxsize))
            why = None if error is None else not_the_records(error)
            ended = error is not None and (why is not None or self._context.is_ended_by(error))
            down = None if final else self._health.down
            if error is None or ended or down is not None or not self._may_isolate(batch):
                self._reader.close()
                return why or (error and down) or error
            return self._run_parts(batch, error, replace(terms, max_records=sys.maxsize))

    def _run_parts(
        self, batch: BatchRecord, error: Exception | None, terms: IsolationTerms
    ) -> Exception | ErrorReport | None:
        """Run parts in a backfill, and write down what came of it; why nothing was done."""
        if not self._health.is_idle(self._control_wait_s):
            terms = replace(terms, control_wait_s=self._control_wait_s)
        done_before = batch.done_records
        try:
            isolated = self._isolate(batch, error, terms)
        except LedgerError:
            raise
        except Exception as raised:  # noqa: BLE001  (for the query is being stopped)
            return raised
        if not isolated.left:
            return None
        if self._row(batch).done_records > done_before:
            self._ledger.batches.put_back(batch.batch_key, self._context.owner)
            return None
        down = None if isolated.down is None else self._health.stopped_by(isolated.down)
        return down or isolated.left[0][1]

    @property
    def _reader(self) -> BatchReader:
        if self._context.reader is None:
            raise OptionError(
                "A batch of this query was run in parts by on_failure='isolate', and is not"
                " finished; start the query with that policy once more, so that the rest is run."
            )
        return self._context.reader

    def _leases(self, batch: BatchRecord) -> BatchLeases:
        return BatchLeases(
            self._ledger, self._context.owner, self._context.lease_ms, batch.batch_key
        )

    def _retry(
        self, error: Exception, batch: BatchRecord, run: Callable[[BatchRecord], Exception | None]
    ) -> Exception | None:
        last: Exception | None = error
        for retry in range(1, self._policy.retries + 1):
            if last is None or self._context.ends(last):
                break
            if self._policy.last == "isolate" and took_too_much(last):
                break
            wait_ms = self._policy.backoff.wait_ms(retry)
            _LOG.warning(
                "Batch %s of gate %r failed and is run again in %d ms (retry %d of %d): %s",
                batch.batch_key,
                batch.gate,
                wait_ms,
                retry,
                self._policy.retries,
                ErrorReport.of(last).line,
            )
            if not self._context.wait(wait_ms / 1000):
                break
            if not self._ledger.batches.retry(
                batch.batch_key, self._context.owner, self._context.lease_ms
            ):
                break
            again = self._ledger.batches.get(batch.batch_key) or batch
            last = run(again)
        return last

    def _apply_policy(self, batch: BatchRecord, error: Exception) -> None:
        if (report := self._context.end_report(error)) is not None:
            self._ledger.batches.fail(
                batch.batch_key, report, owner=self._context.owner, outcome_unknown=True
            )
            raise error
        if self._policy.outage.on_outage is OnOutage.STOP and is_away(error):
            self._ledger.batches.fail(batch.batch_key, error, owner=self._context.owner)
            raise error
        if (why := ends_query(error)) is not None:
            # Not the handler's failure: the batch is run again when the query is started again.
            self._ledger.batches.fail(batch.batch_key, why, owner=self._context.owner)
            raise why from None
        blameless = not_the_records(error) or self._health.down if self._policy.skips else None
        of_parts: Cause | None = None
        isolates = self._policy.last == "isolate" and not self._runs.is_unknown(batch)
        if blameless is None and isolates:
            of_parts = self._isolate(batch, error, self._usual).down
        else:
            self._fail(batch, blameless or error)
        if self._health.is_wrong(error, of_parts):
            self._stop(batch, error)

    def _stop(self, batch: BatchRecord, error: Exception) -> NoReturn:
        """Raise what a batch failed with, for the handler itself is wrong."""
        _LOG.error(
            "The handler of gate %r has processed nothing since its query was started, and fails"
            " with the same error whatever it is given, so the query is stopped. Mend the handler,"
            " and start the query again; a backfill runs what has failed. %s",
            batch.gate,
            ErrorReport.of(error).line,
        )
        raise error

    def _fail(self, batch: BatchRecord, error: Exception) -> None:
        moved = self._ledger.batches.fail(batch.batch_key, error, owner=self._context.owner)
        if not self._policy.skips:
            raise error
        _LOG.warning(
            "Batch %s of gate %r failed and is deferred, to be run again by a backfill: %s"
            if moved
            else "Batch %s of gate %r failed, but is not this process's any more; whoever owns it"
            " now runs it: %s",
            batch.batch_key,
            batch.gate,
            ErrorReport.of(error).line,
        )

    def _may_isolate(self, batch: BatchRecord) -> bool:
        """Whether a batch that fails in a backfill may be run in parts, under keys of their own.

        If all its runs have raised, the sink has nothing of it. A run whose outcome is unknown may
        have come further: unless the sink can be asked, such a batch is run whole, until it has
        failed so often that it has most likely failed in that run too, or one backfill is left.
        """
        known = self._has_surely_raised(batch) or not self._runs.is_unknown(batch)
        return self._policy.last == "isolate" and known

    def _has_surely_raised(self, batch: BatchRecord) -> bool:
        """Whether runs with an unknown outcome, of a batch or its parts, count as failed."""
        return self._is_last(batch) or batch.backfills + 1 >= _SURELY_RAISES

    def _is_last(self, batch: BatchRecord) -> bool:
        """Whether a batch is dead if this backfill of it fails."""
        return why_dead(batch, self.limits) is not None

    @property
    def limits(self) -> BackfillLimits:
        """The policy's limits of backfills."""
        return self._policy.backfills

    def _isolate(
        self,
        batch: BatchRecord,
        error: Exception | None,
        terms: IsolationTerms,
        *,
        undo: bool = False,
    ) -> Isolated[Cause]:
        """Isolate a batch that failed, or go on with its parts.

        A live batch of which something is left has failed then; with ``undo``, only where something
        of it has passed.
        """
        try:
            with self._kept(batch, terms) as reader:
                isolated = Isolator(self._context, self._runs, reader, batch, terms).run(error)
        finally:
            self._reader.close()
        nothing_passed = nothing_passes(isolated)
        if isolated.left and batch.status is Status.IN_PROGRESS and not (undo and nothing_passed):
            down = None if isolated.down is None else self._health.stopped_by(isolated.down)
            why = down or isolated.left[0][1]
            self._ledger.batches.fail(batch.batch_key, why, owner=self._context.owner)
        if error is not None and not nothing_passed and not (isolated.left or isolated.alone):
            self._keep_of_whole(batch, error, isolated.runs)
        elif not nothing_passed:
            self._log_isolated(batch, isolated)
        # A sink that was away, and is back for the parts, says nothing of the batch's size.
        if error is not None and (took_too_much(error) or not is_away(error)):
            self._on_isolated(batch, isolated)
        return isolated

    def _keep_of_whole(self, batch: BatchRecord, error: Exception, runs: int) -> None:
        """Say what a batch failed with of which all parts pass: no record is at fault alone."""
        report = ErrorReport.of(error)
        _LOG.warning(
            "Batch %s of gate %r fails as a whole, and all of its parts pass, in %d runs: %s",
            batch.batch_key,
            batch.gate,
            runs,
            report.line,
        )
        self._ledger.batches.keep_error(
            batch.batch_key, replace(report, message=f"{FAILS_AS_A_WHOLE}: {report.message}")
        )

    def _kept(
        self, batch: BatchRecord, terms: IsolationTerms
    ) -> AbstractContextManager[BatchReader]:
        """A reader that has read what is open at once, unless only some of that may be run."""
        if terms.max_records < batch.records_left:
            return nullcontext(self._reader)
        planned = self._ledger.batches.ranges(batch.batch_key)
        return self._reader.persisted(without(batch.open_ranges(planned), terms.gone))

    def _log_isolated(self, batch: BatchRecord, isolated: Isolated[Cause]) -> None:
        left = sum(size(batch.planned_records, part) for part, _ in isolated.left)
        _LOG.warning(
            "Batch %s of gate %r failed; runs of its parts: %d; records that were isolated: %d;"
            " records that are deferred: %d.",
            batch.batch_key,
            batch.gate,
            isolated.runs,
            len(isolated.alone),
            left,
        )
