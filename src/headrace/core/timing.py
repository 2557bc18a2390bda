"""Clocks, as arguments of whatever depends on time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

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
