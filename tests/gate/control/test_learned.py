"""The law that learns what a batch costs before its first record."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.batch_cost import KAPPA, BatchCost, SourceCost
from headrace.gate.control.learned import FinishedBatch, LearnedBatches

INTERVAL_MS = 1000
RECORD_S = 1 / 20_000
GATE = "orders"
LEAST = {GATE: 100.0}

Job = Callable[[int], tuple[float, float]]
"""The fixed cost (s) and that of a record (s), by the number of the batch."""


def finished(records: int, duration_ms: int, **more: int) -> FinishedBatch:
    return FinishedBatch(0, {GATE: records}, duration_ms, behind={GATE}, **more)


def next_records(law: LearnedBatches, records: int, duration_ms: int, **more: int) -> float:
    """The next batch after one of so many records."""
    law.learn(finished(records, duration_ms, **more))
    return law.records(LEAST)[GATE]


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
    dice, law, records, parts = Random(seed), LearnedBatches(INTERVAL_MS), first, []
    for number in range(batches):
        fixed_s, record_s = job(number)
        parts.append(records / ((1 - fixed_s) / record_s))
        time_s = (fixed_s + record_s * records) * max(dice.gauss(1, noise), 0.2)
        records = int(next_records(law, records, max(round(time_s * 1000), 1)))
    return parts


def settled(parts: list[float]) -> int:
    """The batches before the first six in a row within 15 % of the best."""
    near = [abs(part - 1) <= 0.15 for part in parts]
    return next(n for n in range(len(near)) if all(near[n : n + 6]) or n == len(near) - 1)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("noise", "fixed_s", "most"),
    [
        (0.0, 0.1, (3, 1, 1, 1)),
        (0.0, 0.3, (3, 1, 1, 1)),
        (0.0, 0.6, (4, 1, 1, 1)),
        (0.1, 0.1, (4, 2, 3, 3)),
        (0.1, 0.3, (5, 3, 4, 4)),
        (0.1, 0.6, (8, 4, 8, 8)),
        (0.2, 0.1, (6, 4, 8, 7)),
        (0.2, 0.3, (10, 4, 8, 9)),
        (0.2, 0.6, (19, 13, 19, 19)),
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
    assert sum(changes) / len(changes) < 0.055
    assert 0.9 < sum(parts) / len(parts) < 1.1


def test_quiet_hours_teach_it_what_a_burst_needs() -> None:
    """Batches of a few records, and another few, tell the fixed cost from that of a record."""
    law = LearnedBatches(INTERVAL_MS)
    most = 0.0
    for records in [200, 300, 250, 400, 220, 380] * 5:
        most = next_records(law, records, 300 + records // 2)
    assert most == pytest.approx(1400, rel=0.02)
    assert law.cost is not None
    assert law.cost.fixed_s == pytest.approx(0.3, abs=0.01)


def test_one_batch_that_took_three_times_as_long_is_an_outlier() -> None:
    law, records = LearnedBatches(INTERVAL_MS), 100
    for number in range(40):
        time_ms = round((0.3 + RECORD_S * records) * 1000) * (3 if number == 30 else 1)
        records = int(next_records(law, records, time_ms))
        if number >= 31:
            assert records == pytest.approx(14_000, rel=0.03)
    assert law.changed_ms is not None


@pytest.mark.parametrize("slow_ms", [340, 500, 900, 5000, 60_000])
def test_a_first_batch_that_pays_for_starting_is_no_lesson(slow_ms: int) -> None:
    """Workers start and code is compiled: 5 s for 5 000 records has been seen."""
    law, records, sizes = LearnedBatches(INTERVAL_MS), 100, []
    for number in range(12):
        time_ms = slow_ms if number == 0 else round((0.3 + RECORD_S * records) * 1000)
        records = int(next_records(law, records, time_ms))
        sizes.append(records)
    assert sizes[6:] == pytest.approx([14_000] * 6, rel=0.03)


@pytest.mark.parametrize("slow_ms", [2000, 20_000])
def test_a_first_batch_after_a_restart_takes_nothing_from_what_is_known(slow_ms: int) -> None:
    known = {GATE: SourceCost(0.3, RECORD_S, 1e-6, 0.0, (0.01 * RECORD_S) ** 2)}
    law = LearnedBatches(INTERVAL_MS, known)
    assert next_records(law, 14_000, slow_ms) == pytest.approx(14_000, rel=0.02)


def test_what_the_sink_has_not_done_is_fixed_cost_whatever_the_model_says() -> None:
    """Planning, the checkpoint, the commit: of two batches of one size nothing else would tell."""
    law = LearnedBatches(INTERVAL_MS)
    for _ in range(3):
        next_records(law, 100, 700, overhead_ms=600)
    assert law.cost is not None
    assert law.cost.fixed_s >= 0.599


def test_a_sink_that_takes_longer_than_the_interval_is_found_out_and_carries_on() -> None:
    """PID sinks to its lowest rate there and does not know why."""
    law, records = LearnedBatches(INTERVAL_MS), 100
    for _ in range(40):
        records = int(next_records(law, records, round(1200 + records / 2)))
    assert records == pytest.approx(2 * 1200 * 0.3 / 0.7, rel=0.1), "0.3 of the time is work"
    assert law.cost is not None
    assert law.cost.fixed_s == pytest.approx(1.2, rel=0.1)
    assert law.cost.is_sure_of_fixed(1.0)


def at_last(job: Job, *, noise: float = 0.0, seed: int = 0, batches: int = 60) -> tuple[float, int]:
    """The last batch over the largest of which 0.3 is work, on an endless backlog; the batches that
    were less than half of it since batch 30."""
    dice, law, records, parts = Random(seed), LearnedBatches(INTERVAL_MS), 100, []
    for number in range(batches):
        fixed_s, record_s = job(number)
        parts.append(records / (fixed_s * 3 / 7 / record_s))
        time_s = (fixed_s + record_s * records) * max(dice.gauss(1, noise), 0.2)
        records = int(next_records(law, records, round(time_s * 1000)))
    return parts[-1], sum(part < 0.5 for part in parts[30:])


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("fixed_s", [1.5, 3.0, 8.0, 30.0])
def test_a_fixed_cost_of_many_intervals_is_found_from_the_smallest_rate(
    fixed_s: float, noise: float
) -> None:
    """Else a is believed to be small, for the first batch would be late for its records."""
    last, starved = at_last(steady(fixed_s), noise=noise)
    assert 0.7 <= last <= 1.5
    assert starved == 0


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("fixed_s", [1.2, 1.5, 2.0, 4.0])
def test_a_fixed_cost_that_rises_above_the_interval_is_told_from_slow_records(
    fixed_s: float, noise: float
) -> None:
    last, starved = at_last(
        lambda number: (0.1 if number < 30 else fixed_s, RECORD_S), noise=noise, seed=1
    )
    assert last >= 0.6
    assert starved <= 12


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("pause_s", [1.5, 3.0, 6.0, 20.0])
def test_a_pause_in_each_batch_is_no_cost_of_its_records(pause_s: float, noise: float) -> None:
    """From one batch to the next, in a quiet hour: the batches of before were small, too."""
    best = []
    for seed in range(8):
        dice, law, records, parts = Random(seed), LearnedBatches(INTERVAL_MS), 57, []
        for number in range(50):
            fixed_s = 0.2 + (pause_s if number >= 10 else 0)
            time_s = (fixed_s + RECORD_S * records) * dice.gauss(1, noise)
            parts.append(records / (fixed_s * 3 / 7 / RECORD_S))
            following = int(next_records(law, records, round(time_s * 1000)))
            records = 57 if number < 9 else following
        best.append(median(parts[30:]))
    assert median(best) == pytest.approx(1, rel=0.1)


def test_a_sink_that_got_rid_of_its_fixed_cost_is_given_more() -> None:
    law, records = LearnedBatches(INTERVAL_MS), 100
    for number in range(60):
        fixed_ms = 1200 if number < 20 else 100
        records = int(next_records(law, records, round(fixed_ms + records / 20)))
    assert records == pytest.approx(18_000, rel=0.05)


def joined(
    costs_s: Mapping[str, float], batches: int, *, noise: float = 0.0, seed: int = 0
) -> tuple[LearnedBatches, list[dict[str, float]]]:
    """A join whose sources are all behind."""
    dice, law = Random(seed), LearnedBatches(INTERVAL_MS)
    records, all_ = dict.fromkeys(costs_s, 100.0), []
    for _ in range(batches):
        time_s = 0.2 + sum(cost * records[name] for name, cost in costs_s.items())
        time_ms = max(round(time_s * 1000 * max(dice.gauss(1, noise), 0.2)), 1)
        counts = {name: int(count) for name, count in records.items()}
        law.learn(FinishedBatch(0, counts, time_ms, behind=set(costs_s)))
        records = law.records(dict.fromkeys(costs_s, 1.0))
        all_.append(records)
    return law, all_


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_neither_source_of_a_join_takes_the_others_cost_for_its_own(noise: float) -> None:
    costs_s = {"clicks": 1e-5, "orders": 1e-3}
    law, sizes = joined(costs_s, 60, noise=noise)
    assert law.cost is not None
    found = dict(zip(law.cost.sources, law.cost.record_s, strict=True))
    assert found["orders"] == pytest.approx(1e-3, rel=0.2)
    assert found["clicks"] == pytest.approx(1e-5, rel=0.5)
    last = sizes[-1]
    work_s = {name: cost * last[name] for name, cost in costs_s.items()}
    assert sum(work_s.values()) == pytest.approx(0.8, rel=0.15)
    assert min(work_s.values()) > 0.2


def test_a_source_that_is_not_behind_leaves_its_time_to_the_others() -> None:
    law = LearnedBatches(INTERVAL_MS)
    records = {"clicks": 100.0, "orders": 100.0}
    for _ in range(40):
        records["clicks"] = min(records["clicks"], 500)
        time_ms = round(200 + 0.1 * records["clicks"] + 0.05 * records["orders"])
        counts = {name: int(count) for name, count in records.items()}
        law.learn(FinishedBatch(0, counts, time_ms, behind={"orders"}))
        records = law.records(dict.fromkeys(records, 1.0))
    assert records["orders"] > 0.8 * (800 - 100) / 0.05
    assert records["clicks"] >= 500


def test_a_source_that_comes_later_is_learnt_beside_the_one_that_is_known() -> None:
    law = LearnedBatches(INTERVAL_MS)
    for count in (100, 800, 3000, 5000, 7000):
        law.learn(FinishedBatch(0, {"clicks": count}, 200 + count // 10, behind={"clicks"}))
    for count in (100, 200, 400, 300, 150):
        time_ms = 200 + 300 + count
        law.learn(FinishedBatch(0, {"clicks": 3000, "orders": count}, time_ms))
    assert law.cost is not None
    assert law.cost.sources == ("clicks", "orders")
    assert law.cost.record_s == pytest.approx((1e-4, 1e-3), rel=0.2)


@given(
    st.lists(st.tuples(st.integers(1, 10**8), st.integers(1, 10**7)), min_size=1, max_size=60),
    st.sampled_from([1, 200, 1000, 60_000]),
)
def test_whatever_batches_take_the_next_is_finite_and_not_below_its_least(
    batches: list[tuple[int, int]], interval_ms: int
) -> None:
    law = LearnedBatches(interval_ms)
    for records, time_ms in batches:
        law.learn(finished(records, time_ms))
        most = law.records({GATE: 7.0})[GATE]
        least = 7 * interval_ms / 1000
        assert least <= most < math.inf
        assert most <= max(2 * least, 8.001 * max(count for count, _ in batches))
        assert law.cost is not None
        assert min(law.cost.record_s) > 0
        assert law.cost.fixed_s >= 0


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**6), max_size=3),
            st.integers(0, 10**6),
            st.integers(0, 10**6),
            st.frozensets(st.sampled_from("abc")),
        ),
        max_size=40,
    )
)
def test_whatever_the_batches_of_a_join_take_each_source_gets_something(
    batches: list[tuple[dict[str, int], int, int, frozenset[str]]],
) -> None:
    law = LearnedBatches(INTERVAL_MS)
    for records, time_ms, overhead_ms, behind in batches:
        law.learn(FinishedBatch(0, records, time_ms, overhead_ms, behind))
        found = law.records(dict.fromkeys("abc", 5.0))
        assert all(5 <= count < math.inf for count in found.values())
        assert law.cost is None or set(found) == set(law.cost.sources)
        assert law.cost is None or min(law.cost.record_s) > 0


@given(
    st.floats(0, 0.9),
    st.floats(1e-7, 1e-1),
    st.tuples(st.floats(1e-6, 0.3), st.floats(-1, 1), st.floats(1e-3, 2)),
    st.floats(0.02, 0.5),
)
def test_the_most_is_the_largest_batch_that_meets_both_conditions(
    fixed_s: float, record_s: float, uncertainty: tuple[float, float, float], noise: float
) -> None:
    of_fixed, together, of_record = uncertainty
    deviations = of_fixed, of_record * record_s
    covariance = 0.99 * together * math.prod(deviations)
    matrix = (deviations[0] ** 2, covariance), (covariance, deviations[1] ** 2)
    cost = BatchCost((GATE,), fixed_s, (record_s,), matrix, noise)
    best = cost.most({GATE: 1.0}, 1.0)

    def meets(count: float) -> bool:
        records = {GATE: count}
        careful_s = cost.expected_s(records) + KAPPA * math.sqrt(cost.variance(records))
        return cost.expected_s(records) <= 1.02 and careful_s <= 1.1 + 1e-9

    if best > 0:
        assert meets(best * (1 - 1e-6))
        assert not meets(best * (1 + 1e-6) + 1e-6) or cost.expected_s({GATE: best}) >= 1 - 1e-6
    else:
        assert not meets(1e-6)


@given(st.floats(0.01, 100), st.integers(0, 9))
def test_a_slower_clock_with_a_longer_interval_gives_the_same_batches(
    factor: float, seed: int
) -> None:
    dice, cost, scaled = Random(seed), None, None
    for _ in range(30):
        records, time_s = {GATE: dice.uniform(100, 10_000)}, dice.uniform(0.2, 2)
        if cost is None or scaled is None:
            cost = BatchCost.first(records, time_s, 1)
            scaled = BatchCost.first(records, time_s * factor, factor)
        else:
            cost = cost.drifted(1).updated(records, time_s, 1)
            scaled = scaled.drifted(factor).updated(records, time_s * factor, factor)
        most = cost.most({GATE: 1.0}, 1)
        assert scaled.most({GATE: 1.0}, factor) == pytest.approx(most, rel=1e-6)


def test_a_batch_without_records_or_time_teaches_nothing() -> None:
    law = LearnedBatches(INTERVAL_MS)
    law.learn(finished(0, 500))
    law.learn(finished(500, 0))
    assert law.cost is None
    assert law.records(LEAST) == {}


def test_what_an_earlier_run_has_learnt_is_used_at_once() -> None:
    first = LearnedBatches(INTERVAL_MS)
    for records in (100, 800, 6400, 12_000, 13_900):
        next_records(first, records, round((0.3 + RECORD_S * records) * 1000))
    assert first.cost is not None
    kept = first.cost.of_source(GATE, first.changed_ms)
    assert kept is not None
    again = LearnedBatches(INTERVAL_MS, {GATE: SourceCost.from_text(kept.to_text())})
    assert again.cost == first.cost
    assert next_records(again, 13_000, 950) == pytest.approx(14_000, rel=0.03)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"fixed_s": 1}',
        '{"fixed_s":0.1,"record_s":0,"fixed_variance":1,"covariance":0,"record_variance":1}',
        '{"fixed_s":NaN,"record_s":1,"fixed_variance":1,"covariance":0,"record_variance":1}',
        '{"fixed_s":"x","record_s":1,"fixed_variance":1,"covariance":0,"record_variance":1}',
    ],
)
def test_a_cost_that_another_version_wrote_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="learned again"):
        SourceCost.from_text(text)
