"""Loads of a scenario."""

import pytest
from bench.simulation import Load, Shape


def test_steps_stay_until_the_next_point_and_the_last_stays() -> None:
    load = Load(((0, 10), (2, 30), (5, 0)))
    assert [load.per_s(time_ms) for time_ms in (0, 1999, 2000, 4999, 5000, 10**9)] == [
        10, 10, 30, 30, 0, 0
    ]  # fmt: skip


def test_lines_lead_from_point_to_point() -> None:
    load = Load(((0, 10), (2, 30), (6, 0)), Shape.LINES)
    assert [load.per_s(time_ms) for time_ms in (0, 1000, 2000, 4000, 7000)] == [10, 20, 30, 15, 0]


def test_a_saw_begins_again() -> None:
    load = Load(((0, 0), (2, 20)), Shape.LINES, repeat_s=3)
    assert [load.per_s(1000 * second) for second in range(7)] == [0, 10, 20, 0, 10, 20, 0]
    assert load.per_s(2500) == pytest.approx(20)
