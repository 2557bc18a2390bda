"""The interval of a gate that is ``auto``, and a warning for one that is too short.

A batch has a fixed cost of a seconds. The wanted part w of the time is work in the interval::

    i = a / (1 - w),    at most half of the longest delay

for a record may wait one interval until its batch begins, and another until it ends. The shortest
such interval is the best one: it has the least delay.
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
"""No ``auto`` interval is shorter: a batch of Spark's takes about as long without any work."""

FIRST_INTERVAL_MS: Final = 1000
"""Length of an ``auto`` interval until a fixed cost is known."""

_OFF: Final = 1.25
"""By which factor an interval must be off to be changed."""

_BATCHES: Final = 5
"""For how many batches in a row."""

_LONGER: Final = 0.25
"""Part of a proposed longer interval that the fixed cost takes."""


@dataclass(frozen=True, slots=True)
class IntervalLaw:
    """Constraints on an ``auto`` interval.

    Attributes:
        max_delay_ms: Longest wait of a record until its batch has ended, if the job keeps up (ms);
            twice `SHORTEST_INTERVAL_MS` or more. Too short: the fixed cost of a batch eats the
            time, and less can be processed.
        work_ratio: The part of the time that should be work: above 0, below 1. Default: 0.8. More:
            longer batches. Less: shorter ones, of which more is fixed cost.

    Raises:
        OptionError: One is out of its range.
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
        """The interval until anything is known (ms)."""
        return min(FIRST_INTERVAL_MS, self.max_delay_ms // 2)

    def best_ms(self, fixed_s: float) -> int:
        """The interval for a fixed cost (ms), with two significant digits."""
        wanted_ms = fixed_s * 1000 / (1 - self.work_ratio)
        most_ms = self.max_delay_ms // 2
        bounded_ms = min(max(wanted_ms, SHORTEST_INTERVAL_MS), most_ms)
        digit = int(10 ** max(math.floor(math.log10(bounded_ms)) - 1, 0))
        return min(round(bounded_ms / digit) * digit, most_ms)


@dataclass(frozen=True, slots=True)
class IntervalChange:
    """A new interval (ms), and a sentence that says why."""

    interval_ms: int
    why: str


class AutoInterval:
    """Changes an interval rarely: after five batches that ask for another one, by a quarter."""

    def __init__(self, law: IntervalLaw) -> None:
        self._law = law
        self._off = 0

    def after_batch(self, interval_ms: int, cost: BatchCost | None) -> IntervalChange | None:
        """The change after one more batch that has taught something; None to leave it."""
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
    """One sentence where a fixed cost is near the interval, or beyond it; else None.

    It compares the records of both intervals. An ``auto`` interval is only called too short where
    its law allows no longer one.

    Args:
        interval_ms: The interval in force (ms).
        cost: The known cost of a batch; if little is known, the answer is None.
        least_work: The part of its time that a batch works at least, by the law in force.
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
    """The next of 1, 2, 3, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(seconds))
    near = seconds / power
    return next(each for each in (1, 2, 3, 5, 10) if near <= each * 1.0001) * power
