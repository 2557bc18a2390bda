"""Clocks, as arguments of whatever depends on time."""

import time
from collections.abc import Callable
from typing import Protocol

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
