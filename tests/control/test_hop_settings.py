"""The numbers of the reference, and what is refused."""

import re
from typing import Any

import pytest

from headrace.control import HopSettings
from headrace.errors import OptionError


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
            "light_load_bytes is 70 and overload_bytes is 60; a light load must be below",
        ),
        ({"light_load_bytes": 60, "overload_bytes": 60}, "lower the first or raise the second"),
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
