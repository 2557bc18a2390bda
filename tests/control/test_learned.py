"""The law that learns what a batch costs before its first record."""

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control import BatchCost, LearnedRateEstimator
from headrace.control.learned import KAPPA
from headrace.errors import OptionError

INTERVAL_MS = 1000
RECORD_S = 1 / 20_000

Job = Callable[[int], tuple[float, float]]
"""The fixed cost (s) and that of a record (s), by the number of the batch."""


def steady(fixed_s: float) -> Job:
    return lambda _number: (fixed_s, RECORD_S)


def changing(fixed_s: float) -> Job:
    """Four times slower at batch 40, back at 80, twice as fast at 120."""

    def cost(number: int) -> tuple[float, float]:
        factor = 4 if 40 <= number < 80 else 0.5 if number >= 120 else 1
        return fixed_s, RECORD_S * factor

    return cost


def parts_of_best(
    job: Job, *, noise: float = 0.0, seed: int = 0, batches: int = 40, first: int = 100
) -> list[float]:
    """Each batch's size, on an endless backlog, over the largest that takes the interval."""
    dice, law, records, parts = Random(seed), LearnedRateEstimator(INTERVAL_MS), first, []
    for number in range(batches):
        fixed_s, record_s = job(number)
        parts.append(records / ((1 - fixed_s) / record_s))
        time_s = (fixed_s + record_s * records) * max(dice.gauss(1, noise), 0.2)
        rate = law.compute(number, records, max(round(time_s * 1000), 1), 0)
        assert rate is not None
        records = int(rate)
    return parts


def settled(parts: list[float]) -> int:
    """The batches before the first six in a row within 15 % of the best."""
    near = [abs(part - 1) <= 0.15 for part in parts]
    return next(n for n in range(len(near)) if all(near[n : n + 6]) or n == len(near) - 1)


@pytest.mark.parametrize(
    ("noise", "fixed_s", "most"),
    [
        (0.0, 0.1, (3, 1, 1, 1)),
        (0.0, 0.3, (3, 1, 1, 1)),
        (0.0, 0.6, (4, 1, 1, 1)),
        (0.1, 0.1, (4, 2, 3, 4)),
        (0.1, 0.3, (5, 3, 4, 5)),
        (0.1, 0.6, (8, 4, 8, 8)),
        (0.2, 0.1, (6, 4, 8, 7)),
        (0.2, 0.3, (8, 6, 10, 10)),
        (0.2, 0.6, (14, 16, 18, 21)),
    ],
)
def test_it_settles_from_a_cold_start_and_after_each_change(
    noise: float, fixed_s: float, most: tuple[int, ...]
) -> None:
    """Medians of 20 seeds: a cold start, four times slower, back, twice as fast."""
    runs = [
        parts_of_best(changing(fixed_s), noise=noise, seed=seed, batches=160) for seed in range(20)
    ]
    found = [median(settled(run[at : at + 40]) for run in runs) for at in (0, 40, 80, 120)]
    assert all(batches <= bound for batches, bound in zip(found, most, strict=True)), found


@pytest.mark.parametrize("fixed_s", [0.1, 0.3, 0.6])
def test_noise_does_not_go_into_the_rate(fixed_s: float) -> None:
    """At 20 % noise PID's rate changes by a fifth from each batch to the next."""
    parts = parts_of_best(steady(fixed_s), noise=0.2, batches=100)[40:]
    changes = [abs(b - a) / a for a, b in pairwise(parts)]
    assert sum(changes) / len(changes) < 0.05
    assert 0.9 < sum(parts) / len(parts) < 1.1


def test_quiet_hours_teach_it_what_a_burst_needs() -> None:
    """Batches of a few records, and another few, tell the fixed cost from that of a record."""
    law = LearnedRateEstimator(INTERVAL_MS)
    rate = None
    for records in [200, 300, 250, 400, 220, 380] * 5:
        rate = law.compute(0, records, 300 + records // 2, 0)
    assert rate == pytest.approx(8 * 380, rel=0.01) or rate == pytest.approx(1400, rel=0.02)
    assert law.cost is not None
    assert law.cost.fixed_s == pytest.approx(0.3, abs=0.01)


def test_one_batch_that_took_three_times_as_long_is_an_outlier() -> None:
    law, records = LearnedRateEstimator(INTERVAL_MS), 100
    for number in range(40):
        time_ms = round((0.3 + RECORD_S * records) * 1000) * (3 if number == 30 else 1)
        rate = law.compute(number, records, time_ms, 0)
        assert rate is not None
        records = int(rate)
        if number >= 31:
            assert records == pytest.approx(14_000, rel=0.03)
    assert law.changes >= 1


@given(
    st.lists(st.tuples(st.integers(1, 10**8), st.integers(1, 10**7)), min_size=1, max_size=60),
    st.sampled_from([1, 200, 1000, 60_000]),
)
def test_whatever_batches_take_the_rate_is_finite_and_not_below_its_least(
    batches: list[tuple[int, int]], interval_ms: int
) -> None:
    law = LearnedRateEstimator(interval_ms, min_rate=7)
    for records, time_ms in batches:
        rate = law.compute(0, records, time_ms, 0)
        assert rate is not None
        assert 7 <= rate < math.inf
        assert rate * interval_ms <= max(7 * interval_ms, 8000.001 * records)
        assert law.cost is not None
        assert law.cost.record_s > 0
        assert 0 <= law.cost.fixed_s <= 0.95 * interval_ms / 1000


@given(
    st.floats(0, 0.9),
    st.floats(1e-7, 1e-1),
    st.tuples(st.floats(1e-6, 0.3), st.floats(-1, 1), st.floats(1e-3, 2)),
    st.floats(0.02, 0.5),
)
def test_the_best_batch_is_the_largest_that_meets_both_conditions(
    fixed_s: float, record_s: float, uncertainty: tuple[float, float, float], noise: float
) -> None:
    of_fixed, together, of_record = uncertainty
    deviations = of_fixed, of_record * record_s
    covariance = 0.99 * together * math.prod(deviations)
    cost = BatchCost(fixed_s, record_s, deviations[0] ** 2, covariance, deviations[1] ** 2, noise)
    best = cost.best_records(1.0)

    def meets(records: float) -> bool:
        careful_s = cost.expected_s(records) + KAPPA * math.sqrt(cost.variance(records))
        return cost.expected_s(records) <= 1.02 and careful_s <= 1.1 + 1e-9

    if best > 0:
        assert meets(best * (1 - 1e-6))
        assert not meets(best * (1 + 1e-6) + 1e-6) or cost.expected_s(best) >= 1 - 1e-6
    else:
        assert not meets(1e-6)


@given(st.floats(0.01, 100), st.integers(0, 9))
def test_a_slower_clock_with_a_longer_interval_gives_the_same_batches(
    factor: float, seed: int
) -> None:
    dice, cost, scaled = Random(seed), None, None
    for _ in range(30):
        records, time_s = dice.uniform(100, 10_000), dice.uniform(0.2, 2)
        if cost is None or scaled is None:
            cost = BatchCost.first(records, time_s, 1)
            scaled = BatchCost.first(records, time_s * factor, factor)
        else:
            cost = cost.drifted(1).updated(records, time_s, 1)
            scaled = scaled.drifted(factor).updated(records, time_s * factor, factor)
        assert scaled.best_records(factor) == pytest.approx(cost.best_records(1), rel=1e-6)


def test_a_batch_without_records_or_time_teaches_nothing() -> None:
    law = LearnedRateEstimator(INTERVAL_MS)
    assert law.compute(0, 0, 500, 0) is None
    assert law.compute(0, 500, 0, 0) is None
    assert law.cost is None


def test_what_an_earlier_run_has_learnt_is_used_at_once() -> None:
    first = LearnedRateEstimator(INTERVAL_MS)
    for records in (100, 800, 6400, 12_000, 13_900):
        first.compute(0, records, round((0.3 + RECORD_S * records) * 1000), 0)
    assert first.cost is not None
    assert first.cost.best_records(1) == pytest.approx(14_000, rel=0.03)
    again = LearnedRateEstimator(INTERVAL_MS, cost=first.cost)
    assert again.compute(0, 13_000, 950, 0) == pytest.approx(14_000, rel=0.03)


@pytest.mark.parametrize("arguments", [{"batch_interval_ms": 0}, {"min_rate": 0.0}])
def test_its_arguments_are_checked(arguments: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="above 0"):
        LearnedRateEstimator(**({"batch_interval_ms": 1000} | arguments))  # type: ignore[arg-type]
