"""Isolation: halve what failed until what cannot be processed stands alone, and do the rest.

A batch of n records of which k cannot be processed takes about 2·k·log2(n) runs more: each bad
record is on one path of a binary tree, and each node of the path has two halves that are run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.control.ranges import OffsetRange
from headrace.errors import OptionError

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class IsolationBudget:
    """How much isolation may take; what is left then is deferred.

    Attributes:
        max_runs: Of the handler, the first failed one not counted; 1 or more. 200 finds some 5 bad
            records in a million. Too low, and good records wait for the backfill beside bad ones.
        max_time_ms: From the first failure on (ms); above 0. The stream waits that long at most,
            and one run more.

    Raises:
        OptionError: A number is out of its range.
    """

    max_runs: int = 200
    max_time_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.max_runs < 1:
            raise OptionError(f"isolate's max_runs is {self.max_runs}; it must be 1 or more.")
        if self.max_time_ms <= 0:
            raise OptionError(f"isolate's max_time is {self.max_time_ms} ms; it must be above 0.")


Why = TypeVar("Why")


@dataclass(slots=True)
class Isolated(Generic[Why]):
    """What became of a batch.

    Attributes:
        alone: The single offsets that cannot be processed, each with why.
        left: Ranges that were not run any more, for the budget was spent, each with why its whole
            failed.
        runs: How often the handler ran.
    """

    alone: list[tuple[OffsetRange, Why]] = field(default_factory=list)
    left: list[tuple[Ranges, Why]] = field(default_factory=list)
    runs: int = 0


def halves(ranges: Sequence[OffsetRange]) -> tuple[Ranges, Ranges]:
    """Two parts with as many offsets each, or one more in the first, in the order of the ranges.

    ::

        >>> first, second = halves([OffsetRange("orders", 0, 0, 2), OffsetRange("orders", 1, 0, 5)])
        >>> [str(r) for r in first], [str(r) for r in second]
        (['orders-0 [0, 2)', 'orders-1 [0, 2)'], ['orders-1 [2, 5)'])
    """
    total = sum(r.count for r in ranges)
    wanted = (total + 1) // 2 if total > 1 else total
    first: list[OffsetRange] = []
    second: list[OffsetRange] = []
    for r in ranges:
        cut = r.start + min(r.count, wanted)
        wanted -= cut - r.start
        if r.start < cut:
            first.append(OffsetRange(r.topic, r.partition, r.start, cut))
        if cut < r.until:
            second.append(OffsetRange(r.topic, r.partition, cut, r.until))
    return tuple(first), tuple(second)


class Isolation(Generic[Why]):
    """Decides which part of a failed batch is run next.

    ::

        isolation = Isolation(IsolationBudget())
        isolation.settle(batch, error)
        while (part := isolation.next_part(elapsed_ms)) is not None:
            isolation.settle(part, run(part))    # None, or why it failed

    The parts that succeed are disjoint, and with what is ``alone`` or ``left`` at the end they are
    the whole batch. Earlier ranges come before later ones.

    Args:
        budget: How much this may take.
        not_run: Parts of the batch that an earlier isolation had still to run, with why their
            wholes failed.
    """

    def __init__(self, budget: IsolationBudget, not_run: Sequence[tuple[Ranges, Why]] = ()) -> None:
        self.result: Isolated[Why] = Isolated()
        self._budget = budget
        self._waiting: list[tuple[Ranges, Why]] = list(reversed(not_run))

    def next_part(self, elapsed_ms: int) -> Ranges | None:
        """The ranges to run now; None when there are no more, or the budget is spent.

        Args:
            elapsed_ms: The time since the batch failed (ms).
        """
        spent = self.result.runs >= self._budget.max_runs or elapsed_ms >= self._budget.max_time_ms
        if spent:
            self.result.left += reversed(self._waiting)
            self._waiting.clear()
        if not self._waiting:
            return None
        self.result.runs += 1
        return self._waiting.pop()[0]

    def settle(self, part: Ranges, error: Why | None) -> None:
        """Say how a part, or first of all the batch itself, ended."""
        if error is None:
            return
        first, second = halves(part)
        if second:
            self._waiting += [(second, error), (first, error)]
        else:
            self.result.alone.append((first[0], error))
