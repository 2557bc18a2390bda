"""The planner: computes a batch's end offset for each partition, and the limit that set it.

The planner applies four laws in turn. Each law can only reduce the counts of the previous law:

1. The rate law (`headrace.gate.control.rate_law`): ``count = min(messages, lag)``.
2. ``maxOffsetsPerTrigger``, as in Spark's native Kafka source, if the sum of counts exceeds it:
   ``count = max(int(max / sum * count), 1)``.
3. ``maxBytesPerTrigger``: the counts are scaled down in the same way, with the measured mean size
   of the records.
4. The ceiling learned from failed batches (`headrace.gate.control.size_ceiling`): the counts are
   scaled down in the same way, and their sum is exactly the ceiling.

If ``backpressure.initialRate`` is not set, the first batch is planned with the smallest rate that a
law can learn (``minRate``). So the first batch is bounded as well. If the report of a batch is
lost, the planner keeps the rate in force; a missing rate never removes the limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.ranges import TopicPartition
from headrace.gate.control.limits import BatchLimits, OperatorLimits
from headrace.gate.control.pressure import RateLimit
from headrace.gate.control.rate_law import Reason, grant, rate_in_force
from headrace.gate.control.size_ceiling import SizeCeiling

ASSUMED_RECORD_BYTES: Final = 1_048_588
"""Assumed size of a record while no size has been measured (bytes). It is the default of a Kafka
broker's ``message.max.bytes``, so that the first batch also respects ``maxBytesPerTrigger``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The end offsets of a batch, and the limits that set them.

    Attributes:
        until: The end offset (excluded) of each partition; never below its start.
        records: Number of offsets in the batch. The batch may have fewer records, because
            compaction leaves gaps.
        lag: Number of unread offsets before the batch.
        rate_per_s: The rate in force, a whole number of records/s; None without a rate.
        reason: The limit of the batch: the reason for which the most offsets are left unread. If
            two reasons leave the same number unread, the first in `Reason` counts. If no offset is
            left unread: `Reason.EVERYTHING`, or `Reason.NOTHING_NEW` for an empty batch.
        reasons: The limit of each partition: the last law that reduced its count.
        unread: Number of offsets that are left unread for each reason. The sum is `left_over`.
        throttled_by: The downstream stage whose rate limit was in force, even if another limit was
            lower; None without a rate limit.
        operator: Operators' settings in force, even if another limit was lower; None if they were
            not passed to `plan`.
        ceiling: The size ceiling learned from failed batches; None if it did not reduce the batch.
        bytes: Estimated size of the batch (bytes); None if the records' sizes are unknown.
    """

    until: dict[TopicPartition, int]
    records: int
    lag: int
    rate_per_s: float | None
    reason: Reason
    reasons: dict[TopicPartition, Reason]
    unread: dict[Reason, int]
    throttled_by: str | None = None
    operator: OperatorLimits | None = None
    ceiling: SizeCeiling | None = None
    bytes: int | None = None

    def describe(self, reason: Reason) -> str:
        """Describe a reason in words, with the name of the stage or the operator that caused it.

        A ceiling is described with the failure from which it was learned.
        """
        if reason is Reason.THROTTLED:
            return f"{reason} by {self.throttled_by}"
        if reason is Reason.CEILING and self.ceiling is not None:
            return f"{reason}: {self.ceiling.describe()}"
        operator = self.operator
        if operator is not None and reason in {Reason.LIMITED, Reason.HELD}:
            action = operator.limit if reason is Reason.LIMITED else operator.closed_by
            return str(reason) if action is None else action.describe(operator.at_ms)
        return str(reason)

    @property
    def left_over(self) -> int:
        """Number of available offsets that the batch leaves unread."""
        return self.lag - self.records


def plan(
    current: Mapping[TopicPartition, int],
    latest: Mapping[TopicPartition, int],
    rate: float | None,
    limits: BatchLimits,
    record_bytes: float | Mapping[str, float] | None = None,
    *,
    rate_limit: RateLimit | None = None,
    operator: OperatorLimits | None = None,
    ceiling: SizeCeiling | None = None,
) -> Plan:
    """Plan the next batch.

    ::

        >>> near, far = TopicPartition("orders", 0), TopicPartition("orders", 1)
        >>> positions, ends = {near: 500, far: 500}, {near: 1500, far: 3500}
        >>> limits = BatchLimits(seconds_per_batch=1, initial_rate=50)
        >>> planned = plan(positions, ends, 400.0, limits)
        >>> planned.until[near], planned.until[far], str(planned.reason)
        (600, 800, 'rate')

    If the position of a partition is past its latest offset, because the topic was truncated or
    recreated, the partition gets no records. The source must handle this case before it plans.

    Args:
        current: The position of every partition in ``latest``. Other partitions are ignored.
        latest: The latest offset of every partition to read. The plan has the same partitions.
        rate: The estimated rate (records/s, all partitions together). None, 0 or less: no estimate.
        limits: The other limits of the batch.
        record_bytes: The mean size of a record (bytes), one number or a number for each topic. An
            unknown size counts as `ASSUMED_RECORD_BYTES`. Only ``limits.max_bytes`` uses it.
        rate_limit: The rate limit of a downstream stage. The limit applies even if backpressure is
            off. The floor of each partition takes precedence.
        operator: Operators' settings in force. An operator's limit applies like ``rate_limit``.
            Under a stop, a pause or a drain, the plan is empty.
        ceiling: The size ceiling learned from failed batches; None for no ceiling.

    Raises:
        KeyError: A partition in ``latest`` has no position in ``current``.
        OptionError: The estimated rate is not a finite number.
    """
    backlog = _Backlog.of(current, latest)
    if operator is not None and operator.closed_by is not None:
        return _plan_of_nothing(backlog, Reason.HELD, operator)
    in_force = rate_in_force(rate, limits, rate_limit, operator)
    counts = backlog.lags
    reasons = [Reason.EVERYTHING if lag else Reason.NOTHING_NEW for lag in counts]

    granted = grant(backlog.partitions, backlog.lags, in_force, limits)
    if granted is not None:
        counts = [
            messages if messages < lag else lag
            for messages, lag in zip(granted.messages, backlog.lags, strict=True)
        ]
        reasons = _updated(reasons, backlog.lags, counts, granted.reasons)
    if limits.max_records is not None:
        before, counts = counts, _prorated(counts, limits.max_records, sum(counts))
        reasons = _updated(reasons, before, counts, [Reason.MAX_RECORDS] * len(counts))
    if limits.max_bytes is not None:
        size_bytes = _size_bytes(backlog.partitions, counts, record_bytes)
        if size_bytes > limits.max_bytes:
            before, counts = counts, _prorated(counts, limits.max_bytes, size_bytes)
            reasons = _updated(reasons, before, counts, [Reason.MAX_BYTES] * len(counts))
    is_capped = ceiling is not None and sum(counts) > ceiling.records
    if ceiling is not None and is_capped:
        turn = sum(backlog.starts)  # grows with each batch, by the number of its offsets
        before, counts = counts, _prorated_exactly(counts, ceiling.records, turn)
        reasons = _updated(reasons, before, counts, [Reason.CEILING] * len(counts))
    measured_bytes = _measured_bytes(backlog.partitions, counts, record_bytes)
    per_s = None if in_force is None else in_force.per_s
    planned = _plan_of(backlog, counts, reasons, per_s)
    throttled_by = None if rate_limit is None else rate_limit.throttled_by
    return replace(
        planned,
        throttled_by=throttled_by,
        operator=operator,
        ceiling=ceiling if is_capped else None,
        bytes=None if measured_bytes is None else round(measured_bytes),
    )


def empty_plan(current: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> Plan:
    """Return a plan without records, with `Reason.WAITING`, for a batch that `should_wait` delays.

    Raises:
        KeyError: A partition in ``latest`` has no position in ``current``.
    """
    return _plan_of_nothing(_Backlog.of(current, latest), Reason.WAITING)


def _plan_of_nothing(
    backlog: "_Backlog", why: Reason, operator: OperatorLimits | None = None
) -> Plan:
    reasons = [why if lag else Reason.NOTHING_NEW for lag in backlog.lags]
    planned = _plan_of(backlog, [0] * len(reasons), reasons, rate_per_s=None)
    return replace(planned, operator=operator)


def should_wait(available: int, min_records: int, waited_ms: int, max_delay_ms: int) -> bool:
    """Whether ``minOffsetsPerTrigger`` delays a batch, as in Spark's native Kafka source.

    Args:
        available: Number of unread offsets (`Plan.lag`).
        min_records: ``minOffsetsPerTrigger``: the least number of offsets in a batch.
        waited_ms: The time since the last batch that was not delayed (ms). For the first batch,
            pass ``max_delay_ms``, because the native source does not delay the first batch.
        max_delay_ms: ``maxTriggerDelay``: the longest delay of a batch (ms), however few offsets
            are available.
    """
    return waited_ms < max_delay_ms and available < min_records


@dataclass(frozen=True, slots=True)
class _Backlog:
    """The start offset and the lag of each partition before a batch.

    The values are in parallel lists, because a plan may have thousands of partitions.
    """

    partitions: list[TopicPartition]
    starts: list[int]
    lags: list[int]

    @classmethod
    def of(
        cls, current: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
    ) -> "_Backlog":
        starts = [current[partition] for partition in latest]
        lags = [
            end - start if end > start else 0
            for start, end in zip(starts, latest.values(), strict=True)
        ]
        return cls(list(latest), starts, lags)


def _prorated(counts: Sequence[int], limit: int, total: float) -> list[int]:
    """Scale counts of records down to a limit, as Spark's native Kafka source does.

    Each count is multiplied by limit / total and rounded down. A result below one record becomes
    one record, so that small partitions do not starve. So the sum may exceed the limit by one
    record for each small partition.

    Args:
        counts: The number of records of each partition.
        limit: The limit of the whole batch, in records or bytes.
        total: The size of all counts together, in the unit of ``limit``.
    """
    # In Spark's native order of operations, on doubles: the rounding depends on the last bit.
    whole = float(total) or 1.0
    shares = [limit * (count / whole) for count in counts]
    return [
        count if share >= count else int(share) or 1
        for count, share in zip(counts, shares, strict=True)
    ]


def _prorated_exactly(counts: Sequence[int], limit: int, turn: int) -> list[int]:
    """Scale counts of records down so that their sum is exactly the limit.

    The counts stay in proportion, as in `_prorated`. If the limit is below the number of partitions
    with records, some partitions get one record each, and the other partitions get none. ``turn``
    selects the partitions. ``turn`` grows from batch to batch, so that every partition gets its
    turn.
    """
    some = [place for place, count in enumerate(counts) if count]
    if len(some) > limit:
        chosen = {some[(turn + number) % len(some)] for number in range(limit)}
        return [int(place in chosen) for place in range(len(counts))]
    scaled = _prorated(counts, limit, sum(counts))
    largest = sorted(range(len(counts)), key=lambda index: -counts[index])
    missing = limit - sum(scaled)
    while missing:
        moved = 0
        for index in largest:
            step = (missing > 0) - (missing < 0)
            if step and (scaled[index] < counts[index] if step > 0 else scaled[index] > 1):
                scaled[index] += step
                missing -= step
                moved += 1
        if not moved:
            break
    return scaled


def _size_bytes(
    partitions: Sequence[TopicPartition],
    counts: Sequence[int],
    record_bytes: float | Mapping[str, float] | None,
) -> float:
    if not isinstance(record_bytes, Mapping):
        return sum(counts) * (ASSUMED_RECORD_BYTES if record_bytes is None else record_bytes)
    return sum(
        count * record_bytes.get(partition.topic, ASSUMED_RECORD_BYTES)
        for partition, count in zip(partitions, counts, strict=True)
    )


def _measured_bytes(
    partitions: Sequence[TopicPartition],
    counts: Sequence[int],
    record_bytes: float | Mapping[str, float] | None,
) -> float | None:
    """Return the size of the counted records (bytes); None if any topic's size is not measured."""
    if record_bytes is None:
        return None
    if isinstance(record_bytes, Mapping) and any(
        count and partition.topic not in record_bytes
        for partition, count in zip(partitions, counts, strict=True)
    ):
        return None
    return _size_bytes(partitions, counts, record_bytes)


def _updated(
    reasons: Sequence[Reason],
    before: Sequence[int],
    after: Sequence[int],
    law: Sequence[Reason],
) -> list[Reason]:
    """Return each partition's reason after a law that changed ``before`` to ``after``.

    A partition whose count the law has reduced gets its reason from ``law``.
    """
    return [
        new if count < previous else old
        for old, previous, count, new in zip(reasons, before, after, law, strict=True)
    ]


def _plan_of(
    backlog: _Backlog,
    counts: Sequence[int],
    reasons: Sequence[Reason],
    rate_per_s: float | None,
) -> Plan:
    unread: dict[Reason, int] = {}
    for lag, count, reason in zip(backlog.lags, counts, reasons, strict=True):
        if count < lag:
            unread[reason] = unread.get(reason, 0) + lag - count
    records = sum(counts)
    if unread:
        batch_reason = max((r for r in Reason if r in unread), key=unread.__getitem__)
    else:
        batch_reason = Reason.EVERYTHING if records else Reason.NOTHING_NEW
    ends = [start + count for start, count in zip(backlog.starts, counts, strict=True)]
    return Plan(
        until=dict(zip(backlog.partitions, ends, strict=True)),
        records=records,
        lag=sum(backlog.lags),
        rate_per_s=rate_per_s,
        reason=batch_reason,
        reasons=dict(zip(backlog.partitions, reasons, strict=True)),
        unread=unread,
    )
