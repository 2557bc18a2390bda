"""A gate whose handler takes less than its rate, beside one that was told so."""

from bench.simulation import Load, Scenario, SimulatedBatch, SimulatedStage
from tests.simulation.scenarios import ran

from headrace.gate.control.laws import EstimatorSettings

MINUTE = 60


def batches_of(takes_at_once: int, duration_s: float) -> list[SimulatedBatch]:
    stage = SimulatedStage(
        "bulk",
        capacity_per_s=1_000,
        load=Load(((0, 564),)),
        initial_rate_per_s=564,
        takes_at_once=takes_at_once,
        estimator=EstimatorSettings("learned"),
    )
    return ran(Scenario((stage,), duration_s)).batches["bulk"]


def failed(batches: list[SimulatedBatch]) -> int:
    return sum(each.isolated is not None for each in batches)


def test_its_batches_are_below_the_limit_after_one_failure_and_few_fail_after_it() -> None:
    batches = batches_of(300, 20 * MINUTE)
    assert batches[0].isolated is not None
    assert max(each.planned.records for each in batches[1:]) <= 1.05 * 300
    assert failed(batches) <= len(batches) / 10


def test_it_processes_two_thirds_of_what_a_fixed_cap_of_the_limit_would() -> None:
    for duration_s in (MINUTE, 20 * MINUTE):
        processed = sum(each.planned.records for each in batches_of(300, duration_s))
        assert processed >= 2 / 3 * 300 * duration_s


def test_a_stage_that_takes_any_batch_is_split_never() -> None:
    assert failed(batches_of(10_000, MINUTE)) == 0
