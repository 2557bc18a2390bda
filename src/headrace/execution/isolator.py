"""Isolates what cannot be processed in a batch: each part a run, and a row, of its own."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from headrace.backfill import LEASE_MS
from headrace.control.isolation import Budget, Isolated, Isolation, Ranges, halves
from headrace.errors import DataLossError, HeadraceError, LedgerError
from headrace.execution.batch_leases import OWNER_POLL_S, BatchLeases
from headrace.execution.batch_reader import BatchReader
from headrace.execution.handler_errors import unreachable_source, unreadable
from headrace.kafka.letters import LetterTopic
from headrace.ledger import (
    BatchRecord,
    ErrorReport,
    Kind,
    Ledger,
    PlannedBatch,
    PlannedRange,
    Status,
)
from headrace.processes import is_gone

_LOG: Final = logging.getLogger("headrace.execution")

Why = Exception | ErrorReport
Run = Callable[[BatchRecord], Exception | None]
"""Runs the handler on a part; why it failed."""

_NOT_RUN: Final = ErrorReport("NotRun", "It is a part of a batch that failed, and was not run.", "")


class Isolator:
    """Halves a batch until what cannot be processed stands alone.

    Whatever becomes of a part is in the ledger before the next one is run, so that after a crash
    the same batch is taken up where it was left. A record that cannot be processed becomes a dead
    letter; what the budget leaves is ``failed``, and so backfilled. So is all that is left when the
    source cannot be reached for a part: that says nothing of the part's records.

    Args:
        ledger: of the batch.
        leases: keep the batch, and its parts, for their owner.
        replay: reads the parts.
        run: the handler's.
        budget: how much this may take.
        topic: is told of each dead letter, if there is one.
        ends: answers whether the query ends with what a run raised, which then says nothing of the
            records.
        report: describes that.
        stopped: answers whether the query is being stopped.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        leases: BatchLeases,
        replay: BatchReader,
        *,
        run: Run,
        budget: Budget,
        topic: str | None,
        ends: Callable[[Exception], bool],
        report: Callable[[Exception], ErrorReport],
        stopped: Callable[[], bool],
        sleep: Callable[[float], None],
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._owner = leases.owner
        self._replay = replay
        self._run = run
        self._budget = budget
        self._letters = None if topic is None else LetterTopic(replay.options, topic)
        self._ends = ends
        self._report = report
        self._stopped = stopped
        self._sleep = sleep
        self._rows: dict[Ranges, BatchRecord] = {}
        self._wholes: list[BatchRecord] = []

    def isolate(self, whole: BatchRecord, error: Exception) -> Isolated[Why]:
        """Isolate a batch that failed.

        Args:
            whole: its row; this owner's.
            error: why it failed.

        Raises:
            LedgerError: the batch is not this owner's any more.
            DataLossError, CorruptionError: a part cannot be read, and the stream stops at that.
            Exception: what the handler raised with which the query ends.
        """
        ranges = self._ranges(whole)
        self._rows[ranges] = whole
        isolation: Isolation[Why] = Isolation(self._budget)
        self._failed(isolation, ranges, error)
        return self._settle_all(isolation)

    def resume(self, whole: BatchRecord) -> Isolated[Why]:
        """Go on with a batch whose isolation a crash interrupted; without parts, run it first.

        Raises:
            LedgerError: the batch is not this owner's any more.
            DataLossError, CorruptionError: a part cannot be read, and the stream stops at that.
            Exception: what the handler raised with which the query ends.
        """
        not_run = [(self._ranges(leaf), leaf.error or _NOT_RUN) for leaf in self._open(whole)]
        return self._settle_all(Isolation(self._budget, not_run))

    def _settle_all(self, isolation: Isolation[Why]) -> Isolated[Why]:
        began = time.monotonic()
        while (part := isolation.next_part(round((time.monotonic() - began) * 1000))) is not None:
            error = self._run(self._rows[part])
            if error is None:
                self._succeed(self._rows[part])
            elif self._ends(error):
                self._leave(error, running=self._rows[part])
                raise error
            elif (unread := unreadable(error)) is not None:
                self._leave_unread(self._rows[part], unread)
            elif (away := unreachable_source(error)) is not None:
                isolation.defer(part, away)
            elif self._rows[part].cut_short:
                # It may be in the sink, under its own key.
                self._ledger.fail(self._rows[part].schedule_id, error, owner=self._owner)
            else:
                self._failed(isolation, part, error)
        for part, why in isolation.result.left:
            self._ledger.fail(self._rows[part].schedule_id, why, owner=self._owner)
        for whole in reversed(self._wholes):
            self._succeed(whole)
        if self._letters is not None:
            self._letters.flush()
        return isolation.result

    def _leave_unread(self, part: BatchRecord, why: HeadraceError) -> None:
        """Leave a part that cannot be read: to a backfill, which sees what is gone; or stop.

        Raises:
            DataLossError, CorruptionError: the live stream stops at it.
        """
        goes_on = isinstance(why, DataLossError) and self._replay.passes_over_losses
        if part.kind is Kind.BACKFILL or goes_on:
            self._ledger.fail(part.schedule_id, why, owner=self._owner)
            return
        self._leave(why)
        raise why from None

    def _leave(self, error: Exception, running: BatchRecord | None = None) -> None:
        """Let go of what is not done; it is taken up again when the query is started again."""
        for row in [*self._rows.values(), *self._wholes]:
            cut_short = running is not None and row.schedule_id == running.schedule_id
            report = self._report(error)
            self._ledger.fail(row.schedule_id, report, owner=self._owner, cut_short=cut_short)

    def _failed(self, isolation: Isolation[Why], part: Ranges, error: Exception) -> None:
        isolation.settle(part, error)
        first, second = halves(part)
        if second:
            self._split(self._rows[part], [first, second])
        else:
            self._bury(self._rows[part], error)

    def _split(self, whole: BatchRecord, parts: Sequence[Ranges]) -> tuple[BatchRecord, ...]:
        topic_ids = {
            each.offsets.topic_partition: each.topic_id
            for each in self._ledger.ranges(whole.schedule_id)
        }
        planned = [
            PlannedBatch(
                gate=whole.gate,
                run_id=whole.run_id,
                ranges=tuple(PlannedRange(r, topic_id=topic_ids[r.topic_partition]) for r in part),
                reason="a part of a batch that failed",
                bootstrap_servers=self._replay.bootstrap_servers,
            )
            for part in parts
        ]
        rows = self._take(whole, planned)
        self._wholes.append(whole)
        self._rows.update(zip(parts, rows, strict=True))
        self._leases.keep(*[row.schedule_id for row in rows])
        return rows

    def _take(self, whole: BatchRecord, parts: Sequence[PlannedBatch]) -> tuple[BatchRecord, ...]:
        """Write the parts down; those that are there, and in progress, are this owner's then.

        The process that crashed had them until its leases run out, or it is known to be gone.
        """
        gone: set[str] = set()
        while True:
            rows = self._ledger.split(whole.schedule_id, parts, self._owner, LEASE_MS, gone=gone)
            others = {
                row.owner
                for row in rows
                if row.status is Status.IN_PROGRESS and row.owner not in {None, self._owner}
            }
            if not others:
                return rows
            gone = {owner for owner in others if owner is not None and is_gone(owner)}
            if self._stopped():
                raise LedgerError(
                    f"The query was stopped before it could take over parts of batch"
                    f" {whole.schedule_id} of gate {whole.gate!r} from another process; they are"
                    " run when the query is started again."
                )
            if not gone:
                self._sleep(OWNER_POLL_S)

    def _open(self, whole: BatchRecord) -> Iterator[BatchRecord]:
        """What is still to be run of a batch: its smallest parts, or itself where it has none."""
        parts = self._ledger.parts(whole.schedule_id)
        if not parts:
            self._rows[self._ranges(whole)] = whole
            yield whole
            return
        for part in self._split(whole, [self._ranges(part) for part in parts]):
            if part.status is Status.IN_PROGRESS:
                yield from self._open(part)

    def _bury(self, row: BatchRecord, error: Exception) -> None:
        """Keep the one record that cannot be processed."""
        (planned,) = self._ledger.ranges(row.schedule_id)
        offset = planned.offsets
        try:
            letter = self._replay.letter(planned, error)
        except Exception as unread:  # noqa: BLE001  (Spark, too, may be gone by now)
            _LOG.warning("The record %s is not kept, and stays failed: %s", offset, unread)
            self._ledger.fail(row.schedule_id, error, owner=self._owner)
            return
        if letter is None:
            self._succeed(row)  # There is nothing at this offset.
            return
        buried = self._ledger.bury_record(row.schedule_id, letter, owner=self._owner)
        if buried and self._letters is not None:
            self._letters.tell(letter)
        _LOG.error(
            "The record %s of gate %r cannot be processed and is kept as a dead letter: %s: %s",
            offset,
            row.gate,
            letter.error.error_class,
            letter.error.message,
        )

    def _succeed(self, row: BatchRecord) -> None:
        if row.status is Status.BACKFILLING:
            self._ledger.backfilled(row.schedule_id, self._owner)
        else:
            self._ledger.succeed(row.schedule_id, owner=self._owner)

    def _ranges(self, row: BatchRecord) -> Ranges:
        return tuple(planned.offsets for planned in self._ledger.ranges(row.schedule_id))
