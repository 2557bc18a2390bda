"""Runs a batch, live or again, and its children, and does what the failure policy says."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from pyspark.sql import DataFrame

from headrace.control.isolation import UNLIKE, Isolated, IsolationBudget
from headrace.control.parts import count
from headrace.control.sink_outage import OnOutage
from headrace.errors import LedgerError, NotProcessedError, OptionError
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import ends_query, not_the_records, took_too_much
from headrace.execution.handler_runs import BatchLeases, HandlerRuns, RunContext
from headrace.execution.isolator import Cause, IsolationTerms, Isolator
from headrace.execution.sink_waiting import SinkWaiting, is_away
from headrace.ledger import Attached, BatchRecord, ErrorReport

_LOG: Final = logging.getLogger("headrace.execution")

_SURELY_RAISES: Final = 10
"""Number of failed backfills of a batch, over some hours, after which a run whose outcome is
unknown is assumed to have failed too.
"""

_USUAL: Final = IsolationTerms()


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
        self._control_wait_s = control_wait_s
        self._on_isolated = on_isolated
        self._runs = HandlerRuns(context)
        self._waiting = SinkWaiting(context)
        self._is_split = False
        """Whether the live batch stands in the ledger as parts."""
        self._left = 0
        """Records of it that a backfill is to run."""
        self.had_no_sink = False
        """Whether the last live batch waited for a sink that was away."""

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
        ranges = tuple(planned.offsets for planned in attached.ranges)
        may_try = self._policy.skips and not self._runs.is_unknown(batch)

        def run(row: BatchRecord, sequence: int | None = None) -> Exception | None:
            if self._is_split:
                return self._try_parts(batch, leases, None)
            return self._runs.live(df, row, ranges, number, sequence)

        with self._leases(batch) as leases:
            # Step 4: wait on for a sink that was away, call the handler, and retry in place.
            self._is_split, self._left = attached.was_split, 0
            waited = self._waiting.resume(batch, waits=not self._is_split)
            error = run(batch, None if waited else attached.sequence)
            at_once = error is None and not waited and not attached.was_split
            if error is not None and not self._is_split:
                error = self._retry(error, batch, run)
            # Step 5: hold the gate while the sink is away.
            if error is not None:
                error = self._waiting.hold(
                    batch,
                    error,
                    run=run,
                    try_parts=partial(self._try_parts, batch, leases) if may_try else None,
                    has_parts=count(ranges) >= UNLIKE,
                )
            self.had_no_sink = self._waiting.end(is_back=error is None, left=self._left)
            # Step 6: write down the success, or do what the failure policy says.
            if error is None:
                self._ledger.batches.succeed(batch.batch_key, owner=self._context.owner)
            elif self._is_split and not self._context.is_ended_by(error):
                self._isolate(batch, leases, None)
            else:
                self._apply_policy(batch, leases, error)
            return at_once

    def _try_parts(
        self, batch: BatchRecord, leases: BatchLeases, error: Exception | None
    ) -> Exception | None:
        """Run parts of a batch that failed; None where some passed, and each has its outcome.

        Else the answer is what was raised last, and the batch is whole again; or it stays split, as
        a part may be in the sink, and its parts are run when this is called again.
        """
        # Without isolation, run a few parts, only to see whether any of them passes.
        asks = self._policy.last != "isolate" and not self._is_split
        budget = IsolationBudget(max_runs=UNLIKE) if asks else None
        why = None if self._is_split else error
        isolated = self._isolate(batch, leases, why, IsolationTerms(budget, undo=True))
        self._is_split = isolated.nothing_passed and not isolated.is_undone
        if not isolated.nothing_passed:
            self._left = sum(count(part) for part, _ in isolated.left)
            return None
        if error is not None and self._health.is_wrong(error, isolated.down):
            self._fail(batch, error)
            self._stop(batch, error)
        raised = [isolated.down, *(why for _, why in reversed(isolated.left)), error]
        return next(
            (each for each in raised if isinstance(each, Exception)),
            NotProcessedError("No part of the batch was run."),
        )

    def run(self, batch: BatchRecord) -> Exception | None:
        """Run a batch that had failed: ``backfilling``, this owner's, and without children.

        The caller writes the outcome, unless it is isolated; the answer is why it failed again.
        """
        with self._leases(batch) as leases:
            error = self._runs.again(batch, self._reader)
            why = None if error is None else not_the_records(error)
            ended = error is not None and (why is not None or self._context.is_ended_by(error))
            final = batch.backfills + 1 >= self._context.max_backfills
            down = None if final else self._health.down
            if error is None or ended or down is not None or not self._may_isolate(batch):
                self._reader.close()
                return why or (error and down) or error
            try:
                idle = self._health.is_idle(self._control_wait_s)
                wait_s = 0 if idle else self._control_wait_s
                terms = IsolationTerms(control_wait_s=wait_s, final=final)
                isolated = self._isolate(batch, leases, error, terms)
            except LedgerError:
                raise
            except Exception as raised:  # noqa: BLE001  (for the query is being stopped)
                return raised
            # A batch that was split is resolved, and so is a convicted record.
            ranges = tuple(each.offsets for each in self._ledger.batches.ranges(batch.batch_key))
            return error if any(part == ranges for part, _ in isolated.left) else None

    @property
    def _reader(self) -> BatchReader:
        if self._context.reader is None:
            raise OptionError(
                "A batch of this query was split by on_failure='isolate', and is not finished;"
                " start the query with that policy once more, so that the rest is run."
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

    def _apply_policy(self, batch: BatchRecord, leases: BatchLeases, error: Exception) -> None:
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
            of_parts = self._isolate(batch, leases, error).down
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
        """Whether a batch that fails in a backfill may be split, into keys of their own.

        If all its runs have raised, the sink has nothing of it. A run whose outcome is unknown may
        have come further: unless the sink can be asked, such a batch is run whole, until it has
        failed so often that it has most likely failed in that run too, or one backfill is left.
        """
        enough = min(self._context.max_backfills, _SURELY_RAISES) - 1
        known = batch.backfills >= enough or not self._runs.is_unknown(batch)
        return self._policy.last == "isolate" and known

    def _isolate(
        self,
        batch: BatchRecord,
        leases: BatchLeases,
        error: Exception | None,
        terms: IsolationTerms = _USUAL,
    ) -> Isolated[Cause]:
        """Isolate a batch that failed, or go on where a crash interrupted that."""
        planned = self._ledger.batches.ranges(batch.batch_key)
        try:
            with self._reader.persisted(planned) as reader:
                isolator = Isolator(self._context, self._runs, leases, reader, terms)
                isolated = (
                    isolator.resume(batch) if error is None else isolator.isolate(batch, error)
                )
        finally:
            self._reader.close()
        self._log_isolated(batch, isolated)
        # A sink that was away, and is back for the parts, says nothing of the batch's size.
        if error is not None and (took_too_much(error) or not is_away(error)):
            self._on_isolated(batch, isolated)
        return isolated

    def _log_isolated(self, batch: BatchRecord, isolated: Isolated[Cause]) -> None:
        if isolated.nothing_passed:
            return
        left = sum(r.count for ranges, _ in isolated.left for r in ranges)
        _LOG.warning(
            "Batch %s of gate %r failed; %d runs on its children have isolated %d records, and %d"
            " are deferred.",
            batch.batch_key,
            batch.gate,
            isolated.runs,
            len(isolated.alone),
            left,
        )
