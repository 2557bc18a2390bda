"""The backfill scheduler: which failed batch is run when, and what becomes of each."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from headrace.backfill.budget import BackfillBudget, Cost
from headrace.backfill.events import (
    BackfillEvent,
    Claimed,
    Done,
    Failed,
    LeaseLost,
    MarkedDead,
    NearRetention,
    Skipped,
    Split,
)
from headrace.backfill.monitor import Monitor, RetentionWatch
from headrace.backfill.schedule import Schedule, Timetable
from headrace.backfill.splitting import Portion, earlier_and_later, gone_and_there, one_of_each
from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.errors import (
    DataLossError,
    HandlerExitError,
    HeadraceError,
    JournalError,
    SourceError,
)
from headrace.ledger import (
    BatchRecord,
    Clock,
    ErrorReport,
    Ledger,
    PlannedBatch,
    PlannedRange,
    Status,
)
from headrace.ledger.backfills import OWNER_GONE
from headrace.ledger.leases import is_in_force

_LOG: Final = logging.getLogger("headrace.backfill")

MAX_BACKFILLS: Final = 100
"""How many backfills of a batch fail before it is dead. With their waits these are some four days:
longer than a sink is away over a weekend, shorter than the week that Kafka keeps records unless it
is told otherwise."""

_NEVER: Final = 2**31 - 1
"""Backfills after which a batch is dead that cannot be read: nothing was wrong with its records."""

LEASE_MS: Final = 30_000
"""How long a batch is kept from others without a sign of life from its runner (ms)."""


class Runner(Protocol):
    """Runs batches of one gate."""

    @property
    def bootstrap_servers(self) -> str:
        """Where the ranges are read from, to be written down with those of a part."""
        ...

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """What of these ranges has left Kafka, or was declared lost; nothing if all is there.

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

    def run(self, batch: BatchRecord) -> BaseException | None:
        """Run the handler on exactly what a batch reads, and keep its lease meanwhile.

        The row is ``backfilling``, and the owner's. It is left so, except where the handler commits
        it together with its sink, or its records stand alone and are kept as dead letters.

        Returns:
            What the handler raised; None if it went through.
        """
        ...


class Dispatch:
    """Works off one batch at a time.

    Whatever happens in between, the ledger shows a batch of which nothing is lost: before it is
    run the batch is this owner's, and after a crash whoever takes it when the lease has run out
    goes on where this one was.

    Args:
        ledger: Of the gate.
        runner: Of the gate.
        owner: Names this backfill; no other one has the name.
        allowance: How much may be taken at once.
        on_event: Is told what happens, by the thread in which it happens.
        clock: Answers the time, in ms since the epoch.
        max_backfills: How many backfills of a batch fail before it is dead: 1 or more. Too few, and
            an outage makes dead what could have been processed.
        stopped: Answers whether its application is being stopped: what a run raises then is not its
            handler's own.
        lease_ms: How long a batch is this owner's unless the runner renews it (ms). Too short, and
            a pause loses the batch to another owner; too long, and after a crash it waits as long.
    """

    def __init__(
        self,
        ledger: Ledger,
        runner: Runner,
        *,
        owner: str,
        allowance: BackfillBudget,
        on_event: Callable[[BackfillEvent], None],
        clock: Clock,
        max_backfills: int = MAX_BACKFILLS,
        stopped: Callable[[], bool] = lambda: False,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self.ledger = ledger
        self.runner = runner
        self._owner = owner
        self._allowance = allowance
        self._on_event = on_event
        self.clock = clock
        self._max_backfills = max_backfills
        self._stopped = stopped
        self._lease_ms = lease_ms

    def work_off(self, schedule_id: str, ranges: Sequence[PlannedRange]) -> BackfillEvent | None:
        """Take a batch, if there is an allowance, and do with it what is to be done.

        What has left Kafka is parted from what is still there, and then buried; a batch with more
        records than are allowed is divided. The parts are failed batches of their own from then on,
        with keys of their own. So a batch of which a run was cut short, which may have written it
        to its sink, is not divided, nor is one that a backfill has run as a whole before: it is run
        so again, under its key, even if less is allowed.

        Args:
            schedule_id: The batch.
            ranges: What it reads.

        Returns:
            What became of it; None if nothing is allowed now, and nothing was done.

        Raises:
            LedgerError: The ledger cannot be read or written. The batch may be this owner's; then
                it can be taken anew when the lease has run out.
            BrokerError: The brokers cannot be reached; nothing was done, or it is as above.
        """
        allowed = self._allowance.records()
        if allowed < 1:
            return None
        # Asked before the batch is taken, so that an outage of Kafka counts as no attempt.
        gone, there = gone_and_there(ranges, self.runner.gone(ranges))
        batch = self.ledger.take(schedule_id, self._owner, self._lease_ms)
        if batch is None:
            return self.tell(Skipped(schedule_id))
        self.tell(Claimed(batch))
        if parts := self.ledger.parts(schedule_id):
            return self._leave_to(batch, parts, OWNER_GONE, cut_short=True)
        if gone:
            return self._part_from(batch, gone, there)
        if batch.planned_records > allowed and not (batch.cut_short or batch.backfills):
            return self._split(batch, earlier_and_later(there))
        return self._run(batch, ranges)

    def tell(self, event: BackfillEvent) -> BackfillEvent:
        """Log an event, and hand it on."""
        _LOG.log(event.level, "%s", event)
        self._on_event(event)
        return event

    def _part_from(self, batch: BatchRecord, gone: Portion, there: Portion) -> BackfillEvent:
        """Part what has gone from the rest; or bury it, where there is no rest."""
        return self._split(batch, (gone, *one_of_each(there))) if there else self._bury(batch, gone)

    def _run(self, batch: BatchRecord, ranges: Sequence[PlannedRange]) -> BackfillEvent:
        began_ms = self.clock()
        error = self.runner.run(batch)
        ended_ms = self.clock()
        elapsed_ms = max(0, ended_ms - began_ms)
        self._allowance.spent(
            Cost(batch.planned_records, elapsed_ms, ended_ms, succeeded=error is None)
        )
        event = self._without_the_gone(batch, ranges, error) or self._settle(
            batch, error, elapsed_ms
        )
        if error is not None and not isinstance(error, Exception):
            raise error  # Somebody wants the process to end.
        return event

    def _without_the_gone(
        self, batch: BatchRecord, ranges: Sequence[PlannedRange], error: BaseException | None
    ) -> BackfillEvent | None:
        """Part a batch, some of which has gone while it ran, from that; None for any other."""
        if not isinstance(error, DataLossError) or self.ledger.parts(batch.schedule_id):
            return None
        gone, there = gone_and_there(ranges, self.runner.gone(ranges))
        return self._part_from(batch, gone, there) if gone else None

    def _settle(
        self, batch: BatchRecord, error: BaseException | None, elapsed_ms: int
    ) -> BackfillEvent:
        key, owner = batch.schedule_id, self._owner
        if error is None:
            if self.ledger.backfilled(key, owner):
                return self.tell(Done(batch, elapsed_ms))
        else:
            # What is raised because of a stop says nothing of why the batch fails.
            report = (self._stopped() and batch.error) or ErrorReport.of(error)
            unread = isinstance(error, SourceError | JournalError)
            status = self.ledger.give_back(
                key,
                owner,
                report,
                max_backfills=_NEVER if unread else self._max_backfills,
                cut_short=self._is_cut_off(error),
            )
            if status is Status.FAILED:
                return self.tell(Failed(batch, report, elapsed_ms))
            if status is Status.DEAD:
                return self.tell(MarkedDead(batch, report))
        return self.tell(self._settled_meanwhile(batch, elapsed_ms))

    def _is_cut_off(self, error: BaseException) -> bool:
        ends = isinstance(error, HandlerExitError) or not isinstance(error, Exception)
        return self._stopped() or ends

    def _settled_meanwhile(self, batch: BatchRecord, elapsed_ms: int) -> BackfillEvent:
        """What the runner itself made of a batch: with its sink, or by keeping its one record."""
        now = self.ledger.batch(batch.schedule_id)
        if now is not None and now.status is Status.SUCCESS:
            return Done(batch, elapsed_ms)
        if now is not None and now.status is Status.DEAD and now.error is not None:
            return MarkedDead(batch, now.error)
        return LeaseLost(batch)

    def _bury(self, batch: BatchRecord, gone: Portion) -> BackfillEvent:
        ranges = ", ".join(str(each.offsets) for each in gone)
        error = DataLossError(
            f"What batch {batch.schedule_id} of gate {batch.gate!r} reads has left Kafka before it"
            f" was processed: {ranges}; make the topic's retention longer than failed batches wait."
        )
        report = ErrorReport.of(error)
        if not self.ledger.bury(batch.schedule_id, self._owner, report):
            return self.tell(LeaseLost(batch))
        return self.tell(MarkedDead(batch, report))

    def _split(self, batch: BatchRecord, portions: Sequence[Portion]) -> BackfillEvent:
        planned = [
            PlannedBatch(
                gate=batch.gate,
                run_id=batch.run_id,
                ranges=portion,
                reason=batch.reason,
                bootstrap_servers=self.runner.bootstrap_servers,
                lag=batch.lag,
                rate_per_s=batch.rate_per_s,
            )
            for portion in portions
        ]
        parts = self.ledger.split(batch.schedule_id, planned, self._owner, self._lease_ms)
        return self._leave_to(batch, parts, batch.error or OWNER_GONE, cut_short=False)

    def _leave_to(
        self,
        batch: BatchRecord,
        parts: Sequence[BatchRecord],
        error: ErrorReport,
        *,
        cut_short: bool,
    ) -> BackfillEvent:
        """Make the parts of a batch failed batches of their own, and the batch ``success``.

        Parts that are done stay so. If this ends half-way, it is done again once the lease has run
        out. A part that is still another's is waited for: the batch stays this owner's until then.

        Args:
            batch: The batch.
            parts: All of its parts.
            error: Why those have failed that are in progress.
            cut_short: Whether somebody may have begun to run them.
        """
        for part in parts:
            if part.status is Status.IN_PROGRESS and self._is_left(part):
                self.ledger.fail(part.schedule_id, error, owner=part.owner, cut_short=cut_short)
        parts = self.ledger.parts(batch.schedule_id)
        if any(part.status is Status.IN_PROGRESS for part in parts):
            return self.tell(Skipped(batch.schedule_id))
        if not self.ledger.backfilled(batch.schedule_id, self._owner):
            return self.tell(LeaseLost(batch))
        return self.tell(Split(batch, tuple(parts)))

    def _is_left(self, part: BatchRecord) -> bool:
        """Whether nobody runs a part that is in progress."""
        until_ms = part.lease_until_ms
        if part.owner == self._owner or until_ms is None:
            return True
        return not is_in_force(until_ms, self.ledger.database_time_ms())


_LOOK_MS: Final = 60_000
"""The time between two looks at where the logs begin (ms)."""


class BackfillScheduler:
    """Works off a gate's failed batches, one after the other, in one thread: the caller's.

    ::

        centre = BackfillScheduler(Dispatch(ledger, runner, ...))
        with Monitor(ledger, "orders") as monitor:
            centre.run(monitor, parse_schedule("spare"))    # until another thread closes it

    Args:
        dispatch: What is done with each batch.
        poll_ms: How often it is seen whether there is something to do (ms), besides `wake`. Too
            long, and the time that the live stream leaves is not used to its end.
    """

    def __init__(self, dispatch: Dispatch, *, poll_ms: int = 100) -> None:
        self._dispatch = dispatch
        self._poll_ms = poll_ms
        self._retention = RetentionWatch()
        self._looked_ms: int | None = None
        self._closed = threading.Event()
        self._woken = threading.Event()

    def run(self, monitor: Monitor, schedule: Schedule) -> None:
        """Work off what fails, whenever the schedule has it done, until the centre is closed.

        Once a run is due it goes on until no batch is ready. While the ledger or Kafka cannot be
        reached it waits, and logs a warning, once. By hand it only looks whether retention nears
        what has failed.

        Raises:
            Exception: What the runner raises, other than an error of Headrace's.
        """
        timetable = Timetable(schedule, self._dispatch.clock())
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

    def _step(self, monitor: Monitor, timetable: Timetable) -> bool:
        """Do what is to be done now; whether there was anything."""
        if not monitor.has_read:
            return False
        now_ms = self._dispatch.clock()
        self._look_at_retention(monitor, now_ms)
        if not timetable.is_on(now_ms):
            return False
        if monitor.next_ready(now_ms) is None:
            timetable.end()
            return False
        return self.run_one(monitor) is not None

    def run_one(self, monitor: Monitor) -> BackfillEvent | None:
        """Work off the earliest created batch whose wait after its last attempt is over.

        Returns:
            What became of it; None if there is none, or nothing is allowed now.

        Raises:
            LedgerError: As `Dispatch.work_off`.
            BrokerError: As `Dispatch.work_off`.
        """
        batch = monitor.next_ready(self._dispatch.clock())
        if batch is None:
            return None
        event = self._dispatch.work_off(batch.schedule_id, batch.ranges)
        if isinstance(event, Split):
            monitor.refresh()
        elif event is not None:
            monitor.forget(batch.schedule_id)
        return event

    def run_these(self, schedule_ids: Sequence[str]) -> None:
        """Work off these batches, by hand: each once, in this order, and no wait is kept.

        Of a batch that is divided the parts follow at once. What another has, or nobody needs to
        run any more, is passed.

        Raises:
            LedgerError: As `Dispatch.work_off`.
            BrokerError: As `Dispatch.work_off`.
        """
        waiting = list(reversed(schedule_ids))
        while waiting and not self._closed.is_set():
            key = waiting[-1]
            event = self._dispatch.work_off(key, self._dispatch.ledger.ranges(key))
            if event is None:
                self._rest()
                continue
            waiting.pop()
            if isinstance(event, Split):
                waiting += [part.schedule_id for part in reversed(event.parts)]

    def wake(self) -> None:
        """Have it seen at once whether there is something to do: a batch of the stream has ended.

        From any thread.
        """
        self._woken.set()

    def close(self) -> None:
        """End `run` or `run_these` as soon as the batch in hand is settled; from any thread."""
        self._closed.set()
        self._woken.set()

    def _rest(self) -> None:
        self._woken.wait(self._poll_ms / 1000)
        if not self._closed.is_set():
            self._woken.clear()

    def _look_at_retention(self, monitor: Monitor, now_ms: int) -> None:
        if self._looked_ms is not None and now_ms - self._looked_ms < _LOOK_MS:
            return
        batches = monitor.batches()
        if not batches:
            return
        self._looked_ms = now_ms
        earliest = self._dispatch.runner.earliest(
            [r.offsets for each in batches for r in each.ranges]
        )
        for batch, near in self._retention.look(batches, earliest):
            self._dispatch.tell(NearRetention(batch.schedule_id, near))
