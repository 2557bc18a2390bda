"""The rate law of Spark's direct stream: the messages that a rate grants each partition.

A partition's share of the rate is in proportion to its lag, with a cap; its records in one batch
have a floor. With the rate R (a whole number), a partition's lag, cap c (records/s) and floor f
(records), and the batch's seconds s::

    share    = min(lag / sum of lags * R, c)
    messages = max(int(s * share), f)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.control.limits import BatchLimits, OperatorLimits
from headrace.control.pressure import RateLimit
from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError


class Reason(StrEnum):
    """Limit that decided a batch's size, or a partition's. The values are shown to users."""

    RATE = "rate"
    """The estimated rate."""
    INITIAL_RATE = "initial rate"
    """``backpressure.initialRate``, while there is no estimated rate."""
    THROTTLED = "throttled"
    """The rate limit under pressure of a stage after this one, lower than either rate; the plan
    knows which stage."""
    LIMITED = "limited"
    """An operator's limit, lower than all of these; the plan knows whose."""
    PARTITION_CAP = "maxRatePerPartition"
    """The partition's cap, lower than its share of the rate."""
    PARTITION_FLOOR = "minRatePerPartition"
    """The partition's floor, higher than its share of the rate."""
    MAX_RECORDS = "maxOffsetsPerTrigger"
    """The cap of the whole batch in records."""
    MAX_BYTES = "maxBytesPerTrigger"
    """The cap of the whole batch in bytes."""
    CEILING = "ceiling"
    """The largest batch that the handler takes, as failed ones have taught; the plan knows what
    failed."""
    HELD = "held"
    """An operator has paused the gate, or asked it to drain; the plan knows who."""
    WAITING = "waiting for minOffsetsPerTrigger"
    """Too little was there to be worth a batch."""
    EVERYTHING = "everything available"
    """Nothing: all that was there is admitted."""
    NOTHING_NEW = "nothing new"
    """There was nothing to admit."""


LIMITS: Final = (Reason.THROTTLED, Reason.LIMITED, Reason.CEILING)
"""The reasons for which a batch is smaller than the job could process."""


def max_messages_per_partition(
    lags: Mapping[TopicPartition, int], rate: float | None, limits: BatchLimits
) -> dict[TopicPartition, int] | None:
    """Return the messages that the rate law grants each partition, whether it has that many or not.

    This is Spark's ``DirectKafkaInputDStream.maxMessagesPerPartition`` but for two defects. A rate
    below one record per second counts as 1: Spark truncates it to 0 and then takes it for no rate.
    A partition without a cap, where others have one and there is no rate, is granted its whole lag:
    Spark reads its cap of 0 as a share of 0 and grants it the floor.

    Args:
        lags: The lag of each partition (records); 0 or more.
        rate: The estimated rate (records/s, all partitions together); None or at most 0 for none.
        limits: The caps of the whole batch are ignored.

    Returns:
        The messages of each partition. None for no limit: there is neither a rate nor a cap, or
        there is a rate and no partition has a lag.

    Raises:
        OptionError: The rate is not a finite number.
    """
    partitions = list(lags)
    granted = grant(partitions, list(lags.values()), rate_in_force(rate, limits), limits)
    return None if granted is None else dict(zip(partitions, granted.messages, strict=True))


@dataclass(frozen=True, slots=True)
class RateInForce:
    """A rate (records/s over all partitions, a whole number) and where it comes from."""

    per_s: float
    reason: Reason


def rate_in_force(
    rate: float | None,
    limits: BatchLimits,
    rate_limit: RateLimit | None = None,
    operator: OperatorLimits | None = None,
) -> RateInForce | None:
    """The rate that holds for the next batch, truncated as Spark's rate controller does.

    Returns:
        The estimated rate, else the initial one; or the rate limit, or the operator's, where that
        is lower or backpressure is off. None if it is off and there is no limit.

    Raises:
        OptionError: The estimated rate is not a finite number.
    """
    rates = [_own_rate(rate, limits)]
    if rate_limit is not None:
        rates.append(_limited(rate_limit.rate_per_s, Reason.THROTTLED))
    if operator is not None and operator.limit is not None:
        rates.append(_limited(operator.limit.records_per_s or 1, Reason.LIMITED))
    return min((each for each in rates if each is not None), key=_per_s, default=None)


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
    """Messages granted to each partition, and the part of the law that decided, in their order."""

    messages: list[int]
    reasons: list[Reason]


def grant(
    partitions: Sequence[TopicPartition],
    lags: Sequence[int],
    rate: RateInForce | None,
    limits: BatchLimits,
) -> Granted | None:
    """`max_messages_per_partition` on columns, with reasons; ``lags`` are in the partitions' order.

    A partition that has neither a share nor a cap is granted its lag, for `Reason.EVERYTHING`.
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
        # In Spark's order of operations: the truncation below depends on the last bit.
        shares, origin = [lag / total_lag * rate.per_s for lag in lags], rate.reason

    seconds = limits.seconds_per_batch
    messages: list[int] = []
    reasons: list[Reason] = []
    for lag, share, cap, floor in zip(lags, shares, caps, floors, strict=True):
        if 0 < cap < share:
            count, reason = int(seconds * cap), Reason.PARTITION_CAP
        else:
            count, reason = lag if share == math.inf else int(seconds * share), origin
        if count < floor:
            count, reason = floor, Reason.PARTITION_FLOOR
        messages.append(count)
        reasons.append(reason)
    return Granted(messages, reasons)
