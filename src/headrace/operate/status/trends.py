"""Trends over a gate's newest batches: direction of the lag, and causes of a low rate."""

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
"""Number of consecutive batches on which advice is based."""

_ABOUT: Final = 0.9
"""A batch that takes at least this fraction of the interval counts as filling the interval."""

_LONG: Final = 1.5
"""A batch that takes at least this multiple of the interval takes too long."""

_ROOM: Final = 1.2
"""Advice proposes an interval of this multiple of a batch's usual duration."""

_SURE: Final = 0.2
"""The cost of a batch counts as known if its relative standard deviation is at most this."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a gate's newest batches, from which `diagnose` finds the cause of a low rate.

    Attributes:
        settings: Settings of the law, among them the lowest rate.
        interval_ms: The gate's interval (ms).
        rate_per_s: The rate in force (records/s); None without one.
        rates_per_s: Rates learnt from the newest batches (records/s), newest first.
        took_ms: Durations of these batches (ms).
        cost: Learnt cost of a batch; None if not known.
        is_throttled: Whether an operator, a later stage or a ceiling makes the batches smaller.
    """

    settings: EstimatorSettings
    interval_ms: int
    rate_per_s: float | None
    rates_per_s: tuple[float, ...]
    took_ms: tuple[int, ...]
    cost: SourceCost | None
    is_throttled: bool = False


def diagnose(found: Measured) -> str | None:
    """Return a sentence with the cause of a low rate and a remedy; None if no cause is found.

    Let a be the time of a batch without records, b the time of a record, and i the interval. Then
    the gate can process (i - a) / (b · i) records/s, and at most 1/b records/s if the interval is
    very long. If all batches had one size, a and b are not known, and the sentence says so.
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
    """Whether the rate is at its minimum and the batches still fill the interval."""
    if found.rate_per_s is None or found.rate_per_s > found.settings.min_rate:
        return False
    if len(found.took_ms) < BATCHES or any(rate != found.rate_per_s for rate in found.rates_per_s):
        return False
    return statistics.median(found.took_ms) >= _ABOUT * found.interval_ms


def _record_s(cost: SourceCost | None) -> float | None:
    is_known = cost is not None and math.sqrt(cost.record_variance) <= _SURE * cost.record_s
    return cost.record_s if cost is not None and is_known else None


def _fixed_s(cost: SourceCost | None) -> float | None:
    is_known = cost is not None and math.sqrt(cost.fixed_variance) <= _SURE * cost.fixed_s
    return cost.fixed_s if cost is not None and is_known else None


WINDOW: Final = 6
"""Number of batches over which the change of the lag is measured. This number averages out a batch
of an odd size, and still shows within seconds that a job slows down."""

STEADY: Final = 0.02
"""A lag is steady if it changes by at most this fraction of the throughput."""


class Trend(StrEnum):
    """Direction in which a quantity changes, such as a lag."""

    FALLING = "falling"
    STEADY = "steady"
    RISING = "rising"


@dataclass(frozen=True, slots=True)
class LagChange:
    """Change of a checkpoint's lag between the plans of two batches.

    Attributes:
        lag_change_per_s: Change of the lag (records/s), above 0 if the lag grows. Lost records
            make it fall too.
        arrival_rate_per_s: Rate at which records arrive at the source (records/s).
        throughput_per_s: Rate at which records are admitted (records/s).
        lag: The lag before the later batch.
        left_over: Number of records that the later batch did not admit.
    """

    arrival_rate_per_s: float
    throughput_per_s: float
    lag_change_per_s: float
    lag: int
    left_over: int

    @classmethod
    def of(cls, batches: Sequence[BatchRecord]) -> Self | None:
        """Measure how the lag changed over these batches of one checkpoint; the newest is first.

        Return None if fewer than two batches have a known lag. A batch that was planned before a
        restart has a known size but no known lag.
        """
        places = [place for place, batch in enumerate(batches[:WINDOW]) if batch.lag is not None]
        if len(places) < 2:
            return None
        newest, oldest = batches[places[0]], batches[places[-1]]
        seconds = (newest.created_time_ms - oldest.created_time_ms) / 1000
        if newest.lag is None or oldest.lag is None or seconds <= 0:
            return None
        admitted = sum(b.planned_records for b in batches[places[0] + 1 : places[-1] + 1])
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
        """Direction of the lag; a change within the usual variation of batches is steady."""
        if abs(self.lag_change_per_s) <= STEADY * self.throughput_per_s:
            return Trend.STEADY
        return Trend.FALLING if self.lag_change_per_s < 0 else Trend.RISING

    @property
    def drain_s(self) -> float | None:
        """Time until no record waits (s): lag / (admitted - arriving); None if never."""
        if self.left_over == 0:
            return 0.0
        net_per_s = self.throughput_per_s - self.arrival_rate_per_s
        return self.lag / net_per_s if net_per_s > 0 else None


def newest_run(batches: Sequence[BatchRecord]) -> list[BatchRecord]:
    """Return the newest checkpoint's batches: offsets are comparable only within one checkpoint."""
    return [batch for batch in batches if batch.checkpoint_id == batches[0].checkpoint_id]


def drain_trend(batches: Sequence[BatchRecord]) -> Trend | None:
    """Return whether the time until no record waits is falling, steady or rising.

    The time is compared with its value `WINDOW` / 2 batches earlier. ``batches`` are of one
    checkpoint, newest first. Return None if not known.
    """
    now, before = LagChange.of(batches), LagChange.of(batches[WINDOW // 2 :])
    if now is None or before is None or now.drain_s is before.drain_s is None:
        return None
    if now.drain_s is None or before.drain_s is None:  # one of the two never ends
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
    """Return sentences with causes of a gate's low rate or small batches, and remedies.

    Batches, samples and counts are sorted, newest first.
    """
    # Spark sees no row of a value that the source has read and could not decode.
    is_unfit = any(counts.unfit for counts in fit_counts[:BATCHES])
    sentences = (
        None if is_unfit else _nothing_read(batches, samples),
        _low_rate(gate, batches, samples),
        _too_small_batches(gate, batches),
    )
    return tuple(sentence for sentence in sentences if sentence is not None)


def batch_cost_of(gate: GateRecord) -> SourceCost | None:
    """Return the learnt cost of a gate's batches; None if absent or unreadable."""
    return None if gate.batch_cost is None else _cost_in(gate.batch_cost)


@lru_cache(maxsize=10_000)
def _cost_in(text: str) -> SourceCost | None:
    try:
        return SourceCost.from_text(text)
    except OptionError:
        return None


def settings_of(gate: GateRecord) -> EstimatorSettings | None:
    """Return the settings of a gate's law; None if another version of Headrace wrote them."""
    try:
        return EstimatorSettings.from_text(gate.estimator)
    except OptionError:
        return None


def law_of(gate: GateRecord) -> str | None:
    """Return the name of a gate's law; None if another version of Headrace wrote its settings."""
    settings = settings_of(gate)
    return None if settings is None else settings.name


def _nothing_read(batches: Sequence[BatchRecord], samples: Sequence[RateSample]) -> str | None:
    by_batch = {batch.batch_key: batch for batch in batches}
    newest = samples[:BATCHES]
    ended = [by_batch.get(sample.batch_key or "") for sample in newest]
    if len(newest) < BATCHES or any(sample.records for sample in newest):
        return None
    # A batch that failed or was retried may have failed before it read.
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
    taught = [sample for sample in samples if sample.rate_per_s is not None][:BATCHES]
    return diagnose(
        Measured(
            settings,
            gate.interval_ms,
            gate.rate_per_s,
            tuple(sample.rate_per_s or 0.0 for sample in taught),
            tuple(sample.processing_delay_ms for sample in taught),
            batch_cost_of(gate),
            is_throttled=any(map(is_throttled, batches[:1])),
        )
    )


def _too_small_batches(gate: GateRecord, batches: Sequence[BatchRecord]) -> str | None:
    """Return advice if the ceiling of the batch size limited the newest batch; else None."""
    ceiling = known_ceiling(gate.size_ceiling)
    newest = batches[0] if batches else None
    if ceiling is None or newest is None or not newest.reason.startswith(Reason.CEILING):
        return None
    return (
        f"The handler takes no larger batches ({ceiling.describe()}), and more waits: raise what"
        " its sink takes at once, have the handler write in parts, or shorten the interval."
    )


def is_throttled(batch: BatchRecord) -> bool:
    """Whether an operator, a later stage or a ceiling limited a batch's size."""
    prefixes = (Reason.LIMITED, Reason.THROTTLED, Reason.HELD, Reason.CEILING)
    return batch.reason.startswith(prefixes)
