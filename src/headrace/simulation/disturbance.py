"""What goes wrong in a simulation, where and when."""

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors import OptionError
from headrace.simulation.checks import require_number


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Something that goes wrong at one stage, from one time to another.

    Attributes:
        stage: The stage.
        from_s: When it begins (s).
        until_s: When it is over (s).

    Raises:
        OptionError: It ends before it begins.
    """

    kind: ClassVar[str]

    stage: str
    from_s: float
    until_s: float

    def __post_init__(self) -> None:
        require_number("from_s", self.from_s, "s", 0)
        require_number("until_s", self.until_s, "s", 0)
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
    """Batches that begin meanwhile are processed at a part of the stage's capacity.

    Attributes:
        factor: The part; above 0, and above 1 for a stage that is faster.
    """

    kind = "slow"

    factor: float = 0.25

    def __post_init__(self) -> None:
        Disturbance.__post_init__(self)
        require_number("factor", self.factor, "(a part)", 0, above=True)


@dataclass(frozen=True, slots=True)
class Pause(Disturbance):
    """Nothing is processed and no batch begins; a batch at hand takes that much longer."""

    kind = "pause"


@dataclass(frozen=True, slots=True)
class Dead(Disturbance):
    """The stage is not there: a batch at hand is lost and run again when the stage is back.

    Meanwhile it neither looks nor signals nor obeys. What it had been told, and what it had learnt,
    it finds again in its ledger.
    """

    kind = "dead"


@dataclass(frozen=True, slots=True)
class Spike(Disturbance):
    """More records come to a source.

    Attributes:
        factor: By which its load is multiplied; 0 or more, and 0 for a load that ceases.
    """

    kind = "spike"

    factor: float = 10.0

    def __post_init__(self) -> None:
        Disturbance.__post_init__(self)
        require_number("factor", self.factor, "(a part)", 0)


@dataclass(frozen=True, slots=True)
class Lost(Disturbance):
    """Of the signals that the stage sends meanwhile, some are lost.

    Attributes:
        part: How many; above 0, to 1 for all.
    """

    kind = "lost"

    part: float = 1.0

    def __post_init__(self) -> None:
        Disturbance.__post_init__(self)
        require_number("part", self.part, "(a part)", 0, most=1, above=True)
