"""The token bucket, and what holds for every bucket whatever is taken from it and when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.sharing import TokenBucket

rates = st.floats(0.1, 1e7)
bursts = st.floats(0.01, 10.0)
steps = st.lists(st.tuples(st.floats(0, 3.0), st.floats(0.01, 3.0)), min_size=1, max_size=60)


def test_a_full_bucket_gives_one_burst_and_then_the_rate() -> None:
    bucket = TokenBucket(10)

    assert bucket.try_take(10, 5.0)
    assert not bucket.try_take(1, 5.0)
    assert bucket.delay_s(1, 5.0) == pytest.approx(0.1)
    assert bucket.try_take(1, 5.1)
    assert not bucket.try_take(1, 5.1)


def test_a_pause_saves_no_more_than_one_burst() -> None:
    bucket = TokenBucket(10, burst_s=2.0)
    assert bucket.try_take(20, 0.0)

    assert bucket.level(3600.0) == bucket.capacity == 20


def test_more_than_a_full_bucket_waits_for_a_full_one_and_leaves_a_debt() -> None:
    bucket = TokenBucket(10)
    assert bucket.try_take(1, 0.0)
    assert bucket.delay_s(35, 0.0) == pytest.approx(0.1)

    assert bucket.try_take(35, 0.1)

    assert bucket.level(0.1) == pytest.approx(-25)
    assert bucket.delay_s(1, 0.1) == pytest.approx(2.6)


def test_less_than_one_token_a_second_still_lets_one_through_in_time() -> None:
    bucket = TokenBucket(0.5)

    assert bucket.try_take(1, 0.0)
    assert bucket.delay_s(1, 0.0) == pytest.approx(2.0)


def test_a_changed_rate_holds_at_once_for_who_waits() -> None:
    bucket = TokenBucket(1)
    assert bucket.try_take(1, 0.0)
    assert bucket.delay_s(1, 0.0) == pytest.approx(1.0)

    bucket.set_rate(100, 0.5)

    assert bucket.rate_per_s == 100
    assert bucket.delay_s(1, 0.5) == pytest.approx(0.005)


def test_a_lower_rate_takes_away_what_no_longer_fits() -> None:
    bucket = TokenBucket(1000)

    bucket.set_rate(10, 0.0)

    assert bucket.level(0.0) == 10


def test_a_clock_that_goes_back_takes_and_gives_nothing() -> None:
    bucket = TokenBucket(10)
    assert bucket.try_take(10, 100.0)

    assert bucket.level(50.0) == 0
    assert bucket.level(100.5) == pytest.approx(5)


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, -math.inf])
def test_a_rate_that_is_not_above_zero_and_finite_is_refused(rate: float) -> None:
    with pytest.raises(OptionError, match=r"rate_per_s is .*above 0"):
        TokenBucket(rate)
    with pytest.raises(OptionError, match=r"burst_s is .*above 0"):
        TokenBucket(1, burst_s=rate)

    bucket = TokenBucket(5)
    with pytest.raises(OptionError, match=r"rate_per_s is .*above 0"):
        bucket.set_rate(rate, 0.0)
    assert bucket.rate_per_s == 5


@given(rates, bursts, steps)
def test_no_time_sees_more_than_the_rate_and_one_burst(
    rate: float, burst_s: float, steps: list[tuple[float, float]]
) -> None:
    bucket = TokenBucket(rate, burst_s)
    now_s, taken = 1000.0, [(1000.0, 0.0)]
    for pause_s, bursts_wanted in steps:
        now_s += pause_s
        wanted = bursts_wanted * bucket.capacity
        if bucket.try_take(wanted, now_s):
            taken.append((now_s, wanted))

    for first, (start_s, _) in enumerate(taken):
        for last in range(first, len(taken)):
            amounts = [amount for _, amount in taken[first : last + 1]]
            beyond = max(0.0, max(amounts) - bucket.capacity)
            most = rate * (taken[last][0] - start_s + burst_s + 2e-6) + beyond
            assert sum(amounts) <= most * (1 + 1e-9)


@given(rates, st.lists(st.floats(0.001, 2.0), min_size=200, max_size=200))
def test_who_always_waits_as_long_as_told_gets_the_rate(rate: float, sizes: list[float]) -> None:
    bucket = TokenBucket(rate)
    now_s = start_s = 1_000_000.0
    taken = 0.0
    for size in sizes:
        wanted = size * rate
        now_s += bucket.delay_s(wanted, now_s)
        assert bucket.try_take(wanted, now_s)
        taken += wanted

    # Every token that was gained since the start was taken, or is still in the bucket.
    left = bucket.level(now_s)
    assert taken + left == pytest.approx(rate * (now_s - start_s) + bucket.capacity, rel=1e-6)


@given(rates, rates, st.floats(0, 1e3), st.floats(0, 1e6))
def test_a_new_rate_never_makes_a_full_wait_longer_than_its_own(
    rate: float, new_rate: float, pause_s: float, wanted: float
) -> None:
    bucket = TokenBucket(rate)
    assert bucket.try_take(bucket.capacity, 0.0)

    bucket.set_rate(new_rate, pause_s)

    assert 0 <= bucket.delay_s(wanted, pause_s) <= 1.0 + 1e-6
    assert bucket.level(pause_s) <= bucket.capacity
