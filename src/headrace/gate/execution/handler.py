"""Callable for ``foreachBatch``: find Spark's batch in the ledger, lease it, and call the handler.

For each batch with offsets, the query's planner adds a row to the ledger and raises a counter in
the gate's row. If the counter has risen since the previous call, the batch is the newest row of the
query; otherwise it has no offsets. The number of the batch does not identify it, because another
checkpoint may have a batch with the same number.

When a query stops, Spark cancels the jobs of the current batch, and the user's handler raises. Such
an exception is no failure, so this module checks whether the query is still active.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.core.system import is_gone
from headrace.core.timing import cancel_when
from headrace.errors import GateInUseError, HeadraceError, LedgerError
from headrace.gate.control.bisection import Isolated
from headrace.gate.control.dead import BackfillLimits
from headrace.gate.control.rate_law import is_limited
from headrace.gate.control.size_ceiling import SizeCeiling, known_ceiling
from headrace.gate.execution.batch import Batch, HandlerTransaction, bind, call_handler, renumber
from headrace.gate.execution.call import OWNER_POLL_S, RunContext
from headrace.gate.execution.gate_state import Turn, has_ended, state_of
from headrace.gate.execution.rejections import Rejections
from headrace.gate.execution.stopping import exits_as_errors, shorten_interrupts, watch_for_stops
from headrace.gate.execution.world import BatchRunner
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import Attached, BatchRecord, batch_key
from headrace.gate.ledger.transitions import Kind, Status
from headrace.spark_versions import is_remote

_LOG: Final = logging.getLogger("headrace.execution")


class GateCeiling:
    """Size ceiling of one gate, stored in its ledger. Errors are logged, not raised.

    Only the owner of the gate creates a ceiling. So while there is none, a batch that passes needs
    no read of the ledger.
    """

    def __init__(self, gate: str, ledger: Ledger) -> None:
        self._gate = gate
        self._ledger = ledger
        self._may_be_there = True

    def note_passed(self, batch: BatchRecord) -> None:
        """Raise the ceiling, if there is one, after a batch of the stream that passed at once."""
        if self._may_be_there:
            self._change(lambda ceiling: ceiling and ceiling.after_pass(batch.planned_records))

    def note_isolated(self, batch: BatchRecord, isolated: Isolated[Any]) -> None:
        """Set a ceiling if a batch of the stream failed as a whole, but all its parts passed."""
        learnt = SizeCeiling.of(batch.planned_records, isolated)
        if learnt is None or batch.status is not Status.IN_PROGRESS:
            return
        try:
            if self._ledger.dead_letters.count_rejected([batch.batch_key]):
                return
        except HeadraceError as error:
            self._warn(error)
            return
        _LOG.warning(
            "Batch %s of gate %r failed as a whole, and all of its parts passed: %s. So the next"
            " batches are smaller; `headrace why %s` shows the ceiling.",
            batch.batch_key,
            batch.gate,
            learnt.describe(),
            batch.gate,
        )
        self._change(lambda _known: learnt)

    def _change(self, law: Callable[[SizeCeiling | None], SizeCeiling | None]) -> None:
        try:
            before = self._ledger.gates.ceiling(self._gate)
            after = law(known_ceiling(before))
            text = None if after is None else after.to_text()
            # A lift by an operator meanwhile takes precedence.
            if text != before:
                self._ledger.gates.change_ceiling(self._gate, before, text)
            self._may_be_there = text is not None
        except HeadraceError as error:
            self._warn(error)

    def _warn(self, error: HeadraceError) -> None:
        _LOG.warning("The ceiling of gate %r was not stored: %s", self._gate, error)


class GatedHandler:
    """Callable for ``foreachBatch`` that calls the user's handler, and records each outcome.

    A batch's row in the ledger is ``in_progress`` when the handler starts, and ``success`` or
    ``failed`` when it ends; then the failure policy applies. The handler is not called again for a
    batch that is already ``success``: Spark repeats such a batch if the process died before Spark's
    commit. It is not called either for a batch that a backfill has claimed. A query with state
    still computes such a batch, to update its state.

    Args:
        gate: The gate's name.
        context: Settings and services of the runs, with the user's handler.
        read: Id of the `Gate.read` call whose stream this handler processes.
        has_state: Whether the query has state, so that a batch must be computed even without a
            handler call. Default: False.
    """

    def __init__(
        self,
        gate: str,
        context: RunContext,
        *,
        read: str | None = None,
        has_state: bool = False,
    ) -> None:
        self._gate = gate
        self._ledger = context.ledger
        self._state = state_of(context.ledger.url, gate)
        self._user_handler = context.handler
        self._lock = threading.Lock()
        self._live_turn = Turn(self._lock)
        self._context = replace(
            context, handler=self._handle, stopped=self._stopped, turn=self._live_turn
        )
        self._query: StreamingQuery | None = None
        self._ceiling = GateCeiling(gate, context.ledger)
        self._runner = BatchRunner(self._context, on_isolated=self._ceiling.note_isolated)
        begun = context.ledger.gates.last_begun(gate)
        self._begins = begun[0] if begun is not None else 0
        self._read = read
        self._has_state = has_state
        self._planner: str | None = None
        self._checkpoint: str | None = None
        self._has_resolved = False
        self._newest_sequence = 0

    def follow(
        self, query: StreamingQuery, checkpoint: str | None, *, is_bounded: bool = False
    ) -> None:
        """Set the query that calls this handler, and the query's checkpoint if it is known.

        With the query, the handler can tell an exception of a stopping query from a failure.
        """
        self._query = query
        self._checkpoint = checkpoint
        self._state.follow(query, is_bounded=is_bounded)
        # Over Spark Connect a query continues without its program, so SIGTERM ends that alone.
        watch_for_stops(at_signals=isinstance(query, StreamingQuery))

    def runner(
        self, owner: str, *, control_wait_s: float = 0, limits: BackfillLimits | None = None
    ) -> BatchRunner:
        """Return a runner for backfills. It calls this handler, but never during another call.

        ``limits`` replaces the limits of the failure policy.
        """
        policy = self._context.policy
        if limits is not None:
            policy = replace(policy, backfills=limits)
        return BatchRunner(
            replace(self._context, owner=owner, turn=Turn(self._lock), policy=policy),
            control_wait_s=control_wait_s,
            on_isolated=self._ceiling.note_isolated,
        )

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Call the user's handler for one batch, and record the outcome.

        Raises:
            LedgerError: the outcome cannot be stored, or the query was stopped while this call
                waited. The batch runs when the query is started again.
            Exception: the exception of the handler, if the policy is to stop.
        """
        stopped = cancel_when(self._stopped, "the query was stopped")
        with shorten_interrupts(self._stopped), stopped:
            self._run(df, batch_id)

    def _run(self, df: DataFrame, batch_id: int) -> None:
        # Step 1: find the row that the planner wrote for this batch.
        record = self._begun()
        if record is None:
            # Spark runs the first batch of a new checkpoint even if it is empty. For a gate with
            # a history the query only continues, so the handler needs no empty batch.
            goes_on = batch_id == 0 and self._ledger.gates.last_begun(self._gate) is not None
            if not goes_on or not df.isEmpty():  # another source may have records
                self._run_nothing(df, batch_id)
            elif self._has_state:
                _compute(df)
            return
        # Step 2: resolve batches that a dead process has left in progress.
        self._resolve_abandoned(record)
        # Step 3: attach the batch to this process, unless it is finished or claimed.
        owned = self._attach(record, batch_id)
        if owned is None:
            if self._has_state:
                _compute(df)
            return
        # Steps 4 to 6 are the runner's: call, hold while the sink is away, store the outcome.
        left = {r.reason for r in owned.ranges if r.reason and (r.latest or 0) > r.offsets.until}
        limited = is_limited(record.reason, left)
        self._state.batch_began(record.batch_key, is_limited=limited)
        try:
            if self._runner.run_live(df, owned, batch_id):
                self._ceiling.note_passed(record)
            else:
                self._state.batch_was_helped(
                    record.batch_key,
                    had_no_sink=self._runner.had_no_sink,
                    rate_after_outage=self._runner.rate_after_outage,
                )
        finally:
            self._state.batch_waited(record.batch_key, self._live_turn.take_waited_ms())

    def _handle(self, df: DataFrame, batch: Batch) -> None:
        """Call the user's handler. The caller must hold the handler's lock."""
        if batch.sequence < self._newest_sequence:
            # Another run has ended between this run's numbering and its turn.
            number = self._ledger.gates.next_sequence(self._gate)
            batch = renumber(batch, number)
        self._newest_sequence = batch.sequence
        with exits_as_errors(batch.key), shorten_interrupts():
            call_handler(self._user_handler, df, batch)

    def _stopped(self) -> bool:
        return self._query is not None and has_ended(self._query)

    def _begun(self) -> BatchRecord | None:
        """Return the row of Spark's current batch; None if the batch has no offsets of the gate.

        The query's planner adds the row earlier in the same trigger. If it has added no row since
        the previous call, the newest row belongs to an earlier batch.
        """
        # Read both in one statement: between two statements the gate's owner could change.
        begun, behind = self._ledger.gates.begun_and_query(self._gate)
        if behind is not None:
            if behind.read != self._read:
                raise GateInUseError(
                    f"The gate {self._gate!r} was taken over by another query"
                    f" ({behind.described}), because this query did not renew its lease in time;"
                    " start this query again once the other query has ended."
                )
            if behind.owner != self._planner:
                self._planner, self._begins = behind.owner, behind.begins
                if self._checkpoint is not None:
                    self._ledger.gates.set_checkpoint(self._gate, behind.owner, self._checkpoint)
        if begun is None or begun[0] == self._begins:
            return None
        self._begins, record = begun
        return record

    def _resolve_abandoned(self, record: BatchRecord) -> None:
        """At the first batch, mark all other batches in progress without a live owner as failed."""
        if self._has_resolved:
            return
        self._has_resolved = True
        abandoned = self._ledger.batches.resolve_abandoned(
            self._gate, but=record.batch_key, unowned_before_ms=record.created_time_ms
        )
        for batch in abandoned:
            _LOG.warning(
                "Batch %s of gate %r was left in progress by a process that is gone, and counts as"
                " failed now; a backfill runs it again.",
                batch,
                self._gate,
            )

    def _attach(self, record: BatchRecord, batch_id: int) -> Attached | None:
        """Lease a batch for this process. Return the batch; None if the batch need not run."""
        gone = record.owner if record.owner is not None and is_gone(record.owner) else None
        waited = False
        attach = partial(
            self._ledger.batches.attach,
            record.batch_key,
            batch_id,
            owner=self._context.owner,
            lease_ms=self._context.lease_ms,
            gone=gone,
        )
        while (owned := attach()) is None:
            row = self._ledger.batches.get(record.batch_key)
            if row is None or row.status is not Status.IN_PROGRESS:
                _LOG.info(
                    "Batch %s of gate %r is not run again: it is %s.",
                    record.batch_key,
                    self._gate,
                    row.status if row is not None else "forgotten",
                )
                return None
            if not waited:
                _LOG.warning(
                    "Another process, which may have ended, has the lease of batch %s of gate %r;"
                    " this process takes the batch over if the lease is not renewed for %d s.",
                    record.batch_key,
                    self._gate,
                    self._context.lease_ms // 1000,
                )
            waited = True
            self._state.batch_was_helped(record.batch_key)
            if self._stopped():
                raise LedgerError(
                    f"The query was stopped before it could take over batch {record.batch_key} of"
                    f" gate {self._gate!r} from another process; it is run when the query is"
                    " started again."
                )
            self._context.sleep(OWNER_POLL_S)
        return owned

    def _run_nothing(self, df: DataFrame, batch_id: int) -> None:
        """Run a batch without a row in the ledger. Its key is made of query id and ``batch_id``."""
        if is_remote(df.sparkSession):
            query = None if self._query is None else self._query.id
        else:
            query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        key = batch_key(self._gate, f"{query} {batch_id}", ())
        nothing = Rejections(key, (), self._context.record_reader, tuple)
        run = HandlerTransaction(key, self._ledger.batches.lend, nothing)
        with self._live_turn, run.watched():
            number = self._ledger.gates.next_sequence(self._gate)
            batch = Batch(key, batch_id, (), 1, Kind.LIVE, number)
            self._handle(df, bind(batch, run))


def _compute(df: DataFrame) -> None:
    """Compute a batch of a query with state, without calling the handler.

    Spark writes the state while it computes the batch. It ends a query whose batch has written no
    state (STATE_STORE_COMMIT_VALIDATION_FAILED).
    """
    df.write.format("noop").mode("append").save()
