from hypothesis import given
from hypothesis import strategies as st

from headgate.backfill import Backoff


def test_the_first_backfill_follows_at_once_and_each_wait_is_twice_as_long() -> None:
    backoff = Backoff(first_ms=100, most_ms=500)
    assert [backoff.wait_ms(attempts) for attempts in range(1, 7)] == [0, 100, 200, 400, 500, 500]


def test_the_retries_of_the_live_stream_are_not_waited_for() -> None:
    backoff = Backoff(first_ms=100, live_attempts=4)
    assert [backoff.wait_ms(attempts) for attempts in (1, 4, 5, 6)] == [0, 0, 100, 200]


@given(st.integers(1, 5_000))
def test_no_wait_is_longer_than_the_longest(attempts: int) -> None:
    assert Backoff().wait_ms(attempts) <= Backoff().wait_ms(attempts + 1) <= 3_600_000
