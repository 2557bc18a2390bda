"""A gate in simulated time: estimator, timing and planner in a closed loop with a job.

Nothing here decides anything: the control code itself is driven, against a job whose speed is a
function of time. Equal arguments give equal results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.control import (
    BatchLimits,
    BatchProgress,
    Plan,
    RateEstimator,
    RateLimit,
    Reason,
    batch_stats,
    plan,
)
from headrace.core.ranges import TopicPartition


class SimulatedGate:
    """What a gate knows between two batches: its positions, its rate and its estimator.

    Args:
        estimator: A fresh one, made for the interval of ``limits``.
        limits: Whose ``seconds_per_batch`` is the interval.
        partitions: What it reads, from offset 0 on.
    """

    def __init__(
        self, estimator: RateEstimator, limits: BatchLimits, partitions: Sequence[TopicPartition]
    ) -> None:
        self.interval_ms = round(limits.seconds_per_batch * 1000)
        self._estimator = estimator
        self._limits = limits
        self._positions = dict.fromkeys(partitions, 0)
        self._rate: float | None = None
        self._previous: BatchProgress | None = None

    @property
    def rate_per_s(self) -> float | None:
        """The rate in force (records/s); None if backpressure is off."""
        return self._limits.initial_rate if self._rate is None else self._rate

    def plan(
        self, latest: Mapping[TopicPartition, int], rate_limit: RateLimit | None = None
    ) -> Plan:
        """The next batch, from the latest offset of each partition, under a rate limit or none."""
        return plan(self._positions, latest, self._rate, self._limits, rate_limit=rate_limit)

    def end(self, planned: Plan, start_ms: int, duration_ms: int) -> BatchProgress:
        """Take note of a batch that has ended: it is read, and something is learnt from it."""
        progress = BatchProgress(start_ms, duration_ms, planned.records, planned.left_over)
        answer = self._estimator.compute(*batch_stats(self._previous, progress, self.interval_ms))
        self._rate = self._rate if answer is None else answer
        self._positions, self._previous = planned.until, progress
        return progress


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """A batch of a simulation, with the lag and the rate (records/s) that it was planned with."""

    progress: BatchProgress
    lag: int
    rate_per_s: float | None
    reason: Reason


def simulate(
    estimator: RateEstimator,
    limits: BatchLimits,
    *,
    capacity_per_s: Callable[[int], float],
    arrivals_per_s: Callable[[int], float],
    until_ms: int,
    backlog: int = 0,
    partitions: int = 1,
    fixed_ms: int = 0,
) -> list[SimulatedBatch]:
    """Run a gated query from time 0 until ``until_ms`` and return its batches.

    The trigger is Structured Streaming's: it fires at every multiple of the interval or, if a batch
    has run past the next one, at once after it. A trigger that finds nothing makes no batch.

    Args:
        estimator: A fresh one, made for the interval of ``limits``.
        limits: Whose ``seconds_per_batch`` is the interval.
        capacity_per_s: How fast a batch that starts at this time (ms) is processed; it takes 1 ms
            at least.
        arrivals_per_s: How fast records come in from the trigger at this time (ms) to the next.
        until_ms: Triggers at this time or later do not fire.
        backlog: The records that are there at the start.
        partitions: Over how many partitions the records are spread evenly.
        fixed_ms: What a batch costs whatever its size.
    """
    names = partitions_of("simulated", partitions)
    gate = SimulatedGate(estimator, limits, names)
    arrived, now_ms = float(backlog), 0
    batches: list[SimulatedBatch] = []
    while now_ms < until_ms:
        planned = gate.plan(spread(int(arrived), names))
        end_ms = now_ms
        if planned.records:
            lasts_ms = duration_ms(planned.records, capacity_per_s(now_ms), fixed_ms)
            progress = gate.end(planned, now_ms, lasts_ms)
            batches.append(
                SimulatedBatch(progress, planned.lag, planned.rate_per_s, planned.reason)
            )
            end_ms = progress.end_ms
        next_ms = next_trigger_ms(now_ms, end_ms, gate.interval_ms)
        arrived += arrivals_per_s(now_ms) * (next_ms - now_ms) / 1000
        now_ms = next_ms
    return batches


def batches_to_settle(
    batches: Sequence[SimulatedBatch], *, from_ms: int, target_ms: int, tolerance: float = 0.15
) -> int | None:
    """How many batches it takes, from a disturbance at ``from_ms`` on, until all take their time.

    Returns:
        The number of batches up to the last whose duration is off ``target_ms`` by more than that
        part of it (``tolerance``): 0 if none is. None if the very last one still is.
    """
    since = [batch.progress for batch in batches if batch.progress.start_ms >= from_ms]
    off = [abs(batch.duration_ms - target_ms) > tolerance * target_ms for batch in since]
    if off and off[-1]:
        return None
    return max((number for number, is_off in enumerate(off, start=1) if is_off), default=0)


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """The partitions of a topic that has so many."""
    return [TopicPartition(topic, number) for number in range(count)]


def spread(records: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The latest offsets of a topic's partitions over which so many records are spread evenly."""
    count = len(partitions)
    return {name: (records + name.partition) // count for name in partitions}


def duration_ms(records: int, capacity_per_s: float, fixed_ms: int) -> int:
    """How long a batch takes: what it costs whatever its size, and then its records, 1 ms at least.

    Args:
        records: Its records.
        capacity_per_s: How many are processed in a second.
        fixed_ms: What it costs whatever its size.
    """
    return fixed_ms + max(round(records / capacity_per_s * 1000), 1)


def next_trigger_ms(start_ms: int, end_ms: int, interval_ms: int) -> int:
    """When the trigger after the one at ``start_ms`` fires, whose batch has ended at ``end_ms``."""
    return max(end_ms, (start_ms // interval_ms + 1) * interval_ms)
