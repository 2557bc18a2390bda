"""What a result comes to: a few figures for each stage, between one disturbance and the next."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev

from headrace.simulation.disturbance import Slow
from headrace.simulation.result import Move, Result
from headrace.simulation.stage import SimulatedStage


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What one stage did in one phase.

    Attributes:
        stage: Its name.
        processed_per_s: The records of batches that ended, a second.
        capacity_per_s: What it could have processed, a second, in batches that fill its interval.
        largest_bytes: The largest queue at a sample.
        longest_delay_s: The longest that a record had waited, at a sample.
        swing: The standard deviation of what it admits over its mean; 0 where it admits nothing.
        turns: How often its bound turned from falling to rising or back.
        most_level: The highest level at a sample.
    """

    stage: str
    processed_per_s: float
    capacity_per_s: float
    largest_bytes: int
    longest_delay_s: float
    swing: float
    turns: int
    most_level: float


@dataclass(frozen=True, slots=True)
class Phase:
    """The time from one beginning or end of a disturbance to the next.

    Attributes:
        from_s: When it begins.
        until_s: When it is over.
        stages: The figures of each stage, upstream first.
    """

    from_s: float
    until_s: float
    stages: tuple[StageFigures, ...]

    def of(self, stage: str) -> StageFigures:
        """The figures of one stage.

        Raises:
            KeyError: There is no such stage.
        """
        return {figures.stage: figures for figures in self.stages}[stage]


def phases(result: Result) -> list[Phase]:
    """The figures of each phase; one that has no sample in it is left out."""
    world = result.world
    edges = {0.0, world.duration_s}
    for disturbance in world.disturbances:
        edges |= {disturbance.from_s, disturbance.until_s}
    times = sorted(edge for edge in edges if edge <= world.duration_s)
    found = []
    for from_s, until_s in pairwise(times):
        samples = [n for n, at_s in enumerate(result.times_s) if from_s < at_s <= until_s]
        if samples:
            stages = {stage.name: stage for stage in world.stages}
            figures = (
                _figures(result, stages[name], (from_s, until_s), samples) for name in world.order
            )
            found.append(Phase(from_s, until_s, tuple(figures)))
    return found


def turns(moves: Iterable[Move], stage: str, from_s: float, until_s: float) -> int:
    """How often the bound of a stage turned from falling to rising or back, in a time."""
    bound, direction, count = math.inf, 0, 0
    for move in moves:
        if move.stage != stage or move.time_ms >= until_s * 1000:
            continue
        present = math.inf if move.rate_limit_per_s is None else move.rate_limit_per_s
        towards = (present > bound) - (present < bound)
        bound = present
        if towards and move.time_ms >= from_s * 1000:
            count += direction == -towards
            direction = towards
    return count


def _figures(
    result: Result, stage: SimulatedStage, time_s: tuple[float, float], samples: Sequence[int]
) -> StageFigures:
    series = result.series[stage.name]
    admitted = [series.admitted_per_s[n] for n in samples]
    mean = fmean(admitted)
    return StageFigures(
        stage=stage.name,
        processed_per_s=fmean(series.processed_per_s[n] for n in samples),
        capacity_per_s=_capacity_per_s(result, stage, time_s[0]),
        largest_bytes=max(series.waiting_bytes[n] for n in samples),
        longest_delay_s=max(series.delay_s[n] for n in samples),
        swing=pstdev(admitted) / mean if mean else 0.0,
        turns=turns(result.moves, stage.name, *time_s),
        most_level=max(series.level[n] for n in samples),
    )


def _capacity_per_s(result: Result, stage: SimulatedStage, at_s: float) -> float:
    capacity = stage.capacity_per_s * max(1 - stage.fixed_ms / stage.interval_ms, 0)
    for disturbance in result.world.disturbances:
        if isinstance(disturbance, Slow) and disturbance.stage == stage.name:
            capacity *= disturbance.factor if disturbance.holds(at_s * 1000) else 1.0
    return capacity
