"""A gate in simulated time: rate law, timing and planner, which are the control code itself."""

from collections.abc import Mapping, Sequence
from typing import Final

from headrace.control import (
    BatchLimits,
    BatchProgress,
    EstimatorSettings,
    FinishedBatch,
    Plan,
    QueryRates,
    RateLimit,
    batch_stats,
    plan,
)
from headrace.control.isolation import Isolated
from headrace.control.rate_law import Reason
from headrace.control.size_ceiling import BatchSize, SizeCeiling, learn_from, split_of
from headrace.core.ranges import TopicPartition

_GATE: Final = "gate"
"""Its name for the law: it is alone in its query."""


class SimulatedGate:
    """What a gate knows between two batches: its positions, its rate and what it has learnt."""

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
        self._previous: BatchProgress | None = None
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

        Of one that had to be isolated, what the law of ceilings learns.
        """
        size = BatchSize(planned.records)
        if isolated is not None:
            split = split_of(size, isolated)
            if split is not None:
                self.ceiling = learn_from(self.ceiling, split)
            self._positions, self._previous = planned.until, None
            return
        if self.ceiling is not None:
            self.ceiling = self.ceiling.after_pass(size)
        limited = {_GATE} if planned.reason is Reason.CEILING else frozenset[str]()
        stats = batch_stats(self._previous, progress, self.interval_ms)
        batch = FinishedBatch(
            progress.end_ms,
            {_GATE: progress.records},
            progress.own_ms,
            behind={_GATE} if progress.left_over else frozenset(),
        )
        learnt = self._rates.finished(batch, {_GATE: stats}, limited=limited)
        answer = learnt[_GATE].rate_per_s
        self._rate = self._rate if answer is None else answer
        self._positions, self._previous = planned.until, progress


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    """The partitions of a topic that has so many."""
    return [TopicPartition(topic, number) for number in range(count)]


def spread(records: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The latest offsets of a topic's partitions over which so many records are spread evenly."""
    count = len(partitions)
    return {name: (records + name.partition) // count for name in partitions}


def duration_ms(records: int, capacity_per_s: float, fixed_ms: int) -> int:
    """How long a batch takes: its fixed cost, and then its records, which take 1 ms at least."""
    return fixed_ms + max(round(records / capacity_per_s * 1000), 1)


def next_trigger_ms(start_ms: int, end_ms: int, interval_ms: int) -> int:
    """When the trigger after the one at ``start_ms`` fires, whose batch has ended at ``end_ms``."""
    return max(end_ms, (start_ms // interval_ms + 1) * interval_ms)
