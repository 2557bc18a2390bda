"""What ``foreachBatch`` calls: the ledger knows each batch before it runs, and how it ended."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.backfill import LEASE_MS
from headrace.errors import GateInUseError, LedgerError
from headrace.execution.batch import Batch, Handler, HandlerTransaction
from headrace.execution.batch_leases import OWNER_POLL_S
from headrace.execution.batch_reader import BatchReader
from headrace.execution.executor import BatchExecutor
from headrace.execution.gate_state import Turn, shared_ledger, state_of
from headrace.execution.handler_errors import exits_as_errors, shorten_interrupts
from headrace.execution.policy import STOP, OnFailure
from headrace.ledger import Attached, BatchRecord, Kind, Ledger, Status, schedule_id
from headrace.ledger.patience import waiting_ends
from headrace.processes import is_gone, new_owner

_LOG: Final = logging.getLogger("headrace.execution")


class GatedHandler:
    """Settles the batch's row in the ledger around the user's handler.

    The row is ``in_progress`` when the handler starts, and ``success`` or ``failed`` when it ends;
    then the failure policy has its say. A batch that Spark runs again although the ledger has it as
    ``success`` (the process died between the two) is not handed out a second time, nor is one that
    a backfill has taken meanwhile.

    Args:
        gate: the gate's name.
        ledger_url: its ledger's, in full.
        handler: the user's.
        policy: what follows an exception in it.
        replay: reads a batch once more; None where the policy skips nothing.
        read: names what the gate has read of which this is the handler.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        gate: str,
        ledger_url: str,
        handler: Handler,
        *,
        policy: OnFailure = STOP,
        replay: BatchReader | None = None,
        read: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gate = gate
        self._ledger_url = ledger_url
        self._handler = handler
        self._sleep = sleep
        ledger = shared_ledger(ledger_url)
        self._turn = threading.Lock()
        self._policy = policy
        self._replay = replay
        self._owner = new_owner()
        self._query: StreamingQuery | None = None
        self._live_turn = Turn(self._turn)
        self._runner = self.runner(self._owner, self._live_turn)
        begun = ledger.last_begun(gate)
        self._begins = begun[0] if begun is not None else 0
        self._read = read
        self._planner: str | None = None
        self._checkpoint: str | None = None
        self._settled = False
        self._newest_sequence = 0

    def follow(self, query: StreamingQuery, checkpoint: str | None) -> None:
        """Say which query runs this, and where its checkpoint is if that is known.

        What is raised while the query is being stopped is no failure.
        """
        self._query = query
        self._checkpoint = checkpoint
        state_of(self._ledger_url, self._gate).follow(query)

    def runner(self, owner: str, turn: Turn | None = None) -> BatchExecutor:
        """Runs batches with this handler as an owner; no two of them at a time."""
        return BatchExecutor(
            shared_ledger(self._ledger_url),
            owner,
            self._handle,
            policy=self._policy,
            replay=self._replay,
            stopped=self._stopped,
            turn=turn or Turn(self._turn),
            sleep=self._sleep,
        )

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run one batch.

        Raises:
            LedgerError: its outcome cannot be written down, or the query was stopped before it
                could; it is run when the query is started again.
            Exception: what the handler raises, where the policy stops then.
        """
        with waiting_ends(self._stopped, "the query was stopped"):
            self._run(df, batch_id)

    def _run(self, df: DataFrame, batch_id: int) -> None:
        ledger = shared_ledger(self._ledger_url)
        record = self._begun(ledger)
        if record is None:
            self._run_nothing(df, batch_id)
            return
        self._settle_what_is_left(ledger, record)
        owned = self._own(ledger, record, batch_id)
        if owned is None:
            return
        state = state_of(self._ledger_url, self._gate)
        state.batch_began()
        try:
            if not self._runner.run_live(df, owned, batch_id):
                state.batch_was_helped(record.schedule_id)
        finally:
            state.batch_waited(record.schedule_id, self._live_turn.take_waited_ms())

    def _handle(self, df: DataFrame, batch: Batch) -> None:
        """Call the user's handler, while nobody else does."""
        if batch.sequence < self._newest_sequence:
            # Another run has ended between the count of this one and its turn.
            number = shared_ledger(self._ledger_url).next_sequence(self._gate)
            batch = replace(batch, sequence=number)
        self._newest_sequence = batch.sequence
        with exits_as_errors(batch.key), shorten_interrupts():
            self._handler(df, batch)

    def _stopped(self) -> bool:
        return self._query is not None and not self._query.isActive

    def _begun(self, ledger: Ledger) -> BatchRecord | None:
        """The row of the batch that Spark runs now; None where this gate has nothing in it.

        The planner of this query begins it just before, in the same trigger, and no other query can
        while that planner has the gate. What was begun before it had the gate is another query's.

        Raises:
            GateInUseError: another query has taken the gate over.
        """
        # Of one moment: whoever has the gate had it when that batch was begun, or has begun none.
        begun, behind = ledger.begun_and_query(self._gate)
        if behind is not None:
            if behind.read != self._read:
                raise GateInUseError(
                    f"The gate {self._gate!r} was taken over by another query, of"
                    f" {behind.described}, for this one gave no sign of life until its lease had"
                    " run out; start this query again once that one has ended."
                )
            if behind.owner != self._planner:
                self._planner, self._begins = behind.owner, behind.begins
                if self._checkpoint is not None:
                    ledger.locate_query(self._gate, behind.owner, self._checkpoint)
        if begun is None or begun[0] == self._begins:
            return None
        self._begins, record = begun
        return record

    def _settle_what_is_left(self, ledger: Ledger, record: BatchRecord) -> None:
        """At the first batch: those that are in progress and nobody's have failed."""
        if self._settled:
            return
        self._settled = True
        left = ledger.settle(
            self._gate, but=record.schedule_id, unowned_before_ms=record.created_time_ms
        )
        for batch in left:
            _LOG.warning(
                "Batch %s of gate %r was left in progress by a process that is gone, and counts as"
                " failed now; a backfill runs it again.",
                batch,
                self._gate,
            )

    def _own(self, ledger: Ledger, record: BatchRecord, batch_id: int) -> Attached | None:
        """The batch once it is this process's; None if there is nothing to do any more."""
        gone = record.owner if record.owner is not None and is_gone(record.owner) else None
        waited = False
        attach = partial(
            ledger.attach,
            record.schedule_id,
            batch_id,
            owner=self._owner,
            lease_ms=LEASE_MS,
            gone=gone,
        )
        while (owned := attach()) is None:
            found = ledger.batch(record.schedule_id)
            if found is None or found.status is not Status.IN_PROGRESS:
                _LOG.info(
                    "Batch %s of gate %r is not run again: it is %s.",
                    record.schedule_id,
                    self._gate,
                    found.status if found is not None else "forgotten",
                )
                return None
            if not waited:
                _LOG.warning(
                    "Batch %s of gate %r is run by another process, or was by one that ended; it"
                    " is taken over if that one gives no sign of life for %d s.",
                    record.schedule_id,
                    self._gate,
                    LEASE_MS // 1000,
                )
            waited = True
            state_of(self._ledger_url, self._gate).batch_was_helped(record.schedule_id)
            if self._stopped():
                raise LedgerError(
                    f"The query was stopped before it could take over batch {record.schedule_id} of"
                    f" gate {self._gate!r} from another process; it is run when the query is"
                    " started again."
                )
            self._sleep(OWNER_POLL_S)
        return owned

    def _run_nothing(self, df: DataFrame, batch_id: int) -> None:
        """Run a batch for which the ledger has no row: there are no ranges to make its key of."""
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        key = schedule_id(self._gate, f"{query} {batch_id}", ())
        lending = HandlerTransaction(key, shared_ledger(self._ledger_url).lend)
        with self._live_turn, lending.watched():
            number = shared_ledger(self._ledger_url).next_sequence(self._gate)
            self._handle(df, Batch(key, batch_id, (), 1, Kind.LIVE, number, lending.lend))
