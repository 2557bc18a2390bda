"""One receiver as its tracker has it: started, watched, started again, stopped."""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from headrace.backfill.schedule import Backoff
from headrace.tracker.channel import Reporting
from headrace.tracker.messages import Order, Report
from headrace.tracker.status import ReceiverStatus, State
from headrace.tracker.task import Outcome

_LOG: Final = logging.getLogger("headrace.tracker")

_BACKOFF: Final = Backoff(first_ms=1_000, most_ms=30_000)
"""The wait before a receiver is started again, doubled each time in a row."""

_WELL_S: Final = 60.0
"""A receiver that has received for so long begins the row anew."""

_CANCEL_S: Final = 0.5
"""How often a job is cancelled until it ends: one that is just being made does not hear it."""

_TOKEN_BYTES: Final = 32


class Jobs(Protocol):
    """What runs the tasks of one receiver."""

    def run(self, token: str) -> Outcome:
        """Run a task that shows this token, and wait until it has ended, however that is."""

    def cancel(self) -> None:
        """Have the task killed that runs, if one does: `run` has no error to tell then."""


class Expecting(Protocol):
    """Where tasks report: a `Channel`."""

    def expect(self, token: str, reporting: Reporting) -> None:
        """Listen to the tasks with this token."""

    def forget(self, token: str) -> None:
        """Listen to them no more."""


class TrackedLane:
    """Keeps one receiver running, whatever becomes of its tasks, until it is stopped.

    Each time a job of one task is run, with a token of its own. While it runs, Spark may start the
    task once more: anew, when its executor has died, or beside the one that runs, when that seems
    slow to it. The first that reports receives, and another one only when the connection of that
    one has ended.

    Args:
        lane: The lane that it writes.
        journal: The journal's name, for the log.
        jobs: See `Jobs`.
        channel: See `Expecting`.
        now_s: The time of a clock that always goes forward.
    """

    def __init__(
        self,
        lane: int,
        journal: str,
        jobs: Jobs,
        channel: Expecting,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lane: Final = lane
        self._what = f"The receiver of lane {lane} of the journal {journal}"
        self._jobs = jobs
        self._channel = channel
        self._now_s = now_s
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._state = State.STARTING
        self._token = ""
        self._connection: object | None = None
        self._last: Report | None = None
        self._begun = 0
        self._receiving_since_s = math.inf
        self._error: str | None = None

    def run(self) -> None:
        """Keep it running until it is stopped, comes to an end, or has failed for good."""
        failures = 0
        while not self._stopping.is_set():
            outcome = self._run_once()
            failures = 1 if self._ran_well() else failures + 1
            wait_s = _BACKOFF.wait_ms(failures) / 1000
            if self._is_over(outcome, wait_s):
                break
            self._stopping.wait(wait_s)
        with self._changed:
            if self._state is not State.FAILED:
                self._state = State.STOPPED
            self._changed.notify_all()

    @property
    def status(self) -> ReceiverStatus:
        """How it fares."""
        with self._changed:
            last = self._last if self._connection is not None else None
            return ReceiverStatus(
                lane=self.lane,
                state=self._state,
                host=last.host if last else None,
                address=last.address if last else None,
                restarts=max(0, self._begun - 1),
                last_error=self._error,
            )

    def wait_until_settled(self, timeout_s: float) -> ReceiverStatus:
        """Wait until it receives, is stopped or has failed, but no longer than this."""
        settled = (State.RECEIVING, State.STOPPED, State.FAILED)
        with self._changed:
            self._changed.wait_for(lambda: self._state in settled, timeout_s)
        return self.status

    def stop(self) -> None:
        """Have it end cleanly; returns at once."""
        self._stopping.set()

    def finish(self, thread: threading.Thread, deadline_s: float) -> bool:
        """Wait until the thread that runs it has ended, after `stop`.

        A task that has not begun is killed at once, for nothing is lost with it; one that has, at
        this time of the clock.

        Returns:
            Whether none had to be killed that had begun.
        """
        clean = True
        while thread.is_alive():
            with self._changed:
                has_begun = self._connection is not None
            if not has_begun or self._now_s() >= deadline_s:
                clean = clean and not has_begun
                self._jobs.cancel()
            thread.join(_CANCEL_S)
        return clean

    def reported(self, connection: object, report: Report) -> Order:
        """See `Reporting.reported`."""
        with self._changed:
            if report.token != self._token:  # of a job that has ended just now
                return Order.STOP
            if self._connection is None:
                self._begin(connection)
            if connection is not self._connection:
                return Order.WAIT
            self._last = report
            if report.receiving and self._state is State.STARTING:
                self._receive(report)
        return Order.STOP if self._stopping.is_set() else Order.RECEIVE

    def left(self, connection: object) -> None:
        """See `Reporting.left`."""
        with self._changed:
            if connection is self._connection:
                self._connection = None
                if self._state is State.RECEIVING:
                    self._state = State.STARTING

    def _run_once(self) -> Outcome:
        token = secrets.token_hex(_TOKEN_BYTES)
        with self._changed:
            self._token = token
            self._state = State.STARTING
            self._last = None
            self._receiving_since_s = math.inf
        self._channel.expect(token, self)
        try:
            return self._jobs.run(token)
        finally:
            self._channel.forget(token)
            with self._changed:
                self._connection = None

    def _ran_well(self) -> bool:
        return self._now_s() - self._receiving_since_s >= _WELL_S

    def _begin(self, connection: object) -> None:
        """A task has come, and none is there."""
        self._connection = connection
        self._begun += 1
        if self._last is not None:
            self._error = f"Its task on {self._last.host} was lost, and Spark has run it again."
            _LOG.warning("%s: %s", self._what, self._error)

    def _receive(self, report: Report) -> None:
        self._state = State.RECEIVING
        self._receiving_since_s = self._now_s()
        self._changed.notify_all()
        at = report.host if report.address is None else f"{report.host}, at {report.address}"
        _LOG.info("%s receives on %s.", self._what, at)

    def _is_over(self, outcome: Outcome, wait_s: float) -> bool:
        """Take in how a job has ended; whether it was the last."""
        if outcome.error is None:
            return True
        with self._changed:
            self._error = outcome.error
            if not self._stopping.is_set():
                self._state = State.FAILED if outcome.lasting else State.WAITING
        if self._stopping.is_set():
            _LOG.warning("%s was stopped, and has ended so: %s", self._what, outcome.error)
        elif outcome.lasting:
            _LOG.error("%s is not started again: %s", self._what, outcome.error)
        else:
            _LOG.warning("%s is started again in %g s: %s", self._what, wait_s, outcome.error)
        return outcome.lasting or self._stopping.is_set()
