"""Clocks, leases, and what ends a wait or is logged until it is over."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from headrace.errors import HeadraceError

WallClock = Callable[[], int]
"""Returns the time, in ms since the epoch."""


def wall_clock_ms() -> int:
    """The machine's time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Clock(Protocol):
    """A monotonic clock, such as the module ``time``."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Return so many seconds later."""


LEASE_MS: Final = 30_000
"""Lease of a batch (ms), unless it is renewed."""

GATE_LEASE_MS: Final = 30_000
"""Lease of a gate (ms), unless it is renewed: longer than a stall of a planner or a failover of the
ledger's database, and short enough to wait for after a machine was lost."""

LONGEST_LEASE_MS: Final = 60_000
"""The longest lease (ms). One that ends later than this from now was written before the database's
clock was set back: it has run out, lest its batch wait for as long as the clock was wrong. Twice as
long as the leases in use, so that a clock that is set back by less than half a minute takes no
batch from an owner that is alive."""


def is_in_force(lease_until_ms: int, now_ms: int) -> bool:
    """Whether a lease is in force at a time of the database's clock (ms since the epoch).

    >>> [is_in_force(until_ms, now_ms=1_000) for until_ms in (1_000, 1_001, 61_000, 61_001)]
    [False, True, True, False]
    """
    return now_ms < lease_until_ms <= now_ms + LONGEST_LEASE_MS


class Cancellation(NamedTuple):
    """Condition that ends the waiting of a thread before its timeout does."""

    is_requested: Callable[[], bool]
    reason: str


_CURRENT: Final[ContextVar[Cancellation | None]] = ContextVar("_CURRENT", default=None)


@contextmanager
def cancel_when(is_requested: Callable[[], bool], reason: str) -> Iterator[None]:
    """Within, this thread waits for a ledger only until ``is_requested`` returns True.

    It is asked between two tries, any number of times, and is to return soon: the error is then
    the one of a timeout, with this reason, such as ``the query was stopped``. One try is made in
    any case, and one may be going on.
    """
    before = _CURRENT.set(Cancellation(is_requested, reason))
    try:
        yield
    finally:
        _CURRENT.reset(before)


def cancellation() -> Cancellation | None:
    """Return the cancellation of this thread's waiting; None if there is none."""
    return _CURRENT.get()


_RENEWALS: Final = 6
"""Number of renewals of a lease within its own length, so that a few may be missed."""


class LeaseRenewal:
    """Thread that renews leases until `stop`, and logs a renewal that fails.

    ``renew`` renews the lease of a name; one for which it returns False is another's, and is
    renewed no more. ``described`` names a lease in the log, with ``{}`` for its name.
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
        """Renew these too."""
        with self._changing:
            self._kept.update(names)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, wait: bool) -> None:
        """End the thread, and ``wait`` for its end; no renewal goes on waiting for a ledger."""
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
                what = self._described.format(name)
                self._log.warning("The lease of %s was not renewed: %s", what, error)


MAX_WARNINGS: Final = 100
"""Most things that are warned of while none is over: forgers could make up any number."""


class WarnOnce:
    """Warns once of each thing, until it is over. Its methods can be called from any thread."""

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
        """Warn as a logger does, unless that was done already about the same thing."""
        with self._lock:
            if about in self._since_s or len(self._since_s) > MAX_WARNINGS:
                return
            self._since_s[about] = self._clock()
            is_last = len(self._since_s) > MAX_WARNINGS
        self._log.warning(message, *values, extra=extra)
        if is_last:
            self._log.warning("There is more of the kind, which is not logged.")

    def clear(self, about: str = "") -> float | None:
        """Warn again the next time; returns the time since the warning (s), None without one."""
        with self._lock:
            since_s = self._since_s.pop(about, None)
        return None if since_s is None else self._clock() - since_s
