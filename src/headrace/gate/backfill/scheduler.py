"""The backfill scheduler: select the next failed batch, run it, and record its outcome.

A failed batch is read again, not stored: the ledger has its exact offsets, and the source has the
records. So deferring costs nothing. One `BatchRunner` runs a batch live, again and in parts. The
scheduler receives the runner's ``run`` as an argument, and the source as a protocol, so the same
scheduler serves the gate, the command and tests without Spark.
"""

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.core.timing import LEASE_MS, WallClock
from headrace.errors import (
    DataLossError,
    HandlerExitError,
    HeadraceError,
)
from headrace.gate.backfill.monitor import (
    BackfillEvent,
    Claimed,
    Done,
    Failed,
    LeaseLost,
    Lost,
    MarkedDead,
    Monitor,
    NearRetention,
    PartlyDone,
    RetentionWatch,
    Skipped,
)
from headrace.gate.backfill.schedule import BackfillBudget, Cost, Schedule, Timetable
from headrace.gate.control.dead import BackfillLimits, why_dead
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import BatchRecord, PlannedRange, without
from headrace.gate.ledger.transitions import Status

_LOG: Final = logging.getLogger("headrace.backfill")

_RETENTION_MS: Final = 60_000
"""The time between two reads of the logs' earliest offsets (ms)."""


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Owner of batches, and the times of its runs.

    The name of an owner has the machine, the process and its start time, so after a crash on the
    same machine no process waits for the lease.

    Attributes:
        owner: Name of this run of an application; unique.
        lease_ms: Lease of a batch without a renewal (ms). Too short: a pause loses the batch to
            another owner. Too long: after a crash the batch waits as long.
        poll_ms: The time between two searches for a due batch (ms), in addition to `wake`. Too
            long: the unused time of the live stream is not used up.
    """

    owner: str
    lease_ms: int = LEASE_MS
    poll_ms: int = 100


class Run(Protocol):
    """Runs the handler on the remaining ranges of a batch."""

    def __call__(
        self, batch: BatchRecord, allowed: int, gone: Sequence[OffsetRange], /
    ) -> BaseException | ErrorReport | None:
        """Run a ``backfilling`` batch of this owner, and renew its lease meanwhile.

        Args:
            batch: The batch.
            allowed: Records that may be run now, at least 1.
            gone: Ranges of the batch that have left the source.

        Returns:
            The failure if nothing was processed; the row is unchanged. None for a success, and for
            a batch that was run in parts or committed by its handler: then its row has the outcome.
        """
        ...


class RangeSource(Protocol):
    """Source of the ranges of batches: the gate's, or a test's."""

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the ranges that have left the log or were declared lost; empty if none has.

        Raises:
            BrokerError: The brokers cannot be reached.
        """
        ...

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return the earliest available offset of each partition that exists.

        Raises:
            BrokerError: The brokers cannot be reached.
        """
        ...


class BackfillScheduler:
    """Runs a gate's failed batches, one after the other, in the caller's thread.

    The scheduler claims each batch before the run. After a crash, the next owner that claims the
    batch when the lease has expired continues from the recorded progress, so nothing is lost. ::

        scheduler = BackfillScheduler(ledger, executor.run, source, OwnerSettings(owner), ...)
        scheduler.run(Monitor(ledger, "orders"), parse_schedule("spare"))  # until it is closed

    Args:
        ledger: The gate's ledger.
        run: Runs a batch of the gate.
        source: The gate's source.
        settings: The settings of the owner.
        limits: The limits of the gate's policy after which a batch is dead.
        budget: Limits the records of a run.
        clock: Returns the time, in ms since the epoch.
        on_event: Receives each event, in the thread of the run.
        stopped: Returns whether the application is being stopped: an exception during a stop is not
            the handler's own.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        source: RangeSource,
        settings: OwnerSettings,
        *,
        limits: BackfillLimits,
        budget: BackfillBudget,
        clock: WallClock,
        on_event: Callable[[BackfillEvent], None] = lambda _event: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ledger = ledger
        self._run_handler = run
        self._source = source
        self._owner = settings.owner
        self._settings = settings
        self._limits = limits
        self._budget = budget
        self._clock = clock
        self._on_event = on_event
        self._stopped = stopped
        self._retention = RetentionWatch()
        self._looked_ms: int | None = None
        self._closed = threading.Event()
        self._woken = threading.Event()

    def run(self, monitor: Monitor, schedule: Schedule) -> None:
        """Run failed batches on schedule until the scheduler is closed.

        A run continues until no batch is ready. While the ledger or Kafka is unreachable, the
        scheduler waits, and logs a warning once. With the schedule "manual" it only checks whether
        retention nears the failed batches.

        Raises:
            Exception: Any error of a run other than a `HeadraceError`.
        """
        timetable = Timetable(schedule, self._clock())
        warned = ""
        while not self._closed.is_set():
            try:
                busy = self._step(monitor, timetable)
                warned = ""
            except HeadraceError as error:
                if str(error) != warned:
                    _LOG.warning("The backfill waits until this is over: %s", error)
                busy, warned = False, str(error)
            if not busy:
                self._rest()

    def run_next(self, monitor: Monitor) -> BackfillEvent | None:
        """Run the earliest created batch whose wait after its last attempt is over.

        A batch that an operator has requested comes first, regardless of the budget.

        Returns:
            The outcome; None if no batch is ready, or the budget is empty.
        """
        batch = monitor.next_asked() or monitor.next_ready(self._clock())
        if batch is None:
            return None
        event = self.run_batch(batch.batch_key, is_asked=batch.is_asked)
        if isinstance(event, PartlyDone):
            monitor.refresh()
        elif event is not None:
            monitor.forget(batch.batch_key)
        return event

    def run_manually(self, batch_keys: Sequence[str]) -> None:
        """Run each of these batches once, in this order and without waits.

        A batch that was run in part continues at once. A batch of another owner, and a resolved
        batch, are skipped.
        """
        waiting = list(reversed(batch_keys))
        while waiting and not self._closed.is_set():
            event = self.run_batch(waiting[-1])
            if event is None:
                self._rest()
            elif not isinstance(event, PartlyDone):
                waiting.pop()

    def run_batch(self, batch_key: str, *, is_asked: bool = False) -> BackfillEvent | None:
        """Claim a batch, if the budget allows, and run the batch, or as much as the budget allows.

        Offsets that have left the source are lost, and the rest is run. A batch is dead if no
        offset remains and none was processed. A batch that an operator has requested (``is_asked``)
        needs no budget.

        Returns:
            The outcome; None if the budget is empty and nothing was done.

        Raises:
            LedgerError: The ledger cannot be read or written. This owner may have the batch; then
                another claim is possible after the lease.
            BrokerError: The brokers cannot be reached. Nothing was done, or the batch is claimed as
                above.
        """
        allowed = sys.maxsize if is_asked else self._budget.records()
        if allowed < 1:
            return None
        # Ask before the batch is claimed, so that an outage of Kafka counts as no attempt.
        ranges = self._ledger.batches.ranges(batch_key)
        gone = self._source.gone(ranges)
        batch = self._ledger.batches.claim(batch_key, self._owner, self._settings.lease_ms)
        if batch is None:
            left = self._ledger.batches.get(batch_key)
            return self._report(Skipped(batch_key, None if left is None else left.status))
        self._report(Claimed(batch))
        still_open = batch.open_ranges(ranges)
        remaining = without(still_open, gone)
        lost = without(still_open, [planned.offsets for planned in remaining])
        is_gone = bool(lost) and not remaining
        if is_gone and why_dead(batch, self._limits, is_gone=True) is not None:
            return self._mark_dead(batch, lost)
        recorded = self._ledger.history.losses_of([batch_key]).get(batch_key, ())
        if new := without(lost, [loss.offsets for loss in recorded]):
            self._lose(batch, new)
        return self._run(batch, allowed, [planned.offsets for planned in lost])

    def wake(self) -> None:
        """Look for a due batch at once, after a batch of the stream has ended.

        Callable from any thread.
        """
        self._woken.set()

    def close(self) -> None:
        """End the scheduler for good, after the present batch is resolved.

        Callable from any thread.
        """
        self._closed.set()
        self._woken.set()

    def _step(self, monitor: Monitor, timetable: Timetable) -> bool:
        monitor.keep_up()
        now_ms = self._clock()
        self._warn_of_retention(monitor, now_ms)
        if monitor.next_asked() is not None:
            return self.run_next(monitor) is not None
        if not timetable.is_on(now_ms):
            return False
        if monitor.next_ready(now_ms) is None:
            timetable.end()
            return False
        return self.run_next(monitor) is not None

    def _rest(self) -> None:
        self._woken.wait(self._settings.poll_ms / 1000)
        if not self._closed.is_set():
            self._woken.clear()

    def _warn_of_retention(self, monitor: Monitor, now_ms: int) -> None:
        if self._looked_ms is not None and now_ms - self._looked_ms < _RETENTION_MS:
            return
        batches = monitor.batches()
        if not batches:
            return
        self._looked_ms = now_ms
        earliest = self._source.earliest(
            [r.offsets for open_batch in batches for r in open_batch.ranges]
        )
        for batch, near in self._retention.look(batches, earliest):
            self._report(NearRetention(batch.batch_key, near))

    def _report(self, event: BackfillEvent) -> BackfillEvent:
        _LOG.log(event.level, "%s", event)
        self._on_event(event)
        return event

    def _run(self, batch: BatchRecord, allowed: int, gone: Sequence[OffsetRange]) -> BackfillEvent:
        began_ms = self._clock()
        error = self._run_handler(batch, allowed, gone)
        ended_ms = self._clock()
        elapsed_ms = max(0, ended_ms - began_ms)
        event = self._resolve(batch, error, elapsed_ms)
        left = event.left if isinstance(event, PartlyDone) else 0
        records = batch.records_left - left
        self._budget.spent(Cost(records, elapsed_ms, ended_ms, succeeded=error is None))
        if isinstance(error, BaseException) and not isinstance(error, Exception):
            raise error  # KeyboardInterrupt or SystemExit: the process must end.
        return event

    def _resolve(
        self, batch: BatchRecord, error: BaseException | ErrorReport | None, elapsed_ms: int
    ) -> BackfillEvent:
        key, owner = batch.batch_key, self._owner
        if error is None:
            if self._ledger.batches.backfilled(key, owner):
                return self._report(Done(batch, elapsed_ms))
        else:
            # An exception caused by a stop does not explain the batch's failure.
            report = (self._stopped() and batch.error) or ErrorReport.of(error)
            ended = isinstance(error, BaseException) and not isinstance(error, Exception)
            ended = ended or isinstance(error, HandlerExitError)
            status = self._ledger.batches.release(
                key,
                owner,
                report,
                # The claimed row's count is current: the lease excludes other runs of the batch.
                is_dead=why_dead(batch, self._limits, error) is not None,
                outcome_unknown=self._stopped() or ended,
            )
            if status is Status.FAILED:
                return self._report(Failed(batch, report, elapsed_ms))
            if status is Status.DEAD:
                return self._report(MarkedDead(batch, report))
        return self._report(self._resolved_by_the_run(batch, elapsed_ms))

    def _resolved_by_the_run(self, batch: BatchRecord, elapsed_ms: int) -> BackfillEvent:
        now = self._ledger.batches.get(batch.batch_key)
        if now is not None and now.status is Status.SUCCESS:
            return Done(batch, elapsed_ms)
        if now is not None and now.status is Status.DEAD and now.error is not None:
            return MarkedDead(batch, now.error)
        if now is not None and now.status is Status.FAILED and now.done_records:
            return PartlyDone(batch, now.records_left)
        return LeaseLost(batch)

    def _lose(self, batch: BatchRecord, lost: Sequence[PlannedRange]) -> None:
        """Record ranges that have left the source as lost, once."""
        ranges = tuple(planned.offsets for planned in lost)
        why = self._why_gone(batch.gate, lost)
        reason = f"it left the source before a backfill read it: {why}"
        self._ledger.history.record_losses(
            batch.gate,
            ranges,
            {
                planned.offsets.topic: planned.topic_id
                for planned in lost
                if planned.topic_id is not None
            },
            batch_key=batch.batch_key,
            reasons=dict.fromkeys(ranges, reason),
        )
        self._report(Lost(batch, ranges, why))

    def _mark_dead(self, batch: BatchRecord, gone: Sequence[PlannedRange]) -> BackfillEvent:
        ranges = ", ".join(str(planned.offsets) for planned in gone)
        error = DataLossError(
            f"What batch {batch.batch_key} of gate {batch.gate!r} reads has left Kafka before it"
            f" was processed: {ranges}; {self._why_gone(batch.gate, gone)}."
        )
        report = ErrorReport.of(error)
        if not self._ledger.batches.mark_dead(batch.batch_key, self._owner, report):
            return self._report(LeaseLost(batch))
        return self._report(MarkedDead(batch, report))

    def _why_gone(self, gate: str, gone: Sequence[PlannedRange]) -> str:
        begins = self._source.earliest([planned.offsets for planned in gone])
        record = self._ledger.gates.get(gate)
        in_journal = record is not None and record.source == "journal"
        reasons = []
        for offsets in (planned.offsets for planned in gone):
            begin = begins.get(offsets.topic_partition)
            if begin is None:
                reasons.append(f"{offsets.topic_partition} does not exist any more")
            elif begin < offsets.until:  # the offsets exist, but belong to other records
                repaired = ", or a repair declared them lost" * in_journal
                reasons.append(f"{offsets.topic} was deleted and recreated{repaired}")
            else:
                reasons.append("make the topic's retention longer than failed batches wait")
        return "; ".join(dict.fromkeys(reasons))
