"""Isolation: halve what failed until each record that cannot be processed is alone.

A batch of n records of which k cannot be processed takes about 2·k·log2(n) runs more: each bad
record is on one path of a binary tree, and each node of the path has two halves that are run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace.core.ranges import OffsetRange
from headrace.core.validation import require_whole

Ranges = tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class IsolationBudget:
    """How much isolation may take; what is left then is deferred.

    Attributes:
        max_runs: Runs of the handler after the first failed one; 1 or more. Default: 200, which
            finds some 5 bad records in a million. Too low: good records wait for the backfill
            beside bad ones.
        max_time_ms: From the first failure on (ms); above 0. Default: 60 000. The stream waits
            that long at most, and one run more.

    Raises:
        OptionError: A number is out of its range.
    """

    max_runs: int = 200
    max_time_ms: int = 60_000

    def __post_init__(self) -> None:
        require_whole("isolate's max_runs", self.max_runs, 1)
        require_whole("isolate's max_time", self.max_time_ms, 1, unit="ms")


Why = TypeVar("Why")


@dataclass(slots=True)
class Isolated(Generic[Why]):
    """What became of a batch.

    Attributes:
        alone: The single offsets that cannot be processed, each with why.
        left: Ranges that are deferred, each with why: those that were not run, with their parent's
            failure where the budget was spent or what `Isolation.defer` was given, and those that
            were left alone with `Isolation.leave`.
        runs: How often the handler ran.
    """

    alone: list[tuple[OffsetRange, Why]] = field(default_factory=list)
    left: list[tuple[Ranges, Why]] = field(default_factory=list)
    runs: int = 0


def halves(ranges: Sequence[OffsetRange]) -> tuple[Ranges, Ranges]:
    """Two children with as many offsets each, or one more in the first, in the ranges' order.

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
    """Decides which ranges of a failed batch are run next.

    ::

        isolation = Isolation(IsolationBudget())
        isolation.record(batch, error)
        while (child := isolation.next_child(elapsed_ms)) is not None:
            isolation.record(child, run(child))    # None, or why it failed

    The children that succeed are disjoint, and with ``alone`` and ``left`` at the end they make up
    the batch. Earlier ranges come before later ones.

    Args:
        budget: How much this may take.
        not_run: Children that an earlier isolation had still to run, with why their parents failed.
    """

    def __init__(self, budget: IsolationBudget, not_run: Sequence[tuple[Ranges, Why]] = ()) -> None:
        self.result: Isolated[Why] = Isolated()
        self._budget = budget
        self._waiting: list[tuple[Ranges, Why]] = list(reversed(not_run))

    def next_child(self, elapsed_ms: int) -> Ranges | None:
        """The ranges to run now, so long after the batch failed (ms).

        None when there are no more, or the budget is spent.
        """
        spent = self.result.runs >= self._budget.max_runs or elapsed_ms >= self._budget.max_time_ms
        if spent:
            self.result.left += reversed(self._waiting)
            self._waiting.clear()
        if not self._waiting:
            return None
        self.result.runs += 1
        return self._waiting.pop()[0]

    def leave(self, ranges: Ranges, why: Why) -> None:
        """Leave a child that failed, and is not to be halved or isolated; the others go on."""
        self.result.left.append((ranges, why))

    def defer(self, ranges: Ranges, why: Why) -> None:
        """Leave a child that could not be run, and all that still wait, which cannot be either."""
        waiting = [each for each, _ in self._waiting[::-1]]
        self.result.left += [(each, why) for each in (ranges, *waiting)]
        self._waiting.clear()

    def record(self, ranges: Ranges, error: Why | None) -> None:
        """Record how a child, or first of all the batch itself, ended; None for success."""
        if error is None:
            return
        first, second = halves(ranges)
        if second:
            self._waiting += [(second, error), (first, error)]
        else:
            self.result.alone.append((first[0], error))
