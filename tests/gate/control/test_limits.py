"""BatchLimits: what is refused, and in which words."""

import math
from typing import Any

import pytest

from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.control.limits import BatchLimits, PartitionLimit

ORDERS_3 = TopicPartition("orders", 3)
ORDERS_4 = TopicPartition("orders", 4)


def limits(**changed: Any) -> BatchLimits:
    return BatchLimits(**{"seconds_per_batch": 1.0, "initial_rate": 1000.0, **changed})


def test_a_partition_has_the_default_unless_it_has_a_number_of_its_own() -> None:
    limit = PartitionLimit(100, {ORDERS_3: 7})
    assert limit.of(ORDERS_3) == 7
    assert limit.of(ORDERS_4) == 100
    assert limit.of_all([ORDERS_4, ORDERS_3]) == [100, 7]
    assert PartitionLimit(5).of_all([ORDERS_4, ORDERS_3]) == [5, 5]


def test_there_is_no_cap_and_a_floor_of_one_unless_told_otherwise() -> None:
    ordinary = limits()
    assert ordinary.max_rate_per_partition.of(ORDERS_3) == 0
    assert ordinary.min_per_partition.of(ORDERS_3) == 1
    assert ordinary.max_records is None
    assert ordinary.max_bytes is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"seconds_per_batch": 0}, "headrace.interval is 0 s"),
        ({"seconds_per_batch": math.inf}, "headrace.interval is inf s"),
        ({"initial_rate": 0}, "backpressure.initialRate is 0 records/s"),
        ({"initial_rate": -5.0}, "backpressure.initialRate is -5.0 records/s"),
        ({"initial_rate": math.nan}, "backpressure.initialRate is nan records/s"),
        ({"max_records": 0}, "maxOffsetsPerTrigger is 0"),
        ({"max_bytes": -1}, "maxBytesPerTrigger is -1"),
        ({"max_rate_per_partition": PartitionLimit(-1)}, "maxRatePerPartition is -1 records/s;"),
        (
            {"max_rate_per_partition": PartitionLimit(0, {ORDERS_3: math.nan})},
            "maxRatePerPartition is nan records/s for orders-3;",
        ),
        ({"min_per_partition": PartitionLimit(0)}, "minRatePerPartition is 0 records a batch;"),
        ({"min_per_partition": PartitionLimit(1.5)}, "minRatePerPartition is 1.5 records a batch"),
        (
            {"min_per_partition": PartitionLimit(1, {ORDERS_4: -2})},
            "minRatePerPartition is -2 records a batch for orders-4;",
        ),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_options_name(
    changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError) as refused:
        limits(**changed)
    assert str(refused.value).startswith(sentence)


def test_a_floor_above_a_cap_is_refused_with_both_options_names() -> None:
    with pytest.raises(OptionError) as refused:
        limits(
            seconds_per_batch=0.5,
            max_rate_per_partition=PartitionLimit(10),
            min_per_partition=PartitionLimit(6),
        )
    assert str(refused.value) == (
        "minRatePerPartition needs 6 records in a batch, but maxRatePerPartition (10 records/s)"
        " allows only 5 in a batch of 0.5 s; lower minRatePerPartition, or raise"
        " maxRatePerPartition or the interval."
    )


def test_a_floor_that_equals_a_cap_is_allowed() -> None:
    allowed = limits(
        seconds_per_batch=0.5,
        max_rate_per_partition=PartitionLimit(10),
        min_per_partition=PartitionLimit(5),
    )
    assert allowed.min_per_partition.of(ORDERS_3) == 5


@pytest.mark.parametrize(
    ("caps", "floors"),
    [
        (PartitionLimit(10, {ORDERS_3: 4}), PartitionLimit(5)),
        (PartitionLimit(10), PartitionLimit(5, {ORDERS_3: 11})),
        (PartitionLimit(0, {ORDERS_3: 4}), PartitionLimit(1, {ORDERS_3: 5})),
    ],
)
def test_a_floor_above_the_cap_of_one_partition_is_refused_with_its_name(
    caps: PartitionLimit[float], floors: PartitionLimit[int]
) -> None:
    with pytest.raises(OptionError, match=r"for orders-3, but maxRatePerPartition .* allows"):
        limits(max_rate_per_partition=caps, min_per_partition=floors)


def test_a_floor_is_not_held_against_a_cap_of_another_partition() -> None:
    limits(
        max_rate_per_partition=PartitionLimit(0, {ORDERS_3: 4}),
        min_per_partition=PartitionLimit(1, {ORDERS_4: 50}),
    )


def test_a_floor_above_the_cap_of_the_whole_batch_is_refused() -> None:
    with pytest.raises(OptionError, match=r"needs 20 .* maxOffsetsPerTrigger allows only 10"):
        limits(min_per_partition=PartitionLimit(20), max_records=10)


def test_a_cap_below_one_record_a_batch_is_refused_since_every_partition_gets_one() -> None:
    with pytest.raises(OptionError, match=r"needs 1 .* allows only 0\.5 in a batch of 0\.1 s"):
        limits(seconds_per_batch=0.1, max_rate_per_partition=PartitionLimit(5))
