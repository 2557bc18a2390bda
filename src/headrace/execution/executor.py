"""Runs a batch, live or again, and its children, and does what the failure policy says."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from pyspark.sql import DataFrame

from headrace.backfill import OwnerSettings
from headrace.control.isolation import UNLIKE, Isolated, IsolationBudget, Ranges, count
from headrace.control.sink_outage import OnOutage
from headrace.errors import HandlerExitError, LedgerError, NotProcessedError, OptionError
from headrace.execution.batch import Handler
from headrace.execution.batch_leases import BatchLeases
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import (
    ends_query,
    not_the_records,
)
from headrace.execution.handler_health import HandlerHealth
from headrace.execution.handler_runs import HandlerRuns
from headrace.execution.isolator import Cause, Isolator
from headrace.execution.policy import OnFailure
from headrace.execution.rejections import RecordReader
from headrace.execution.resource_failures import took_too_much
from headrace.execution.sink_waiting import SinkWaiting, is_away
from headrace.ledger import Attached, BatchRecord, ErrorReport, Ledger
from headrace.ledger.error_report import query_stopped

_LOG: Final = logging.getLogger("headrace.execution")

_SURELY_RAISES: Final = 10
"""How many backfills of a batch fail, over some hours, before the run whose outcome is unknown is
assumed to have failed too."""

_STOP_POLL_S: Final = 0.5
"""How often it is checked, between retries, whether the query is being stopped."""


class BatchExecutor:
    """A gate's handler, with what an exception in it does.

    Args:
        ledger: the gate's.
        handler: the user's.
        settings: of the batches' owner.
        policy: what follows an exception.
        reader: None where the policy skips nothing.
        records: reads what the handler rejects. Default: the reader.
        turn: held while the handler runs: it is never called twice at a time. It returns whether it
            was free; None where nobody knows.
        health: what is known of the handler; one for all who call it. Default: a new one.
        control_wait_s: how long a backfill waits for the stream to process something, before it
            says that a record failed alone while others passed (s). Default: 0.
        on_isolated: called when a batch that failed has been isolated, in one go.
        stopped: whether the query is being stopped: what the handler raises then says nothing of
            the batch.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        handler: Handler,
        settings: OwnerSettings,
        *,
        policy: OnFailure,
        reader: BatchReader | None,
        turn: AbstractContextManager[bool | None],
        health: HandlerHealth | None = None,
        control_wait_s: float = 0,
        on_isolated: Callable[[BatchRecord, Isolated[Cause]], None] = lambda _batch, _isolated: (
            None
        ),
        records: RecordReader | None = None,
        stopped: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ledger = ledger
        self._owner = settings.owner
        self._settings = settings
        self._policy = policy
        self._optional_reader = reader
        self._health = HandlerHealth() if health is None else health
        self._control_wait_s = control_wait_s
        self._on_isolated = on_isolated
        self._stopped = stopped
        self._sleep = sleep
        self._runs = HandlerRuns(
            ledger,
            settings.owner,
            handler,
            policy=policy,
            records=reader if records is None else records,
            turn=turn,
            health=self._health,
            ends=self._is_ended_by,
        )
        self._waiting = SinkWaiting(
            ledger,
            settings,
            policy,
            self._health,
            stopped=stopped,
            ends=self._ends,
            sleep=sleep,
        )
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
        sequence = attached.sequence
        may_try = self._policy.skips and not self._runs.is_unknown(batch)
        with self._leases(batch) as leases:
            waited = self._waiting.resume(batch, waits=not attached.was_split)
            self._is_split, self._left = attached.was_split, 0
            if attached.was_split:
                error = self._try_parts(batch, leases, None)
                at_once = False
            else:
                error = self._runs.live(df, batch, ranges, number, None if waited else sequence)
                at_once = error is None and not waited
            if error is not None and not self._is_split:
                error = self._retry(error, df, batch, ranges, number)
            if error is not None:
                error = self._waiting.hold(
                    batch,
                    error,
                    run=lambda row: (
                        self._try_parts(batch, leases, None)
                        if self._is_split
                        else self._runs.live(df, row, ranges, number)
                    ),
                    try_parts=partial(self._try_parts, batch, leases) if may_try else None,
                    has_parts=count(ranges) >= UNLIKE,
                )
            self.had_no_sink = self._waiting.end(is_back=error is None, left=self._left)
            if error is not None and self._is_split and not self._is_ended_by(error):
                self._isolate(batch, leases, None)
            elif error is None:
                self._ledger.batches.succeed(batch.batch_key, owner=self._owner)
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
        # Where nothing is isolated, a few parts only tell whether any of them passes.
        asks = self._policy.last != "isolate" and not self._is_split
        budget = IsolationBudget(max_runs=UNLIKE) if asks else self._policy.budget
        why = None if self._is_split else error
        isolated = self._isolate(batch, leases, why, budget=budget, undo=True)
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
            ended = error is not None and (why is not None or self._is_ended_by(error))
            final = batch.backfills + 1 >= self._settings.max_backfills
            down = None if final else self._health.down
            if error is None or ended or down is not None or not self._may_isolate(batch):
                self._reader.close()
                return why or (error and down) or error
            try:
                idle = self._health.is_idle(self._control_wait_s)
                wait_s = 0 if idle else self._control_wait_s
                isolated = self._isolate(batch, leases, error, wait_s, final=final)
            except LedgerError:
                raise
            except Exception as raised:  # noqa: BLE001  (for the query is being stopped)
                return raised
            # What was split is resolved, and so is a record that was convicted.
            ranges = tuple(each.offsets for each in self._ledger.batches.ranges(batch.batch_key))
            return error if any(part == ranges for part, _ in isolated.left) else None

    @property
    def _reader(self) -> BatchReader:
        if self._optional_reader is None:
            raise OptionError(
                "A batch of this query was split by on_failure='isolate', and is not finished;"
                " start the query with that policy once more, so that the rest is run."
            )
        return self._optional_reader

    def _leases(self, batch: BatchRecord) -> BatchLeases:
        return BatchLeases(self._ledger, self._owner, self._settings.lease_ms, batch.batch_key)

    def _retry(
        self, error: Exception, df: DataFrame, batch: BatchRecord, ranges: Ranges, number: int
    ) -> Exception | None:
        """Call the handler again, in place, as often as the policy says."""
        last: Exception | None = error
        for retry in range(1, self._policy.retries + 1):
            if last is None or self._ends(last):
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
            if not self._waited(wait_ms / 1000):
                break
            if not self._ledger.batches.retry(
                batch.batch_key, self._owner, self._settings.lease_ms
            ):
                break
            again = self._ledger.batches.get(batch.batch_key) or batch
            last = self._runs.live(df, again, ranges, number)
        return last

    def _waited(self, wait_s: float) -> bool:
        """Wait; whether the query was not stopped meanwhile."""
        while wait_s > 0 and not self._stopped():
            self._sleep(min(wait_s, _STOP_POLL_S))
            wait_s -= _STOP_POLL_S
        return not self._stopped()

    def _apply_policy(self, batch: BatchRecord, leases: BatchLeases, error: Exception) -> None:
        """Stop, defer or isolate a live batch that failed; raises what stops the query."""
        if (report := self._end(error)) is not None:
            self._ledger.batches.fail(
                batch.batch_key, report, owner=self._owner, outcome_unknown=True
            )
            raise error
        if self._policy.outage.on_outage is OnOutage.STOP and is_away(error):
            self._ledger.batches.fail(batch.batch_key, error, owner=self._owner)
            raise error
        if (why := ends_query(error)) is not None:
            # Not the handler's failure: the batch is run again when the query is started again.
            self._ledger.batches.fail(batch.batch_key, why, owner=self._owner)
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

    def _is_ended_by(self, error: Exception) -> bool:
        """Whether the query ends with this, and what was raised says nothing of the records."""
        return self._stopped() or isinstance(error, HandlerExitError)

    def _ends(self, error: Exception) -> bool:
        """Whether the query ends with this, for that reason or because it cannot go on."""
        return self._is_ended_by(error) or ends_query(error) is not None

    def _end(self, error: Exception) -> ErrorReport | None:
        """Why a batch failed whose query ends with this; None if it goes on."""
        if self._stopped():
            return query_stopped(error)
        return ErrorReport.of(error) if isinstance(error, HandlerExitError) else None

    def _fail(self, batch: BatchRecord, error: Exception) -> None:
        moved = self._ledger.batches.fail(batch.batch_key, error, owner=self._owner)
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
        enough = min(self._settings.max_backfills, _SURELY_RAISES) - 1
        known = batch.backfills >= enough or not self._runs.is_unknown(batch)
        return self._policy.last == "isolate" and known

    def _isolate(
        self,
        batch: BatchRecord,
        leases: BatchLeases,
        error: Exception | None,
        control_wait_s: float = 0,
        *,
        final: bool = False,
        budget: IsolationBudget | None = None,
        undo: bool = False,
    ) -> Isolated[Cause]:
        """Isolate a batch that failed, or go on where a crash interrupted that."""
        planned = self._ledger.batches.ranges(batch.batch_key)
        try:
            with self._reader.persisted(planned) as reader:
                isolator = Isolator(
                    self._ledger,
                    leases,
                    reader,
                    policy=replace(self._policy, budget=budget or self._policy.budget),
                    health=self._health,
                    run=partial(self._runs.again, reader=reader),
                    end=self._end,
                    is_unknown=self._runs.is_unknown,
                    stopped=self._stopped,
                    sleep=self._sleep,
                    control_wait_s=control_wait_s,
                    final=final,
                    undo=undo,
                )
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
