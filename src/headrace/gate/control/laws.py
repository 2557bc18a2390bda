"""The registry of rate laws, and a gate's choice among them.

A new law is its own module and an entry of `LAWS`; options, commands and the ledger use the
registry.
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
"""The available laws, by name."""

DEFAULT_LAW: Final = LEARNED.name
"""Default of ``backpressure.rateEstimator``."""

LAW_OPTIONS: Final = tuple(option.name for law in LAWS.values() for option in law.options)
"""The options that belong to one law each."""


def _law_named(name: str) -> Law:
    if name not in LAWS:
        raise OptionError(
            f"backpressure.rateEstimator is {name!r}; it must be one of: {', '.join(LAWS)}."
        )
    return LAWS[name]


def rate_after_outage(estimator: str, rate_in_force: float) -> float:
    """Return the rate after an outage of the sink, by the law in a gate's settings.

    The default law applies to settings of another version.
    """
    try:
        name = EstimatorSettings.from_text(estimator).name
    except OptionError:
        name = DEFAULT_LAW
    return LAWS[name].after_outage(rate_in_force)


def law_options(name: str, raw: Mapping[str, str]) -> dict[str, float]:
    """Return the values of a law's own options that are set in ``raw``, by exact name.

    Raises `OptionError` for an unknown law, a wrong number, or an option of another law.
    """
    chosen = _law_named(name)
    for law in LAWS.values():
        for option in law.options:
            if law is not chosen and option.name in raw:
                raise OptionError(
                    f"{option.name} is {raw[option.name]!r}, an option of the law {law.name}, and"
                    f" backpressure.rateEstimator is {name}; set that to {law.name}, or leave the"
                    " option out."
                )
    return {
        option.name: text_of.number(option.name, raw[option.name], above_zero=option.above_zero)
        for option in chosen.options
        if option.name in raw
    }


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """The law of ``backpressure.rateEstimator``, and its settings.

    The settings go as text through the ledger from the source's process, which knows the options,
    to the driver's listener.

    Attributes:
        name: A name of `LAWS`.
        options: The law's own options; a missing option has its default.
        min_rate: The smallest rate that is ever learnt (records/s); above 0.
        auto: Constraints on an ``auto`` interval; None for a fixed one.

    Raises:
        OptionError: There is no such law, or it has no such option.
    """

    name: str = DEFAULT_LAW
    options: Options = field(default_factory=dict)
    min_rate: float = 100.0
    auto: IntervalLaw | None = None

    def __post_init__(self) -> None:
        own = {option.name: option.default for option in _law_named(self.name).options}
        if unknown := self.options.keys() - own:
            raise OptionError(
                f"The law {self.name} has the options {sorted(own)}, and not {sorted(unknown)};"
                " leave them out."
            )
        object.__setattr__(self, "options", {**own, **self.options})

    def start(self, interval_ms: int) -> GateLaw:
        """Create the law of one gate.

        Raises:
            OptionError: An option, the smallest rate or the interval is out of its range.
        """
        text_of.require_number("interval_ms", interval_ms, above=True)
        text_of.require_number("min_rate", self.min_rate, above=True)
        return LAWS[self.name].start(self.options, self.min_rate, interval_ms)

    @property
    def fills_interval(self) -> bool:
        """Whether the law fills the interval, by the learned cost of a batch."""
        return LAWS[self.name].fills_interval

    def shown(self, rate_per_s: float, terms: LawTerms) -> tuple[Shown, ...]:
        """Return the rates to print beside a rate that the law has learnt."""
        return LAWS[self.name].shown(self.options, rate_per_s, terms)

    def too_short(self, interval_ms: int, cost: SourceCost) -> str | None:
        """Return a sentence if an interval (ms) is too short for a batch's cost; else None."""
        least_work = 1 - MOST_FIXED if self.fills_interval else 0.0
        return too_short(interval_ms, cost, least_work=least_work, auto=self.auto)

    def to_text(self) -> str:
        """Serialize the settings as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse a text of ``to_text``.

        Raises:
            OptionError: The text was not written by ``to_text`` of this version.
        """
        unreadable = OptionError(
            f"The settings of an estimator are {text!r}; this version of Headrace reads only what"
            " it writes itself, so use one version throughout."
        )
        try:
            values = json.loads(text)
            auto = values.pop("auto")
            settings = cls(**values, auto=None if auto is None else IntervalLaw(**auto))
            settings.start(1)
        except (AttributeError, KeyError, TypeError, ValueError, OptionError) as error:
            raise unreadable from error
        return settings
