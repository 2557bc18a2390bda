"""The laws in a closed loop with a job whose speed changes."""

from typing import Any

import pytest
from bench.simulation import (
    Dead,
    Load,
    Scenario,
    SimulatedBatch,
    SimulatedStage,
    Slow,
    batches_to_settle,
)
from bench.simulation.simulated_stage import SimulatedGate, partitions_of
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples
from tests.simulation.scenarios import ran

from headrace.gate.control.law import BatchProgress
from headrace.gate.control.laws import LAWS, EstimatorSettings
from headrace.gate.control.limits import BatchLimits
from headrace.gate.control.rate_law import Reason

SLOW = Slow("job", 20, 50, factor=0.25)


def batches_of(
    *slow: Slow,
    capacity_per_s: float = 10_000,
    load: Load | float = 0.0,
    duration_s: float = 30,
    initial_rate_per_s: float = 1000,
    estimator: EstimatorSettings | None = None,
    **job: Any,
) -> list[SimulatedBatch]:
    """The batches of one gate."""
    stage = SimulatedStage(
        "job",
        capacity_per_s,
        load=load if isinstance(load, Load) else Load(((0, load),)),
        initial_rate_per_s=initial_rate_per_s,
        estimator=estimator or EstimatorSettings(),
        **{"fixed_ms": 0, **job},
    )
    return ran(Scenario((stage,), duration_s, slow)).batches["job"]


def slowdown(fixed_ms: int, partitions: int, law: str = "learned") -> list[SimulatedBatch]:
    return batches_of(
        SLOW,
        load=8000,
        duration_s=90,
        backlog=1_000_000,
        partitions=partitions,
        fixed_ms=fixed_ms,
        estimator=EstimatorSettings(law),
    )


def settled(batches: list[SimulatedBatch], from_s: float) -> int | None:
    progress = [batch.progress for batch in batches]
    return batches_to_settle(progress, from_ms=round(from_s * 1000), target_ms=1000)


@pytest.mark.parametrize("partitions", [1, 32])
@pytest.mark.parametrize("fixed_ms", [0, 150, 300])
@pytest.mark.parametrize(("law", "expected"), [("learned", 1), ("pid", 3)])
def test_batches_are_back_at_the_interval_soon_after_a_job_becomes_four_times_slower(
    law: str, expected: int, fixed_ms: int, partitions: int
) -> None:
    batches = slowdown(fixed_ms, partitions, law)
    slow = [batch for batch in batches if batch.start_ms < SLOW.until_s * 1000]
    assert settled(slow, SLOW.from_s) == expected


@pytest.mark.parametrize(
    ("law", "fixed_ms", "expected"),
    [
        *(("learned", fixed_ms, 1) for fixed_ms in (0, 150, 300)),
        *(("pid", fixed_ms, batches) for fixed_ms, batches in ((0, 1), (150, 2), (300, 2))),
    ],
)
def test_batches_are_back_at_the_interval_soon_after_the_job_has_recovered(
    law: str, fixed_ms: int, expected: int
) -> None:
    assert settled(slowdown(fixed_ms, partitions=1, law=law), SLOW.until_s) == expected


def test_the_first_batch_is_bounded_by_the_initial_rate_whatever_the_backlog() -> None:
    first, *_ = slowdown(fixed_ms=150, partitions=1)
    assert (first.planned.records, first.planned.lag) == (1000, 1_000_000)
    assert first.planned.reason is Reason.INITIAL_RATE


def test_a_job_that_keeps_up_takes_everything_in_time() -> None:
    batches = batches_of(load=800)
    assert [batch.start_ms for batch in batches] == list(range(1000, 30_000, 1000))
    assert {batch.planned.records for batch in batches} == {800}
    assert {batch.planned.reason for batch in batches} == {Reason.EVERYTHING}


def test_a_backlog_is_worked_off_and_then_the_lag_is_one_interval_of_arrivals() -> None:
    batches = batches_of(load=5000, backlog=100_000, duration_s=60)
    lags = [batch.planned.lag for batch in batches]
    assert max(lags) < 120_000
    assert lags[-1] == 5000


def test_a_rate_stays_in_force_until_there_is_another() -> None:
    """PID answers nothing to its first batch, nor to one that took no time."""
    partitions = partitions_of("orders", 1)
    limits = BatchLimits(1.0, initial_rate=300)
    gate = SimulatedGate(EstimatorSettings("pid"), limits, partitions)
    rates = []
    for start_ms, lasted_ms in ((0, 700), (1000, 700), (2000, 0), (3000, 700)):
        planned = gate.plan({partitions[0]: 10_000})
        rates.append(planned.rate_per_s)
        gate.end(planned, BatchProgress(start_ms, lasted_ms, planned.records, planned.left_over))
    assert rates == [300.0, 300.0, 428.0, 428.0]


def test_without_records_there_are_no_batches() -> None:
    assert batches_of() == []


def test_a_batch_that_overruns_is_followed_at_once_and_missed_ticks_are_skipped() -> None:
    batches = batches_of(
        capacity_per_s=1000, load=100, backlog=2500, initial_rate_per_s=2500, duration_s=4.5
    )
    assert [batch.start_ms for batch in batches] == [0, 2500, 3000, 4000]
    assert [batch.planned.records for batch in batches] == [2500, 250, 50, 100]


@examples(50)
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
        return batches_of(
            capacity_per_s=capacity,
            load=Load(((0, capacity * load), (10, 0))),
            initial_rate_per_s=500,
            duration_s=15,
            backlog=backlog,
            partitions=partitions,
            fixed_ms=fixed_ms,
        )

    batches = run()
    assert run() == batches
    admitted = 0
    for batch in batches:
        assert batch.planned.lag == batch.planned.records + batch.planned.left_over
        assert batch.planned.lag + admitted >= backlog
        admitted += batch.planned.records


@examples(50)
@given(
    st.sampled_from(sorted(LAWS)), st.floats(500, 100_000), st.floats(0.05, 20), st.integers(0, 400)
)
def test_both_laws_settle_after_any_change_of_speed(
    law: str, capacity: float, change: float, fixed_ms: int
) -> None:
    batches = batches_of(
        Slow("job", 30, 120, factor=change),
        capacity_per_s=capacity,
        initial_rate_per_s=100,
        estimator=EstimatorSettings(law, min_rate=1),
        duration_s=120,
        backlog=10**10,
        fixed_ms=fixed_ms,
    )
    after = settled(batches, from_s=30)
    assert after is not None
    assert after <= 20


def timed(*durations_ms: int) -> list[BatchProgress]:
    return [BatchProgress(1000 * n, took_ms, 1, 0) for n, took_ms in enumerate(durations_ms)]


def test_settling_counts_up_to_the_last_batch_off_the_target() -> None:
    batches = timed(5000, 1000, 4000, 1150, 849, 1151, 850, 1000)
    assert batches_to_settle(batches, from_ms=2000, target_ms=1000) == 4
    assert batches_to_settle(batches, from_ms=2000, target_ms=1000, tolerance=0.2) == 1
    assert batches_to_settle(batches, from_ms=6000, target_ms=1000) == 0


def test_what_is_still_off_the_target_at_the_end_has_not_settled() -> None:
    assert batches_to_settle(timed(1000, 4000), from_ms=0, target_ms=1000) is None


def test_a_batch_that_a_run_had_at_hand_when_it_died_waits_again() -> None:
    stage = SimulatedStage(
        "job", 1_000, load=Load(((0, 0.0),)), backlog=10_000, initial_rate_per_s=1_000
    )
    result = ran(Scenario((stage,), 60, (Dead("job", 2.5, 4),)))
    assert sum(batch.planned.records for batch in result.batches["job"]) == 10_000
    assert result.series["job"].waiting_bytes[-1] == 0


@pytest.mark.parametrize("law", list(LAWS))
def test_a_partition_with_a_cap_and_a_backlog_starves_no_other(law: str) -> None:
    each_per_s, added_s = 900, 60
    batches = batches_of(
        load=12 * each_per_s,
        duration_s=240,
        capacity_per_s=14_000,
        fixed_ms=100,
        partitions=12,
        partition_cap_per_s=1_000,
        added=(added_s, 1_200_000),
        estimator=EstimatorSettings(law),
    )
    late = [batch for batch in batches if batch.start_ms > added_s * 1000]
    worst_lag_s = max(
        batch.start_ms / 1000 - until / each_per_s
        for batch in late
        for until in list(batch.planned.until.values())[:12]
    )
    assert worst_lag_s < 5
    rates = [batch.planned.rate_per_s or 0 for batch in late]
    assert min(rates) > 10_000, "the law took a small batch for all that the job can do"
    assert late[-1].planned.until[partitions_of("", 13)[12]] > 100_000
