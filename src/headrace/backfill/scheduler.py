"""The backfill scheduler: which failed batch is run when, and what becomes of each."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.backfill.monitor import (
    BackfillEvent,
    Claimed,
    Done,
    Failed,
    LeaseLost,
    MarkedDead,
    Monitor,
    NearRetention,
    RetentionWatch,
    Skipped,
    Split,
)
from headrace.backfill.schedule import BackfillBudget, Cost, Schedule, Timetable
from headrace.backfill.splitting import (
    ChildRanges,
    earlier_and_later,
    gone_and_there,
    one_of_each,
    split_batch,
)
from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.core.timing import LEASE_MS, WallClock, is_in_force
from headrace.errors import (
    DataLossError,
    HandlerExitError,
    HeadraceError,
    JournalError,
    MachineryError,
    OptionError,
    SetupError,
    SinkAwayError,
    SourceError,
)
from headrace.ledger import BatchRecord, ErrorReport, Ledger, PlannedRange, Status
from headrace.ledger.error_report import OWNER_GONE

_LOG: Final = logging.getLogger("headrace.backfill")

MAX_BACKFILLS: Final = 100
"""Number of failed backfills after which a batch is dead. With their waits these are some four
days: longer than a sink is away over a weekend, shorter than the week for which Kafka keeps records
by default.
"""

_BLAMELESS: Final = (SourceError, JournalError, MachineryError, SetupError, SinkAwayError)

_NEVER: Final = 2**31 - 1
"""Backfills after which a batch is dead that cannot be read: nothing was wrong with its records."""


_RETENTION_MS: Final = 60_000
"""The time between two looks at where the logs begin (ms)."""


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Owner of batches, and the times and limits of its runs.

    Attributes:
        owner: Names this run of an application; no other one has the name.
        lease_ms: How long a batch is this owner's without a renewal (ms). Too short, and a pause
            loses the batch to another owner; too long, and after a crash it waits as long.
        max_backfills: How many backfills of a batch fail before it is dead: 1 or more. Too few, and
            an outage makes dead what could have been processed.
        poll_ms: How often a scheduler looks for something to do (ms), besides `wake`. Too long, and
            the time that the live stream leaves is not used to its end.
    """

    owner: str
    lease_ms: int = LEASE_MS
    max_backfills: int = MAX_BACKFILLS
    poll_ms: int = 100


Run = Callable[[BatchRecord], BaseException | None]
"""Runs the handler on exactly what a batch reads, keeps its lease meanwhile, and answers what the
handler raised; None if it went through. The row is ``backfilling``, and the owner's. It is left so,
except where the handler commits it together with its sink, or its records stand alone and are kept
as dead letters."""


class RangeSource(Protocol):
    """Source of the ranges of batches: the gate's, or a test's."""

    @property
    def bootstrap_servers(self) -> str:
        """Address of the source, to be stored with the ranges of a child."""
        ...

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the ranges that have left the log or were declared lost; none if all are there.

        Raises:
            BrokerError: The brokers cannot be reached.
        """
        ...

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """The earliest offset that there is of each of these partitions; of those that exist.

        Raises:
            BrokerError: The brokers cannot be reached.
        """
        ...


class BackfillScheduler:
    """Runs a gate's failed batches, one after the other, in one thread: the caller's.

    Before a batch is run it is this owner's, and after a crash whoever claims it when the lease has
    run out goes on where this one was: nothing is lost, whatever happens in between. ::

        scheduler = BackfillScheduler(ledger, executor.run, source, OwnerSettings(owner), ...)
        scheduler.run(Monitor(ledger, "orders"), parse_schedule("spare"))  # until it is closed

    Args:
        ledger: Of the gate.
        run: Runs a batch of the gate.
        source: Of the gate.
        settings: Of the owner.
        budget: How much may be run at once.
        clock: Answers the time, in ms since the epoch.
        on_event: Receives what happens, in the thread in which it happens.
        stopped: Answers whether its application is being stopped: what a run raises then is not its
            handler's own.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        source: RangeSource,
        settings: OwnerSettings,
        *,
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
        self._budget = budget
        self._clock = clock
        self._on_event = on_event
        self._stopped = stopped
        self._retention = RetentionWatch()
        self._looked_ms: int | None = None
        self._closed = threading.Event()
        self._woken = threading.Event()

    def run(self, monitor: Monitor, schedule: Schedule) -> None:
        """Run what fails, whenever the schedule says so, until the scheduler is closed.

        Once a run is due it goes on until no batch is ready. While the ledger or Kafka cannot be
        reached it waits, and logs a warning, once. With the schedule "manual" it only looks whether
        retention nears what has failed.

        Raises:
            Exception: What a run raises, other than an error of Headrace's.
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

        Returns:
            What became of it; None if there is none, or the budget allows nothing now.
        """
        batch = monitor.next_ready(self._clock())
        if batch is None:
            return None
        event = self.run_batch(batch.batch_key, batch.ranges)
        if isinstance(event, Split):
            monitor.refresh()
        elif event is not None:
            monitor.forget(batch.batch_key)
        return event

    def run_manually(self, batch_keys: Sequence[str]) -> None:
        """Run these batches: each once, in this order, and no wait is kept.

        The children of a batch that is split follow at once. A batch that another owner has, or
        that is resolved, is skipped.
        """
        waiting = list(reversed(batch_keys))
        while waiting and not self._closed.is_set():
            key = waiting[-1]
            event = self.run_batch(key, self._ledger.batches.ranges(key))
            if event is None:
                self._rest()
                continue
            waiting.pop()
            if isinstance(event, Split):
                waiting += [child.batch_key for child in reversed(event.children)]

    def run_batch(self, batch_key: str, ranges: Sequence[PlannedRange]) -> BackfillEvent | None:
        """Claim a batch, if the budget allows one, and run it, or split it.

        Ranges that have left Kafka are split from the others, and then marked dead; a batch with
        more records than are allowed is halved. The children are failed batches of their own from
        then on, with keys of their own. So a batch with a run whose outcome is unknown, which may
        be in its sink, is not split, nor is one that a backfill has run as a whole before: it is
        run so again, under its key, even if less is allowed.

        Args:
            batch_key: The batch.
            ranges: What it reads.

        Returns:
            What became of it; None if nothing is allowed now, and nothing was done.

        Raises:
            LedgerError: The ledger cannot be read or written. The batch may be this owner's; then
                it can be claimed again when the lease has run out.
            BrokerError: The brokers cannot be reached; nothing was done, or it is as above.
        """
        allowed = self._budget.records()
        if allowed < 1:
            return None
        # Ask before the batch is claimed, so that an outage of Kafka counts as no attempt.
        gone, there = gone_and_there(ranges, self._source.gone(ranges))
        batch = self._ledger.batches.claim(batch_key, self._owner, self._settings.lease_ms)
        if batch is None:
            return self._report(Skipped(batch_key))
        self._report(Claimed(batch))
        if children := self._ledger.batches.children(batch_key):
            return self._release_children(batch, children, OWNER_GONE, outcome_unknown=True)
        if gone:
            return self._without(batch, gone, there)
        if batch.planned_records > allowed and not (batch.outcome_unknown or batch.backfills):
            return self._split(batch, earlier_and_later(there))
        return self._run(batch, ranges)

    def wake(self) -> None:
        """Look for something to do at once: a batch of the stream has ended. From any thread."""
        self._woken.set()

    def close(self) -> None:
        """End what runs as soon as the batch in hand is resolved; from any thread, for good."""
        self._closed.set()
        self._woken.set()

    def _step(self, monitor: Monitor, timetable: Timetable) -> bool:
        monitor.keep_up()
        now_ms = self._clock()
        self._warn_of_retention(monitor, now_ms)
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
        earliest = self._source.earliest([r.offsets for each in batches for r in each.ranges])
        for batch, near in self._retention.look(batches, earliest):
            self._report(NearRetention(batch.batch_key, near))

    def _report(self, event: BackfillEvent) -> BackfillEvent:
        _LOG.log(event.level, "%s", event)
        self._on_event(event)
        return event

    def _run(self, batch: BatchRecord, ranges: Sequence[PlannedRange]) -> BackfillEvent:
        began_ms = self._clock()
        error = self._run_handler(batch)
        ended_ms = self._clock()
        elapsed_ms = max(0, ended_ms - began_ms)
        self._budget.spent(
            Cost(batch.planned_records, elapsed_ms, ended_ms, succeeded=error is None)
        )
        event = self._without_the_gone(batch, ranges, error) or self._resolve(
            batch, error, elapsed_ms
        )
        if error is not None and not isinstance(error, Exception):
            raise error  # Somebody wants the process to end.
        return event

    def _resolve(
        self, batch: BatchRecord, error: BaseException | None, elapsed_ms: int
    ) -> BackfillEvent:
        key, owner = batch.batch_key, self._owner
        if error is None:
            if self._ledger.batches.backfilled(key, owner):
                return self._report(Done(batch, elapsed_ms))
        else:
            # An exception because of a stop says nothing of why the batch fails.
            report = (self._stopped() and batch.error) or ErrorReport.of(error)
            blameless = isinstance(error, _BLAMELESS)
            blameless = blameless or type(error) is OptionError
            ended = isinstance(error, HandlerExitError) or not isinstance(error, Exception)
            status = self._ledger.batches.release(
                key,
                owner,
                report,
                max_backfills=_NEVER if blameless else self._settings.max_backfills,
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
        return LeaseLost(batch)

    def _without_the_gone(
        self, batch: BatchRecord, ranges: Sequence[PlannedRange], error: BaseException | None
    ) -> BackfillEvent | None:
        """Split a batch, some of which has gone while it ran, from that; None for any other."""
        if not isinstance(error, DataLossError) or self._ledger.batches.children(batch.batch_key):
            return None
        gone, there = gone_and_there(ranges, self._source.gone(ranges))
        return self._without(batch, gone, there) if gone else None

    def _without(self, batch: BatchRecord, gone: ChildRanges, there: ChildRanges) -> BackfillEvent:
        """Split what has gone from the rest; or mark it dead, where there is no rest."""
        if there:
            return self._split(batch, (gone, *one_of_each(there)))
        ranges = ", ".join(str(each.offsets) for each in gone)
        error = DataLossError(
            f"What batch {batch.batch_key} of gate {batch.gate!r} reads has left Kafka before it"
            f" was processed: {ranges}; {self._why_gone(batch.gate, gone)}."
        )
        report = ErrorReport.of(error)
        if not self._ledger.batches.mark_dead(batch.batch_key, self._owner, report):
            return self._report(LeaseLost(batch))
        return self._report(MarkedDead(batch, report))

    def _why_gone(self, gate: str, gone: ChildRanges) -> str:
        begins = self._source.earliest([each.offsets for each in gone])
        found = self._ledger.gates.get(gate)
        in_journal = found is not None and found.source == "journal"
        reasons = []
        for offsets in (each.offsets for each in gone):
            begin = begins.get(offsets.topic_partition)
            if begin is None:
                reasons.append(f"{offsets.topic_partition} does not exist any more")
            elif begin < offsets.until:  # the offsets are there, but of other records
                repaired = ", or a repair declared them lost" * in_journal
                reasons.append(f"{offsets.topic} was deleted and recreated{repaired}")
            else:
                reasons.append("make the topic's retention longer than failed batches wait")
        return "; ".join(dict.fromkeys(reasons))

    def _split(self, batch: BatchRecord, children: Sequence[ChildRanges]) -> BackfillEvent:
        rows = split_batch(
            self._ledger,
            batch,
            children,
            owner=self._owner,
            lease_ms=self._settings.lease_ms,
            bootstrap_servers=self._source.bootstrap_servers,
            reason=batch.reason,
        )
        return self._release_children(batch, rows, batch.error or OWNER_GONE, outcome_unknown=False)

    def _release_children(
        self,
        batch: BatchRecord,
        children: Sequence[BatchRecord],
        error: ErrorReport,
        *,
        outcome_unknown: bool,
    ) -> BackfillEvent:
        """Make the children of a batch failed batches of their own, and the batch ``success``.

        Children that are done stay so. If this is interrupted, it is done again once the lease has
        run out. For a child that is still another's the batch waits, and stays this owner's.
        """
        for child in children:
            if child.status is Status.IN_PROGRESS and self._is_nobodys(child):
                self._ledger.batches.fail(
                    child.batch_key, error, owner=child.owner, outcome_unknown=outcome_unknown
                )
        children = self._ledger.batches.children(batch.batch_key)
        if any(child.status is Status.IN_PROGRESS for child in children):
            return self._report(Skipped(batch.batch_key))
        if not self._ledger.batches.backfilled(batch.batch_key, self._owner):
            return self._report(LeaseLost(batch))
        return self._report(Split(batch, tuple(children)))

    def _is_nobodys(self, child: BatchRecord) -> bool:
        until_ms = child.lease_until_ms
        if child.owner == self._owner or until_ms is None:
            return True
        return not is_in_force(until_ms, self._ledger.database_time_ms())
