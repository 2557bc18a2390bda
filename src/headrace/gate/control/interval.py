"""The choice of an ``auto`` interval, and the warning about a too short interval.

A batch has a fixed cost of a seconds, and the rest of its time is work on records. The fraction w
of the interval should be work. So the interval is::

    i = a / (1 - w),    at most half of the longest delay

A record may wait one interval until its batch begins, and another interval until the batch ends; so
an interval is at most half of the longest delay. A longer interval would only add delay.

A trigger's interval cannot change while a query runs. So the trigger of a gate with an ``auto``
interval fires every 50 ms. Until the gate's interval has passed, the planner answers "nothing new"
without looking up offsets.
"""

import math
from dataclasses import dataclass
from typing import Final

from headrace.core.options import require_number, require_whole
from headrace.errors import OptionError
from headrace.gate.control.batch_cost import MOST_FIXED, BatchCost, SourceCost

AUTO: Final = "auto"
"""The value of ``headrace.interval`` for an automatic interval."""

SHORTEST_INTERVAL_MS: Final = 100
"""Shortest ``auto`` interval (ms): about the time of a Spark batch without any work."""

FIRST_INTERVAL_MS: Final = 1000
"""Length of an ``auto`` interval while the fixed cost is unknown (ms)."""

_OFF: Final = 1.25
"""The interval changes only if the best interval is longer or shorter by at least this factor."""

_BATCHES: Final = 5
"""The interval changes after this many consecutive batches whose cost calls for a change."""

_LONGER: Final = 0.25
"""The fixed cost takes this fraction of the longer interval that a warning proposes."""


@dataclass(frozen=True, slots=True)
class IntervalLaw:
    """Constraints on an ``auto`` interval.

    Attributes:
        max_delay_ms: Longest time from a record's arrival to the end of its batch, while the job
            keeps up (ms); twice `SHORTEST_INTERVAL_MS` or more. Default: 10 000. Too short: fixed
            costs use up the time, and fewer records can be processed.
        work_ratio: The fraction of a batch's time that should be work on records; above 0 and below
            1. Default: 0.8. Higher: longer batches. Lower: shorter batches, with a larger fraction
            of fixed cost.

    Raises:
        OptionError: A number is out of its range.
    """

    max_delay_ms: int = 10_000
    work_ratio: float = 0.8

    def __post_init__(self) -> None:
        require_whole("headrace.maxDelay", self.max_delay_ms, 2 * SHORTEST_INTERVAL_MS, unit="ms")
        require_number("headrace.workRatio", self.work_ratio, "(a part)", most=1, above=True)
        if self.work_ratio == 1:
            raise OptionError(
                "headrace.workRatio is 1; it must be below 1, because the fixed cost of a batch"
                " takes some of every interval."
            )

    @property
    def first_ms(self) -> int:
        """The interval while the fixed cost is unknown (ms)."""
        return min(FIRST_INTERVAL_MS, self.max_delay_ms // 2)

    def best_ms(self, fixed_s: float) -> int:
        """Return the best interval for a fixed cost (ms), rounded to two significant digits."""
        wanted_ms = fixed_s * 1000 / (1 - self.work_ratio)
        most_ms = self.max_delay_ms // 2
        bounded_ms = min(max(wanted_ms, SHORTEST_INTERVAL_MS), most_ms)
        digit = int(10 ** max(math.floor(math.log10(bounded_ms)) - 1, 0))
        return min(round(bounded_ms / digit) * digit, most_ms)


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """A new interval (ms), and the reason for the change in words."""

    interval_ms: int
    why: str


class AutoInterval:
    """The ``auto`` interval of a gate, which changes only rarely.

    The interval changes after five consecutive batches whose fixed cost asks for an interval that
    is at least a quarter longer, or shorter by the same factor.
    """

    def __init__(self, law: IntervalLaw) -> None:
        self._law = law
        self._off = 0

    def after_batch(self, interval_ms: int, cost: BatchCost | None) -> IntervalChange | None:
        """Return the change of the interval that is due after a batch; None to keep the interval.

        ``interval_ms`` is the present interval (ms), and ``cost`` is the cost learned so far.
        """
        if cost is None or not cost.is_sure_of_fixed(interval_ms / 1000):
            return None
        best_ms = self._law.best_ms(cost.fixed_s)
        is_off = not 1 / _OFF < best_ms / interval_ms < _OFF
        self._off = self._off + 1 if is_off else 0
        if self._off < _BATCHES:
            return None
        self._off = 0
        return IntervalChange(best_ms, self._why(interval_ms, best_ms, cost.fixed_s))

    def _why(self, old_ms: int, new_ms: int, fixed_s: float) -> str:
        work = max(1 - fixed_s * 1000 / new_ms, 0.0)
        limited = (
            f"; headrace.maxDelay of {self._law.max_delay_ms / 1000:g} s allows no longer interval"
            if work < self._law.work_ratio - 0.02 and new_ms == self._law.max_delay_ms // 2
            else ""
        )
        return (
            f"a batch costs {fixed_s:.2g} s before its first record, so the interval goes from"
            f" {old_ms / 1000:g} s to {new_ms / 1000:g} s, of which {work:.0%} is work{limited}"
        )


def too_short(
    interval_ms: int,
    cost: SourceCost,
    *,
    least_work: float = 0.0,
    auto: IntervalLaw | None = None,
) -> str | None:
    """Return a warning if the fixed cost of a batch takes most of the interval; else None.

    The warning proposes a longer interval, and says by what factor the job can then process more
    records.

    Args:
        interval_ms: The interval in force (ms).
        cost: The learned cost of a batch. If its fixed cost is uncertain, there is no warning.
        least_work: The rate law leaves at least this fraction of a batch's time for records.
        auto: Constraints on an ``auto`` interval; None for a fixed interval. An ``auto`` interval
            that can still become longer causes no warning.
    """
    interval_s, fixed_s = interval_ms / 1000, cost.fixed_s
    if fixed_s < MOST_FIXED * interval_s or math.sqrt(cost.fixed_variance) > 0.1 * fixed_s:
        return None
    longer_s = rounded_up(fixed_s / _LONGER)
    taken = max(1 - fixed_s / interval_s, least_work)
    times = (1 - fixed_s / longer_s) / taken if taken > 0 else math.inf
    much = f"{times:.2g} times" if times < 50 else "more than 50 times"
    costs = f"A batch costs {fixed_s:.2g} s before its first record"
    if auto is None:
        return (
            f"{costs}; the interval of {interval_s:g} s is too short, and an interval of"
            f" {longer_s:g} s carries {much} as many records."
        )
    if interval_ms < auto.max_delay_ms // 2:
        return None
    return (
        f"{costs}, and headrace.maxDelay of {auto.max_delay_ms / 1000:g} s allows no longer"
        f" interval than {interval_s:g} s; a headrace.maxDelay of {2 * longer_s:g} s carries"
        f" {much} as many records."
    )


def rounded_up(seconds: float) -> float:
    """Return the least number that is not below ``seconds`` and is 1, 2, 3 or 5 times 10^k."""
    power = 10.0 ** math.floor(math.log10(seconds))
    near = seconds / power
    return next(step for step in (1, 2, 3, 5, 10) if near <= step * 1.0001) * power
