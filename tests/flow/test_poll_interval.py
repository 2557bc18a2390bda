"""A stage looks at its queue in time, and not more often than it has to."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.monitoring import MIN_POLL_S, POLL_S, PollInterval

OVERLOAD_BYTES = 50_000_000


def looks(grows_for_ms: int, begins_ms: int) -> list[int]:
    """When a stage looks (ms) at a queue that is too long so long after it has begun to grow."""
    pace, now_ms, times_ms = PollInterval(OVERLOAD_BYTES), 0, list[int]()
    while True:
        waiting = OVERLOAD_BYTES * max(now_ms - begins_ms, 0) // grows_for_ms
        pace.observe(now_ms, waiting, throttles=False)
        times_ms.append(now_ms)
        if waiting >= OVERLOAD_BYTES:
            return times_ms
        now_ms += round(pace.next_s(now_ms, [None]) * 1000)


@given(st.integers(1000, 600_000), st.integers(0, 10_000))
def test_an_overload_is_seen_as_soon_as_it_begins(grows_for_ms: int, begins_ms: int) -> None:
    times_ms = looks(grows_for_ms, begins_ms)
    assert times_ms[-1] - (begins_ms + grows_for_ms) <= MIN_POLL_S * 1000


@given(st.integers(1000, 600_000))
def test_a_queue_that_grows_costs_few_looks_more(grows_for_ms: int) -> None:
    far = [time_ms for time_ms in looks(grows_for_ms, 0) if time_ms < grows_for_ms / 2]
    assert len(far) <= grows_for_ms / 2 / (POLL_S * 1000) + 8


@given(st.lists(st.integers(0, 2 * OVERLOAD_BYTES), min_size=1))
def test_a_look_is_never_later_than_usual_nor_sooner_than_is_of_use(waiting: list[int]) -> None:
    pace = PollInterval(OVERLOAD_BYTES)
    for time_ms, waits in enumerate(waiting):
        pace.observe(time_ms, waits, throttles=False)
        assert MIN_POLL_S <= pace.next_s(time_ms, []) <= POLL_S
