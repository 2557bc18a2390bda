"""What a stage leaves in the ledger of its pressure, for its next run."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

from headrace.control.pressure import Epoch, PressureState, require_level
from headrace.errors import OptionError


@dataclass(frozen=True, slots=True)
class Memory:
    """What a run of a stage had heard and said last.

    Attributes:
        written_ms: When that was, by the clock of its machine (ms since the epoch).
        pressures: What it had heard.
        levels: How hard it pressed each stage before it.
    """

    written_ms: int = 0
    pressures: tuple[PressureState, ...] = ()
    levels: Mapping[str, float] = field(default_factory=dict)

    def to_text(self) -> str:
        """As `of_text` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read it.

        Raises:
            OptionError: It is nothing that `to_text` writes.
        """
        try:
            given = json.loads(text)
            pressures = [
                PressureState(**{**each, "epoch": Epoch(**each["epoch"])})
                for each in given["pressures"]
            ]
            for level in (*(each.level for each in pressures), *given["levels"].values()):
                require_level("A level", level)
            return cls(int(given["written_ms"]), tuple(pressures), given["levels"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError("It is not what a stage writes down of its pressure.") from error

    def heard_of(self, downstream: Collection[str]) -> list[PressureState]:
        """What it had heard of stages that still are directly after it."""
        return [each for each in self.pressures if each.sender in downstream]

    def level(self, upstream: str, wall_ms: int, lease_ms: int) -> float:
        """How hard to press a stage at first: as before, unless that was over a lease ago."""
        is_fresh = 0 <= wall_ms - self.written_ms <= lease_ms
        return self.levels.get(upstream, 0.0) if is_fresh else 0.0
