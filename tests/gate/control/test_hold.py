"""Settings of a gate's wait for its sink, and what is kept of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.hold import Held, OutageSettings, SinkOutage


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**8),
    st.integers(1, 10_000),
    st.floats(0, 1, exclude_max=True),
)
def test_a_wait_is_between_half_and_all_of_its_backoff(
    first_ms: int, more_ms: int, runs: int, chance: float
) -> None:
    settings = OutageSettings(retry_ms=first_ms, max_retry_ms=first_ms + more_ms)
    most_ms = min(first_ms << min(runs - 1, 64), first_ms + more_ms)
    assert max(1, most_ms // 2) <= settings.wait_ms(runs, chance) <= most_ms


def test_an_outage_is_read_as_it_was_written() -> None:
    outage = SinkOutage.of("b", Held(1_000, 2, 3_600, is_certain=True), "refused")
    assert SinkOutage.from_text(outage.to_text()) == outage
    assert outage.held == Held(1_000, 2, 3_600, is_certain=True)


@pytest.mark.parametrize("text", [None, "", "[]", '{"batch": "b"}', "{"])
def test_what_nobody_has_written_is_no_outage(text: str | None) -> None:
    assert SinkOutage.from_text(text) is None


def test_a_longest_wait_below_the_first_is_refused() -> None:
    with pytest.raises(OptionError, match=r"outage.maxRetry is 500 ms, less than the 1000 ms"):
        OutageSettings(max_retry_ms=500)
