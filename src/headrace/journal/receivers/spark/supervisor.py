"""Supervisor that starts, watches, restarts and stops one receiver on an executor."""

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.core.backoff import Backoff
from headrace.journal.receivers.spark.receiver_task import TaskOutcome
from headrace.journal.receivers.spark.reporting import Order, Report, ReportServer

_LOG: Final = logging.getLogger("headrace.receivers.spark")

BACKOFF: Final = Backoff(first_ms=1_000, most_ms=30_000)
"""Delay before a restart: 1 s, doubled with each consecutive failure, up to 30 s."""

_WELL_S: Final = 60.0
"""Once a receiver has received for this time (s), its next failure counts as its first."""

_CANCEL_S: Final = 0.5
"""Interval at which a job is cancelled until it ends (s). One cancellation is not enough, because
Spark ignores the cancellation of a job that is still being created.
"""

_TOKEN_BYTES: Final = 32


class HostedState(StrEnum):
    """State of a receiver on an executor.

    ``STARTING``: its task waits for a core, or is locking the lane. ``RECEIVING``: the receiver
    accepts records. ``WAITING``: the receiver has failed, and is restarted after a delay.
    ``STOPPED``: the receiver was stopped, or has finished. ``FAILED``: the receiver has failed, and
    is not restarted, because a restart would fail too.
    """

    STARTING = "starting"
    RECEIVING = "receiving"
    WAITING = "waiting"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether the receiver has ended and will not be restarted."""
        return self in (HostedState.STOPPED, HostedState.FAILED)


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """Status of a receiver on an executor, at most half a second old.

    Attributes:
        lane: Lane that the receiver writes.
        state: State of the receiver.
        host: Machine on which the receiver runs; None while it does not run.
        address: URL for senders, for instance of an `HttpReceiver` or a `TcpReceiver`; None while
            the receiver does not listen.
        restarts: Number of restarts since the start.
        last_error: Error of the last failure; None without failures. It is kept after a restart.
    """

    lane: int
    state: HostedState
    host: str | None
    address: str | None
    restarts: int
    last_error: str | None


class LaneSupervisor:
    """Supervisor that keeps the receiver of one lane running until it is stopped.

    Each attempt runs a Spark job of one task, with a token of its own. Spark may start a second
    task of the job: a retry after the executor died, or a speculative copy of a slow task. The
    first task that sends a report runs the receiver. Another task may run it only after the
    connection of the first task has ended.

    ``run_task`` takes a token, runs a task with it, and returns the task's outcome. ``cancel``
    kills the task, and ``run_task`` then returns an outcome without an error. ``backoff`` is the
    delay before each restart. Default: 1 s, doubled up to 30 s.
    """

    def __init__(
        self,
        lane: int,
        journal: str,
        run_task: Callable[[str], TaskOutcome],
        cancel: Callable[[], None],
        server: ReportServer,
        *,
        now_s: Callable[[], float] = time.monotonic,
        backoff: Backoff = BACKOFF,
    ) -> None:
        self.lane: Final = lane
        self._what = f"The receiver of lane {lane} of the journal {journal}"
        self._run_task = run_task
        self._cancel = cancel
        self._server = server
        self._now_s = now_s
        self._backoff = backoff
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._state = HostedState.STARTING
        self._token = ""
        self._connection: object | None = None
        self._last: Report | None = None
        self._begun = 0
        self._receiving_since_s = math.inf
        self._error: str | None = None

    def run(self) -> None:
        """Run the receiver, and restart it after failures.

        Return when the receiver was stopped, has finished, or has failed and a restart would fail.
        """
        failures = 0
        while not self._stopping.is_set():
            outcome = self._run_once()
            ran_well = self._now_s() - self._receiving_since_s >= _WELL_S
            failures = 1 if ran_well else failures + 1
            wait_s = self._backoff.wait_ms(failures) / 1000
            if self._is_last(outcome, wait_s):
                break
            self._stopping.wait(wait_s)
        with self._changed:
            if self._state is not HostedState.FAILED:
                self._state = HostedState.STOPPED
            self._changed.notify_all()

    @property
    def status(self) -> ReceiverStatus:
        """Current status of the receiver."""
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
        """Wait up to ``timeout_s`` until the receiver receives or has ended; return its status."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._state is HostedState.RECEIVING or self._state.is_final, timeout_s
            )
        return self.status

    def stop(self) -> None:
        """Order the receiver to stop cleanly, without waiting for its end."""
        self._stopping.set()

    def finish(self, thread: threading.Thread, deadline_s: float) -> bool:
        """Wait until the receiver has ended. Call `stop` first.

        ``thread`` is the thread that executes `run`. A task that has not sent a report is killed at
        once, because it has not accepted records. Any other task is killed at ``deadline_s``, a
        time of the monotonic clock. Return False if a task was killed at the deadline.
        """
        clean = True
        while thread.is_alive():
            with self._changed:
                has_begun = self._connection is not None
            if not has_begun or self._now_s() >= deadline_s:
                clean = clean and not has_begun
                self._cancel()
            thread.join(_CANCEL_S)
        return clean

    def on_report(self, connection: object, report: Report) -> Order:
        """Record the report that a task sent over a connection, and return the task's order."""
        with self._changed:
            if report.token != self._token:  # the report is from a job that has just ended
                return Order.STOP
            if self._connection is None:
                self._begin(connection)
            if connection is not self._connection:
                return Order.WAIT
            self._last = report
            if report.receiving and self._state is HostedState.STARTING:
                self._receive(report)
        return Order.STOP if self._stopping.is_set() else Order.RECEIVE

    def on_disconnect(self, connection: object) -> None:
        """Record that a task's connection has ended, or has sent no report for too long."""
        with self._changed:
            if connection is self._connection:
                self._connection = None
                if self._state is HostedState.RECEIVING:
                    self._state = HostedState.STARTING

    def _run_once(self) -> TaskOutcome:
        token = secrets.token_hex(_TOKEN_BYTES)
        with self._changed:
            self._token = token
            self._state = HostedState.STARTING
            self._last = None
            self._receiving_since_s = math.inf
        self._server.expect(token, self.on_report, self.on_disconnect)
        try:
            return self._run_task(token)
        finally:
            self._server.forget(token)
            with self._changed:
                self._connection = None

    def _begin(self, connection: object) -> None:
        self._connection = connection
        self._begun += 1
        if self._last is not None:
            self._error = f"The task on {self._last.host} was lost, and Spark has run it again."
            _LOG.warning("%s: %s", self._what, self._error)

    def _receive(self, report: Report) -> None:
        self._state = HostedState.RECEIVING
        self._receiving_since_s = self._now_s()
        self._changed.notify_all()
        at = report.host if report.address is None else f"{report.host}, at {report.address}"
        _LOG.info("%s receives on %s.", self._what, at)

    def _is_last(self, outcome: TaskOutcome, wait_s: float) -> bool:
        if outcome.error is None:
            return True
        is_stopping = self._stopping.is_set()
        with self._changed:
            self._error = outcome.error
            if not is_stopping:
                self._state = HostedState.FAILED if outcome.is_permanent else HostedState.WAITING
        if is_stopping:
            _LOG.warning("%s failed while it was being stopped: %s", self._what, outcome.error)
        elif outcome.is_permanent:
            _LOG.error("%s is not restarted: %s", self._what, outcome.error)
        else:
            _LOG.warning("%s is restarted in %g s: %s", self._what, wait_s, outcome.error)
        return outcome.is_permanent or is_stopping
