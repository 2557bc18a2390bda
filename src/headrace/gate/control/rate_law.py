"""The rate law of Spark's direct stream: the messages that a rate grants each partition.

A partition's share of the rate is in proportion to its lag, with a cap; its records in one batch
have a floor. With the rate R (a whole number), a partition's lag, cap c (records/s) and floor f
(records), and the batch's seconds s::

    share    = min(lag / sum of lags * R, c)
    messages = max(int(s * share), f)

Spark gives the rest of a share that a cap cuts off to no partition: one partition with a backlog
and a cap then starves all others. Here it is shared by lag among the partitions that are below
their caps, until none is left, so the numbers differ from Spark's where a cap is in force.
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


LIMITS: Final = (
    Reason.THROTTLED,
    Reason.LIMITED,
    Reason.CEILING,
    Reason.MAX_RECORDS,
    Reason.MAX_BYTES,
)
"""The reasons for which a batch is smaller than the job could process."""

_RATES: Final = (Reason.RATE, Reason.INITIAL_RATE)


def is_limited(reason: str, left_unread: Collection[str]) -> bool:
    """Whether a limit made a batch smaller than its rate, so that its size says nothing of the job.

    The caps of partitions do so only where they have cut the whole rate off: as long as the rate
    leaves records unread in some partition, all of it is in the batch.

    Args:
        reason: The batch's reason, as the ledger has it.
        left_unread: The reasons of the partitions of which the batch leaves records unread.
    """
    capped = Reason.PARTITION_CAP in left_unread and not any(r in left_unread for r in _RATES)
    return capped or reason.startswith(LIMITS)


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
    """Return the part of the rate (records/s) that each partition gets, with what caps leave."""
    # In Spark's order of operations: the truncation to whole messages depends on the last bit.
    shares = [lag / total_lag * rate_per_s for lag in lags]
    if not any(0 < cap < share for cap, share in zip(caps, shares, strict=True)):
        return shares
    # Partitions come to their caps in the order of cap to lag, as the rate per lag rises.
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
