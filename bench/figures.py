"""Results of a benchmark: Headrace's figure, the native connector's beside it, the target."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from bench.pairs import Spread, ratios


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A target from below."""

    bound: float

    def is_met(self, value: float) -> bool:
        """Whether the value reaches it."""
        return value >= self.bound

    def __str__(self) -> str:
        return f"≥ {self.bound:g}"


@dataclass(frozen=True, slots=True)
class AtMost:
    """A target from above."""

    bound: float

    def is_met(self, value: float) -> bool:
        """Whether the value keeps to it."""
        return value <= self.bound

    def __str__(self) -> str:
        return f"≤ {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Near:
    """A target from both sides."""

    value: float
    by: float

    def is_met(self, value: float) -> bool:
        """Whether the value is no further away."""
        return abs(value - self.value) <= self.by

    def __str__(self) -> str:
        return f"{self.value:g} ± {self.by:g}"


Target = AtLeast | AtMost | Near


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Attributes:
        name: The quantity that was measured.
        unit: The unit of both sides' figures.
        headrace: Headrace's.
        native: The native connector's, or what else it is compared with, such as a raw limit; None
            for what Headrace alone has.
        ratio: Headrace's figure over the native one, round by round; None without a native one.
        target: For the ratio or, without one, for Headrace's median. None: nothing was promised.
        details: Further values worth keeping, of types that JSON has.
        absolute: Whether the target is for Headrace's median although there is a ratio.
    """

    name: str
    unit: str
    headrace: Spread
    native: Spread | None = None
    ratio: Spread | None = None
    target: Target | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    absolute: bool = False

    @classmethod
    def side_by_side(
        cls,
        name: str,
        unit: str,
        *,
        headrace: Sequence[float],
        native: Sequence[float],
        target: Target | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Self:
        """A figure of values that were measured in the same rounds."""
        return cls(
            name,
            unit,
            Spread.of(headrace),
            Spread.of(native),
            ratios(headrace, to=native),
            target,
            details or {},
        )

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        compared = self.headrace if self.absolute else self.ratio or self.headrace
        return self.target.is_met(compared.median)

    def to_json(self) -> dict[str, Any]:
        """As JSON; a figure that is not finite becomes null."""
        fields = asdict(self) | {
            "target": None if self.target is None else str(self.target),
            "met": self.is_met,
        }
        return {name: _finite(value) for name, value in fields.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
