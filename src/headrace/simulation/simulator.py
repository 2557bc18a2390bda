"""The simulator: the control code itself in simulated time, over a scripted scenario."""

import heapq
from collections.abc import Callable
from random import Random

from headrace.control import PressureSignal, Upstream
from headrace.simulation.results import RateLimitChange, Result, Series
from headrace.simulation.scenario import Policy, Scenario
from headrace.simulation.simulated_stage import RunningStage, SimulatedBatch


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
