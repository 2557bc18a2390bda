"""The settings of a rate estimator, as they travel from a source's options to where it runs."""

import json
from dataclasses import asdict, astuple, dataclass
from typing import Self

from headrace.control.estimator import RateEstimator, create_estimator
from headrace.errors import OptionError


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """Which estimator, and its gains; `create_estimator` documents and checks each.

    The source's process knows the options, the driver's listener runs the estimator, and the ledger
    is where the two meet: so settings can be written as text.
    """

    name: str = "pid"
    proportional: float = 1.0
    integral: float = 0.2
    derivative: float = 0.0
    min_rate: float = 100.0

    def create(self, batch_interval_ms: int) -> RateEstimator:
        """A new estimator.

        Raises:
            OptionError: a setting is out of its range.
        """
        return create_estimator(
            self.name,
            batch_interval_ms,
            proportional=self.proportional,
            integral=self.integral,
            derivative=self.derivative,
            min_rate=self.min_rate,
        )

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The opposite of ``to_text``.

        Raises:
            OptionError: it was not written by ``to_text`` of this version.
        """
        try:
            settings = cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise _unreadable(text) from error
        name, *gains = astuple(settings)
        if not isinstance(name, str) or not all(isinstance(gain, int | float) for gain in gains):
            raise _unreadable(text)
        return settings


def _unreadable(text: str) -> OptionError:
    return OptionError(
        f"The settings of an estimator are {text!r}; this version of Headrace reads only what it"
        " writes itself, so use one version throughout."
    )
