"""Whether memory grows, and whose it is."""

from bench.memory import DRIVER, growth, sizes_mb
from hypothesis import given
from hypothesis import strategies as st


@given(st.floats(1, 1000), st.integers(1, 100))
def test_memory_that_stays_does_not_grow(size_mb: float, samples: int) -> None:
    assert growth([size_mb] * samples) == 1.0


def test_what_a_process_takes_at_its_start_is_no_growth() -> None:
    assert growth([10.0] * 4 + [100.0] * 16) == 1.0


def test_a_leak_is() -> None:
    assert growth([100.0 + number for number in range(100)]) > 1.4


def test_this_process_is_the_driver() -> None:
    assert sizes_mb()[DRIVER] > 10
