"""A stage that becomes slow inside one long batch, and what the one before it is left."""

from dataclasses import dataclass, replace

import pytest
from bench.simulation import Load, Result, Scenario, SimulatedStage, Slow
from hypothesis import given
from hypothesis import strategies as st
from tests.services.examples import examples
from tests.simulation.scenarios import (
    CAPACITY_PER_S,
    FIXED_MS,
    INTERVAL_MS,
    SLOW_FROM_S,
    SLOW_UNTIL_S,
    chain,
    ran,
)

from headrace.gate.control.pressure import HopSettings

ALMOST_FREE_S = 60
"""Time that the scenarios go on after the slow time."""


@dataclass(frozen=True)
class Throttled:
    """Bounds of a run on the stage before the slow one, while that was slow; seconds.

    Attributes:
        below_half_s: The longest time in which it might emit less than half of what the slow one
            could process.
        longest_batch_s: The longest time in which no batch of the slow one ended.
        least_per_s: The least that it might emit.
    """

    below_half_s: int
    longest_batch_s: int
    least_per_s: float


def throttled(result: Result, slow: str, before: str, could_per_s: float) -> Throttled:
    """Evaluate a run from outside: the bound at each second, and when batches ended."""
    (slowed,) = result.scenario.disturbances
    below = batch = longest_below = longest_batch = 0
    least = float("inf")
    for number, at_s in enumerate(result.times_s):
        if not slowed.from_s <= at_s <= slowed.until_s:
            continue
        batch = 0 if result.series[slow].processed_per_s[number] else batch + 1
        bound = result.series[before].rate_limit_per_s[number]
        below = below + 1 if bound is not None and bound < could_per_s / 2 else 0
        least = min(least, float("inf") if bound is None else bound)
        longest_batch, longest_below = max(longest_batch, batch + 1), max(longest_below, below)
    return Throttled(longest_below, longest_batch, least)


@pytest.mark.parametrize("factor", [0.1, 0.01, 0.003])
def test_however_long_a_batch_takes_the_stage_before_gets_what_it_justifies(factor: float) -> None:
    """It was pressed by a level every interval, to a millionth, and for minutes."""
    result = ran(chain(Slow("four", SLOW_FROM_S, SLOW_UNTIL_S, factor=factor)))
    could_per_s = CAPACITY_PER_S * (1 - FIXED_MS / INTERVAL_MS) * factor
    found = throttled(result, "four", "three", could_per_s)
    assert found.longest_batch_s > 0.4 * INTERVAL_MS / 1000 / factor
    assert found.below_half_s < found.longest_batch_s
    assert found.least_per_s > 0.4 * could_per_s
    assert all(series.rate_limit_per_s[-1] is None for series in result.series.values())


@st.composite
def slowed_scenarios(draw: st.DrawFn) -> tuple[Scenario, str, str, float, int]:
    """A chain with a slow stage; its name, the one's before it, what it can do, its interval."""
    capacity = 10 ** draw(st.floats(3, 6))
    interval_ms = draw(st.sampled_from([200, 500, 1000, 3000, 5000]))
    fixed_ms = round(interval_ms * draw(st.floats(0, 0.3)))
    could = capacity * (1 - fixed_ms / interval_ms)
    load, factor = could * draw(st.floats(0.2, 0.95)), 10 ** draw(st.floats(-2.5, -0.05))
    size = draw(st.sampled_from([20, 200, 2000]))
    overload = max(int(load * size * interval_ms / 1000 * draw(st.floats(2, 8))), 1000)
    sensitivity_ms = interval_ms * draw(st.sampled_from([1, 2, 3]))
    hop = HopSettings(
        overload_bytes=overload,
        light_load_bytes=overload // draw(st.sampled_from([20, 100])),
        overload_sensitivity_ms=sensitivity_ms,
        light_load_sensitivity_ms=sensitivity_ms,
        lease_ms=5 * sensitivity_ms,
    )
    names = "abcde"[: draw(st.integers(2, 5))]
    place = draw(st.integers(1, len(names) - 1))
    noise = draw(st.sampled_from([0.0, 0.05]))
    stages = tuple(
        SimulatedStage(
            name,
            capacity,
            after=(names[at - 1],) if at else (),
            load=None if at else Load(((0, load),)),
            interval_ms=interval_ms,
            fixed_ms=fixed_ms,
            record_bytes=size,
            noise=noise,
            hop=hop,
        )
        for at, name in enumerate(names)
    )
    until_s = 60 + draw(st.sampled_from([100, 300]))
    scenario = Scenario(stages, until_s + ALMOST_FREE_S, (Slow(names[place], 60, until_s, factor),))
    return scenario, names[place], names[place - 1], could * factor, sensitivity_ms


def _looked_at_as_rarely_as_batches_come() -> tuple[Scenario, str, str, float, int]:
    hop = HopSettings(
        overload_bytes=40_000,
        light_load_bytes=2_000,
        overload_sensitivity_ms=200,
        light_load_sensitivity_ms=200,
        lease_ms=1000,
    )
    fast = SimulatedStage(
        "a",
        10_000,
        load=Load(((0, 5_000),)),
        interval_ms=200,
        fixed_ms=0,
        record_bytes=20,
        noise=0.05,
        hop=hop,
    )
    stages = (fast, replace(fast, name="b", after=("a",), load=None))
    scenario = Scenario(stages, 160 + ALMOST_FREE_S, (Slow("b", 60, 160, 0.1),))
    return scenario, "b", "a", 1_000, 200


def _holds(given_scenario: tuple[Scenario, str, str, float, int], seed: int) -> None:
    scenario, slow, before, could_per_s, sensitivity_ms = given_scenario
    found = throttled(ran(scenario, seed=seed), slow, before, could_per_s)
    # An estimate that was wrong is seen to be wrong after this: it has worked, it was measured,
    # and it has been too much for an interval.
    corrected_s = 4 * sensitivity_ms / 1000
    assert found.below_half_s <= max(found.longest_batch_s, corrected_s)


def test_a_stage_that_is_looked_at_as_rarely_as_batches_come_is_not_throttled_too_far() -> None:
    _holds(_looked_at_as_rarely_as_batches_come(), 2)


@pytest.mark.soak
@pytest.mark.timeout(0)
@examples(1_000, deadline=None)
@given(slowed_scenarios(), st.integers(0, 9))
def test_nobody_is_below_half_of_what_the_slow_stage_can_do_for_longer_than_its_longest_batch(
    given_scenario: tuple[Scenario, str, str, float, int], seed: int
) -> None:
    _holds(given_scenario, seed)
