"""Clocks, leases and their renewal, cancellation of waits, and warnings that are logged once."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from headrace.errors import HeadraceError

WallClock = Callable[[], int]
"""Type of a function that returns the current time (ms since the epoch)."""


def wall_clock_ms() -> int:
    """Return the current time by this machine's clock (ms since the epoch)."""
    return time.time_ns() // 1_000_000


class Clock(Protocol):
    """A monotonic clock that can also wait. The module ``time`` implements it."""

    def monotonic(self) -> float:
        """Return the time since a fixed, arbitrary moment (s)."""

    def sleep(self, seconds: float, /) -> None:
        """Block the calling thread for a number of seconds."""


LEASE_MS: Final = 30_000
"""Time for which a batch belongs to its owner after each renewal of the lease (ms)."""

GATE_LEASE_MS: Final = 30_000
"""Time for which a gate belongs to its query after each renewal of the lease (ms). The lease is
longer than a stall of the process that plans the batches, and than a failover of the ledger's
database. If the query's machine is lost, another query can use the gate after this time."""

LONGEST_LEASE_MS: Final = 60_000
"""Longest valid lease (ms). A lease that still has more time left was written before the database's
clock was set back, and counts as expired. Otherwise the lease's batch would wait for as long as the
clock was set back. Real leases are half as long as this limit. So if a clock is set back by less
than 30 s, a live owner loses no batch."""


def is_in_force(lease_until_ms: int, now_ms: int) -> bool:
    """Whether a lease is still valid at ``now_ms``.

    Both times are ms since the epoch, by the database's clock. A lease that ends more than
    `LONGEST_LEASE_MS` after ``now_ms`` counts as expired.

    >>> [is_in_force(until_ms, now_ms=1_000) for until_ms in (1_000, 1_001, 61_000, 61_001)]
    [False, True, True, False]
    """
    return now_ms < lease_until_ms <= now_ms + LONGEST_LEASE_MS


class Cancellation(NamedTuple):
    """A condition that ends a wait before its timeout.

    Attributes:
        is_requested: Function that returns whether the wait must end.
        reason: The reason for the error message, such as ``the query was stopped``.
    """

    is_requested: Callable[[], bool]
    reason: str


_CURRENT: Final[ContextVar[Cancellation | None]] = ContextVar("_CURRENT", default=None)


@contextmanager
def cancel_when(is_requested: Callable[[], bool], reason: str) -> Iterator[None]:
    """End waits for an unreachable ledger early, within the ``with`` block in this thread.

    The first attempt to reach the ledger is always made, and an attempt is never interrupted.

    Args:
        is_requested: Function that returns whether to stop waiting. It is called between two
            attempts, and must return quickly.
        reason: The reason for the error message, such as ``the query was stopped``. The wait ends
            with the same exception as a timeout.
    """
    before = _CURRENT.set(Cancellation(is_requested, reason))
    try:
        yield
    finally:
        _CURRENT.reset(before)


def cancellation() -> Cancellation | None:
    """Return the condition of this thread's enclosing `cancel_when` block; None outside a block."""
    return _CURRENT.get()


_RENEWALS: Final = 6
"""Number of renewals within the length of a lease. If some of them fail, the lease stays valid."""


class LeaseRenewal:
    """A thread that renews leases until `stop` is called, and logs failed renewals.

    Args:
        thread_name: The name of the thread.
        renew: Function that renews the lease with a name. The function returns False if the lease
            has another owner; the thread then stops renewing this lease.
        lease_ms: Length of the leases (ms). Each lease is renewed six times in this time.
        described: Description of a lease in the log, with ``{}`` for its name.
        log: The logger of failed renewals.
    """

    def __init__(
        self,
        thread_name: str,
        renew: Callable[[str], bool],
        lease_ms: int,
        described: str,
        log: logging.Logger,
    ) -> None:
        self.lease_ms: Final = lease_ms
        self._renew = renew
        self._described = described
        self._log = log
        self._kept: set[str] = set()
        self._changing = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def keep(self, *names: str) -> None:
        """Add the leases with these names to the leases that the thread renews."""
        with self._changing:
            self._kept.update(names)

    def start(self) -> None:
        """Start the thread that renews the leases."""
        self._thread.start()

    def stop(self, *, wait: bool) -> None:
        """Stop the renewals, and end a wait of the thread for an unreachable ledger.

        With ``wait``, return only after the thread has ended.
        """
        self._done.set()
        if wait:
            self._thread.join()

    def _run(self) -> None:
        with cancel_when(self._done.is_set, "it was not needed any more"):
            while not self._done.wait(self.lease_ms / _RENEWALS / 1000):
                self._renew_all()

    def _renew_all(self) -> None:
        with self._changing:
            kept = list(self._kept)
        for name in kept:
            try:
                if not self._renew(name):
                    with self._changing:
                        self._kept.remove(name)
            except HeadraceError as error:
                if self._done.is_set():
                    return
                lease = self._described.format(name)
                self._log.warning("The lease of %s was not renewed: %s", lease, error)


MAX_WARNINGS: Final = 100
"""Largest number of problems that `WarnOnce` remembers. Without this limit, forged messages could
fill the memory."""


class WarnOnce:
    """Logs one warning for each problem, and a further warning only after `clear`.

    Several threads may use an instance at once.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s: dict[str, float] = {}

    def warn(
        self,
        message: str,
        *values: object,
        about: str = "",
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a warning about a problem, if it was not logged since the problem was last cleared.

        Args:
            message: The message, with ``%`` placeholders.
            values: The values of the placeholders.
            about: The name of the problem. Default: empty, for an instance with a single problem.
            extra: Additional attributes of the log record.
        """
        with self._lock:
            if about in self._since_s or len(self._since_s) > MAX_WARNINGS:
                return
            self._since_s[about] = self._clock()
            is_last = len(self._since_s) > MAX_WARNINGS
        self._log.warning(message, *values, extra=extra)
        if is_last:
            self._log.warning(
                "Further warnings of this kind are not logged until earlier problems are solved."
            )

    def clear(self, about: str = "") -> float | None:
        """Mark a problem as solved, so that `warn` logs it again.

        Returns:
            The time since the warning was logged (s); None if no warning was logged.
        """
        with self._lock:
            since_s = self._since_s.pop(about, None)
        return None if since_s is None else self._clock() - since_s
