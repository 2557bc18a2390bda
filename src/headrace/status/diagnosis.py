"""What keeps a gate's rate low, as one sentence that follows from what was measured; pure."""

import math
import statistics
from dataclasses import dataclass
from typing import Final

from headrace.control import EstimatorSettings, SourceCost
from headrace.status.words import count, duration, fine_duration

BATCHES: Final = 3
"""Batches in a row that show what is usual by now."""

_ABOUT: Final = 0.9
"""The part of the interval from which on a batch takes about as long."""

_SURE: Final = 0.2
"""A cost is known where its standard deviation is at most this part of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the newest batches of a gate have shown.

    Attributes:
        settings: Of the law, with the lowest rate.
        interval_ms: The gate's interval.
        rate_per_s: The rate in force (records/s); None if there is none.
        rates_per_s: What the newest batches have taught, the newest first.
        took_ms: How long each of them took.
        cost: What is known of a batch's cost; None where nothing is.
        is_throttled: Whether an operator, a stage after it or a ceiling makes the batches smaller.
    """

    settings: EstimatorSettings
    interval_ms: int
    rate_per_s: float | None
    rates_per_s: tuple[float, ...]
    took_ms: tuple[int, ...]
    cost: SourceCost | None
    is_throttled: bool = False


def diagnose(found: Measured) -> str | None:
    """What keeps the rate low, and what helps; None where nothing does.

    With a for the time of a batch without records, b for that of a record, i for the interval and
    m for the lowest rate: no interval carries more than 1/b, and this one (i - a) / (b · i). Of
    batches that were all of one size nobody can tell a from b, and then it says so.
    """
    if found.is_throttled:
        return None
    b = _record_s(found.cost)
    is_slow, lowest = _is_slow(found), found.settings.min_rate
    if is_slow and b is not None and 1 / b < lowest:
        return (
            f"A record costs {fine_duration(b * 1000)}, so at most {count(1 / b)}/s fit whatever"
            f" the interval, and minRate is {count(lowest)}/s: lower it, or make the handler"
            " faster."
        )
    if found.cost and (sentence := found.settings.too_short(found.interval_ms, found.cost)):
        return sentence
    if not is_slow:
        return None
    a, interval_s = _fixed_s(found.cost), found.interval_ms / 1000
    if a is not None and b is not None:
        return _too_little_fits(found, a, b, interval_s)
    took = f"{duration(statistics.median(found.took_ms))} of an interval of"
    return (
        f"The rate is at its lowest, {count(lowest)}/s (minRate), and batches still take {took}"
        f" {duration(found.interval_ms)}. Whether that is what a batch costs before its first"
        " record, where a longer interval helps, or what its records cost, where a lower minRate"
        " or a faster handler does, is not known: they were all of one size."
    )


def _too_little_fits(found: Measured, a: float, b: float, interval_s: float) -> str | None:
    lowest = found.settings.min_rate
    fits = max(interval_s - a, 0) / b / interval_s
    if fits >= lowest:
        return None
    enough_ms = a / (1 - lowest * b) * 1000 if lowest * b < 1 else math.inf
    longer = f"an interval of {duration(enough_ms)} carries that" if enough_ms < math.inf else ""
    return (
        f"A batch costs {fine_duration(a * 1000)} before its first record and"
        f" {fine_duration(b * 1000)} a record, so {count(fits)}/s fit into an interval of"
        f" {duration(found.interval_ms)}, and minRate is {count(lowest)}/s:"
        f" {longer or 'lower it, or make the handler faster'}."
    )


def _is_slow(found: Measured) -> bool:
    """Whether the rate is at its lowest, and batches take about the interval nevertheless."""
    if found.rate_per_s is None or found.rate_per_s > found.settings.min_rate:
        return False
    if len(found.took_ms) < BATCHES or any(each != found.rate_per_s for each in found.rates_per_s):
        return False
    return statistics.median(found.took_ms) >= _ABOUT * found.interval_ms


def _record_s(cost: SourceCost | None) -> float | None:
    """What a record costs (s), where that is known."""
    known = cost is not None and math.sqrt(cost.record_variance) <= _SURE * cost.record_s
    return cost.record_s if cost is not None and known else None


def _fixed_s(cost: SourceCost | None) -> float | None:
    """What a batch costs before its first record (s), where that is known."""
    known = cost is not None and math.sqrt(cost.fixed_variance) <= _SURE * cost.fixed_s
    return cost.fixed_s if cost is not None and known else None
