"""What a stage knows of its own queue when it looks at it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.control.hop_emission import RateLimit


class Upstream(StrEnum):
    """How a stage before fares, as it shows it. The values are what users are shown."""

    RUNNING = "running"
    """It runs, and only this stage holds it back, if any does."""
    THROTTLED = "throttled by another"
    """Another stage after it leaves it less than this one does."""
    GONE = "not running"
    """It has ended, or nothing is heard of it."""


HEADROOM: Final = 0.97
"""The part of an estimated rate that a stage asks for: with all of it, every batch would take its
whole interval, and chance alone would make the queue grow."""


@dataclass(frozen=True, slots=True)
class InputQueue:
    """What is on all incoming channels of a stage together.

    Attributes:
        waiting_bytes: What no batch of the stage has been given yet.
        left_bytes: What its newest batch left waiting, of that which was there when the batch was
            planned: 0 where it took all. Where that is not known, ``waiting_bytes``.
        arrived_bytes: What has ever come, counted from any one beginning.
        takes_bytes_per_s: The rate that the stage would admit if there were enough: `takes_per_s`
            times the size of a record. None where it is not known.
        is_running: Whether a batch of the stage is running: ``takes_bytes_per_s`` then has what
            that says, and that nothing else was taken meanwhile says no more.
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
    """What a stage would admit if there were enough (records/s), or an upper rate_limit of it.

    With r its gate's rate, b its rate_limit, i the interval, and a batch of N records that has been
    running for T::

        takes = min(b, HEADROOM * min(r, N / T))    where T > i
        takes = min(b, HEADROOM * r)                else

    A batch is reported only when it ends, and a stage that has become slow ends it late; but until
    then it is known that its records took at least T. N / T falls to what the batch has really been
    processed with, and never below.

    Args:
        rate_per_s: The gate's rate, of its estimator and its caps (records/s); None while there is
            none.
        rate_limit: Its rate_limit under the pressure from the stages after it, if it has one.
        interval_ms: The time that a batch should take.
        batch_records: The records of the batch that is running.
        running_ms: How long it has been running; 0 if none is.

    Returns:
        None where neither the gate's rate nor a batch says anything.
    """
    known = [] if rate_per_s is None else [rate_per_s]
    if running_ms > interval_ms:
        known.append(batch_records * 1000 / running_ms)
    if not known:
        return None
    takes = HEADROOM * min(known)
    return takes if rate_limit is None else rate_limit.applied_to(takes)
