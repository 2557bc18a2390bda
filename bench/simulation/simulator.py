"""The simulator: the control code itself in simulated time, over a scripted scenario."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev

from bench.simulation.scenario import Policy, Scenario, SimulatedStage, Slow
from bench.simulation.simulated_stage import RunningStage, SimulatedBatch
from headrace.gate.control.hop import Upstream
from headrace.gate.control.law import BatchProgress
from headrace.gate.control.pressure import PressureSignal


@dataclass(slots=True)
class Series:
    """Figures of one stage, at every sample; all lists are as long as `Result.times_s`.

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
    """Figures of one stage in one phase.

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
    """Count the turns of a stage's rate limit from falling to rising or back, in a time."""
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
    """Count the batches from a disturbance at ``from_ms`` on, until all take their time.

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


def run(scenario: Scenario, policy: Policy, random: Random) -> Result:
    """Run a scenario from time 0 to its end.

    Equal scenarios and equally seeded sources of randomness give equal results.
    """
    return _Run(scenario, policy, random).run()


class _Run:
    """One run: what is due first happens next; of equals, what was scheduled first."""

    def __init__(self, scenario: Scenario, policy: Policy, random: Random) -> None:
        self._scenario = scenario
        self._policy = policy
        self._result = Result(scenario, policy)
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._scheduled = 0
        self._stages = {
            stage.name: RunningStage(
                scenario.name,
                stage,
                [other.name for other in scenario.stages if stage.name in other.after],
                [d for d in scenario.disturbances if d.stage == stage.name],
                random,
            )
            for stage in scenario.stages
        }
        self._overloaded: set[str] = set()
        self._are_stopped = False
        self._limits: dict[str, tuple[str | None, float | None]] = {}
        self._counted = dict.fromkeys(self._stages, (0, 0, 0))

    def run(self) -> Result:
        """Run to the end."""
        for name in self._scenario.order:
            self._begin(self._stages[name])
        self._at(0, self._sample)
        until_ms = round(self._scenario.duration_s * 1000)
        while self._due and self._due[0][0] <= until_ms:
            time_ms, _, what = heapq.heappop(self._due)
            what(time_ms)
        return self._result

    def _at(self, time_ms: int, what: Callable[[int], None]) -> None:
        heapq.heappush(self._due, (time_ms, self._scheduled, what))
        self._scheduled += 1

    def _begin(self, stage: RunningStage) -> None:
        name = stage.stage.name
        self._result.series[name], self._result.batches[name] = Series(), []
        self._result.signals[name] = self._result.largest_bytes[name] = 0
        for death in stage.deaths:
            self._at(round(death.from_s * 1000), lambda _: stage.die())
            self._at(round(death.until_s * 1000), lambda time_ms: self._revive(stage, time_ms))
        self._trigger_at(0, stage)
        if stage.stage.after:
            self._at(0, lambda time_ms: self._look_again(stage, time_ms))

    def _trigger_at(self, time_ms: int, stage: RunningStage) -> None:
        run = stage.run
        self._at(time_ms, lambda now_ms: self._trigger(stage, run, now_ms))

    def _trigger(self, stage: RunningStage, run: int, time_ms: int) -> None:
        if run != stage.run:
            return
        batch = None if stage.is_stopped else stage.plan(time_ms)
        if batch is None:
            self._trigger_at(stage.next_trigger_ms(time_ms, time_ms), stage)
        else:
            self._at(batch.end_ms, lambda now_ms: self._end(stage, batch, now_ms))
        if stage.stage.after:
            self._look(stage, time_ms)

    def _end(self, stage: RunningStage, batch: SimulatedBatch, time_ms: int) -> None:
        if stage.batch is not batch:
            return
        made = stage.end(batch)
        self._result.batches[stage.stage.name].append(batch)
        for name in stage.downstreams:
            self._stages[name].queued.take(stage.stage.name, made, time_ms)
        self._trigger_at(stage.next_trigger_ms(batch.start_ms, time_ms), stage)

    def _revive(self, stage: RunningStage, time_ms: int) -> None:
        stage.revive(time_ms)
        for state in stage.throttle.states():
            self._at(state.until_ms, lambda now_ms: self._note_limit(stage, now_ms))
        self._trigger_at(stage.next_trigger_ms(time_ms, time_ms), stage)

    def _look_again(self, stage: RunningStage, time_ms: int) -> None:
        if self._policy is not Policy.HOP_BY_HOP or not stage.is_quiet:
            self._look(stage, time_ms)
        self._at(time_ms + self._scenario.look_ms, lambda now_ms: self._look_again(stage, now_ms))

    def _look(self, stage: RunningStage, time_ms: int) -> None:
        queue, name = stage.queue(time_ms), stage.stage.name
        largest = self._result.largest_bytes
        largest[name] = max(largest[name], queue.waiting_bytes)
        if stage.is_dead(time_ms):
            return
        if self._policy is Policy.HOP_BY_HOP:
            before = [self._upstream(before, stage, time_ms) for before in stage.stage.after]
            for signal in stage.look(time_ms, queue, before):
                self._send(stage, signal, time_ms)
        elif self._policy is Policy.SOURCES:
            if queue.waiting_bytes >= stage.stage.hop.overload_bytes:
                self._overloaded.add(name)
            elif queue.left_bytes <= stage.stage.hop.light_load_bytes:
                self._overloaded.discard(name)
            if bool(self._overloaded) != self._are_stopped:
                self._are_stopped = not self._are_stopped
                self._signal_sources(name, time_ms)

    def _upstream(self, name: str, stage: RunningStage, time_ms: int) -> Upstream:
        before = self._stages[name]
        if before.is_dead(time_ms):
            return Upstream.GONE
        limit = before.throttle.rate_limit(time_ms)
        is_ours = limit is None or limit.throttled_by == stage.stage.name
        return Upstream.RUNNING if is_ours else Upstream.THROTTLED

    def _send(self, stage: RunningStage, signal: PressureSignal, time_ms: int) -> None:
        self._result.signals[signal.sender] += 1
        if not stage.loses_a_signal(time_ms):
            arrives_ms = time_ms + self._scenario.signal_ms
            self._at(arrives_ms, lambda now_ms: self._deliver(signal, now_ms))

    def _deliver(self, signal: PressureSignal, time_ms: int) -> None:
        stage = self._stages[signal.receiver]
        if stage.is_dead(time_ms):
            return
        stage.throttle.apply(signal, time_ms, stage.emits_per_s(time_ms))
        self._note_limit(stage, time_ms)
        self._at(time_ms + signal.lease_ms, lambda now_ms: self._note_limit(stage, now_ms))

    def _note_limit(self, stage: RunningStage, time_ms: int) -> None:
        stage.throttle.expire(time_ms)
        limit, name = stage.throttle.rate_limit(time_ms), stage.stage.name
        if limit is None:
            self._note(RateLimitChange(time_ms, name, None, 0.0, None))
        else:
            by, level, per_s = limit.throttled_by, limit.level, limit.rate_per_s
            self._note(RateLimitChange(time_ms, name, by, level, per_s))

    def _note(self, change: RateLimitChange) -> None:
        """Record a rate limit, if it has changed."""
        present = (change.throttled_by, change.rate_limit_per_s)
        if present != self._limits.get(change.stage, (None, None)):
            self._limits[change.stage] = present
            self._result.changes.append(change)

    def _signal_sources(self, sender: str, time_ms: int) -> None:
        """Heron's way: a stage is overloaded, or none is any longer."""
        self._result.signals[sender] += 1
        is_stopped = self._are_stopped
        by, per_s = (sender, 0.0) if is_stopped else (None, None)

        def apply(now_ms: int) -> None:
            for name, stage in self._stages.items():
                if not stage.stage.after:
                    stage.is_stopped = is_stopped
                    self._note(RateLimitChange(now_ms, name, by, float(is_stopped), per_s))

        self._at(time_ms + self._scenario.signal_ms, apply)

    def _sample(self, time_ms: int) -> None:
        self._result.times_s.append(time_ms / 1000)
        for name, stage in self._stages.items():
            stage.queued.accrue(time_ms)
            series, limit = self._result.series[name], stage.throttle.rate_limit(time_ms)
            counts = (stage.queued.arrived, stage.queued.admitted, stage.processed)
            rates = [
                (count - before) * 1000 / self._scenario.sample_ms
                for count, before in zip(counts, self._counted[name], strict=True)
            ]
            self._counted[name] = counts
            series.came_per_s.append(rates[0])
            series.admitted_per_s.append(rates[1])
            series.processed_per_s.append(rates[2])
            series.waiting_bytes.append(stage.queued.waiting * stage.stage.record_bytes)
            series.delay_s.append(stage.queued.delay_s(time_ms))
            series.rate_per_s.append(0.0 if stage.is_stopped else stage.rate_per_s(time_ms))
            series.rate_limit_per_s.append(None if limit is None else limit.rate_per_s)
            series.level.append(0.0 if limit is None else limit.level)
        self._at(time_ms + self._scenario.sample_ms, self._sample)
