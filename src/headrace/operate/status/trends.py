"""Trends of a gate's newest batches: where its lag goes, and why its rate stays low."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final, Self

from headrace.errors import OptionError
from headrace.gate import (
    BatchRecord,
    EstimatorSettings,
    FitCount,
    GateRecord,
    RateSample,
    Reason,
    SourceCost,
    Status,
    known_ceiling,
    rounded_up,
)
from headrace.operate.status.words import count, duration, fine_duration

BATCHES: Final = 3
"""Batches in a row that show what is usual by now."""

_ABOUT: Final = 0.9
"""The part of the interval from which on a batch takes about as long."""

_LONG: Final = 1.5
"""The number of intervals from which on a batch takes too long for its interval."""

_ROOM: Final = 1.2
"""The length of a proposed interval, in batches."""

_SURE: Final = 0.2
"""A cost is known where its standard deviation is at most this part of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a gate's newest batches.

    Attributes:
        settings: Of the law, with the lowest rate.
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
    """Return the cause of a low rate, and what helps; None if there is none.

    With a for the time of a batch without records, b for that of a record, i for the interval and m
    for the lowest rate: no interval carries more than 1/b, and this one (i - a) / (b · i). If all
    batches were of one size nobody can tell a from b, and then it says so.
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
        return _too_long(found)
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


def _too_long(found: Measured) -> str | None:
    took_ms = found.took_ms
    if found.settings.auto is not None or len(took_ms) < BATCHES:
        return None
    if min(took_ms) < _LONG * found.interval_ms:
        return None
    usual_ms = statistics.median(took_ms)
    enough_s = rounded_up(_ROOM * usual_ms / 1000)
    return (
        f"The last {len(took_ms)} batches took {duration(usual_ms)}, and the interval is"
        f" {duration(found.interval_ms)}, so each begins late: an interval of {enough_s:g} s holds"
        " them, or make the handler faster."
    )


def _is_slow(found: Measured) -> bool:
    """Whether the rate is at its lowest, and batches take about the interval nevertheless."""
    if found.rate_per_s is None or found.rate_per_s > found.settings.min_rate:
        return False
    if len(found.took_ms) < BATCHES or any(each != found.rate_per_s for each in found.rates_per_s):
        return False
    return statistics.median(found.took_ms) >= _ABOUT * found.interval_ms


def _record_s(cost: SourceCost | None) -> float | None:
    known = cost is not None and math.sqrt(cost.record_variance) <= _SURE * cost.record_s
    return cost.record_s if cost is not None and known else None


def _fixed_s(cost: SourceCost | None) -> float | None:
    known = cost is not None and math.sqrt(cost.fixed_variance) <= _SURE * cost.fixed_s
    return cost.fixed_s if cost is not None and known else None


WINDOW: Final = 6
"""Batches that one measurement of the lag spans: enough to even out one of an odd size, few enough
to see a job slow down within seconds."""

STEADY: Final = 0.02
"""A lag that changes by less than this part of the throughput is steady."""


class Trend(StrEnum):
    """Direction of a quantity."""

    FALLING = "falling"
    STEADY = "steady"
    RISING = "rising"


@dataclass(frozen=True, slots=True)
class LagChange:
    """Records in and out between two plans of a checkpoint.

    Attributes:
        lag_change_per_s: Above 0 where the lag grows; losses make it fall too.
        lag: The lag at the later plan, before its batch.
        left_over: What that batch left of it.
    """

    arrival_rate_per_s: float
    throughput_per_s: float
    lag_change_per_s: float
    lag: int
    left_over: int

    @classmethod
    def of(cls, batches: Sequence[BatchRecord]) -> Self | None:
        """Measure over batches of one checkpoint, newest first; None while there are not two.

        The lag of a batch planned before a restart is not known; its size is.
        """
        known = [place for place, batch in enumerate(batches[:WINDOW]) if batch.lag is not None]
        if len(known) < 2:
            return None
        newest, oldest = batches[known[0]], batches[known[-1]]
        seconds = (newest.created_time_ms - oldest.created_time_ms) / 1000
        if newest.lag is None or oldest.lag is None or seconds <= 0:
            return None
        admitted = sum(b.planned_records for b in batches[known[0] + 1 : known[-1] + 1])
        arrived = max(newest.lag - oldest.lag + admitted, 0)
        return cls(
            arrival_rate_per_s=arrived / seconds,
            throughput_per_s=admitted / seconds,
            lag_change_per_s=(newest.lag - oldest.lag) / seconds,
            lag=newest.lag,
            left_over=max(newest.lag - newest.planned_records, 0),
        )

    @property
    def lag_trend(self) -> Trend:
        """Whether the lag falls or rises, beyond what batches differ by anyway."""
        if abs(self.lag_change_per_s) <= STEADY * self.throughput_per_s:
            return Trend.STEADY
        return Trend.FALLING if self.lag_change_per_s < 0 else Trend.RISING

    @property
    def drain_s(self) -> float | None:
        """Seconds until nothing is left waiting: lag / (admitted - arriving); None if never."""
        if self.left_over == 0:
            return 0.0
        net_per_s = self.throughput_per_s - self.arrival_rate_per_s
        return self.lag / net_per_s if net_per_s > 0 else None


def newest_run(batches: Sequence[BatchRecord]) -> list[BatchRecord]:
    """The batches of the newest batch's checkpoint: offsets of others are not comparable."""
    return [batch for batch in batches if batch.checkpoint_id == batches[0].checkpoint_id]


def drain_trend(batches: Sequence[BatchRecord]) -> Trend | None:
    """Whether the time to drain grows, against half a window before; None if it was not known.

    ``batches`` are of one checkpoint, newest first.
    """
    now, before = LagChange.of(batches), LagChange.of(batches[WINDOW // 2 :])
    if now is None or before is None or now.drain_s is before.drain_s is None:
        return None
    if now.drain_s is None or before.drain_s is None:  # of the two, one never ends
        return Trend.RISING if now.drain_s is None else Trend.FALLING
    if abs(now.drain_s - before.drain_s) <= 0.05 * before.drain_s:
        return Trend.STEADY
    return Trend.FALLING if now.drain_s < before.drain_s else Trend.RISING


def advice_on(
    gate: GateRecord,
    batches: Sequence[BatchRecord],
    samples: Sequence[RateSample],
    fit_counts: Sequence[FitCount] = (),
) -> tuple[str, ...]:
    """Return the causes of a gate's lowest rate, and what helps; newest rows come first."""
    # Spark sees no row of a value that the source has read and could not decode.
    is_unfit = any(each.unfit for each in fit_counts[:BATCHES])
    found = (
        None if is_unfit else _nothing_read(batches, samples),
        _low_rate(gate, batches, samples),
        _too_small_batches(gate, batches),
    )
    return tuple(sentence for sentence in found if sentence is not None)


def batch_cost_of(gate: GateRecord) -> SourceCost | None:
    """Return a batch's known cost; None if there is none, or another version wrote it."""
    return None if gate.batch_cost is None else _cost_in(gate.batch_cost)


@lru_cache(maxsize=10_000)
def _cost_in(text: str) -> SourceCost | None:
    try:
        return SourceCost.from_text(text)
    except OptionError:
        return None


def settings_of(gate: GateRecord) -> EstimatorSettings | None:
    """Return the law in force and its settings; None where another version wrote them."""
    try:
        return EstimatorSettings.from_text(gate.estimator)
    except OptionError:
        return None


def law_of(gate: GateRecord) -> str | None:
    """Return the name of the law in force; None where another version wrote it."""
    settings = settings_of(gate)
    return None if settings is None else settings.name


def _nothing_read(batches: Sequence[BatchRecord], samples: Sequence[RateSample]) -> str | None:
    by_batch = {batch.batch_key: batch for batch in batches}
    newest = samples[:BATCHES]
    ended = [by_batch.get(sample.batch_key or "") for sample in newest]
    if len(newest) < BATCHES or any(sample.records for sample in newest):
        return None
    # One that failed, or had to be run again, may have failed before it read.
    if not all(b and b.status is Status.SUCCESS and b.attempts == 1 for b in ended):
        return None
    return (
        f"Spark has read no record of the last {BATCHES} batches, so no rate is learnt: have the"
        " handler read its DataFrame."
    )


def _low_rate(
    gate: GateRecord, batches: Sequence[BatchRecord], samples: Sequence[RateSample]
) -> str | None:
    settings = settings_of(gate)
    if settings is None:
        return None
    taught = [each for each in samples if each.rate_per_s is not None][:BATCHES]
    return diagnose(
        Measured(
            settings,
            gate.interval_ms,
            gate.rate_per_s,
            tuple(each.rate_per_s or 0.0 for each in taught),
            tuple(each.processing_delay_ms for each in taught),
            batch_cost_of(gate),
            is_throttled=any(map(is_throttled, batches[:1])),
        )
    )


def _too_small_batches(gate: GateRecord, batches: Sequence[BatchRecord]) -> str | None:
    """Whether the newest batch was smaller than its rate, for the handler takes no larger ones."""
    ceiling = known_ceiling(gate.size_ceiling)
    newest = batches[0] if batches else None
    if ceiling is None or newest is None or not newest.reason.startswith(Reason.CEILING):
        return None
    return (
        f"The handler takes no larger batches ({ceiling.describe()}), and more waits: raise what"
        " its sink takes at once, have the handler write in parts, or shorten the interval."
    )


def is_throttled(batch: BatchRecord) -> bool:
    """Whether an operator, a stage after it or a ceiling made a batch as small as it was."""
    others = (Reason.LIMITED, Reason.THROTTLED, Reason.HELD, Reason.CEILING)
    return batch.reason.startswith(others)
