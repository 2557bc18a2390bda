"""The course of the demo, and how it fits itself to a machine."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.demo.script import INTERVALS_S, Phase, Script

SCRIPT = Script(seconds=100, interval_s=1, capacity_per_s=5_000)


def test_the_phases_follow_one_another() -> None:
    moments = [
        (1, 50_000, None, Phase.BACKLOG),
        (20, 20_000, 5_000, Phase.BACKLOG),
        (39, 0, 2_500, Phase.STEADY),
        (41, 0, 2_500, Phase.SLOW),
        (59, 20_000, 1_200, Phase.SLOW),
        (61, 20_000, 1_200, Phase.RECOVERING),
        (75, 0, 2_500, Phase.STEADY),
        (89, 0, 2_500, Phase.DRAINING),
    ]
    for elapsed_s, left_over, throughput_per_s, phase in moments:
        assert SCRIPT.phase(elapsed_s, left_over, throughput_per_s) is phase


def test_production_ends_early_when_what_waits_needs_the_time_that_is_left() -> None:
    assert SCRIPT.phase(70, 29 * 1_000, 1_000) is Phase.RECOVERING
    assert SCRIPT.phase(70, 31 * 1_000, 1_000) is Phase.DRAINING


def test_the_backlog_is_worked_off_before_the_handler_gets_slower() -> None:
    spare_per_s = SCRIPT.capacity_per_s - SCRIPT.orders_per_s
    assert 0.5 * 40 < SCRIPT.backlog / spare_per_s < 40


def test_a_slow_handler_cannot_keep_up_with_the_orders() -> None:
    assert SCRIPT.orders_per_s > SCRIPT.capacity_per_s / 4


def test_it_is_over_at_some_time_whatever_has_arrived() -> None:
    assert not SCRIPT.is_over(110)
    assert SCRIPT.is_over(140)


def test_a_machine_with_a_high_fixed_cost_gets_longer_batches() -> None:
    scripts = [Script.rehearsed(80, fixed_s, 0.0001) for fixed_s in (0.2, 0.6, 9)]
    assert [script.interval_s for script in scripts] == list(INTERVALS_S)
    fast, slow, slowest = (script.capacity_per_s for script in scripts)
    assert fast > slow > slowest > 0


@given(st.floats(5, 1_000), st.floats(0, 100), st.floats(0.0001, 0.1))
def test_there_is_a_script_for_every_machine(
    seconds: float, fixed_s: float, per_order_s: float
) -> None:
    script = Script.rehearsed(seconds, fixed_s, per_order_s)
    assert script.backlog > 0
    assert 0 < script.orders_per_s < script.capacity_per_s
    assert script.interval_s in INTERVALS_S
