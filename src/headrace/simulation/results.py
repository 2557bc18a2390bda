"""What a simulation has found: series for each stage, and a few figures of each phase."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, pstdev

from headrace.control import BatchProgress
from headrace.simulation.scenario import Policy, Scenario, SimulatedStage, Slow
from headrace.simulation.simulated_stage import SimulatedBatch


@dataclass(slots=True)
class Series:
    """What one stage did, at every sample; all lists are as long as `Result.times_s`.

    Attributes:
        came_per_s: Records that came since the sample before, a second.
        admitted_per_s: Records that batches were given since then, a second.
        processed_per_s: Records of batches that ended since then, a second.
        waiting_bytes: What waits to be given to a batch.
        delay_s: How long the oldest record that waits has waited.
        rate_per_s: The rate in force: the least of estimator, rate limit and caps; None for none.
        rate_limit_per_s: The limit under pressure from the stages after it; None while it is free.
        level: The throttle level; 0 while it is free.
    """

    came_per_s: list[float] = field(default_factory=list)
    admitted_per_s: list[float] = field(default_factory=list)
    processed_per_s: list[float] = field(default_factory=list)
    waiting_bytes: list[int] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    rate_per_s: list[float | None] = field(default_factory=list)
    rate_limit_per_s: list[float | None] = field(default_factory=list)
    level: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RateLimitChange:
    """The rate limit (records/s) of a stage has changed; None, with level 0, when it is free."""

    time_ms: int
    stage: str
    throttled_by: str | None
    level: float
    rate_limit_per_s: float | None


@dataclass(slots=True)
class Result:
    """All that was seen in one run of a scenario under one policy.

    Attributes:
        times_s: When the samples were taken (s).
        series: By stage.
        batches: Those that have ended, by stage.
        signals: How many were sent, by stage that sent them; those that were lost too.
        largest_bytes: The largest queue there ever was, by stage, between samples too.
    """

    scenario: Scenario
    policy: Policy
    times_s: list[float] = field(default_factory=list)
    series: dict[str, Series] = field(default_factory=dict)
    changes: list[RateLimitChange] = field(default_factory=list)
    batches: dict[str, list[SimulatedBatch]] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)
    largest_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What one stage did in one phase.

    Attributes:
        processed_per_s: The records of batches that ended, a second.
        capacity_per_s: What it could have processed, a second, in batches that fill its interval.
        largest_bytes: The largest queue at a sample.
        longest_delay_s: The longest that a record had waited, at a sample.
        swing: The standard deviation of what it admits over its mean; 0 where it admits nothing.
        turns: How often its rate limit turned from falling to rising or back.
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
    """The time from one beginning or end of a disturbance to the next; upstream stages first."""

    from_s: float
    until_s: float
    stages: tuple[StageFigures, ...]

    def of(self, stage: str) -> StageFigures:
        """The figures of one stage."""
        return {figures.stage: figures for figures in self.stages}[stage]


def phases(result: Result) -> list[Phase]:
    """The figures of each phase; one that has no sample in it is left out."""
    scenario = result.scenario
    edges = {0.0, scenario.duration_s}
    for disturbance in scenario.disturbances:
        edges |= {disturbance.from_s, disturbance.until_s}
    times = sorted(edge for edge in edges if edge <= scenario.duration_s)
    found = []
    for from_s, until_s in pairwise(times):
        samples = [n for n, at_s in enumerate(result.times_s) if from_s < at_s <= until_s]
        if samples:
            stages = {stage.name: stage for stage in scenario.stages}
            figures = (
                _figures(result, stages[name], (from_s, until_s), samples)
                for name in scenario.order
            )
            found.append(Phase(from_s, until_s, tuple(figures)))
    return found


def turns(changes: Iterable[RateLimitChange], stage: str, from_s: float, until_s: float) -> int:
    """How often the rate limit of a stage turned from falling to rising or back, in a time."""
    limit, direction, count = math.inf, 0, 0
    for change in changes:
        if change.stage != stage or change.time_ms >= until_s * 1000:
            continue
        present = math.inf if change.rate_limit_per_s is None else change.rate_limit_per_s
        towards = (present > limit) - (present < limit)
        limit = present
        if towards and change.time_ms >= from_s * 1000:
            count += direction == -towards
            direction = towards
    return count


def batches_to_settle(
    batches: Sequence[BatchProgress], *, from_ms: int, target_ms: int, tolerance: float = 0.15
) -> int | None:
    """How many batches it takes, from a disturbance at ``from_ms`` on, until all take their time.

    Returns:
        The number of batches up to the last whose duration is off ``target_ms`` by more than that
        part of it (``tolerance``): 0 if none is. None if the very last one still is.
    """
    since = [batch for batch in batches if batch.start_ms >= from_ms]
    off = [abs(batch.duration_ms - target_ms) > tolerance * target_ms for batch in since]
    if off and off[-1]:
        return None
    return max((number for number, is_off in enumerate(off, start=1) if is_off), default=0)


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
        turns=turns(result.changes, stage.name, *time_s),
        most_level=max(series.level[n] for n in samples),
    )


def _capacity_per_s(result: Result, stage: SimulatedStage, at_s: float) -> float:
    capacity = stage.capacity_per_s * max(1 - stage.fixed_ms / stage.interval_ms, 0)
    for disturbance in result.scenario.disturbances:
        if isinstance(disturbance, Slow) and disturbance.stage == stage.name:
            capacity *= disturbance.factor if disturbance.holds(at_s * 1000) else 1.0
    return capacity
