"""The rate law of Spark's direct stream: the messages that a rate grants each partition.

A partition's slice of the rate is proportional to its lag, up to a cap; its records in one batch
have a floor. With the rate R (a whole number), a partition's lag, cap c (records/s) and floor f
(records), and the batch's seconds s::

    share    = min(lag / sum of lags * R, c)
    messages = max(int(s * share), f)

Spark discards the rate that a cap cuts off: one partition with a backlog and a cap then starves all
others. Here this rate is distributed by lag among the partitions below their caps, until none is
left. So the numbers differ from Spark's where a cap is in force.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.control.limits import BatchLimits, OperatorLimits
from headrace.gate.control.pressure import RateLimit


class Reason(StrEnum):
    """The limit that set the size of a batch or of a partition. The values are shown to users."""

    RATE = "rate"
    """The estimated rate."""
    INITIAL_RATE = "initial rate"
    """``backpressure.initialRate``, while there is no estimated rate."""
    THROTTLED = "throttled"
    """The rate limit of a downstream stage, lower than either rate; the plan names the stage."""
    LIMITED = "limited"
    """An operator's limit, lower than all rates above; the plan names the operator."""
    PARTITION_CAP = "maxRatePerPartition"
    """The partition's cap, lower than its portion of the rate."""
    PARTITION_FLOOR = "minRatePerPartition"
    """The partition's floor, higher than its portion of the rate."""
    MAX_RECORDS = "maxOffsetsPerTrigger"
    """The cap of the whole batch in records."""
    MAX_BYTES = "maxBytesPerTrigger"
    """The cap of the whole batch in bytes."""
    CEILING = "ceiling"
    """The largest batch that the handler takes, learned from failed batches; the plan names the
    failure."""
    HELD = "held"
    """An operator has paused or drained the gate; the plan names the operator."""
    WAITING = "waiting for minOffsetsPerTrigger"
    """Too few offsets were available for a batch."""
    EVERYTHING = "everything available"
    """No limit: all available offsets are admitted."""
    NOTHING_NEW = "nothing new"
    """No offsets were available."""


LIMITS: Final = (
    Reason.THROTTLED,
    Reason.LIMITED,
    Reason.CEILING,
    Reason.MAX_RECORDS,
    Reason.MAX_BYTES,
)
"""The reasons that make a batch smaller than the job could process."""

_RATES: Final = (Reason.RATE, Reason.INITIAL_RATE)


def is_limited(reason: str, left_unread: Collection[str]) -> bool:
    """Whether a limit made a batch so small that its size is no measure of the job.

    The caps of partitions do so only if they have cut off the whole rate: as long as the rate
    leaves records unread in some partition, the batch has the whole rate.

    Args:
        reason: The batch's reason, from the ledger.
        left_unread: The reasons of the partitions with unread records after the batch.
    """
    capped = Reason.PARTITION_CAP in left_unread and not any(r in left_unread for r in _RATES)
    return capped or reason.startswith(LIMITS)


def max_messages_per_partition(
    lags: Mapping[TopicPartition, int], rate: float | None, limits: BatchLimits
) -> dict[TopicPartition, int] | None:
    """Return the messages that the rate law grants each partition, even beyond its lag.

    This is Spark's ``DirectKafkaInputDStream.maxMessagesPerPartition`` without two defects. A rate
    below one record per second counts as 1: Spark truncates it to 0, which means no rate. Without a
    rate, a partition without a cap beside capped partitions is granted its whole lag: Spark reads
    its cap of 0 as a rate of 0 and grants it the floor.

    Args:
        lags: The lag of each partition (records); 0 or more.
        rate: The estimated rate (records/s, all partitions together); None or at most 0 for none.
        limits: The limits; the caps of the whole batch are ignored.

    Returns:
        The messages of each partition. None for no limit: there is neither a rate nor a cap, or
        there is a rate and no partition has a lag.
    """
    partitions = list(lags)
    granted = grant(partitions, list(lags.values()), rate_in_force(rate, limits), limits)
    return None if granted is None else dict(zip(partitions, granted.messages, strict=True))


@dataclass(frozen=True, slots=True)
class RateInForce:
    """A rate (records/s over all partitions, a whole number) and its origin."""

    per_s: float
    reason: Reason


def rate_in_force(
    rate: float | None,
    limits: BatchLimits,
    rate_limit: RateLimit | None = None,
    operator: OperatorLimits | None = None,
) -> RateInForce | None:
    """Return the rate for the next batch, truncated as by Spark's rate controller.

    Raises `OptionError` if the estimated rate is not a finite number.

    Returns:
        The estimated rate, else the initial one; or the rate limit, or the operator's limit, if
        lower or without backpressure. None without backpressure and limits.
    """
    rates = [_own_rate(rate, limits)]
    if rate_limit is not None:
        rates.append(_limited(rate_limit.rate_per_s, Reason.THROTTLED))
    if operator is not None and operator.limit is not None:
        rates.append(_limited(operator.limit.records_per_s or 1, Reason.LIMITED))
    return min(
        (candidate for candidate in rates if candidate is not None), key=_per_s, default=None
    )


def _limited(rate_per_s: float, reason: Reason) -> RateInForce:
    return RateInForce(float(max(int(rate_per_s), 1)), reason)


def _per_s(rate: RateInForce) -> float:
    return rate.per_s


def _own_rate(rate: float | None, limits: BatchLimits) -> RateInForce | None:
    if limits.initial_rate is None:
        return None
    if rate is not None and not math.isfinite(rate):
        raise OptionError(f"The estimated rate is {rate} records/s; it must be a finite number.")
    if rate is not None and rate > 0:
        return RateInForce(float(max(int(rate), 1)), Reason.RATE)
    return RateInForce(float(max(int(limits.initial_rate), 1)), Reason.INITIAL_RATE)


@dataclass(frozen=True, slots=True)
class Granted:
    """Messages granted to each partition, and the decisive clause of the law, in their order."""

    messages: list[int]
    reasons: list[Reason]


def grant(
    partitions: Sequence[TopicPartition],
    lags: Sequence[int],
    rate: RateInForce | None,
    limits: BatchLimits,
) -> Granted | None:
    """Apply `max_messages_per_partition` to columns, with reasons.

    ``lags`` are in the partitions' order. A partition without a rate and a cap is granted its lag,
    with `Reason.EVERYTHING`.
    """
    caps = limits.max_rate_per_partition.of_all(partitions)
    floors = limits.min_per_partition.of_all(partitions)
    if rate is None:
        if not any(caps):
            return None
        shares, origin = [math.inf] * len(lags), Reason.EVERYTHING
    else:
        total_lag = float(sum(lags))
        if total_lag == 0:
            return None
        shares, origin = _shares(lags, total_lag, rate.per_s, caps), rate.reason

    seconds = limits.seconds_per_batch
    messages: list[int] = []
    reasons: list[Reason] = []
    for lag, share, cap, floor in zip(lags, shares, caps, floors, strict=True):
        if 0 < cap <= share:
            count, reason = int(seconds * cap), Reason.PARTITION_CAP
        else:
            count, reason = lag if share == math.inf else int(seconds * share), origin
        if count < floor:
            count, reason = floor, Reason.PARTITION_FLOOR
        messages.append(count)
        reasons.append(reason)
    return Granted(messages, reasons)


def _shares(
    lags: Sequence[int], total_lag: float, rate_per_s: float, caps: Sequence[float]
) -> list[float]:
    """Return each partition's portion of the rate (records/s), with redistributed excess."""
    # In Spark's order of operations: the truncation to whole messages depends on the last bit.
    shares = [lag / total_lag * rate_per_s for lag in lags]
    if not any(0 < cap < share for cap, share in zip(caps, shares, strict=True)):
        return shares
    # As the rate per lag rises, partitions reach their caps in the order of cap to lag.
    capped = [place for place, lag in enumerate(lags) if lag and caps[place] > 0]
    left_per_s, left_lag = rate_per_s, total_lag
    below = set(range(len(lags)))
    for place in sorted(capped, key=lambda place: caps[place] / lags[place]):
        if caps[place] > lags[place] / left_lag * left_per_s:
            break
        shares[place] = caps[place]
        left_per_s -= caps[place]
        left_lag -= lags[place]
        below.remove(place)
    for place in below:
        shares[place] = lags[place] / left_lag * left_per_s if left_lag else 0.0
    return shares
