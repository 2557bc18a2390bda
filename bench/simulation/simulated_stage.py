"""A stage while it is simulated: its input queue, its gate and both sides of its pressure."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from bench.simulation.scenario import (
    Dead,
    Disturbance,
    LostSignals,
    Pause,
    SimulatedStage,
    Slow,
    Spike,
)
from headrace.core.ranges import TopicPartition
from headrace.gate.control.bisection import Bisection, Isolated, IsolationBudget, Run
from headrace.gate.control.hop import ChunkRate, HopController, Upstream
from headrace.gate.control.input_queue import InputQueue, takes_per_s
from headrace.gate.control.law import BatchProgress
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.limits import BatchLimits, PartitionLimit
from headrace.gate.control.parts import size
from headrace.gate.control.plan import Plan, plan
from headrace.gate.control.pressure import Epoch, PressureSignal, RateLimit, UpstreamThrottle
from headrace.gate.control.rate_law import is_limited
from headrace.gate.control.rates import QueryRates
from headrace.gate.control.size_ceiling import SizeCeiling

_GATE: Final = "gate"
"""Its name for the law: it is alone in its query."""


class SimulatedGate:
    """State of a gate between two batches: its positions, its rate and what it has learnt."""

    def __init__(
        self,
        settings: EstimatorSettings,
        limits: BatchLimits,
        partitions: Sequence[TopicPartition],
    ) -> None:
        self.interval_ms = round(limits.seconds_per_batch * 1000)
        self._rates = QueryRates()
        self._rates.add(_GATE, settings, self.interval_ms)
        self._limits = limits
        self._positions = dict.fromkeys(partitions, 0)
        self._rate: float | None = None
        self.ceiling: SizeCeiling | None = None

    @property
    def rate_per_s(self) -> float | None:
        """The rate in force (records/s); None if backpressure is off."""
        return self._limits.initial_rate if self._rate is None else self._rate

    def plan(
        self, latest: Mapping[TopicPartition, int], rate_limit: RateLimit | None = None
    ) -> Plan:
        """The next batch, from the latest offset of each partition, under a rate limit or none."""
        return plan(
            self._positions,
            latest,
            self._rate,
            self._limits,
            rate_limit=rate_limit,
            ceiling=self.ceiling,
        )

    def end(
        self, planned: Plan, progress: BatchProgress, isolated: Isolated[str] | None = None
    ) -> None:
        """Take note of a batch that has ended: it is read, and something is learnt from it.

        From a batch that had to be isolated the law of ceilings learns.
        """
        if isolated is not None:
            self.ceiling = SizeCeiling.of(planned.records, isolated) or self.ceiling
            self._positions |= planned.until
            self._rates.finished({_GATE: replace(progress, went_through=False)})
            return
        if self.ceiling is not None:
            self.ceiling = self.ceiling.after_pass(planned.records)
        part = replace(progress, is_limited=is_limited(planned.reason, planned.unread))
        answer = self._rates.finished({_GATE: part})[_GATE].rate_per_s
        self._rate = self._rate if answer is None else answer
        self._positions |= planned.until


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """The partitions of a topic that has so many."""
    return [TopicPartition(topic, number) for number in range(count)]


def spread(records: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The latest offsets of a topic's partitions over which so many records are spread evenly."""
    count = len(partitions)
    return {name: (records + name.partition) // count for name in partitions}


def duration_ms(records: int, capacity_per_s: float, fixed_ms: int) -> int:
    """Return the time of a batch: its fixed cost, and then its records, at least 1 ms."""
    return fixed_ms + max(round(records / capacity_per_s * 1000), 1)


def next_trigger_ms(start_ms: int, end_ms: int, interval_ms: int) -> int:
    """When the trigger after the one at ``start_ms`` fires, whose batch has ended at ``end_ms``."""
    return max(end_ms, (start_ms // interval_ms + 1) * interval_ms)


OUTSIDE: Final = ""
"""The name of the channel that a source's load comes by."""

_SLICE_MS: Final = 100
"""Length of the slices in which records from outside are added up (ms)."""


class SimulatedQueue:
    """Counts what has come to a stage and what its batches have been given."""

    def __init__(self, stage: SimulatedStage, spikes: Sequence[Spike]) -> None:
        self.arrived = 0
        self.admitted = 0
        self._load = stage.load
        self._spikes = spikes
        self._partitions = {
            name: partitions_of(name, stage.partitions) for name in stage.after or (OUTSIDE,)
        }
        self._came = dict.fromkeys(self._partitions, 0)
        self._added = stage.added
        self._of_added = 0
        self._from_outside = float(stage.backlog)
        self._accrued_ms = 0
        self._waits_since: deque[tuple[int, int]] = deque()
        self.accrue(0)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Partitions of all channels, and the one that is added."""
        names = [partition for names in self._partitions.values() for partition in names]
        return names if self._added is None else [*names, TopicPartition(OUTSIDE, len(names))]

    @property
    def waiting(self) -> int:
        """The records that no batch has been given yet."""
        return self.arrived - self.admitted

    def latest(self) -> dict[TopicPartition, int]:
        """The latest offset of each partition."""
        latest: dict[TopicPartition, int] = {}
        for name, partitions in self._partitions.items():
            latest |= spread(self._came[name], partitions)
        if self._of_added:
            latest[self.partitions[-1]] = self._of_added
        return latest

    def take(self, channel: str, records: int, time_ms: int) -> None:
        """Take in what a stage before has made, or the outside."""
        if records:
            self._came[channel] += records
            self.arrived += records
            self._waits_since.append((time_ms, self.arrived))

    def accrue(self, time_ms: int) -> None:
        """Take in what has come from outside up to this time; nothing where there is no load."""
        if self._load is None:
            return
        while self._accrued_ms < time_ms:
            until_ms = min(time_ms, (self._accrued_ms // _SLICE_MS + 1) * _SLICE_MS)
            per_s = self._load.per_s(self._accrued_ms)
            for spike in self._spikes:
                per_s *= spike.factor if spike.holds(self._accrued_ms) else 1.0
            self._from_outside += per_s * (until_ms - self._accrued_ms) / 1000
            self._accrued_ms = until_ms
        self.take(OUTSIDE, int(self._from_outside) + self._of_added - self.arrived, time_ms)
        if self._added is not None and not self._of_added and time_ms >= self._added[0] * 1000:
            self._of_added = self._added[1]
            self.arrived += self._of_added
            self._waits_since.append((time_ms, self.arrived))

    def admit(self, records: int) -> None:
        """Give records to a batch, those first that came first; below 0, take them back from it."""
        self.admitted += records
        while self._waits_since and self._waits_since[0][1] <= self.admitted:
            self._waits_since.popleft()

    def delay_s(self, time_ms: int) -> float:
        """Return how long the oldest waiting record has waited (s); 0 if none waits."""
        return (time_ms - self._waits_since[0][0]) / 1000 if self._waits_since else 0.0


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """A batch: its plan, and its time."""

    planned: Plan
    start_ms: int
    end_ms: int
    isolated: Isolated[str] | None = None
    """Outcome of its isolation, if it failed."""

    @property
    def progress(self) -> BatchProgress:
        """As a progress event has it."""
        lasts_ms = self.end_ms - self.start_ms
        return BatchProgress(self.start_ms, lasts_ms, self.planned.records, self.planned.left_over)


class RunningStage:
    """One stage of a scenario that runs; what it decides, its gate and its controllers decide."""

    def __init__(
        self,
        flow: str,
        stage: SimulatedStage,
        downstreams: Sequence[str],
        disturbances: Sequence[Disturbance],
        random: Random,
    ) -> None:
        self.stage = stage
        self.downstreams = tuple(downstreams)
        self.run = 0
        self.batch: SimulatedBatch | None = None
        self.processed = 0
        self.is_stopped = False
        self._flow = flow
        self._random = random
        self.deaths = [d for d in disturbances if isinstance(d, Dead)]
        self._slow = [d for d in disturbances if isinstance(d, Slow)]
        self._lost = [d for d in disturbances if isinstance(d, LostSignals)]
        pauses = [d for d in disturbances if isinstance(d, Pause)]
        self._pauses = sorted(pauses, key=lambda pause: pause.from_s)
        self.queued = SimulatedQueue(stage, [d for d in disturbances if isinstance(d, Spike)])
        initial_per_s = stage.initial_rate_per_s or stage.estimator.min_rate
        self._gate = SimulatedGate(
            stage.estimator,
            BatchLimits(
                stage.interval_ms / 1000,
                initial_rate=initial_per_s,
                max_rate_per_partition=PartitionLimit(stage.partition_cap_per_s),
            ),
            self.queued.partitions,
        )
        self._emitted = ChunkRate(5 * stage.interval_ms, 5 * stage.interval_ms)
        self._left = 0
        self._looked_at = (-1, -1)
        self._made = 0.0
        self.throttle = UpstreamThrottle(flow, stage.name, downstreams, stage.hop)
        self._controllers = [self._controller(name, 0, 0.0) for name in stage.after]

    def rate_per_s(self, time_ms: int) -> float | None:
        """The rate in force (records/s): the least of estimator and rate limit; None for none."""
        limit = self.throttle.rate_limit(time_ms)
        rate = self._gate.rate_per_s
        return rate if limit is None else limit.applied_to(rate)

    def emits_per_s(self, time_ms: int) -> float | None:
        """Return its real rate of admission lately (records/s)."""
        return self._emitted.per_s(time_ms, 2 * self.stage.interval_ms)

    def plan(self, time_ms: int) -> SimulatedBatch | None:
        """Fire a trigger: the batch that begins, or None if there is nothing for one."""
        self.queued.accrue(time_ms)
        planned = self._gate.plan(self.queued.latest(), self.throttle.rate_limit(time_ms))
        self._left = planned.left_over
        if planned.records == 0:
            return None
        self.queued.admit(planned.records)
        self._emitted.look(time_ms, self.queued.admitted)
        capacity_per_s = self.capacity_per_s(time_ms) * self._noise()
        lasts_ms = duration_ms(planned.records, capacity_per_s, self.stage.fixed_ms)
        isolated = self._isolated(planned.records)
        if isolated is not None:
            # A run that is refused costs what a batch costs before its first record.
            lasts_ms += isolated.runs * self.stage.fixed_ms
        end_ms = self._with_pauses(time_ms, time_ms + lasts_ms)
        self.batch = SimulatedBatch(planned, time_ms, end_ms, isolated)
        return self.batch

    def end(self, batch: SimulatedBatch) -> int:
        """The batch at hand has ended; how many records it has made for each stage after it."""
        self._gate.end(batch.planned, batch.progress, batch.isolated)
        self.batch = None
        self.processed += batch.planned.records
        self._made += batch.planned.records * self.stage.makes
        whole = int(self._made)
        self._made -= whole
        return whole

    def die(self) -> None:
        """The run ends: what it had at hand is lost, and will be read again."""
        self.run += 1
        if self.batch is not None:
            self.queued.admit(-self.batch.planned.records)
            self.batch = None

    def revive(self, time_ms: int) -> None:
        """Another run begins, with what the ledger has of the one before."""
        states = self.throttle.states()
        self.throttle = UpstreamThrottle(
            self._flow, self.stage.name, self.downstreams, self.stage.hop
        )
        self.throttle.restore(states, time_ms)
        self._controllers = [
            self._controller(name, time_ms, controller.level)
            for name, controller in zip(self.stage.after, self._controllers, strict=True)
        ]

    def queue(self, time_ms: int) -> InputQueue:
        """Return the queue at this time."""
        self.queued.accrue(time_ms)
        size, rate, batch = self.stage.record_bytes, self._gate.rate_per_s, self.batch
        takes = takes_per_s(
            rate,
            self.throttle.rate_limit(time_ms),
            self.stage.interval_ms,
            0 if batch is None else batch.planned.records,
            0 if batch is None else time_ms - batch.start_ms,
        )
        return InputQueue(
            waiting_bytes=self.queued.waiting * size,
            left_bytes=self._left * size,
            arrived_bytes=self.queued.arrived * size,
            takes_bytes_per_s=None if takes is None else takes * size,
            is_running=batch is not None,
        )

    @property
    def is_quiet(self) -> bool:
        """Whether a look would find what the last one found, and time alone changes nothing."""
        counts = (self.queued.arrived, self.queued.admitted)
        before, self._looked_at = self._looked_at, counts
        return counts == before and not any(c.is_watching for c in self._controllers)

    def look(
        self, time_ms: int, queue: InputQueue, before: Sequence[Upstream]
    ) -> list[PressureSignal]:
        """Look at the queue, and at how the stages before fare: what to send to them."""
        looks = [
            controller.look(time_ms, queue, upstream)
            for controller, upstream in zip(self._controllers, before, strict=True)
        ]
        return [signal for signal in looks if signal is not None]

    def loses_a_signal(self, time_ms: int) -> bool:
        """Whether what it sends now is lost."""
        return any(self._random.random() < d.part for d in self._lost if d.holds(time_ms))

    def is_dead(self, time_ms: int) -> bool:
        """Whether it is not there."""
        return any(d.holds(time_ms) for d in self.deaths)

    def next_trigger_ms(self, start_ms: int, end_ms: int) -> int:
        """When the trigger fires that follows the one at ``start_ms``."""
        return self._with_pauses_before(next_trigger_ms(start_ms, end_ms, self.stage.interval_ms))

    def capacity_per_s(self, time_ms: int) -> float:
        """Return the records/s of a batch that begins now, without noise."""
        capacity = self.stage.capacity_per_s
        for slow in self._slow:
            capacity *= slow.factor if slow.holds(time_ms) else 1.0
        return capacity

    def _isolated(self, records: int) -> Isolated[str] | None:
        """Return the outcome of a batch that is larger than the stage takes; None for any other."""
        most = self.stage.takes_at_once
        if most is None or records <= most:
            return None
        passes = 0
        work: Bisection[str] = Bisection(
            records, IsolationBudget(), shuffle=random.Random(1).shuffle
        )
        work.begin("too large")
        while (step := work.next_step(0, passes)) is not None:
            if isinstance(step, Run):
                fails = size(records, step.part) > most
                passes += not fails
                work.record(step.part, "too large" if fails else None)
        return work.result

    def _noise(self) -> float:
        if self.stage.noise == 0:
            return 1.0
        return max(self._random.gauss(1.0, self.stage.noise), 0.1)

    def _with_pauses(self, start_ms: int, end_ms: int) -> int:
        """When a batch ends that would end then, did nothing pause."""
        for pause in self._pauses:
            from_ms, until_ms = round(pause.from_s * 1000), round(pause.until_s * 1000)
            if start_ms < until_ms and from_ms < end_ms:
                end_ms += until_ms - max(from_ms, start_ms)
        return end_ms

    def _with_pauses_before(self, time_ms: int) -> int:
        for pause in self._pauses:
            if pause.holds(time_ms):
                time_ms = round(pause.until_s * 1000)
        return time_ms

    def _controller(self, upstream: str, time_ms: int, level: float) -> HopController:
        return HopController(
            self._flow,
            self.stage.name,
            upstream,
            Epoch(time_ms, f"run-{self.run}"),
            self.stage.hop,
            level=level,
        )
