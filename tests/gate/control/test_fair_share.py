"""Laws by which receivers share a rate, and many receivers over time, each by itself."""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gate.control.sharing import Demand, catch_up_rate, fair_shares

rates = st.floats(1e-3, 1e9)
demands = st.builds(
    Demand,
    st.floats(0, 1e9) | st.just(math.inf),
    st.floats(0, 1e9),
    st.booleans(),
    st.none() | rates,
)
RATE = 1_000.0


def hungry(most_per_s: float | None = None) -> Demand:
    return Demand(10.0, 10.0, waits=True, most_per_s=most_per_s)


def sated(taken_per_s: float) -> Demand:
    return Demand(max(20.0, 1.2 * taken_per_s), taken_per_s, waits=False)


@given(rates, st.lists(demands, max_size=20))
def test_the_parts_together_are_the_rate(rate: float, some: list[Demand]) -> None:
    shared = fair_shares(rate, some)
    assert len(shared) == len(some)
    assert math.fsum(shared) == pytest.approx(rate if some else 0)
    assert all(part > 0 for part in shared)


@given(rates, st.lists(demands, min_size=1, max_size=20))
def test_nobody_is_below_an_even_part_who_wants_more_nor_below_a_tenth_of_it(
    rate: float, some: list[Demand]
) -> None:
    even = rate / len(some) * (1 - 1e-9)
    for part, demand in zip(fair_shares(rate, some), some, strict=True):
        most = math.inf if demand.most_per_s is None else demand.most_per_s * (1 - 1e-9)
        assert part >= min(0.1 * even, most)
        assert part >= min(1.15 * demand.taken_per_s, even, most)
        if demand.waits:
            assert part >= min(even, most)


@given(rates, st.lists(demands, min_size=2, max_size=20))
def test_nothing_is_left_to_who_does_not_need_it_while_another_waits(
    rate: float, some: list[Demand]
) -> None:
    some[0] = hungry()
    shared = fair_shares(rate, some)
    for part, demand in zip(shared[1:], some[1:], strict=True):
        assert part <= shared[0] * (1 + 1e-9)
        if demand.most_per_s is not None:
            assert part <= demand.most_per_s


@given(rates, st.lists(demands, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_the_order_in_which_they_are_told_changes_nothing(
    rate: float, some: list[Demand], dice: random.Random
) -> None:
    order = list(range(len(some)))
    dice.shuffle(order)
    shared = fair_shares(rate, some)
    assert fair_shares(rate, [some[place] for place in order]) == [shared[place] for place in order]


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        ([hungry(), hungry()], [500, 500]),
        ([hungry(), sated(100.0)], [885, 115]),
        ([hungry(), sated(0.0)], [950, 50]),
        # Its senders may be told to come back later, and wait elsewhere.
        ([hungry(), Demand(100.0, 97.0, waits=False)], [500, 500]),
        ([hungry(), hungry(100.0), sated(0.0)], [1_000 - 100 - 100 / 3, 100, 100 / 3]),
        ([sated(100.0), sated(200.0)], [115 + 327.5, 230 + 327.5]),
        ([sated(100.0), replace(sated(400.0), waits=True), sated(700.0)], [115, 442.5, 442.5]),
    ],
)
def test_the_level_rises_to_what_all_parts_make(some: list[Demand], expected: list[float]) -> None:
    assert fair_shares(RATE, some) == pytest.approx(expected)


# The simulations below run receivers by this law for minutes; each knows only the others' last
# words.

STEP_S = 0.1
MEAN_S = 5.0


@dataclass
class Simulated:
    """A receiver: senders' demand over time, its queue, and what it tells once a second."""

    demand_per_s: Callable[[float], float]
    phase: int
    limit_per_s: float = RATE
    queue: float = 0.0
    let_in: deque[float] = field(default_factory=lambda: deque([0.0], int(MEAN_S / STEP_S)))
    told: Demand = field(default_factory=lambda: Demand(RATE, 0.0, waits=False))
    limits: list[float] = field(default_factory=list)
    total: float = 0.0

    def step(self, number: int, others: Sequence["Simulated"]) -> None:
        self.queue += self.demand_per_s(number * STEP_S) * STEP_S
        taken = min(self.queue, self.limit_per_s * STEP_S)
        self.queue -= taken
        self.total += taken
        self.let_in.append(taken)
        if (number + self.phase) % 10 == 0:
            mean_per_s = sum(self.let_in) / MEAN_S
            self.told = Demand(self.limit_per_s, mean_per_s, waits=self.queue > 1e-6)
        if (number + self.phase) % 5 == 0:
            told = [each.told for each in others]
            self.limit_per_s = fair_shares(RATE, [*told, self.told])[-1]
        self.limits.append(self.limit_per_s)


def simulated(seconds: float, *demands: Callable[[float], float]) -> list[Simulated]:
    """Receivers after so many seconds; they look at different moments."""
    those = [Simulated(demand, 3 * place) for place, demand in enumerate(demands)]
    for number in range(int(seconds / STEP_S)):
        for each in those:
            each.step(number, [other for other in those if other is not each])
    return those


def steady(rate_per_s: float) -> Callable[[float], float]:
    return lambda _: rate_per_s


@pytest.mark.parametrize(
    "demands",
    [
        (2_000, 0),
        (2_000, 300),
        (2_000, 700),
        (2_000, 450, 100, 0),
        (400, 400),
        (700, 250),
        (770, 100),
        (840, 50),
        (310, 340, 340),
        (5_000, 5_000, 10),
    ],
    ids=str,
)
def test_under_a_steady_load_the_limits_come_to_rest(demands: tuple[int, ...]) -> None:
    those = simulated(120, *map(steady, demands))
    for each, demand in zip(those, demands, strict=True):
        last = each.limits[-int(30 / STEP_S) :]
        assert max(last) <= min(last) * 1.01
        # A receiver may let in an even part, whatever the others want.
        assert each.total >= 0.95 * 120 * min(demand, RATE / len(demands))
    admitted = sum(each.total for each in those)
    assert admitted <= 1.05 * RATE * 120
    assert admitted >= 0.9 * 120 * min(RATE, sum(demands))


def test_who_needs_its_part_again_has_it_within_two_seconds() -> None:
    woken, other = simulated(40, lambda now_s: 0.0 if now_s < 30 else 5_000.0, steady(5_000))
    at_30_s = int(30 / STEP_S)
    assert woken.limits[at_30_s - 1] == pytest.approx(50)
    assert other.limits[at_30_s - 1] == pytest.approx(950)
    in_two_seconds = woken.limits[at_30_s + int(2 / STEP_S)]
    assert in_two_seconds == pytest.approx(500)


def test_who_begins_is_held_back_once_and_not_again_and_again() -> None:
    """Its intake is measured as a mean of five seconds, at first less than it needs."""
    woken, _ = simulated(60, lambda now_s: 0.0 if now_s < 30 else 300.0, steady(5_000))
    since = woken.limits[int(30 / STEP_S) :]
    leaps = [after for before, after in pairwise(since) if abs(after - before) > 0.25 * before]
    assert leaps == [pytest.approx(500)]


@pytest.mark.parametrize("period_s", [2, 7, 10, 30])
def test_bursts_take_no_more_than_the_rate_in_the_long_run(period_s: int) -> None:
    bursts = simulated(
        300, lambda now_s: 5_000.0 if now_s % period_s < 1 else 0.0, steady(5_000), steady(5_000)
    )
    admitted = sum(each.total for each in bursts)
    assert 0.9 * RATE * 300 <= admitted <= 1.05 * RATE * 300


@given(rates, st.integers(0, 10**12), st.integers(1, 10**6))
def test_a_backlog_takes_no_more_than_half(part: float, backlog: int, interval_ms: int) -> None:
    held = catch_up_rate(part, backlog, interval_ms)
    assert part / 2 * (1 - 1e-9) <= held <= part
    assert catch_up_rate(part, backlog + 1 + backlog // 2, interval_ms) <= held


@pytest.mark.parametrize(
    ("backlog", "interval_ms", "expected"),
    [
        (0, 1_000, 100),
        (200, 1_000, 100),
        (700, 1_000, 75),
        (1_200, 1_000, 50),
        (10**9, 1_000, 50),
        (700, 100, 75),
        (7_000, 10_000, 75),
    ],
)
def test_how_far_behind_counts_in_intervals_worth(
    backlog: int, interval_ms: int, expected: float
) -> None:
    assert catch_up_rate(100, backlog, interval_ms) == pytest.approx(expected)


@pytest.mark.parametrize("interval_s", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("outage_s", [0, 30, 600])
def test_after_an_outage_a_query_catches_up_and_then_nothing_swings(
    interval_s: float, outage_s: int
) -> None:
    """Senders send all that they may; the query reads its rate's worth in each interval."""
    behind, limit, due, most = 0.0, RATE, float(outage_s), 0.0
    settled_s = outage_s * 2 + 60 * max(1.0, interval_s)
    limits = []
    now_s = 0.0
    while now_s < settled_s + 300:
        behind += limit * STEP_S
        if now_s >= due:
            behind -= min(behind, RATE * interval_s)
            due += interval_s
        if round(now_s / STEP_S) % 5 == 0:
            limit = catch_up_rate(RATE, int(behind), int(interval_s * 1000))
        now_s += STEP_S
        if now_s > settled_s:
            limits.append(limit)
            most = max(most, behind)
    assert min(limits) >= 0.9 * RATE
    assert most <= RATE * max(1.0, interval_s) * 3.5
