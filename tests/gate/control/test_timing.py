"""Timing: from the progress of two batches to what the estimator is told."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.gate.control.law import BatchProgress, BatchStats, batch_stats
from headrace.gate.control.pid import PIDRateEstimator


def batch(start_ms: int, duration_ms: int, records: int = 100, left_over: int = 0) -> BatchProgress:
    return BatchProgress(start_ms, duration_ms, records, left_over)


def delay_ms(previous: BatchProgress | None, present: BatchProgress, interval_ms: int) -> int:
    return batch_stats(previous, present, interval_ms).scheduling_delay_ms


def test_a_batch_ended_when_it_began_plus_its_duration() -> None:
    stats = batch_stats(None, batch(5000, 700, records=42), 1000)
    assert stats == BatchStats(
        time_ms=5700, num_elements=42, processing_delay_ms=700, scheduling_delay_ms=0
    )


def test_the_stats_are_the_estimators_arguments_in_their_order() -> None:
    estimator = PIDRateEstimator(1000)
    assert estimator.compute(*batch_stats(None, batch(0, 1000, 500), 1000)) is None
    assert estimator.compute(*batch_stats(batch(0, 1000), batch(1000, 1000, 700), 1000)) == 700.0


@pytest.mark.parametrize(
    ("previous", "present", "expected_ms"),
    [
        (None, batch(123_456, 9000), 0),  # the first of a run
        (batch(0, 800, left_over=50), batch(1000, 800), 0),  # one interval later
        (batch(0, 3550, left_over=50), batch(3560, 800), 2560),  # an overrun that left data
        (batch(0, 800), batch(7000, 800), 0),  # nothing was waiting
        (batch(0, 3550), batch(3560, 800), 2560),  # at once after an overrun: data came meanwhile
        (batch(0, 3550), batch(4000, 800), 0),  # well after it: no data to begin with
        (batch(0, 1000), batch(1050, 800), 0),  # just its interval is no overrun
        (batch(0, 1500), batch(1500, 800), 500),  # "at once" is a tenth of the interval
        (batch(0, 1500), batch(1600, 800), 600),
        (batch(0, 1500), batch(1601, 800), 0),
        (batch(0, 800, left_over=50), batch(600_000, 800), 0),  # an operator's pause
        (batch(0, 1300, left_over=50), batch(600_000, 800), 300),  # and one after an overrun
    ],
)
def test_a_batch_is_late_if_data_was_waiting(
    previous: BatchProgress | None, present: BatchProgress, expected_ms: int
) -> None:
    assert delay_ms(previous, present, 1000) == expected_ms


def test_after_an_overrun_the_next_batch_may_begin_early_and_is_then_not_late() -> None:
    overrun, early = batch(2900, 1050, left_over=50), batch(3700, 100, left_over=50)
    assert delay_ms(overrun, early, 1000) == 0
    assert delay_ms(early, batch(4000, 100), 1000) == 0


def test_a_batch_without_records_teaches_nothing() -> None:
    estimator = PIDRateEstimator(1000)
    estimator.compute(*batch_stats(None, batch(0, 1000, records=500), 1000))
    failed = batch(1000, 30, records=0)
    assert estimator.compute(*batch_stats(batch(0, 1000), failed, 1000)) is None
    after = batch_stats(failed, batch(2000, 1000, records=700), 1000)
    assert estimator.compute(*after) == 700.0


batches = st.builds(
    BatchProgress,
    start_ms=st.integers(0, 10**9),
    duration_ms=st.integers(0, 10**8),
    records=st.integers(0, 10),
    left_over=st.integers(0, 10),
)
intervals = st.integers(1, 10**7)


@given(batches, batches, intervals)
def test_a_delay_is_never_negative_nor_longer_than_the_time_past_the_interval(
    previous: BatchProgress, present: BatchProgress, interval_ms: int
) -> None:
    past_ms = present.start_ms - previous.start_ms - interval_ms
    assert 0 <= delay_ms(previous, present, interval_ms) <= max(0, past_ms)


@given(batches, batches, intervals)
def test_after_a_batch_that_left_data_what_it_took_longer_than_the_interval_counts(
    previous: BatchProgress, present: BatchProgress, interval_ms: int
) -> None:
    assume(previous.left_over > 0 and present.start_ms >= previous.end_ms)
    late_ms = previous.duration_ms - interval_ms
    at_most_ms = max(0, late_ms + interval_ms // 10)
    assert max(0, late_ms) <= delay_ms(previous, present, interval_ms) <= at_most_ms


@given(batches, batches, intervals, st.integers(0, 10**8), st.integers(0, 10**8))
def test_what_a_batch_waited_for_something_else_counts_as_no_time_at_all(
    previous: BatchProgress, present: BatchProgress, interval_ms: int, before_ms: int, now_ms: int
) -> None:
    later = replace(present, start_ms=present.start_ms + before_ms)
    stats = batch_stats(
        replace(previous, duration_ms=previous.duration_ms + before_ms, waited_ms=before_ms),
        replace(later, duration_ms=later.duration_ms + now_ms, waited_ms=now_ms),
        interval_ms,
    )
    without = batch_stats(previous, present, interval_ms)
    assert stats[1:] == without[1:]
    assert stats.time_ms == without.time_ms + before_ms + now_ms
