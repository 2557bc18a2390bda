"""The laws in a closed loop with a job whose speed changes."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control import (
    BatchLimits,
    BatchProgress,
    PIDRateEstimator,
    Reason,
)
from headrace.simulation import SimulatedBatch, batches_to_settle, simulate

SLOW_FROM_MS, SLOW_UNTIL_MS = 20_000, 50_000


def always(per_s: float) -> Callable[[int], float]:
    return lambda _time_ms: per_s


def four_times_slower_for_a_while(time_ms: int) -> float:
    return 2500.0 if SLOW_FROM_MS <= time_ms < SLOW_UNTIL_MS else 10_000.0


def slowdown(fixed_ms: int, partitions: int) -> list[SimulatedBatch]:
    return simulate(
        PIDRateEstimator(1000),
        BatchLimits(1.0, initial_rate=1000),
        capacity_per_s=four_times_slower_for_a_while,
        arrivals_per_s=always(8000),
        until_ms=90_000,
        backlog=1_000_000,
        partitions=partitions,
        fixed_ms=fixed_ms,
    )


def before(time_ms: int, batches: list[SimulatedBatch]) -> list[SimulatedBatch]:
    return [batch for batch in batches if batch.progress.start_ms < time_ms]


@pytest.mark.parametrize("partitions", [1, 32])
@pytest.mark.parametrize("fixed_ms", [0, 150, 300])
def test_batches_are_back_at_the_interval_three_after_a_job_becomes_four_times_slower(
    fixed_ms: int, partitions: int
) -> None:
    batches = before(SLOW_UNTIL_MS, slowdown(fixed_ms, partitions))
    assert batches_to_settle(batches, from_ms=SLOW_FROM_MS, target_ms=1000) == 3


@pytest.mark.parametrize(("fixed_ms", "expected"), [(0, 1), (150, 2), (300, 2)])
def test_batches_are_back_at_the_interval_soon_after_the_job_has_recovered(
    fixed_ms: int, expected: int
) -> None:
    batches = slowdown(fixed_ms, partitions=1)
    assert batches_to_settle(batches, from_ms=SLOW_UNTIL_MS, target_ms=1000) == expected


def test_the_first_batch_is_bounded_by_the_initial_rate_whatever_the_backlog() -> None:
    first, *_ = slowdown(fixed_ms=150, partitions=1)
    assert first.progress.records == 1000
    assert first.lag == 1_000_000
    assert first.reason is Reason.INITIAL_RATE


def test_a_job_that_keeps_up_takes_everything_in_time() -> None:
    batches = simulate(
        PIDRateEstimator(1000),
        BatchLimits(1.0, initial_rate=1000),
        capacity_per_s=always(10_000),
        arrivals_per_s=always(800),
        until_ms=30_000,
    )
    assert [batch.progress.start_ms for batch in batches] == list(range(1000, 30_000, 1000))
    assert {batch.progress.records for batch in batches} == {800}
    assert {batch.reason for batch in batches} == {Reason.EVERYTHING}


def test_a_backlog_is_worked_off_and_then_the_lag_is_one_interval_of_arrivals() -> None:
    batches = simulate(
        PIDRateEstimator(1000),
        BatchLimits(1.0, initial_rate=1000),
        capacity_per_s=always(10_000),
        arrivals_per_s=always(5000),
        until_ms=60_000,
        backlog=100_000,
    )
    lags = [batch.lag for batch in batches]
    assert max(lags) < 120_000
    assert lags[-1] == 5000


class AnswersOnce(PIDRateEstimator):
    """An estimator that answers the first batch and no other."""

    def __init__(self) -> None:
        super().__init__(1000)
        self._answers = [700.0]

    def compute(
        self, time_ms: int, num_elements: int, processing_delay_ms: int, scheduling_delay_ms: int
    ) -> float | None:
        assert min(num_elements, processing_delay_ms) > 0 <= min(time_ms, scheduling_delay_ms)
        return self._answers.pop() if self._answers else None


def test_a_rate_stays_in_force_until_there_is_another() -> None:
    batches = simulate(
        AnswersOnce(),
        BatchLimits(1.0, initial_rate=300),
        capacity_per_s=always(1000),
        arrivals_per_s=always(0),
        until_ms=4000,
        backlog=10_000,
    )
    assert [batch.rate_per_s for batch in batches] == [300.0, 700.0, 700.0, 700.0]


def test_without_records_there_are_no_batches() -> None:
    batches = simulate(
        PIDRateEstimator(1000),
        BatchLimits(1.0, initial_rate=1000),
        capacity_per_s=always(10_000),
        arrivals_per_s=always(0),
        until_ms=30_000,
    )
    assert batches == []


def test_a_batch_that_overruns_is_followed_at_once_and_missed_ticks_are_skipped() -> None:
    batches = simulate(
        PIDRateEstimator(1000),
        BatchLimits(1.0, initial_rate=None),
        capacity_per_s=always(1000),
        arrivals_per_s=always(100),
        until_ms=4500,
        backlog=2500,
    )
    assert [batch.progress.start_ms for batch in batches] == [0, 2500, 3000, 4000]
    assert [batch.progress.records for batch in batches] == [2500, 250, 50, 100]


@settings(max_examples=50)
@given(
    st.floats(1000, 100_000),
    st.floats(0.2, 5),
    st.integers(1, 8),
    st.integers(0, 300),
    st.integers(0, 1_000_000),
)
def test_no_record_is_lost_or_admitted_twice_and_equal_runs_are_equal(
    capacity: float, load: float, partitions: int, fixed_ms: int, backlog: int
) -> None:
    def run() -> list[SimulatedBatch]:
        return simulate(
            PIDRateEstimator(1000),
            BatchLimits(1.0, initial_rate=500),
            capacity_per_s=always(capacity),
            arrivals_per_s=lambda time_ms: capacity * load if time_ms < 10_000 else 0.0,
            until_ms=15_000,
            backlog=backlog,
            partitions=partitions,
            fixed_ms=fixed_ms,
        )

    batches = run()
    assert run() == batches
    admitted = 0
    for batch in batches:
        assert batch.lag == batch.progress.records + batch.progress.left_over
        assert batch.lag + admitted >= backlog
        admitted += batch.progress.records


@settings(max_examples=50)
@given(st.floats(500, 100_000), st.floats(0.05, 20), st.integers(0, 400))
def test_the_default_gains_settle_after_any_change_of_speed(
    capacity: float, change: float, fixed_ms: int
) -> None:
    batches = simulate(
        PIDRateEstimator(1000, min_rate=1),
        BatchLimits(1.0, initial_rate=100),
        capacity_per_s=lambda time_ms: capacity * (change if time_ms >= 30_000 else 1.0),
        arrivals_per_s=always(0),
        until_ms=120_000,
        backlog=10**10,
        fixed_ms=fixed_ms,
    )
    settled = batches_to_settle(batches, from_ms=30_000, target_ms=1000)
    assert settled is not None
    assert settled <= 20


def timed(*durations_ms: int) -> list[SimulatedBatch]:
    return [
        SimulatedBatch(BatchProgress(1000 * number, duration_ms, 1, 0), 1, None, Reason.RATE)
        for number, duration_ms in enumerate(durations_ms)
    ]


def test_settling_counts_up_to_the_last_batch_off_the_target() -> None:
    batches = timed(5000, 1000, 4000, 1150, 849, 1151, 850, 1000)
    assert batches_to_settle(batches, from_ms=2000, target_ms=1000) == 4
    assert batches_to_settle(batches, from_ms=2000, target_ms=1000, tolerance=0.2) == 1
    assert batches_to_settle(batches, from_ms=6000, target_ms=1000) == 0


def test_what_is_still_off_the_target_at_the_end_has_not_settled() -> None:
    assert batches_to_settle(timed(1000, 4000), from_ms=0, target_ms=1000) is None
