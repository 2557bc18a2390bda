"""Scenario of a simulation: stages and their links, their load, and what goes wrong."""

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import TopologicalSorter
from typing import ClassVar

from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.pressure import HopSettings


class Shape(StrEnum):
    """Course of a load from one point of it to the next."""

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
        repeat_s: After how long the points begin again (s), after the last of them; None for never.
    """

    points: tuple[tuple[float, float], ...]
    shape: Shape = Shape.STEPS
    repeat_s: float | None = None

    def per_s(self, time_ms: int) -> float:
        """Return the records that come in a second at this time."""
        at_s = time_ms / 1000
        if self.repeat_s is not None:
            at_s %= self.repeat_s
        place = bisect_right(self.points, at_s, key=lambda point: point[0])
        from_s, rate = self.points[place - 1]
        if self.shape is Shape.LINES and place < len(self.points):
            next_s, next_rate = self.points[place]
            rate += (next_rate - rate) * (at_s - from_s) / (next_s - from_s)
        return rate


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that goes wrong at one stage, from one time to another (s)."""

    kind: ClassVar[str]

    stage: str
    from_s: float
    until_s: float

    def holds(self, time_ms: float) -> bool:
        """Whether it goes on at this time."""
        return self.from_s * 1000 <= time_ms < self.until_s * 1000


@dataclass(frozen=True, slots=True)
class Slow(Disturbance):
    """Batches that begin meanwhile are processed at this part of the stage's capacity; above 0."""

    kind = "slow"

    factor: float = 0.25


@dataclass(frozen=True, slots=True)
class Pause(Disturbance):
    """Nothing is processed and no batch begins; a batch at hand takes that much longer."""

    kind = "pause"


@dataclass(frozen=True, slots=True)
class Dead(Disturbance):
    """The stage is not there: a batch at hand is lost and run again when the stage is back.

    Meanwhile it neither looks nor sends nor applies signals. Its pressure state and its rate are
    in its ledger.
    """

    kind = "dead"


@dataclass(frozen=True, slots=True)
class Spike(Disturbance):
    """The load of a source is multiplied by a factor; 0 for a load that ceases."""

    kind = "spike"

    factor: float = 10.0


@dataclass(frozen=True, slots=True)
class LostSignals(Disturbance):
    """Loss of a part of the signals that the stage sends meanwhile; above 0, to 1 for all."""

    kind = "lost"

    part: float = 1.0


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """A gated query.

    Attributes:
        capacity_per_s: How many records it processes in a second, without what a batch costs.
        after: The stages whose output it reads; none for a source.
        load: What comes from outside, for a source; None for any other stage.
        interval_ms: Its trigger's interval.
        fixed_ms: What a batch costs whatever its size.
        record_bytes: The size of a record that it reads (bytes).
        makes: How many records it makes of each that it reads; every stage after it gets them all.
        partitions: Over how many partitions each channel that it reads is spread.
        backlog: The records that wait at the start, for a source.
        noise: By how much its speed differs from batch to batch: the standard deviation of the
            factor; 0 to 0.5.
        takes_at_once: The most records of a batch that it takes; a larger one fails, and its halves
            are run. None: any.
        partition_cap_per_s: ``maxRatePerPartition``; 0 for none.
        added: A time (s) at which a partition is added, and the records that it comes with, for a
            source; what comes from outside stays in the others. None for none.
        initial_rate_per_s: ``backpressure.initialRate``; None for the estimator's ``min_rate``.
        hop: When it throttles the stages before it; its step counts when it is throttled.
    """

    name: str
    capacity_per_s: float
    after: tuple[str, ...] = ()
    load: Load | None = None
    interval_ms: int = 1000
    fixed_ms: int = 50
    record_bytes: int = 200
    makes: float = 1.0
    partitions: int = 1
    backlog: int = 0
    noise: float = 0.0
    takes_at_once: int | None = None
    partition_cap_per_s: float = 0
    added: tuple[float, int] | None = None
    initial_rate_per_s: float | None = None
    estimator: EstimatorSettings = field(default_factory=EstimatorSettings)
    hop: HopSettings = field(default_factory=HopSettings)


class Policy(StrEnum):
    """Stages that slow down when one is overloaded."""

    HOP_BY_HOP = "hop-by-hop"
    """The stages directly before it, and those before them only if it persists: Headrace's way."""
    SOURCES = "sources"
    """All sources stop at once, until every stage's load is light: Heron's way."""
    NONE = "none"
    """Nobody."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that is simulated.

    Attributes:
        duration_s: How long it is simulated (s), at most a million seconds.
        signal_ms: How long a signal is on its way.
        look_ms: How often a stage looks at its queue, besides whenever it has planned.
        sample_ms: How far apart the points of the series are.
        name: The flow's name.
    """

    stages: tuple[SimulatedStage, ...]
    duration_s: float
    disturbances: tuple[Disturbance, ...] = ()
    signal_ms: int = 100
    look_ms: int = 250
    sample_ms: int = 1000
    name: str = "simulated"

    @property
    def order(self) -> list[str]:
        """The stages' names, upstream stages first."""
        return list(TopologicalSorter({s.name: s.after for s in self.stages}).static_order())
