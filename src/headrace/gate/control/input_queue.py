"""A stage's measurements of its input queue: the stage's rate, and the inflow."""

import math
from dataclasses import dataclass
from typing import Final, Self

from headrace.gate.control.pressure import (
    RateLimit,
)

HEADROOM: Final = 0.97
"""The fraction of an estimated rate that a stage requests: at the full rate every batch would take
its whole interval, and chance alone would make the queue grow."""


@dataclass(frozen=True, slots=True)
class InputQueue:
    """State of all incoming channels of a stage together.

    Attributes:
        waiting_bytes: Bytes that are in no batch of the stage yet.
        left_bytes: Bytes that the newest batch left waiting, of the bytes available when it was
            planned: 0 if it took all. If unknown, ``waiting_bytes``.
        arrived_bytes: Bytes that have ever come, counted from any one beginning.
        takes_bytes_per_s: The rate that the stage would admit of a full queue: `takes_per_s` times
            the size of a record. None if unknown.
        is_running: Whether a batch of the stage is running. ``takes_bytes_per_s`` then accounts for
            the batch, and the stage does not count as standing still.
    """

    waiting_bytes: int
    left_bytes: int
    arrived_bytes: int
    takes_bytes_per_s: float | None = None
    is_running: bool = False


def takes_per_s(
    rate_per_s: float | None,
    rate_limit: RateLimit | None,
    interval_ms: int,
    batch_records: int,
    running_ms: int,
) -> float | None:
    """Return the rate that a stage would admit of a full queue (records/s), or an upper bound.

    With r its gate's rate, b its rate limit, i the interval, and a batch of N records that has been
    running for T::

        takes = min(b, HEADROOM * min(r, N / T))    where T > i
        takes = min(b, HEADROOM * r)                else

    Spark reports a batch only when it ends, and a stage that has become slow ends it late. Until
    then N / T falls to the speed of the batch, and never below.

    Args:
        rate_per_s: The gate's rate, of its estimator and its caps (records/s); None for none.
        rate_limit: The gate's limit under pressure from the stages after it; None for none.
        interval_ms: The time that a batch should take (ms).
        batch_records: Number of records in the running batch.
        running_ms: Time for which the batch has been running (ms); 0 without a running batch.

    Returns:
        None without a gate's rate and without a running batch that bounds it.
    """
    bounds = [] if rate_per_s is None else [rate_per_s]
    if running_ms > interval_ms:
        bounds.append(batch_records * 1000 / running_ms)
    if not bounds:
        return None
    takes = HEADROOM * min(bounds)
    return takes if rate_limit is None else rate_limit.applied_to(takes)


@dataclass(slots=True)
class QueueInterval:
    """Time for which a condition must hold, with the queue's state at its start and since."""

    start_ms: int
    length_ms: int
    waiting_bytes: int
    arrived_bytes: int
    has_come: bool
    looks: int = 0
    takes_in_all: float = 0.0
    least_takes_per_s: float = math.inf

    @classmethod
    def begun(
        cls, time_ms: int, length_ms: int, queue: InputQueue, *, has_come: bool = False
    ) -> Self:
        """Return an interval that begins with this look."""
        return cls(time_ms, length_ms, queue.waiting_bytes, queue.arrived_bytes, has_come)

    def look(self, queue: InputQueue) -> None:
        """Record the inflow and the stage's rate."""
        self.has_come = self.has_come or queue.arrived_bytes != self.arrived_bytes
        if queue.takes_bytes_per_s is not None:
            self.looks += 1
            self.takes_in_all += queue.takes_bytes_per_s
            self.least_takes_per_s = min(self.least_takes_per_s, queue.takes_bytes_per_s)

    def has_taken(self, queue: InputQueue) -> bool:
        """Whether the stage has taken anything since the interval began."""
        grown = queue.waiting_bytes - self.waiting_bytes
        return grown < queue.arrived_bytes - self.arrived_bytes

    def came_per_s(self, time_ms: int, queue: InputQueue) -> float | None:
        """Return the approximate inflow since the start (bytes/s); None at the start itself."""
        lasted_ms = time_ms - self.start_ms
        return (queue.arrived_bytes - self.arrived_bytes) * 1000 / lasted_ms if lasted_ms else None

    def is_over(self, time_ms: int) -> bool:
        """Whether the condition has held for long enough."""
        return time_ms - self.start_ms >= self.length_ms

    @property
    def takes_per_s(self) -> float | None:
        """``t``, the mean of all looks (bytes/s); None if unknown."""
        return self.takes_in_all / self.looks if self.looks else None
