"""The registry of rate laws, and the estimator settings of a gate.

A new law needs its own module and an entry in `LAWS`. Options, commands and the ledger find all
laws in the registry.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from headrace.core import options as text_of
from headrace.errors import OptionError
from headrace.gate.control.batch_cost import MOST_FIXED, SourceCost
from headrace.gate.control.interval import IntervalLaw, too_short
from headrace.gate.control.law import GateLaw, Law, LawTerms, Options, Shown
from headrace.gate.control.learned import LEARNED
from headrace.gate.control.pid import PID

LAWS: Final[Mapping[str, Law]] = {law.name: law for law in (PID, LEARNED)}
"""The available rate laws, by the value of ``backpressure.rateEstimator``."""

DEFAULT_LAW: Final = LEARNED.name
"""The default value of ``backpressure.rateEstimator``."""

LAW_OPTIONS: Final = tuple(option.name for law in LAWS.values() for option in law.options)
"""The names of all options that belong to a single law."""


def _law_named(name: str) -> Law:
    if name not in LAWS:
        raise OptionError(
            f"backpressure.rateEstimator is {name!r}; it must be one of: {', '.join(LAWS)}."
        )
    return LAWS[name]


def rate_after_outage(estimator: str, rate_in_force: float) -> float:
    """Return a gate's rate after an outage of its sink (records/s).

    ``estimator`` is the text of the gate's `EstimatorSettings`, which names the law that computes
    the rate. If another version of Headrace wrote the text, the default law computes the rate.
    """
    try:
        name = EstimatorSettings.from_text(estimator).name
    except OptionError:
        name = DEFAULT_LAW
    return LAWS[name].after_outage(rate_in_force)


def law_options(name: str, raw: Mapping[str, str]) -> dict[str, float]:
    """Parse the options of one law that are set in ``raw``. Return their numbers by option name.

    Option names are compared exactly, with upper and lower case.

    Raises:
        OptionError: The law is unknown, a value is no number in its range, or ``raw`` has an option
            of another law.
    """
    chosen = _law_named(name)
    for law in LAWS.values():
        for option in law.options:
            if law is not chosen and option.name in raw:
                raise OptionError(
                    f"{option.name} is {raw[option.name]!r}, an option of the law {law.name}, but"
                    f" backpressure.rateEstimator is {name}; set backpressure.rateEstimator to"
                    f" {law.name}, or remove {option.name}."
                )
    return {
        option.name: text_of.number(option.name, raw[option.name], above_zero=option.above_zero)
        for option in chosen.options
        if option.name in raw
    }


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """The rate law of a gate, and the law's settings.

    The process of the source knows the options, and the driver's listener runs the law. So the
    source's process stores the settings in the ledger as text, and the listener reads the text.

    Attributes:
        name: A key of `LAWS`.
        options: The values of the law's own options. A missing option gets its default.
        min_rate: The smallest rate that the law returns (records/s); above 0. Default: 100.
        auto: Constraints on an ``auto`` interval; None if the gate's interval is fixed.

    Raises:
        OptionError: `LAWS` has no law of this name, or the law does not have one of the options.
    """

    name: str = DEFAULT_LAW
    options: Options = field(default_factory=dict)
    min_rate: float = 100.0
    auto: IntervalLaw | None = None

    def __post_init__(self) -> None:
        own = {option.name: option.default for option in _law_named(self.name).options}
        if unknown := self.options.keys() - own:
            raise OptionError(
                f"The law {self.name} has no options {sorted(unknown)}; remove them. Its options"
                f" are {sorted(own)}."
            )
        object.__setattr__(self, "options", {**own, **self.options})

    def start(self, interval_ms: int) -> GateLaw:
        """Create the running law of one gate, for batches that should take ``interval_ms`` ms.

        Raises:
            OptionError: An option, the smallest rate or the interval is out of its range.
        """
        text_of.require_number("interval_ms", interval_ms, above=True)
        text_of.require_number("min_rate", self.min_rate, above=True)
        return LAWS[self.name].start(self.options, self.min_rate, interval_ms)

    @property
    def fills_interval(self) -> bool:
        """Whether the law computes the batch size from the learned cost (`Law.fills_interval`)."""
        return LAWS[self.name].fills_interval

    def shown(self, rate_per_s: float, terms: LawTerms) -> tuple[Shown, ...]:
        """Return the numbers that ``headrace why`` prints to explain a rate of this law."""
        return LAWS[self.name].shown(self.options, rate_per_s, terms)

    def too_short(self, interval_ms: int, cost: SourceCost) -> str | None:
        """Return a warning if an interval (ms) is too short for the fixed cost of a batch.

        Returns:
            One sentence for the user; None if the interval is long enough.
        """
        least_work = 1 - MOST_FIXED if self.fills_interval else 0.0
        return too_short(interval_ms, cost, least_work=least_work, auto=self.auto)

    def to_text(self) -> str:
        """Serialize the settings as JSON for the ledger."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse settings that ``to_text`` has serialized.

        Raises:
            OptionError: This version of Headrace cannot read the text.
        """
        unreadable = OptionError(
            f"The rate estimator's settings in the ledger are {text!r}, which this version of"
            " Headrace cannot read; run the same version in all processes of the ledger."
        )
        try:
            values = json.loads(text)
            auto = values.pop("auto")
            settings = cls(**values, auto=None if auto is None else IntervalLaw(**auto))
            settings.start(1)
        except (AttributeError, KeyError, TypeError, ValueError, OptionError) as error:
            raise unreadable from error
        return settings
