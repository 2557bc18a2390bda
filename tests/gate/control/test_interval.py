"""The interval that is ``auto``, and the sentence about one that is too short."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.batch_cost import BatchCost, SourceCost
from headrace.gate.control.interval import AutoInterval, IntervalLaw
from headrace.gate.control.laws import EstimatorSettings

PID, LEARNED = EstimatorSettings("pid"), EstimatorSettings("learned")


def cost(fixed_s: float, record_s: float = 1e-4, deviation: float = 0.01) -> BatchCost:
    """A model that is sure of its fixed cost to a part of it."""
    matrix = ((deviation * fixed_s) ** 2, 0.0), (0.0, (0.01 * record_s) ** 2)
    return BatchCost(("orders",), fixed_s, (record_s,), matrix)


def source_cost(fixed_s: float, record_s: float = 1e-4, deviation: float = 0.01) -> SourceCost:
    found = cost(fixed_s, record_s, deviation).of_source("orders", None)
    assert found is not None
    return found


@given(st.floats(0, 100), st.integers(200, 600_000), st.floats(0.05, 0.99))
def test_the_best_interval_has_the_wanted_part_of_work_or_is_at_its_bound(
    fixed_s: float, max_delay_ms: int, work: float
) -> None:
    best_ms = IntervalLaw(max_delay_ms, work).best_ms(fixed_s)
    assert 100 <= best_ms <= max_delay_ms // 2
    wanted_ms = fixed_s * 1000 / (1 - work)
    if 100 < wanted_ms < max_delay_ms // 2:
        assert best_ms == pytest.approx(wanted_ms, rel=0.06)


def intervals(auto: AutoInterval, interval_ms: int, costs: list[BatchCost]) -> list[int]:
    """The interval after each batch."""
    found = []
    for each in costs:
        change = auto.after_batch(interval_ms, each)
        interval_ms = interval_ms if change is None else change.interval_ms
        found.append(interval_ms)
    return found


def test_it_changes_after_five_batches_that_say_so_and_then_stays() -> None:
    auto = AutoInterval(IntervalLaw())
    assert intervals(auto, 1000, [cost(0.5)] * 20) == [1000] * 4 + [2500] * 16


def test_one_batch_that_says_otherwise_begins_the_count_again() -> None:
    auto = AutoInterval(IntervalLaw())
    assert intervals(auto, 1000, [*[cost(0.5)] * 4, cost(0.2), *[cost(0.5)] * 4]) == [1000] * 9


def test_small_changes_and_a_cost_that_is_not_known_change_nothing() -> None:
    auto = AutoInterval(IntervalLaw())
    assert intervals(auto, 1000, [cost(0.24)] * 20) == [1000] * 20
    assert intervals(auto, 1000, [cost(0.5, deviation=0.5)] * 20) == [1000] * 20
    assert auto.after_batch(1000, None) is None


def test_a_change_says_why() -> None:
    auto = AutoInterval(IntervalLaw(max_delay_ms=3000))
    changes = [auto.after_batch(1000, cost(0.5)) for _ in range(5)]
    assert changes[-1] is not None
    assert changes[-1].why == (
        "a batch costs 0.5 s before its first record, so the interval goes from 1 s to 1.5 s, of"
        " which 67% is work; headrace.maxDelay of 3 s allows no longer interval"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_delay_ms": 199}, "headrace.maxDelay is 199"),
        ({"work_ratio": 0.0}, "headrace.workRatio is 0.0"),
        ({"work_ratio": 1.0}, "headrace.workRatio is 1"),
        ({"work_ratio": 1.5}, "headrace.workRatio is 1.5"),
    ],
)
def test_what_it_must_hold_is_checked(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        IntervalLaw(**arguments)  # type: ignore[arg-type]


def test_an_interval_near_the_fixed_cost_is_called_too_short_in_one_sentence() -> None:
    costs = "A batch costs 1.2 s before its first record; the interval of 1 s is too short, and"
    costs += " an interval of 5 s"
    assert (
        PID.too_short(1000, source_cost(1.2))
        == f"{costs} carries more than 50 times as many records."
    )
    assert (
        LEARNED.too_short(1000, source_cost(1.2)) == f"{costs} carries 2.5 times as many records."
    )
    assert PID.too_short(1000, source_cost(0.93)) == (
        "A batch costs 0.93 s before its first record; the interval of 1 s is too short, and an"
        " interval of 5 s carries 12 times as many records."
    )


def test_an_interval_that_is_long_enough_or_a_cost_that_is_not_known_is_not_spoken_of() -> None:
    assert PID.too_short(1000, source_cost(0.6)) is None
    assert PID.too_short(1000, source_cost(1.2, deviation=0.5)) is None


def test_an_auto_interval_is_too_short_where_its_longest_delay_makes_it_so() -> None:
    settings = replace(LEARNED, auto=IntervalLaw(max_delay_ms=2000))
    assert settings.too_short(900, source_cost(1.2)) is None
    assert settings.too_short(1000, source_cost(1.2)) == (
        "A batch costs 1.2 s before its first record, and headrace.maxDelay of 2 s allows no"
        " longer interval than 1 s; a headrace.maxDelay of 10 s carries 2.5 times as many records."
    )
