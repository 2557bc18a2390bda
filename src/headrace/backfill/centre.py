"""The dispatch centre: when failed batches are worked off, and in which order."""

import logging
import threading
from collections.abc import Sequence
from typing import Final

from headrace.backfill.dispatch import Dispatch
from headrace.backfill.events import BackfillEvent, NearRetention, Split
from headrace.backfill.monitor import Monitor
from headrace.backfill.retention import RetentionWatch
from headrace.backfill.schedule import Schedule, Timetable
from headrace.errors import HeadraceError

_LOG: Final = logging.getLogger("headrace.backfill")

_LOOK_MS: Final = 60_000
"""The time between two looks at where the logs begin (ms)."""


class DispatchCentre:
    """Works off a gate's failed batches, one after the other, in one thread: the caller's.

    ::

        centre = DispatchCentre(Dispatch(ledger, runner, ...))
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
