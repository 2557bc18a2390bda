"""Measurements of a stage's input queue: its size, its inflow, and the rate of the stage.

The input queue is the data that waits for the stage in the Kafka topics from the stages before it.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

from headrace.gate.control.pressure import (
    RateLimit,
)

HEADROOM: Final = 0.97
"""A stage requests this fraction of its estimated rate from the stage before it. At the full rate,
every batch would take its whole interval, and random delays would make the queue grow."""


@dataclass(frozen=True, slots=True)
class InputQueue:
    """The state of a stage's input queue at one moment, over all topics of the queue.

    Attributes:
        waiting_bytes: Bytes in the queue that no batch of the stage has taken yet.
        left_bytes: Bytes that were available when the newest batch was planned, and that the batch
            did not take. If unknown, the same as ``waiting_bytes``.
        arrived_bytes: Total bytes that have arrived, counted from any fixed start.
        takes_bytes_per_s: The rate at which the stage would take records from a full queue:
            `takes_per_s` times the size of a record (bytes/s). None if unknown.
        is_running: Whether a batch of the stage is running. If so, ``takes_bytes_per_s`` takes the
            batch's duration so far into account, and the stage does not count as idle.
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
    """Return the rate at which a stage would take records from a full queue (records/s).

    With the gate's rate r, the stage's rate limit b, the interval i, and a batch of N records that
    has been running for the time T::

        takes = min(b, HEADROOM * min(r, N / T))    where T > i
        takes = min(b, HEADROOM * r)                else

    Spark reports a batch only at its end, so a slow batch is reported late. Until then, N / T is an
    upper bound of the stage's speed, and falls toward the speed as T grows.

    Args:
        rate_per_s: The gate's rate, from its estimator and its caps (records/s); None if unknown.
        rate_limit: The limit that the stages after this stage set; None for no limit.
        interval_ms: The time that a batch should take (ms).
        batch_records: Number of records in the running batch.
        running_ms: Time for which the batch has been running (ms); 0 without a running batch.

    Returns:
        None if the gate's rate is unknown and no batch has been running for longer than an
        interval.
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
    """The time for which a condition of the queue must hold, with measurements during this time.

    Attributes:
        start_ms: The start of the interval (ms).
        length_ms: The time for which the condition must hold (ms).
        waiting_bytes: `InputQueue.waiting_bytes` at the start.
        arrived_bytes: `InputQueue.arrived_bytes` at the start.
        has_come: Whether any bytes have arrived since the start.
        looks: Number of calls of `look` with a known rate of the stage.
        takes_in_all: Sum of the stage's rates over these calls (bytes/s).
        least_takes_per_s: Lowest of these rates (bytes/s).
    """

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
        """Return an interval that begins at ``time_ms`` with this state of the queue."""
        return cls(time_ms, length_ms, queue.waiting_bytes, queue.arrived_bytes, has_come)

    def look(self, queue: InputQueue) -> None:
        """Update the measurements with a new state of the queue."""
        self.has_come = self.has_come or queue.arrived_bytes != self.arrived_bytes
        if queue.takes_bytes_per_s is not None:
            self.looks += 1
            self.takes_in_all += queue.takes_bytes_per_s
            self.least_takes_per_s = min(self.least_takes_per_s, queue.takes_bytes_per_s)

    def has_taken(self, queue: InputQueue) -> bool:
        """Whether the stage has taken any bytes from the queue since the start of the interval."""
        grown = queue.waiting_bytes - self.waiting_bytes
        return grown < queue.arrived_bytes - self.arrived_bytes

    def came_per_s(self, time_ms: int, queue: InputQueue) -> float | None:
        """Return the mean inflow since the start of the interval (bytes/s); None at the start."""
        lasted_ms = time_ms - self.start_ms
        return (queue.arrived_bytes - self.arrived_bytes) * 1000 / lasted_ms if lasted_ms else None

    def is_over(self, time_ms: int) -> bool:
        """Whether the condition has held for ``length_ms``."""
        return time_ms - self.start_ms >= self.length_ms

    @property
    def takes_per_s(self) -> float | None:
        """The mean rate of the stage over the interval (bytes/s); None if unknown."""
        return self.takes_in_all / self.looks if self.looks else None
