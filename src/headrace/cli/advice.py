"""What ``headrace status`` says of a gate that stays at its lowest rate."""

import statistics
from collections.abc import Sequence
from typing import Final

from headrace.cli.words import count, duration
from headrace.control.estimator import EstimatorSettings
from headrace.errors import OptionError
from headrace.ledger import BatchRecord, GateRecord, RateSample, Status

_OF_LATE: Final = 3
"""Batches in a row that show what is usual by now."""

_ABOUT: Final = 0.9
"""The part of the interval from which on a batch takes about as long."""


def advice_on(
    gate: GateRecord, batches: Sequence[BatchRecord], samples: Sequence[RateSample]
) -> tuple[str, ...]:
    """What keeps a gate's rate at its lowest, and what helps; nothing where it is not there.

    Args:
        gate: The gate.
        batches: Its newest batches, newest first.
        samples: Its newest rate samples, newest first.
    """
    found = (_unread(batches, samples), _too_short_an_interval(gate, samples))
    return tuple(sentence for sentence in found if sentence is not None)


def _unread(batches: Sequence[BatchRecord], samples: Sequence[RateSample]) -> str | None:
    """Whether the handler has read nothing of the newest batches that were reported."""
    by_batch = {batch.schedule_id: batch for batch in batches}
    newest = samples[:_OF_LATE]
    ended = [by_batch.get(sample.schedule_id or "") for sample in newest]
    if len(newest) < _OF_LATE or any(sample.records for sample in newest):
        return None
    # One that failed, or had to be run again, may have failed before it read.
    if not all(b and b.status is Status.SUCCESS and b.attempts == 1 for b in ended):
        return None
    return (
        f"Spark has read no record of the last {_OF_LATE} batches, so no rate is learnt: have the"
        " handler read its DataFrame."
    )


def _too_short_an_interval(gate: GateRecord, samples: Sequence[RateSample]) -> str | None:
    """Whether batches at the lowest rate take about the interval, nearly all of it fixed cost."""
    lowest = _lowest_rate_per_s(gate)
    taught = [sample for sample in samples if sample.rate_per_s is not None][:_OF_LATE]
    if lowest is None or gate.rate_per_s is None or gate.rate_per_s > lowest:
        return None
    if len(taught) < _OF_LATE or any(each.rate_per_s != gate.rate_per_s for each in taught):
        return None
    took_ms = round(statistics.median(each.processing_delay_ms for each in taught))
    if took_ms < _ABOUT * gate.interval_ms:
        return None
    return (
        f"The rate is at its lowest, {count(lowest)}/s (minRate), and batches still take"
        f" {duration(took_ms)} of an interval of {duration(gate.interval_ms)}: the fixed cost of a"
        " batch is near the interval, and a longer interval carries more."
    )


def _lowest_rate_per_s(gate: GateRecord) -> float | None:
    try:
        return EstimatorSettings.from_text(gate.estimator).min_rate
    except OptionError:
        return None
