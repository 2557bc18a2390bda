"""The rate law: Spark's own cases, and the defects of the original that are not here."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples

from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError
from headrace.gate.control.limits import BatchLimits, PartitionLimit
from headrace.gate.control.rate_law import max_messages_per_partition


def lags(*numbers: int) -> dict[TopicPartition, int]:
    return {TopicPartition("orders", number): lag for number, lag in enumerate(numbers)}


def messages(of_each: Sequence[int], rate: float | None, limits: BatchLimits) -> list[int] | None:
    """`max_messages_per_partition` of partitions 0, 1, ... of one topic."""
    answer = max_messages_per_partition(lags(*of_each), rate, limits)
    if answer is None:
        return None
    assert list(answer) == list(lags(*of_each))
    return list(answer.values())


CAP_OF_FIRST = PartitionLimit(0, {TopicPartition("orders", 0): 50})
HALF_CAPPED = PartitionLimit(100, {TopicPartition("orders", 0): 50})
FLOORED = BatchLimits(60, 1, PartitionLimit(100), PartitionLimit(5))


@pytest.mark.parametrize(
    ("of_each", "rate", "limits", "expected"),
    [
        ([50, 50], None, BatchLimits(0.1, None, PartitionLimit(100)), [10, 10]),  # caps alone
        ([0, 0], 100, BatchLimits(0.1, 100, PartitionLimit(100)), None),  # no lag
        ([1000, 1000], 1000, BatchLimits(0.1, 100, HALF_CAPPED), [5, 10]),
        ([1000], None, BatchLimits(0.5, 500, PartitionLimit(1000)), [250]),  # initial, below cap
        ([1000], None, BatchLimits(0.5, 1000, PartitionLimit(300)), [150]),  # initial, above cap
        ([0, 100, 200, 300], 1, FLOORED, [5, 10, 20, 30]),  # a floor even without a lag
        ([5, 10**9], None, BatchLimits(1, None), None),  # neither a rate nor a cap
        ([5, 10**9], 10.0, BatchLimits(1, None), None),  # backpressure is off
        ([10**9], None, BatchLimits(2, 70.9), [140]),  # the initial rate, truncated
        ([10**9], 0.0, BatchLimits(2, 70.9), [140]),
        ([10**9], -1.0, BatchLimits(2, 70.9), [140]),
        ([10**9], 100.9, BatchLimits(10, 1), [1000]),
        ([10**9], 0.9, BatchLimits(10, 50_000), [10]),  # below 1 is 1, and a rate
        ([10**9], 1e-300, BatchLimits(10, 50_000), [10]),
        ([10**9], None, BatchLimits(10, 0.2), [10]),
        ([10**12] * 1000, 1, BatchLimits(0.1, 1), [1] * 1000),  # no share is "no limit"
        ([1000, 1000], None, BatchLimits(1, None, CAP_OF_FIRST), [50, 1000]),  # no cap: the lag
        ([1000, 3000], 400, BatchLimits(1, 1, CAP_OF_FIRST), [50, 350]),  # what the cap leaves
        ([9000, 100, 300], 400, BatchLimits(1, 1, CAP_OF_FIRST), [50, 87, 262]),
        ([], 100, BatchLimits(1, 1), None),
    ],
)
def test_the_law_in_examples(
    of_each: list[int], rate: float | None, limits: BatchLimits, expected: list[int] | None
) -> None:
    assert messages(of_each, rate, limits) == expected


def test_a_partition_that_lags_behind_gets_nearly_the_whole_budget() -> None:
    limits = BatchLimits(1, initial_rate=1000)
    granted = messages([1000] * 31 + [1_001_000], 100_000, limits)
    assert granted is not None
    assert granted[:31] == [96] * 31
    assert granted[31] / 100_000 == pytest.approx(0.97, abs=0.001)


@pytest.mark.parametrize("rate", [math.inf, math.nan, -math.inf])
def test_a_rate_that_is_not_a_number_is_refused(rate: float) -> None:
    with pytest.raises(OptionError, match=f"The estimated rate is {rate} records/s"):
        messages([10], rate, BatchLimits(1, initial_rate=1))


many_lags = st.lists(st.integers(0, 10**12), min_size=1, max_size=40)
rates = st.floats(0.01, 1e9)
seconds = st.floats(0.01, 3600)


def as_spark_writes_it(lags: Sequence[int], rate: int, cap: int, interval_ms: int) -> list[int]:
    """The original's arithmetic, for a rate above 0 and a lag, with its floor of 1."""
    total_lag = float(sum(lags))
    by_rate = [float(lag) / total_lag * float(rate) for lag in lags]
    capped = [min(share, float(cap)) if cap > 0 else share for share in by_rate]
    return [max(math.trunc(float(interval_ms) / 1000 * share), 1) for share in capped]


@examples(300)
@given(
    st.lists(st.integers(0, 2**50), min_size=1, max_size=40).filter(any),
    st.integers(1, 10**9),
    st.one_of(st.just(0), st.integers(1000, 10**6)),
    st.integers(1, 10**6),
)
def test_the_arithmetic_is_sparks_to_the_last_record_where_no_cap_cuts_a_share(
    of_each: list[int], rate: int, cap: int, interval_ms: int
) -> None:
    limits = BatchLimits(interval_ms / 1000, 1, PartitionLimit(cap))
    if cap and max(of_each) / sum(of_each) * rate > cap:
        cap, rate = 0, cap
        limits = BatchLimits(interval_ms / 1000, 1, PartitionLimit(rate))
    assert messages(of_each, rate, limits) == as_spark_writes_it(of_each, rate, cap, interval_ms)


@examples(300)
@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=40),
    st.integers(1, 10**7),
)
def test_what_a_cap_leaves_is_given_to_partitions_below_theirs_by_lag(
    of_each: list[tuple[int, int]], rate: int
) -> None:
    caps = {TopicPartition("orders", n): cap for n, (_, cap) in enumerate(of_each)}
    limits = BatchLimits(1.0, 1, PartitionLimit(0, caps))
    granted = messages([lag for lag, _ in of_each], rate, limits)
    if granted is None:
        return
    below = [
        (lag, got) for (lag, cap), got in zip(of_each, granted, strict=True) if not 0 < cap <= got
    ]
    assert all(got <= cap for (_, cap), got in zip(of_each, granted, strict=True) if cap > 0)
    assert sum(granted) <= rate + len(granted)
    if any(lag for lag, _ in below):
        assert sum(granted) >= rate - len(granted), "something of the rate is given to nobody"
    per_lag = [got / lag for lag, got in below if got > 1000]
    assert not per_lag or max(per_lag) == pytest.approx(min(per_lag), rel=0.01)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 1000))
def test_shares_that_are_whole_numbers_are_rounded_as_sparks_are(
    lag: int, other: int, times: int
) -> None:
    rate = (lag + other) * times
    limits = BatchLimits(1.0, 1)
    assert messages([lag, other], rate, limits) == as_spark_writes_it([lag, other], rate, 0, 1000)


@given(many_lags, rates, seconds, st.integers(1, 1000))
def test_the_batch_holds_no_more_than_the_rate_and_the_floors(
    of_each: list[int], rate: float, seconds: float, floor: int
) -> None:
    limits = BatchLimits(seconds, initial_rate=1, min_per_partition=PartitionLimit(floor))
    granted = messages(of_each, rate, limits)
    if granted is None:
        assert sum(of_each) == 0
    else:
        by_rate = max(int(rate), 1) * seconds
        assert sum(granted) <= by_rate * (1 + 1e-9) + floor * len(of_each)
        assert min(granted) >= floor


@given(many_lags, rates, st.floats(1, 3600), st.floats(1, 1e6))
def test_no_partition_is_granted_more_than_its_cap(
    of_each: list[int], rate: float, seconds: float, cap: float
) -> None:
    limits = BatchLimits(seconds, initial_rate=1, max_rate_per_partition=PartitionLimit(cap))
    granted = messages(of_each, rate, limits)
    assert granted is None or max(granted) <= seconds * cap


@given(many_lags, rates, rates, seconds)
def test_a_higher_rate_grants_no_partition_less(
    of_each: list[int], one: float, other: float, seconds: float
) -> None:
    limits = BatchLimits(seconds, initial_rate=1)
    lower = messages(of_each, min(one, other), limits)
    higher = messages(of_each, max(one, other), limits)
    if lower is None or higher is None:
        assert lower is higher is None
    else:
        assert all(less <= more for less, more in zip(lower, higher, strict=True))
