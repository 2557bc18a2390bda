"""The law of a gate whose sink is away: when a batch is run again, and what follows."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.gate.control.sink_outage import (
    MOST_DOUBTFUL,
    MOST_UNTOLD,
    Next,
    OnOutage,
    OutageSettings,
    SinkOutage,
    failed,
    next_step,
)

HOLD = OutageSettings()


def after(runs: int, settings: OutageSettings = HOLD, **said: Any) -> Next:
    """Return the next step after the failed run of this number, the first being 1."""
    certain = said.setdefault("is_certain", True)
    outage = SinkOutage("b", 0, runs - 1, 0, "why", certain) if runs > 1 else None
    given_ = {"has_parts": True, "may_try": True, **said}
    return next_step(outage, settings, 1_000_000, **given_)


def test_a_sink_that_is_surely_away_is_waited_for_without_end_and_seldom_tried_in_parts() -> None:
    tried = [runs for runs in range(1, 5_000) if after(runs) is Next.TRY_PARTS]
    assert tried == [2**n for n in range(2, 13)]
    assert {after(runs) for runs in range(1, 5_000)} == {Next.WAIT, Next.TRY_PARTS}
    assert {after(runs, may_try=False) for runs in range(1, 5_000)} == {Next.WAIT}


@pytest.mark.parametrize(
    ("said", "waits"),
    [
        ({"is_certain": False}, MOST_DOUBTFUL - 2),
        ({"is_certain": True, "has_parts": False}, MOST_UNTOLD - 1),
    ],
)
def test_what_cannot_be_told_ends_after_a_bounded_number_of_runs(
    said: dict[str, Any], waits: int
) -> None:
    steps = [after(runs, **said) for runs in range(1, 100)]
    assert steps.count(Next.WAIT) == waits
    assert set(steps[20:]) == {Next.LEAVE}


def test_a_failure_that_says_nothing_of_its_sink_is_no_outage_where_no_part_may_be_tried() -> None:
    assert after(1, is_certain=False) is Next.TRY_PARTS
    assert after(1, is_certain=False, may_try=False) is Next.LEAVE
    assert after(1, is_certain=False, has_parts=False) is Next.LEAVE


def test_another_kind_of_failure_is_a_first_one() -> None:
    away = SinkOutage("b", 0, 50, 0, "refused", is_certain=True)
    step = next_step(away, HOLD, 1_000, is_certain=False, has_parts=True, may_try=True)
    assert step is Next.TRY_PARTS


@pytest.mark.parametrize("word", [OnOutage.DEFER, OnOutage.STOP])
def test_only_a_gate_that_is_to_hold_does(word: OnOutage) -> None:
    assert after(1, replace(HOLD, on_outage=word)) is Next.LEAVE


def test_a_hold_has_the_end_that_somebody_sets() -> None:
    settings = replace(HOLD, max_hold_ms=60_000)
    outage = SinkOutage("b", 0, 4, 0, "refused", is_certain=True)
    said = {"is_certain": True, "has_parts": True, "may_try": False}
    assert next_step(outage, settings, 59_999, **said) is Next.WAIT
    assert next_step(outage, settings, 60_000, **said) is Next.LEAVE


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


def test_an_outage_counts_its_runs_and_is_another_for_another_batch() -> None:
    first = failed(None, "b", "refused", 1_000, 500, is_certain=True)
    assert first == SinkOutage("b", 1_000, 1, 1_500, "refused", is_certain=True)
    again = failed(first, "b", "timed out", 1_600, 2_000, is_certain=True)
    assert again == SinkOutage("b", 1_000, 2, 3_600, "timed out", is_certain=True)
    assert failed(again, "c", "refused", 9_000, 500, is_certain=True).since_ms == 9_000
    assert SinkOutage.from_text(again.to_text()) == again


@pytest.mark.parametrize("text", [None, "", "[]", '{"batch": "b"}', "{"])
def test_what_nobody_has_written_is_no_outage(text: str | None) -> None:
    assert SinkOutage.from_text(text) is None


def test_a_longest_wait_below_the_first_is_refused() -> None:
    with pytest.raises(OptionError, match=r"outage.maxRetry is 500 ms, less than the 1000 ms"):
        OutageSettings(max_retry_ms=500)
