"""Moments as people write and read them."""

import time
from collections.abc import Iterator

import pytest

from headrace.cli.options import moment_ms
from headrace.cli.printing import full_time, short_time
from headrace.errors import OptionError

NOW_MS = 1_732_197_600_500  # 2024-11-21T14:00:00.500Z


@pytest.fixture(params=["UTC", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The time zone of this machine."""
    name: str = request.param
    monkeypatch.setenv("TZ", name)
    time.tzset()
    yield name
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("2h", 7_200_000),
        ("2 hours ago", 7_200_000),
        (" 30 Minutes AGO ", 1_800_000),
        ("1 day 2 hours", 93_600_000),
        ("500 ms", 500),
        ("2024-11-21T14:00:00Z", 500),
        ("2024-11-21 15:00+01:00", 500),
        ("99999999999999999999 days ago", NOW_MS),
        ("1969-01-01T00:00Z", NOW_MS),
    ],
)
def test_a_moment_is_an_iso_time_or_how_long_ago_it_was(text: str, ago_ms: int) -> None:
    assert moment_ms("--since", text, NOW_MS) == NOW_MS - ago_ms


def test_a_time_without_a_zone_is_this_machines(zone: str) -> None:
    offset_ms = {"UTC": 0, "Asia/Kolkata": 19_800_000}[zone]
    assert moment_ms("--since", "2024-11-21 14:00", NOW_MS) == NOW_MS - 500 - offset_ms
    midnight_ms = moment_ms("--since", "2024-11-21", NOW_MS)
    assert midnight_ms == moment_ms("--since", "2024-11-21T00:00", NOW_MS)


@pytest.mark.parametrize(
    "text",
    ["", "ago", "2", "1732197600000", "yesterday", "2 weeks", "-2h", "2024-13-01", "2h later"],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"--until is .*; it must be a time such as") as refused:
        moment_ms("--until", text, NOW_MS)
    assert repr(text) in str(refused.value)


def test_moments_are_shown_in_the_zone_of_this_machine(zone: str) -> None:
    short, full = {
        "UTC": ("11-21 14:00:00", "2024-11-21 14:00:00.500+00:00"),
        "Asia/Kolkata": ("11-21 19:30:00", "2024-11-21 19:30:00.500+05:30"),
    }[zone]
    assert short_time(NOW_MS) == short
    assert full_time(NOW_MS, NOW_MS + 3_000) == f"{full} (3.00 s ago)"
    assert full_time(NOW_MS, NOW_MS - 3_000) == f"{full} (in 3.00 s)"
    assert short_time(None) == full_time(None, NOW_MS) == "—"
