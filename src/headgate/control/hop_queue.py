"""What a stage knows of its own queue when it looks at it."""

from dataclasses import dataclass
from typing import Final

from headgate.control.hop_emission import Bound

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
    """

    waiting_bytes: int
    left_bytes: int
    arrived_bytes: int
    takes_bytes_per_s: float | None = None


def takes_per_s(
    rate_per_s: float, bound: Bound | None, interval_ms: int, batch_records: int, running_ms: int
) -> float:
    """The rate that a stage would admit if there were enough (records/s), for `InputQueue`.

    It is the least of three: its bound under the pressure from the stages after it; `HEADROOM` of
    its gate's rate; and the same of what a batch can have that takes longer than its interval: it
    is reported only when it ends, and a stage that has become slow ends it late, but until then it
    is known that its records took at least the time for which it has been running.

    Args:
        rate_per_s: The gate's rate, of its estimator and its caps (records/s).
        bound: Its bound, if it has one.
        interval_ms: The time that a batch should take.
        batch_records: The records of the batch that is running.
        running_ms: How long it has been running; 0 if none is.
    """
    if running_ms > interval_ms:
        rate_per_s = min(rate_per_s, batch_records * 1000 / running_ms)
    takes = HEADROOM * rate_per_s
    return takes if bound is None else bound.applied_to(takes)
