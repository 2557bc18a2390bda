"""Sides that are measured in turn, and what is made of their figures; pure.

A machine is never equally fast for minutes. So the sides take turns, each round in the opposite
order of the one before (A B, B A, A B, ...), and are compared within a round.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, the least and the most of them."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of one or more values.

        >>> Spread.of([3, 1, 8])
        Spread(median=3, least=1, most=8)
        """
        return cls(median(values), min(values), max(values))


def alternating(sides: Sequence[str], rounds: int) -> Iterator[str]:
    """Every side once a round, every other round backwards.

    >>> list(alternating(["A", "B"], 3))
    ['A', 'B', 'B', 'A', 'A', 'B']
    """
    for number in range(rounds):
        yield from sides if number % 2 == 0 else reversed(sides)


def in_turn(
    sides: Mapping[str, Callable[[], float]], rounds: int, warm_ups: int
) -> dict[str, list[float]]:
    """Return each side's answer in each round, after some rounds that do not count."""
    for side in alternating(list(sides), warm_ups):
        sides[side]()
    answers: dict[str, list[float]] = {side: [] for side in sides}
    for side in alternating(list(sides), rounds):
        answers[side].append(sides[side]())
    return answers


def ratios(values: Sequence[float], to: Sequence[float]) -> Spread:
    """Divide each value by the other side's value of the same round.

    >>> ratios([4, 9, 5], to=[2, 3, 5])
    Spread(median=2.0, least=1.0, most=3.0)
    """
    return Spread.of([value / other for value, other in zip(values, to, strict=True)])
