"""Figures that the benchmark of the loop's recovery computes from batches."""

import math

import pytest
from bench.recovery import INTERVAL_MS, Script, in_simulation, settled_after

from headrace.gate.control.law import BatchProgress


def batches(*durations_ms: int) -> list[BatchProgress]:
    return [BatchProgress(number, took_ms, 1, 0) for number, took_ms in enumerate(durations_ms)]


@pytest.mark.parametrize(
    ("durations_ms", "count"),
    [
        ((1000, 1149, 851), 0),
        ((3600, 1151, 1000), 2),
        ((3600, 1000, 700, 1000), 3),
        ((3600, 1000, 1200), math.inf),
    ],
)
def test_batches_have_settled_when_all_that_follow_take_the_interval(
    durations_ms: tuple[int, ...], count: float
) -> None:
    assert settled_after(batches(*durations_ms)) == count


def test_in_simulation_the_first_slow_batch_is_the_longest_and_the_loop_settles_both_ways() -> None:
    script = Script(steady=12, slow=12)
    simulated = in_simulation(script, fixed_ms=150)
    slow, fast = simulated[12:24], simulated[24:]
    times_ms = [batch.duration_ms for batch in slow]
    assert len(simulated) == script.batches
    assert times_ms[0] == max(times_ms) > 3 * INTERVAL_MS
    assert settled_after(slow) < 12
    assert settled_after(fast) < 12
