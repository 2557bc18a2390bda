"""What happens when in the demo, and how much of it for a machine of this speed."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SLOWDOWN: Final = 4
"""How many times slower the handler becomes."""

SLOW_FROM, SLOW_UNTIL, PRODUCE_UNTIL = 0.40, 0.60, 0.88
"""Parts of the time that is given."""

COST_S: Final = 0.0002
"""What the handler's work on one order takes of a core."""

CORES: Final = 2
"""Cores that work at the same time."""

OVERHEAD: Final = 1.5
"""A streaming batch's fixed cost over the handler's own: it also plans, reads and commits."""

INTERVALS_S: Final = (1, 2, 5)
"""Of which a batch gets the shortest that its fixed cost leaves enough of."""

LATENESS_S: Final = 30
"""How long after its time the demo waits for the last orders, on a machine with other work."""


class Phase(StrEnum):
    """What the demo is showing."""

    BACKLOG = "backlog"
    STEADY = "steady"
    SLOW = f"slow handler x{SLOWDOWN}"
    RECOVERING = "recovering"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Script:
    """The course of a demo.

    Attributes:
        seconds: How long it lasts from the query's start to its end.
        interval_s: The time that a batch should take.
        capacity_per_s: Orders that such batches can do.
    """

    seconds: float
    interval_s: int
    capacity_per_s: float

    @classmethod
    def rehearsed(cls, seconds: float, fixed_s: float, per_order_s: float) -> "Script":
        """For a machine on which the handler takes so long for a batch, and more for each order."""
        fixed_s *= OVERHEAD
        enough = (each for each in INTERVALS_S if fixed_s <= 0.6 * each)
        interval_s = next(enough, INTERVALS_S[-1])
        part = max(1 - fixed_s / interval_s, 0.1)
        return cls(seconds, interval_s, part / per_order_s)

    @property
    def orders_per_s(self) -> float:
        """Orders that come in: half of what can be done, and twice of what a slow handler can."""
        return self.capacity_per_s / 2

    @property
    def backlog(self) -> int:
        """Orders that wait at the beginning: worked off shortly before the handler gets slower."""
        return round((self.capacity_per_s - self.orders_per_s) * self.seconds * SLOW_FROM * 0.8)

    def phase(self, elapsed_s: float, left_over: int, throughput_per_s: float | None) -> Phase:
        """The phase at a moment.

        Args:
            elapsed_s: The time since the query started.
            left_over: Orders that the last batch left waiting.
            throughput_per_s: Orders that are processed; None while that is not known.
        """
        part = elapsed_s / self.seconds
        if SLOW_FROM <= part < SLOW_UNTIL:
            return Phase.SLOW
        if part >= PRODUCE_UNTIL or self._is_late(elapsed_s, left_over, throughput_per_s):
            return Phase.DRAINING
        if left_over == 0 and throughput_per_s is not None:
            return Phase.STEADY
        return Phase.BACKLOG if part < SLOW_FROM else Phase.RECOVERING

    def is_best(self, elapsed_s: float) -> bool:
        """Whether the gate has answered to the slow handler: what a picture should show."""
        return 2 * elapsed_s / self.seconds >= SLOW_FROM + SLOW_UNTIL

    def is_over(self, elapsed_s: float) -> bool:
        """Whether even the last orders have had their time."""
        return elapsed_s >= self.seconds + LATENESS_S

    def _is_late(self, elapsed_s: float, left_over: int, throughput_per_s: float | None) -> bool:
        """Whether what waits now will take all of the time that is left, once it is fast again."""
        if elapsed_s < self.seconds * SLOW_UNTIL or not throughput_per_s:
            return False
        return left_over / throughput_per_s > self.seconds - elapsed_s
