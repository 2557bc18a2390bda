"""The interval of a gate that is ``auto``, and a warning for an interval that is too short.

A batch has a fixed cost of a seconds. The fraction w of the interval should be work::

    i = a / (1 - w),    at most half of the longest delay

because a record may wait one interval until its batch begins, and another until the batch ends. The
shortest such interval is the best one: it has the least delay.

A trigger's interval is fixed when a query starts. So the trigger of such a gate fires every 50 ms,
and the planner answers "nothing new" without a lookup until the interval in the ledger has passed.
"""

import math
from dataclasses import dataclass
from typing import Final

from headrace.core.options import require_number, require_whole
from headrace.errors import OptionError
from headrace.gate.control.batch_cost import MOST_FIXED, BatchCost, SourceCost

AUTO: Final = "auto"
"""Option value for an automatic interval."""

SHORTEST_INTERVAL_MS: Final = 100
"""Shortest ``auto`` interval: a batch of Spark takes about as long without any work."""

FIRST_INTERVAL_MS: Final = 1000
"""Length of an ``auto`` interval before the fixed cost is known."""

_OFF: Final = 1.25
"""Factor by which an interval must differ from the proposed one before it is changed."""

_BATCHES: Final = 5
"""Number of consecutive batches that must propose another interval before it is changed."""

_LONGER: Final = 0.25
"""Fraction of a proposed longer interval that the fixed cost takes."""


@dataclass(frozen=True, slots=True)
class IntervalLaw:
    """Constraints on an ``auto`` interval.

    Attributes:
        max_delay_ms: Longest wait of a record until its batch has ended, if the job keeps up (ms);
            twice `SHORTEST_INTERVAL_MS` or more. Too short: the fixed cost of a batch uses up the
            time, and less can be processed.
        work_ratio: The fraction of the time that should be work: above 0, below 1. Default: 0.8.
            More: longer batches. Less: shorter ones, with a larger fraction of fixed cost.

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
                "headrace.workRatio is 1 (a part); it must be below 1, for no interval is free of a"
                " batch's fixed cost."
            )

    @property
    def first_ms(self) -> int:
        """The interval before any cost is known (ms)."""
        return min(FIRST_INTERVAL_MS, self.max_delay_ms // 2)

    def best_ms(self, fixed_s: float) -> int:
        """Return the interval for a fixed cost (ms), with two significant digits."""
        wanted_ms = fixed_s * 1000 / (1 - self.work_ratio)
        most_ms = self.max_delay_ms // 2
        bounded_ms = min(max(wanted_ms, SHORTEST_INTERVAL_MS), most_ms)
        digit = int(10 ** max(math.floor(math.log10(bounded_ms)) - 1, 0))
        return min(round(bounded_ms / digit) * digit, most_ms)


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """A new interval (ms), and a sentence with the reason."""

    interval_ms: int
    why: str


class AutoInterval:
    """Changes an interval rarely: after five batches that ask for a change of a quarter or more."""

    def __init__(self, law: IntervalLaw) -> None:
        self._law = law
        self._off = 0

    def after_batch(self, interval_ms: int, cost: BatchCost | None) -> IntervalChange | None:
        """Return the change after a batch that taught the cost; None to keep the interval."""
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
            f"; headrace.maxDelay of {self._law.max_delay_ms / 1000:g} s allows no longer one"
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
    """Return a sentence if a fixed cost is near the interval, or beyond it; else None.

    The sentence compares the records of both intervals. An ``auto`` interval is only called too
    short if its law allows no longer one.

    Args:
        interval_ms: The interval in force (ms).
        cost: The known cost of a batch; if little is known, the result is None.
        least_work: The least fraction of a batch's time that is work, by the law in force.
        auto: The constraints on an ``auto`` interval; None for a fixed one.
    """
    interval_s, fixed_s = interval_ms / 1000, cost.fixed_s
    if fixed_s < MOST_FIXED * interval_s or math.sqrt(cost.fixed_variance) > 0.1 * fixed_s:
        return None
    longer_s = rounded_up(fixed_s / _LONGER)
    taken = max(1 - fixed_s / interval_s, least_work)
    times = (1 - fixed_s / longer_s) / taken if taken > 0 else math.inf
    much = f"{times:.2g} times as much" if times < 50 else "more than 50 times as much"
    costs = f"A batch costs {fixed_s:.2g} s before its first record"
    if auto is None:
        return (
            f"{costs}; the interval of {interval_s:g} s is too short, {longer_s:g} s carries"
            f" {much}."
        )
    if interval_ms < auto.max_delay_ms // 2:
        return None
    return (
        f"{costs}, and headrace.maxDelay of {auto.max_delay_ms / 1000:g} s allows no longer"
        f" interval than {interval_s:g} s; {2 * longer_s:g} s carries {much}."
    )


def rounded_up(seconds: float) -> float:
    """Return the next number of the form 1, 2, 3 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(seconds))
    near = seconds / power
    return next(step for step in (1, 2, 3, 5, 10) if near <= step * 1.0001) * power
