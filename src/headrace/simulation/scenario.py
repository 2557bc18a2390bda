"""Scenario of a simulation: stages and their links, their load, and what goes wrong."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import ClassVar, Final

from headrace.control import EstimatorSettings, HopSettings
from headrace.core.options import require_name, require_number
from headrace.errors import OptionError

MOST_STAGES: Final = 1000
MOST_S: Final = 1_000_000
MOST_PARTITIONS: Final = 10_000
"""Most partitions of all channels of a scenario together."""


class Shape(StrEnum):
    """Course of a load from one point of it to the next. The values are what users write."""

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

    def __post_init__(self) -> None:
        times = [at_s for at_s, _ in self.points]
        if not times or times[0] != 0 or any(a >= b for a, b in pairwise(times)):
            raise OptionError(
                f"The times of a load are {times} s; the first must be 0 and each of the others"
                " after the one before it."
            )
        for _, per_s in self.points:
            require_number("A rate of a load", per_s, "records/s")
        if self.repeat_s is not None:
            require_number("repeat_s", self.repeat_s, "s", above=True)
        if self.repeat_s is not None and not self.repeat_s > times[-1]:
            raise OptionError(
                f"repeat_s is {self.repeat_s!r} s; it must be after the load's last point, which"
                f" is at {times[-1]:g} s."
            )

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

    def __post_init__(self) -> None:
        require_number("from_s", self.from_s, "s")
        require_number("until_s", self.until_s, "s")
        if not self.until_s > self.from_s:
            raise OptionError(
                f"until_s is {self.until_s!r} s; it must be after from_s, which is"
                f" {self.from_s:g} s."
            )

    def holds(self, time_ms: float) -> bool:
        """Whether it goes on at this time."""
        return self.from_s * 1000 <= time_ms < self.until_s * 1000


@dataclass(frozen=True, slots=True)
class Slow(Disturbance):
    """Batches that begin meanwhile are processed at this part of the stage's capacity; above 0."""

    kind = "slow"

    factor: float = 0.25

    def __post_init__(self) -> None:
        Disturbance.__post_init__(self)
        require_number("factor", self.factor, "(a part)", above=True)


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

    def __post_init__(self) -> None:
        Disturbance.__post_init__(self)
        require_number("factor", self.factor, "(a part)")


@dataclass(frozen=True, slots=True)
class LostSignals(Disturbance):
    """Loss of a part of the signals that the stage sends meanwhile; above 0, to 1 for all."""

    kind = "lost"

    part: float = 1.0

    def __post_init__(self) -> None:
        Disturbance.__post_init__(self)
        require_number("part", self.part, "(a part)", most=1, above=True)


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
    initial_rate_per_s: float | None = None
    estimator: EstimatorSettings = field(default_factory=EstimatorSettings)
    hop: HopSettings = field(default_factory=HopSettings)

    def __post_init__(self) -> None:
        require_name("A stage's name", self.name)
        of = f" of stage {self.name!r}"
        require_number("capacity_per_s" + of, self.capacity_per_s, "records/s", above=True)
        require_number("interval_ms" + of, self.interval_ms, "ms", least=1)
        require_number("fixed_ms" + of, self.fixed_ms, "ms")
        require_number("record_bytes" + of, self.record_bytes, "bytes", least=1)
        require_number("makes" + of, self.makes, "records")
        require_number(
            "partitions" + of, self.partitions, "partitions", least=1, most=MOST_PARTITIONS
        )
        require_number("backlog" + of, self.backlog, "records")
        require_number("noise" + of, self.noise, "(a standard deviation)", most=0.5)
        if self.takes_at_once is not None:
            require_number("takes_at_once" + of, self.takes_at_once, "records", least=1)
        if self.initial_rate_per_s is not None:
            name = "initial_rate_per_s" + of
            require_number(name, self.initial_rate_per_s, "records/s", above=True)
        self.estimator.pid(self.interval_ms)
        if self.estimator.auto is not None:
            raise OptionError(f"auto{of} is set; a simulated interval is fixed, so leave it out.")
        if self.after and (self.load is not None or self.backlog):
            raise OptionError(
                f"Stage {self.name!r} has a load or a backlog and reads {', '.join(self.after)};"
                " only a source has one, so leave it out, or leave out 'after'."
            )
        if not self.after and self.load is None:
            raise OptionError(
                f"Stage {self.name!r} reads no other stage and has no load; give it a load, or name"
                " in 'after' what it reads."
            )


class Policy(StrEnum):
    """Stages that slow down when one is overloaded. The values are what users write."""

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
    order: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_name("The flow's name", self.name)
        require_number("duration_s", self.duration_s, "s", most=MOST_S, above=True)
        require_number("signal_ms", self.signal_ms, "ms")
        require_number("look_ms", self.look_ms, "ms", least=1)
        require_number("sample_ms", self.sample_ms, "ms", least=1)
        if not 1 <= len(self.stages) <= MOST_STAGES:
            raise OptionError(
                f"There are {len(self.stages)} stages; there must be 1 to {MOST_STAGES}."
            )
        partitions = sum(stage.partitions * max(len(stage.after), 1) for stage in self.stages)
        if partitions > MOST_PARTITIONS:
            raise OptionError(
                f"The channels have {partitions} partitions in all; there may be up to"
                f" {MOST_PARTITIONS}, so lower 'partitions'."
            )
        object.__setattr__(self, "order", tuple(self._sorted()))
        for disturbance in self.disturbances:
            self._refuse_if_misplaced(disturbance)

    @property
    def laws(self) -> list[str]:
        """The laws that the stages learn their rates by."""
        return sorted({stage.estimator.name for stage in self.stages})

    def _sorted(self) -> Iterator[str]:
        names = {stage.name for stage in self.stages}
        if len(names) < len(self.stages):
            twice = next(
                s.name for s in self.stages if sum(s.name == o.name for o in self.stages) > 1
            )
            raise OptionError(f"Two stages are named {twice!r}; each needs a name of its own.")
        for stage in self.stages:
            for name in stage.after:
                if name not in names:
                    raise OptionError(
                        f"Stage {stage.name!r} is after {name!r}, which is no stage; the stages are"
                        f" {', '.join(sorted(names))}."
                    )
            if len(set(stage.after)) < len(stage.after):
                raise OptionError(
                    f"Stage {stage.name!r} is after {', '.join(stage.after)}; each may stand there"
                    " once."
                )
        try:
            yield from TopologicalSorter({s.name: s.after for s in self.stages}).static_order()
        except CycleError as error:
            raise OptionError(
                f"The stages {' -> '.join(reversed(error.args[1]))} make a cycle; a flow must have"
                " none, so take a stage out of one 'after'."
            ) from error

    def _refuse_if_misplaced(self, disturbance: Disturbance) -> None:
        stage = next((s for s in self.stages if s.name == disturbance.stage), None)
        if stage is None:
            raise OptionError(
                f"A disturbance ({disturbance.kind}) is at stage {disturbance.stage!r}, which is"
                f" none; the stages are {', '.join(sorted(s.name for s in self.stages))}."
            )
        if isinstance(disturbance, Spike) and stage.load is None:
            raise OptionError(
                f"A spike is at stage {disturbance.stage!r}, which has no load; name a source."
            )
