"""All that is simulated: the stages and how they are linked, and what goes wrong, and when."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Final

from headrace.control.validation import require_name
from headrace.errors import OptionError
from headrace.simulation.checks import require_number
from headrace.simulation.disturbance import Disturbance, Spike
from headrace.simulation.stage import MOST_PARTITIONS, SimulatedStage

MOST_STAGES: Final = 1000
MOST_S: Final = 1_000_000


class Policy(StrEnum):
    """Who slows down when a stage is overloaded. The values are what users write."""

    HOP_BY_HOP = "hop-by-hop"
    """The stages directly before it, and those before them only if it persists: Headrace's way."""
    SOURCES = "sources"
    """All sources stop at once, until every stage's load is light: Heron's way."""
    NONE = "none"
    """Nobody."""


@dataclass(frozen=True, slots=True)
class World:
    """All that is simulated.

    Attributes:
        stages: The stages, at most 1 000 with 10 000 partitions in all.
        duration_s: How long it is simulated (s), at most a million seconds.
        disturbances: What goes wrong.
        signal_ms: How long a signal is on its way.
        look_ms: How often a stage looks at its queue, besides whenever it has planned.
        sample_ms: How far apart the points of the series are.
        name: The flow's name.

    Raises:
        OptionError: The stages do not make up a flow, or a number is out of its range.
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
        require_number("duration_s", self.duration_s, "s", 0, most=MOST_S, above=True)
        require_number("signal_ms", self.signal_ms, "ms", 0)
        require_number("look_ms", self.look_ms, "ms", 1)
        require_number("sample_ms", self.sample_ms, "ms", 1)
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
