"""Plans in short: partitions 0, 1, ... of one topic."""

from collections.abc import Sequence

from headrace.core.ranges import TopicPartition
from headrace.gate.control.limits import BatchLimits
from headrace.gate.control.plan import Plan, plan


def orders(offsets: Sequence[int]) -> dict[TopicPartition, int]:
    return {TopicPartition("orders", number): offset for number, offset in enumerate(offsets)}


def plan_lags(
    lags: Sequence[int],
    limits: BatchLimits,
    rate: float | None = None,
    record_bytes: float | dict[str, float] | None = None,
) -> Plan:
    """The plan for partitions that start at 0, so that ends are counts."""
    return plan(orders([0] * len(lags)), orders(lags), rate, limits, record_bytes)


def counts(planned: Plan) -> list[int]:
    return list(planned.until.values())
