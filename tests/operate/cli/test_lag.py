"""Changes of the lag, against the arrivals that caused them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operate.cli.histories import NOW_MS, a_batch, with_lags

from headrace.gate.ledger.records import BatchRecord
from headrace.operate.status.trends import WINDOW, LagChange, Trend, drain_trend, newest_run

steps = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(1, 5_000), st.integers(1, 10_000)),
    min_size=2,
    max_size=WINDOW,
)


@given(st.integers(0, 10**6), steps)
def test_the_arrivals_and_the_throughput_are_those_that_moved_the_lag(
    lag: int, steps: list[tuple[int, int, int]]
) -> None:
    batches: list[BatchRecord] = []
    created_ms, arrived, admitted = NOW_MS, 0, 0
    for number, (arrivals, planned, elapsed_ms) in enumerate(steps):
        last = number == len(steps) - 1
        taken = min(planned, lag)
        batches.insert(0, a_batch(number, created_ms, lag, taken))
        if not last:
            lag += arrivals - taken
            arrived, admitted = arrived + arrivals, admitted + taken
            created_ms += elapsed_ms
    seconds = (created_ms - NOW_MS) / 1000

    change = LagChange.of(batches)

    assert change is not None
    assert change.arrival_rate_per_s == arrived / seconds
    assert change.throughput_per_s == admitted / seconds


@pytest.mark.parametrize(
    ("lags", "drain_s", "trend"),
    [
        ((20_000, 19_400, 18_800), 18_800 / 600, Trend.FALLING),  # 400 arrive each second
        ((20_000, None, 18_800), 18_800 / 600, Trend.FALLING),  # planned before a restart
        ((20_000, 20_600, 21_200), None, Trend.RISING),
        ((900, 1_100, 1_000), 0, Trend.RISING),
    ],
)
def test_the_time_to_drain_is_the_lag_over_what_is_admitted_beyond_what_arrives(
    lags: tuple[int | None, ...], drain_s: float | None, trend: Trend
) -> None:
    change = LagChange.of(with_lags(*lags).batches)
    assert change is not None
    assert change.throughput_per_s == 1_000
    assert (change.drain_s, change.lag_trend) == (drain_s, trend)


def test_one_batch_is_not_enough_to_know() -> None:
    assert LagChange.of(()) is None
    assert LagChange.of(with_lags(20_000).batches) is None
    assert LagChange.of(with_lags(None, 20_000).batches) is None


def test_batches_of_another_run_are_not_compared() -> None:
    batches = [
        a_batch(0, NOW_MS, 500, checkpoint_id="new"),
        a_batch(9, NOW_MS - 1_000, 9_000, checkpoint_id="old"),
    ]
    assert newest_run(batches) == batches[:1]


def test_the_time_to_drain_gets_shorter_while_the_lag_falls() -> None:
    lags = [20_000 - 500 * number for number in range(2 * WINDOW)]
    assert drain_trend(with_lags(*lags).batches) is Trend.FALLING


def test_the_time_to_drain_gets_longer_when_less_is_admitted() -> None:
    fast = [20_000 - 800 * number for number in range(WINDOW)]
    slow = [fast[-1] - 50 * number for number in range(1, WINDOW)]
    assert drain_trend(with_lags(*fast, *slow).batches) is Trend.RISING


def test_a_lag_that_begins_to_grow_makes_the_time_to_drain_endless() -> None:
    falls = [20_000 - 500 * number for number in range(WINDOW)]
    rises = [falls[-1] + 2_000 * number for number in range(1, WINDOW // 2 + 1)]
    assert drain_trend(with_lags(*falls, *rises).batches) is Trend.RISING
    assert drain_trend(with_lags(*falls[-4:]).batches) is None
