"""Exponential backoff."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.backoff import Backoff

backoffs = st.builds(Backoff, first_ms=st.integers(0, 10**7), most_ms=st.integers(0, 10**9))


@given(backoffs)
def test_nothing_is_waited_before_anything_has_failed(backoff: Backoff) -> None:
    assert [backoff.wait_ms(failures) for failures in (0, -1)] == [0, 0]


@given(backoffs, st.integers(1, 100))
def test_the_wait_is_the_formulas(backoff: Backoff, failures: int) -> None:
    assert backoff.wait_ms(failures) == min(backoff.first_ms * 2 ** (failures - 1), backoff.most_ms)


@given(backoffs, st.integers(0, 100))
def test_the_listed_waits_are_those_after_each_failure_and_the_last_one_holds(
    backoff: Backoff, failures: int
) -> None:
    waits_ms = backoff.waits_ms
    assert waits_ms[min(failures, len(waits_ms) - 1)] == backoff.wait_ms(failures)
    assert all(before <= after for before, after in pairwise(waits_ms))


def test_failures_without_number_cost_no_memory() -> None:
    assert Backoff().wait_ms(10**9) == Backoff().most_ms
