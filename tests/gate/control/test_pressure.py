"""Pressure signals and the settings of pressure: defaults, and what is refused."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import OptionError
from headrace.gate.control.pressure import (
    MAX_CLOCK_AHEAD_MS,
    MAX_LEASE_MS,
    MAX_LEVEL,
    Epoch,
    HopSettings,
    PressureSignal,
)

NOW_MS = 1_700_000_000_000
RUN = Epoch(NOW_MS, "a1")


def signal(**changes: Any) -> PressureSignal:
    fields: dict[str, Any] = {
        "flow": "shop",
        "sender": "enrich",
        "receiver": "parse",
        "epoch": RUN,
        "sequence": 0,
        "level": 1,
        "lease_ms": 10_000,
    }
    return PressureSignal(**(fields | changes))


def test_it_holds_what_it_was_given_up_to_the_bounds() -> None:
    widest = signal(sender="a.b_c-9", level=MAX_LEVEL, lease_ms=MAX_LEASE_MS, sequence=10**30)
    assert (widest.sender, widest.level, widest.lease_ms) == ("a.b_c-9", 20, 600_000)
    assert signal(level=1.75).level == 1.75
    assert signal(level=0, lease_ms=1, receiver="x" * 100).receiver == "x" * 100


@pytest.mark.parametrize("field", ["flow", "sender", "receiver"])
@pytest.mark.parametrize("name", ["", "a/b", "a b", "../x", "x" * 101, "a\n", "ä", 7, None])
def test_a_name_that_is_none_is_refused(field: str, name: object) -> None:
    expected = f"The {field} of a signal is {name!r}; it must be 1 to 100 letters, digits,"
    with pytest.raises(OptionError, match=re.escape(expected)):
        signal(**{field: name})


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("level", -1, "of 0 or more and at most 20"),
        ("level", 21, "of 0 or more and at most 20"),
        ("level", 10**400, "of 0 or more and at most 20"),
        ("level", float("inf"), "of 0 or more and at most 20"),
        ("level", 20.01, "of 0 or more and at most 20"),
        ("level", float("nan"), "of 0 or more and at most 20"),
        ("level", "1", "of 0 or more and at most 20"),
        ("level", True, "of 0 or more and at most 20"),
        ("sequence", -1, "of 0 or more"),
        ("sequence", "3", "of 0 or more"),
        ("lease_ms", 0, "from 1 to 600000"),
        ("lease_ms", 600_001, "from 1 to 600000"),
        ("lease_ms", float("nan"), "from 1 to 600000"),
        ("epoch", "a1", "must be a value of Epoch"),
    ],
)
def test_a_number_out_of_its_range_is_refused(field: str, value: object, allowed: str) -> None:
    with pytest.raises(OptionError, match=allowed):
        signal(**{field: value})


@pytest.mark.parametrize(
    "make",
    [lambda: Epoch(-1, "a"), lambda: Epoch(1, "a/b"), lambda: Epoch(1, "")],
)
def test_an_epoch_needs_a_time_and_a_name(make: Callable[[], Epoch]) -> None:
    with pytest.raises(OptionError, match="An epoch's"):
        make()


def test_of_two_epochs_the_one_that_started_later_is_larger() -> None:
    assert Epoch(1, "z") < Epoch(2, "a") < Epoch(2, "b")


def said(started_ms: int, sequence: int = 0) -> PressureSignal:
    return PressureSignal("shop", "store", "parse", Epoch(started_ms, "run"), sequence, 1, 1000)


@pytest.mark.parametrize(
    ("started_ms", "sequence"), [(0, 2**40), (NOW_MS, 10_000), (NOW_MS + MAX_CLOCK_AHEAD_MS, 0)]
)
def test_what_clocks_that_differ_can_say_counts(started_ms: int, sequence: int) -> None:
    said(started_ms, sequence).require_possible(NOW_MS)


@pytest.mark.parametrize(
    ("started_ms", "sequence", "sentence"),
    [
        (2**60, 0, "more than a day in the future"),
        (NOW_MS + MAX_CLOCK_AHEAD_MS + 1, 0, "more than a day in the future"),
        (0, 2**60, "cannot have sent so many"),
        (NOW_MS, MAX_CLOCK_AHEAD_MS + 1, "cannot have sent so many"),
    ],
)
def test_a_signal_from_further_in_the_future_is_refused(
    started_ms: int, sequence: int, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        said(started_ms, sequence).require_possible(NOW_MS)


def test_the_defaults_are_those_of_the_reference() -> None:
    settings = HopSettings()
    assert settings.overload_bytes == 50_000_000
    assert settings.light_load_bytes == 500_000
    assert settings.overload_sensitivity_ms == settings.light_load_sensitivity_ms == 2000
    assert settings.step == 0.5
    assert settings.lease_ms == 10_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"overload_bytes": 0},
            "overload_bytes is 0 bytes; it must be a whole number of 1 or more",
        ),
        ({"overload_bytes": 1e6}, "overload_bytes is 1000000.0 bytes"),
        ({"light_load_bytes": -1}, "light_load_bytes is -1 bytes"),
        ({"light_load_bytes": True}, "light_load_bytes is True bytes"),
        ({"overload_sensitivity_ms": -1}, "overload_sensitivity_ms is -1 ms"),
        ({"light_load_sensitivity_ms": 0}, "light_load_sensitivity_ms is 0 ms"),
        ({"lease_ms": 0}, "lease_ms is 0 ms; it must be a whole number from 1 to 600000"),
        ({"lease_ms": 600_001}, "lease_ms is 600001 ms"),
        (
            {"light_load_bytes": 70, "overload_bytes": 60},
            "light_load_bytes (70) must be below overload_bytes (60); lower",
        ),
        ({"light_load_bytes": 60, "overload_bytes": 60}, "lower light_load_bytes or raise"),
        ({"step": 0}, "step is 0; it must be a number above 0 and below 1"),
        ({"step": 1}, "step is 1;"),
        ({"step": -0.5}, "step is -0.5;"),
        ({"step": float("nan")}, "step is nan;"),
        ({"step": "0.5"}, "step is '0.5';"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        HopSettings(**changes)


def test_the_bounds_themselves_are_allowed() -> None:
    HopSettings(overload_bytes=1, light_load_bytes=0, overload_sensitivity_ms=0, lease_ms=1)
    HopSettings(lease_ms=600_000, step=0.999)


@pytest.mark.parametrize(("step", "levels"), [(0.5, 2.0), (0.25, 1.0)])
def test_levels_lead_from_one_rate_to_another(step: float, levels: float) -> None:
    settings = HopSettings(step=step)
    assert settings.levels_between(100.0, 25.0) == pytest.approx(levels)
    assert settings.levels_between(25.0, 100.0) == pytest.approx(-levels)
