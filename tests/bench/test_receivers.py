"""Records that the benchmarks of receivers send, and figures of their acknowledgements."""

import json

import pytest
from bench.load.records import RECORD_BYTES, chunk
from bench.receiver_delay import tail
from bench.receiver_limits import largest_burst, rate_of
from hypothesis import given
from hypothesis import strategies as st

steps = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 90)), min_size=1, max_size=12)


def risen(found: list[tuple[int, int]]) -> list[tuple[float, int]]:
    """Times and counts that rise by these steps."""
    rows: list[tuple[float, int]] = []
    for wait, records in found:
        time_s, count = rows[-1] if rows else (0.0, 0)
        rows.append((time_s + wait / 10, count + records))
    return rows


def test_every_record_is_json_and_has_its_size() -> None:
    lines = chunk(500).split(b"\n")[:-1]
    assert {len(line) for line in lines} == {RECORD_BYTES}
    assert len({json.dumps(json.loads(line)) for line in lines}) == 500


@given(steps, st.integers(1, 1_000))
def test_the_largest_burst_is_that_of_the_worst_span(
    found: list[tuple[int, int]], rate_per_s: int
) -> None:
    rows = risen(found)
    counts = [0, *(count for _, count in rows)]
    spans = [
        rows[last][1] - counts[first] - rate_per_s * (rows[last][0] - rows[first][0])
        for first in range(len(rows))
        for last in range(first, len(rows))
    ]
    assert largest_burst(rows, rate_per_s) == pytest.approx(max(spans))


@given(st.integers(0, 10_000), st.integers(1, 1_000), st.integers(10, 50))
def test_what_comes_at_once_in_the_beginning_is_not_in_the_rate(
    burst: int, rate_per_s: int, seconds: int
) -> None:
    rows = [(float(second), burst + rate_per_s * second) for second in range(1, seconds)]
    assert rate_of([(0.0, burst), *rows]) == pytest.approx(rate_per_s)


@given(st.permutations(range(1, 301)))
def test_one_in_a_hundred_is_beyond_the_tail(values: list[int]) -> None:
    assert tail(values) == 297
