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
"""Function that returns the time (ms since the epoch)."""


def wall_clock_ms() -> int:
    """Return the machine's time (ms since the epoch)."""
    return time.time_ns() // 1_000_000


class Clock(Protocol):
    """A monotonic clock, such as the module ``time``."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed, arbitrary moment."""

    def sleep(self, seconds: float, /) -> None:
        """Wait for ``seconds``."""


LEASE_MS: Final = 30_000
"""Length of a batch's lease (ms)."""

GATE_LEASE_MS: Final = 30_000
"""Length of a gate's lease (ms). A lease outlasts a stall of a planner and a failover of the
ledger's database. After the loss of a machine, the gate is free within this time."""

LONGEST_LEASE_MS: Final = 60_000
"""Longest valid lease (ms). A lease that ends later was written before the database's clock was set
back. Such a lease counts as expired; otherwise its batch would wait for as long as the clock was
wrong. Leases in use are half as long, so setting a clock back by less than 30 s takes no batch from
a live owner."""


def is_in_force(lease_until_ms: int, now_ms: int) -> bool:
    """Whether a lease is in force at a time by the database's clock (ms since the epoch).

    >>> [is_in_force(until_ms, now_ms=1_000) for until_ms in (1_000, 1_001, 61_000, 61_001)]
    [False, True, True, False]
    """
    return now_ms < lease_until_ms <= now_ms + LONGEST_LEASE_MS


class Cancellation(NamedTuple):
    """Condition that ends a thread's wait before its timeout, with the reason for the error."""

    is_requested: Callable[[], bool]
    reason: str


_CURRENT: Final[ContextVar[Cancellation | None]] = ContextVar("_CURRENT", default=None)


@contextmanager
def cancel_when(is_requested: Callable[[], bool], reason: str) -> Iterator[None]:
    """Make this thread stop waiting for a ledger when ``is_requested`` returns True.

    Applies to the ``with`` block. ``is_requested`` is called between two attempts, and must return
    quickly. The wait then ends with the error of a timeout and ``reason``, such as ``the query was
    stopped``. The first attempt is always made, and a running attempt is not interrupted.
    """
    before = _CURRENT.set(Cancellation(is_requested, reason))
    try:
        yield
    finally:
        _CURRENT.reset(before)


def cancellation() -> Cancellation | None:
    """Return the cancellation that applies to this thread; None without one."""
    return _CURRENT.get()


_RENEWALS: Final = 6
"""Renewals per length of a lease, so that a few may fail."""


class LeaseRenewal:
    """Thread that renews leases until `stop`, and logs failed renewals.

    ``renew`` renews the lease with a name. If ``renew`` returns False, the lease has another owner
    and is not renewed again. ``described`` describes a lease in the log, with ``{}`` for its name.
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
        """Add leases to renew, by name."""
        with self._changing:
            self._kept.update(names)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, wait: bool) -> None:
        """Stop the thread, also while it waits for a ledger; with ``wait``, wait for its end."""
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
"""Maximum number of open warnings, because forged messages could create any number."""


class WarnOnce:
    """Logger of one warning for each problem until the problem is cleared. Thread-safe."""

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
        """Log a warning, unless the problem ``about`` has an open warning."""
        with self._lock:
            if about in self._since_s or len(self._since_s) > MAX_WARNINGS:
                return
            self._since_s[about] = self._clock()
            is_last = len(self._since_s) > MAX_WARNINGS
        self._log.warning(message, *values, extra=extra)
        if is_last:
            self._log.warning("Further messages of this kind are not logged.")

    def clear(self, about: str = "") -> float | None:
        """Close the warning about a problem; return its age (s), or None without a warning."""
        with self._lock:
            since_s = self._since_s.pop(about, None)
        return None if since_s is None else self._clock() - since_s
