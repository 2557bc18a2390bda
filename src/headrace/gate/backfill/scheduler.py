"""The backfill scheduler: selects the next failed batch, runs it, and records the outcome.

A backfill reads the records of a failed batch from the source again. The ledger stores only the
batch's exact offsets, so deferring a batch costs nothing. The same `BatchRunner` runs batches of
the stream and of backfills. The scheduler receives the runner's ``run`` and the source as
arguments. So the gate, the command and tests without Spark use the same scheduler.
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
"""Time between two checks whether Kafka may soon delete records of failed batches (ms)."""


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Name, lease and poll interval of a backfill scheduler as the owner of batches.

    Attributes:
        owner: Unique name of this run of the application. It contains the machine, the process and
            the process's start time. So other processes on the machine can see that a crashed owner
            has ended, and need not wait for the end of its lease.
        lease_ms: Time for which a batch belongs to its owner without a renewal (ms). Default:
            30 000. Too short: another owner takes the batch during a pause of the process. Too
            long: after a crash of the machine, the batch waits for this time.
        poll_ms: Time between two searches for a due batch (ms); `BackfillScheduler.wake` starts a
            search at once. Default: 100. Too long: idle time of the live stream remains unused.
    """

    owner: str
    lease_ms: int = LEASE_MS
    poll_ms: int = 100


class Run(Protocol):
    """Function that runs a gate's handler on the unprocessed ranges of a failed batch."""

    def __call__(
        self, batch: BatchRecord, allowed: int, gone: Sequence[OffsetRange], /
    ) -> BaseException | ErrorReport | None:
        """Run a batch that this owner has claimed, and renew the batch's lease during the run.

        Args:
            batch: The claimed batch, with the status ``backfilling``.
            allowed: Largest number of records to run now; 1 or more.
            gone: Ranges of the batch that are no longer in the source.

        Returns:
            The failure if no record was processed. The batch's row in the ledger is then unchanged.
            None if the batch succeeded. None as well if the run itself has stored the outcome in
            the row, after it ran parts or after the handler committed the batch.
        """
        ...


class RangeSource(Protocol):
    """The methods of a gate's source that a backfill needs."""

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the offsets in ``ranges`` that have left the log or were declared lost.

        Raises:
            BrokerError: The brokers cannot be reached.
        """
        ...

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return the earliest available offset of each existing partition in ``ranges``.

        Raises:
            BrokerError: The brokers cannot be reached.
        """
        ...


class BackfillScheduler:
    """Runs a gate's failed batches, one after another, in the caller's thread.

    The scheduler claims each batch before the run. If the process crashes, another owner claims the
    batch after its lease has expired, and continues from the stored progress. ::

        scheduler = BackfillScheduler(ledger, executor.run, source, OwnerSettings(owner), ...)
        scheduler.run(Monitor(ledger, "orders"), parse_schedule("spare"))  # until it is closed

    Args:
        ledger: The gate's ledger.
        run: Function that runs the gate's handler on a batch.
        source: The gate's source.
        settings: Name, lease and poll interval of this owner.
        limits: Limits of the gate's failure policy after which a batch is dead.
        budget: Limits the number of records in each run.
        clock: Function that returns the time (ms since the epoch).
        on_event: Function that receives each event, in the thread of the run.
        stopped: Function that returns whether the application is being stopped. An exception during
            a stop is not stored as the batch's failure.
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
        """Run failed batches as scheduled, until `close` is called.

        Each scheduled run continues until no batch is ready. While the ledger or Kafka is
        unreachable, the scheduler waits, and logs a warning once. With the schedule ``manual``,
        only batches that an operator asks for are run. With every schedule, the scheduler warns
        before Kafka deletes records.

        Raises:
            Exception: Any error of a run that is not a `HeadraceError`.
        """
        timetable = Timetable(schedule, self._clock())
        warned = ""
        while not self._closed.is_set():
            try:
                busy = self._step(monitor, timetable)
                warned = ""
            except HeadraceError as error:
                if str(error) != warned:
                    _LOG.warning("Backfills pause until this error no longer occurs: %s", error)
                busy, warned = False, str(error)
            if not busy:
                self._rest()

    def run_next(self, monitor: Monitor) -> BackfillEvent | None:
        """Run the next failed batch of a monitor.

        A batch that an operator has asked to run comes first, and needs no budget. Without such a
        batch, the next batch is the earliest created batch whose wait is over.

        Returns:
            The outcome of the run. None if no batch is ready, or if the budget allows no record.
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
        """Run each batch once, in the order of ``batch_keys``, without waits between attempts.

        If only a part of a batch was run, the run of the batch continues at once. A batch that
        belongs to another owner or is not ``failed`` any more is skipped.
        """
        waiting = list(reversed(batch_keys))
        while waiting and not self._closed.is_set():
            event = self.run_batch(waiting[-1])
            if event is None:
                self._rest()
            elif not isinstance(event, PartlyDone):
                waiting.pop()

    def run_batch(self, batch_key: str, *, is_asked: bool = False) -> BackfillEvent | None:
        """Claim a batch and run as many of its records as the budget allows.

        Offsets that are no longer in the source are recorded as lost, and the other offsets are
        run. If no offset is left and none was processed, the batch becomes dead.

        Args:
            batch_key: The key of the batch.
            is_asked: Whether an operator has asked to run the batch, so that the run needs no
                budget.

        Returns:
            The outcome of the run. None if the budget allows no record, so that nothing was done.

        Raises:
            LedgerError: The ledger cannot be read or written. If the batch was claimed already,
                another owner can claim it after the lease.
            BrokerError: The brokers cannot be reached. If the batch was claimed already, another
                owner can claim it after the lease.
        """
        allowed = sys.maxsize if is_asked else self._budget.records()
        if allowed < 1:
            return None
        # Ask before the claim, so that an outage of Kafka does not count as an attempt.
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
        """Make the scheduler search for a due batch at once, because a batch of the stream ended.

        Any thread may call this.
        """
        self._woken.set()

    def close(self) -> None:
        """Make `run` and `run_manually` return after the present batch.

        The scheduler cannot be used again. Any thread may call this.
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
            # During a stop, keep the stored error: the exception may come from the stop.
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
        """Record ranges as lost, because they have left the source; report the event `Lost`."""
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
            f"The records of batch {batch.batch_key} of gate {batch.gate!r} left Kafka before they"
            f" were processed: {ranges}; {self._why_gone(batch.gate, gone)}."
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
                reasons.append("make the topic's retention longer than the wait of failed batches")
        return "; ".join(dict.fromkeys(reasons))
