"""Rates of what moves in chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gate.control.hop import ChunkRate


def test_chunks_are_counted_over_the_gaps_between_them() -> None:
    rate = ChunkRate(10_000, 5_000)
    for time_ms in range(0, 4001, 250):
        rate.look(time_ms, 1000 * ((time_ms + 1000) // 1000))
    assert rate.per_s(4000, 2000) == 1000.0
    assert rate.per_s(4600, 2000) == 1000.0  # the next chunk is not late yet


@given(st.integers(1, 4000), st.integers(1, 10**9), st.integers(1, 5000), st.integers(1, 40))
def test_the_rate_of_even_chunks_is_exact_wherever_it_is_asked_for(
    gap_ms: int, size: int, least_ms: int, chunks: int
) -> None:
    rate = ChunkRate(10**9, 10**9)
    rate.look(0, 0)
    for number in range(1, chunks + 1):
        rate.look(number * gap_ms, number * size)
    measured = rate.per_s(chunks * gap_ms, least_ms)
    if (chunks - 1) * gap_ms >= least_ms:
        assert measured == pytest.approx(size * 1000 / gap_ms)
    else:
        assert measured is None


@given(
    st.integers(200, 1000),
    st.lists(st.floats(0.2, 1.25), min_size=40, max_size=40),
    st.integers(0, 200),
)
def test_looks_as_rare_as_chunks_measure_a_rate_that_is_nearly_right(
    gap_ms: int, looks: list[float], start_ms: int
) -> None:
    """Looks each 250 ms at a chunk each 200 ms once measured 8 000 records/s where 5 000 came."""
    rate = ChunkRate(60_000, 60_000)
    time_ms = start_ms
    for part in looks:
        time_ms += round(part * gap_ms)
        rate.look(time_ms, time_ms // gap_ms)
        measured = rate.per_s(time_ms, gap_ms, 0.75)
        assert measured is None or 0.75 <= measured * gap_ms / 1000 <= 1 / 0.75
    assert rate.per_s(time_ms, gap_ms, 0.75) is not None


def test_it_is_unknown_until_two_chunks_span_the_time_asked_for() -> None:
    rate = ChunkRate(10_000, 5_000)
    rate.look(0, 7)
    assert rate.per_s(0, 0) is None
    rate.look(1000, 8)
    assert rate.per_s(1000, 0) is None
    rate.look(2000, 10)
    assert rate.per_s(2000, 2000) is None
    assert rate.per_s(2000, 1000) == 2.0


def test_the_newest_chunks_count() -> None:
    rate = ChunkRate(60_000, 5_000)
    total = 0
    for second in range(20):
        total += 10 if second < 10 else 1000
        rate.look(second * 1000, total)
    assert rate.per_s(19_000, 2000) == 1000.0


def test_a_silence_lowers_it_and_ends_in_nothing() -> None:
    rate = ChunkRate(10_000, 5_000)
    for second in range(5):
        rate.look(second * 1000, 1000 * second)
    assert rate.per_s(8000, 2000) == 250.0  # one chunk since 3000, and none by 7000
    for second in range(5, 40):
        rate.look(second * 1000, 4000)
    late = rate.per_s(39_000, 2000)
    assert late is not None
    assert late < 100


def test_where_nothing_ever_moved_it_is_0_once_that_has_lasted() -> None:
    rate = ChunkRate(10_000, 5_000)
    rate.look(0, 3)
    rate.look(4999, 3)
    assert rate.per_s(4999, 0) is None
    assert rate.per_s(5000, 0) == 0.0


def test_a_restart_forgets_and_does_not_look_before_its_time() -> None:
    rate = ChunkRate(10_000, 5_000)
    for second in range(5):
        rate.look(second * 1000, 1000 * second)
    rate.restart(6000)
    rate.look(5000, 90_000)
    for second in range(6, 10):
        rate.look(second * 1000, 100_000 + 10 * second)
    assert rate.per_s(9000, 1000) == 10.0


def test_a_channel_that_was_made_anew_is_measured_anew() -> None:
    rate = ChunkRate(10_000, 5_000)
    for second in range(5):
        rate.look(second * 1000, 1000 * second)
    for second in range(5, 9):
        rate.look(second * 1000, 10 * (second - 5))
    assert rate.per_s(8000, 1000) == 10.0
