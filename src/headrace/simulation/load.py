"""What comes to a source from outside."""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from headrace.errors import OptionError
from headrace.simulation.checks import require_number


class Shape(StrEnum):
    """How a load goes on from one point of it to the next. The values are what users write."""

    STEPS = "steps"
    """It stays until the next point."""
    LINES = "lines"
    """It goes in a straight line to the next point: ramps, and saws' teeth."""


@dataclass(frozen=True, slots=True)
class Load:
    """The records that come to a source from outside.

    Attributes:
        points: From when on how many come: pairs of a time (s), 0 first, each after the one before,
            and a rate (records/s). The last rate stays.
        shape: How it goes from one point to the next.
        repeat_s: After how long the points begin anew (s), after the last of them; None for never.
    """

    points: tuple[tuple[float, float], ...]
    shape: Shape = Shape.STEPS
    repeat_s: float | None = None

    def __post_init__(self) -> None:
        times = [at_s for at_s, _ in self.points]
        if not times or times[0] != 0 or any(a >= b for a, b in pairwise(times)):
            raise OptionError(
                f"The times of a load are {times} s; the first must be 0 and each of the others"
                " after the one before it."
            )
        for _, per_s in self.points:
            require_number("A rate of a load", per_s, "records/s", 0)
        if self.repeat_s is not None:
            require_number("repeat_s", self.repeat_s, "s", 0, above=True)
        if self.repeat_s is not None and not self.repeat_s > times[-1]:
            raise OptionError(
                f"repeat_s is {self.repeat_s!r} s; it must be after the load's last point, which"
                f" is at {times[-1]:g} s."
            )

    def per_s(self, time_ms: int) -> float:
        """How many records come in a second at this time."""
        at_s = time_ms / 1000
        if self.repeat_s is not None:
            at_s %= self.repeat_s
        place = bisect_right(self.points, at_s, key=lambda point: point[0])
        from_s, rate = self.points[place - 1]
        if self.shape is Shape.LINES and place < len(self.points):
            next_s, next_rate = self.points[place]
            rate += (next_rate - rate) * (at_s - from_s) / (next_s - from_s)
        return rate
