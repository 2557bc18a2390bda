from hypothesis import given
from hypothesis import strategies as st

from headrace.backfill import Backoff


def test_the_first_backfill_follows_at_once_and_each_wait_is_twice_as_long() -> None:
    backoff = Backoff(first_ms=100, most_ms=500)
    assert [backoff.wait_ms(failed) for failed in range(6)] == [0, 100, 200, 400, 500, 500]


@given(st.integers(1, 100), st.integers(1, 10_000), st.integers(0, 50))
def test_the_waits_are_those_of_each_number_and_the_last_is_for_more(
    first_ms: int, most_ms: int, failed: int
) -> None:
    backoff = Backoff(first_ms, most_ms)
    waits_ms = backoff.waits_ms
    assert waits_ms[min(failed, len(waits_ms) - 1)] == backoff.wait_ms(failed)


@given(st.integers(0, 5_000))
def test_no_wait_is_longer_than_the_longest(failed: int) -> None:
    assert Backoff().wait_ms(failed) <= Backoff().wait_ms(failed + 1) <= 3_600_000
