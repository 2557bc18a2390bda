"""Sides in turn, and what is made of their figures."""

from itertools import pairwise

import pytest
from bench.pairs import Spread, alternating, in_turn, ratios
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(min_value=0, max_value=20))
def test_every_round_has_every_side_once_and_the_opposite_order_of_the_round_before(
    rounds: int,
) -> None:
    sides = ["native", "headrace", "gated"]
    order = list(alternating(sides, rounds))
    in_rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert len(in_rounds) == rounds
    assert in_rounds[:1] in ([], [sides])
    assert all(after == before[::-1] for before, after in pairwise(in_rounds))


def test_what_warms_up_does_not_count() -> None:
    asked: list[str] = []

    def answer(side: str) -> float:
        asked.append(side)
        return len(asked)

    answers = in_turn({"A": lambda: answer("A"), "B": lambda: answer("B")}, rounds=3, warm_ups=1)
    assert asked == ["A", "B", "A", "B", "B", "A", "A", "B"]
    assert answers == {"A": [3, 6, 7], "B": [4, 5, 8]}


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=9), st.floats(0.5, 2), st.floats(0.01, 100)
)
def test_a_machine_that_is_slower_in_some_rounds_does_not_change_a_ratio(
    speeds: list[float], ratio: float, figure: float
) -> None:
    native = [figure * speed for speed in speeds]
    found = ratios([ratio * value for value in native], to=native)
    assert [found.least, found.median, found.most] == pytest.approx([ratio] * 3)


def test_a_single_disturbed_round_does_not_move_the_median() -> None:
    assert ratios([2.0, 2.0, 90.0, 2.0, 2.0], to=[1.0] * 5) == Spread(2.0, 2.0, 90.0)


def test_rounds_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0, 2.0], to=[1.0])
