"""What no run of a stage can have said by now."""

import pytest

from headrace.control.assertion import MAX_CLOCK_AHEAD_MS, Epoch, PressureSignal, require_possible
from headrace.errors import OptionError

NOW_MS = 1_700_000_000_000


def said(started_ms: int, sequence: int = 0) -> PressureSignal:
    return PressureSignal("shop", "store", "parse", Epoch(started_ms, "run"), sequence, 1, 1000)


@pytest.mark.parametrize(
    ("started_ms", "sequence"), [(0, 2**40), (NOW_MS, 10_000), (NOW_MS + MAX_CLOCK_AHEAD_MS, 0)]
)
def test_what_clocks_that_differ_can_say_counts(started_ms: int, sequence: int) -> None:
    require_possible(said(started_ms, sequence), NOW_MS)


@pytest.mark.parametrize(
    ("started_ms", "sequence", "sentence"),
    [
        (2**60, 0, "in the future by more than a day"),
        (NOW_MS + MAX_CLOCK_AHEAD_MS + 1, 0, "in the future by more than a day"),
        (0, 2**60, "nobody has said so much"),
        (NOW_MS, MAX_CLOCK_AHEAD_MS + 1, "nobody has said so much"),
    ],
)
def test_what_is_further_in_the_future_is_refused(
    started_ms: int, sequence: int, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        require_possible(said(started_ms, sequence), NOW_MS)
