"""The rate law of Spark's direct stream: it divides a rate among the partitions of a batch.

A partition's share of the rate is proportional to the partition's lag, but at most its cap. In each
batch, a partition gets at least its floor. R is the rate (a whole number of records/s), c a
partition's cap (records/s), f its floor (records), and s the batch's length (s)::

    share    = min(lag / sum of lags * R, c)
    messages = max(int(s * share), f)

If a share exceeds its cap, Spark discards the excess. One partition with a large backlog and a cap
then starves all other partitions. Here, the partitions below their caps share the excess in
proportion to their lags. So the numbers differ from Spark's numbers only where a cap is in force.
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
    """The limit that set the size of a batch, or of one partition's share in the batch.

    The values are shown to users.
    """

    RATE = "rate"
    """The estimated rate was the limit."""
    INITIAL_RATE = "initial rate"
    """``backpressure.initialRate`` was the limit, because no rate was estimated yet."""
    THROTTLED = "throttled"
    """The rate limit of a downstream stage was below the gate's own rate. `Plan.throttled_by` names
    the stage."""
    LIMITED = "limited"
    """An operator's rate limit was below all other rates. `Plan.operator` names the operator."""
    PARTITION_CAP = "maxRatePerPartition"
    """The partition's cap was below its share of the rate."""
    PARTITION_FLOOR = "minRatePerPartition"
    """The partition's floor was above its share of the rate."""
    MAX_RECORDS = "maxOffsetsPerTrigger"
    """The cap on the records of a whole batch limited it."""
    MAX_BYTES = "maxBytesPerTrigger"
    """The cap on the bytes of a whole batch limited it."""
    CEILING = "ceiling"
    """The size ceiling, learned from failed batches, was the limit. `Plan.ceiling` has the sizes
    that failed and passed."""
    HELD = "held"
    """An operator has paused, drained or stopped the gate. `Plan.operator` names the operator."""
    WAITING = "waiting for minOffsetsPerTrigger"
    """Fewer offsets were available than ``minOffsetsPerTrigger``."""
    EVERYTHING = "everything available"
    """The batch reads all available offsets, so no limit applied."""
    NOTHING_NEW = "nothing new"
    """No offsets were available."""


LIMITS: Final = (
    Reason.THROTTLED,
    Reason.LIMITED,
    Reason.CEILING,
    Reason.MAX_RECORDS,
    Reason.MAX_BYTES,
)
"""Limits other than the estimated rate. They make a batch smaller than the job could process."""

_RATES: Final = (Reason.RATE, Reason.INITIAL_RATE)


def is_limited(reason: str, left_unread: Collection[str]) -> bool:
    """Whether a limit other than the rate made a batch smaller than the job could process.

    Caps of partitions count only if no partition has unread records because of the rate. Otherwise
    the batch has used the whole rate.

    Args:
        reason: The batch's reason, as text from the ledger.
        left_unread: The reasons of the partitions that still have unread records.
    """
    capped = Reason.PARTITION_CAP in left_unread and not any(r in left_unread for r in _RATES)
    return capped or reason.startswith(LIMITS)


def max_messages_per_partition(
    lags: Mapping[TopicPartition, int], rate: float | None, limits: BatchLimits
) -> dict[TopicPartition, int] | None:
    """Return the number of messages that the rate law grants each partition, even beyond its lag.

    This is Spark's ``DirectKafkaInputDStream.maxMessagesPerPartition`` without two defects. Spark
    truncates a rate below one record per second to 0, which means no rate; here it counts as 1. If
    there is no rate and only some partitions have a cap, Spark grants the other partitions only
    their floor; here they are granted their whole lag.

    Args:
        lags: The lag of each partition (records); 0 or more.
        rate: The estimated rate (records/s, all partitions together). None, 0 or less: no estimate.
        limits: The limits of the batch. The caps of the whole batch are ignored.

    Returns:
        The number of messages for each partition. None means no limit: there is neither a rate nor
        a cap, or there is a rate and no partition has a lag.
    """
    partitions = list(lags)
    granted = grant(partitions, list(lags.values()), rate_in_force(rate, limits), limits)
    return None if granted is None else dict(zip(partitions, granted.messages, strict=True))


@dataclass(frozen=True, slots=True)
class RateInForce:
    """The rate of the next batch, and its origin.

    Attributes:
        per_s: The rate over all partitions; a whole number of records/s.
        reason: The kind of the rate: `Reason.RATE`, `INITIAL_RATE`, `THROTTLED` or `LIMITED`.
    """

    per_s: float
    reason: Reason


def rate_in_force(
    rate: float | None,
    limits: BatchLimits,
    rate_limit: RateLimit | None = None,
    operator: OperatorLimits | None = None,
) -> RateInForce | None:
    """Return the rate of the next batch: the lowest of the gate's own rate and the rate limits.

    The gate's own rate is the estimated rate or, without an estimate, the initial rate; if
    backpressure is off, the gate has no own rate. Rates are truncated to whole numbers of 1 or
    more, as in Spark's rate controller.

    Returns:
        None if backpressure is off and no rate limit is in force.

    Raises:
        OptionError: The estimated rate is not a finite number.
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
    """The number of messages granted to each partition, and the limit that set each number.

    Both lists are in the order of the partitions.
    """

    messages: list[int]
    reasons: list[Reason]


def grant(
    partitions: Sequence[TopicPartition],
    lags: Sequence[int],
    rate: RateInForce | None,
    limits: BatchLimits,
) -> Granted | None:
    """Return the messages that the rate law grants each partition, with the reasons.

    This is `max_messages_per_partition` with lists instead of dicts. Without a rate, a partition
    without a cap is granted its lag, with `Reason.EVERYTHING`.

    Args:
        partitions: The partitions to read.
        lags: The lag of each partition (records), in the order of ``partitions``.
        rate: The rate of the batch; None for no rate.
        limits: The limits of the batch. The caps of the whole batch are ignored.

    Returns:
        None for no limit, as in `max_messages_per_partition`.
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
    """Return each partition's share of the rate (records/s).

    The excess above the caps is divided among the partitions below their caps.
    """
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
