"""What may stand in an assertion."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace.control import Epoch, PressureSignal
from headrace.control.assertion import MAX_LEASE_MS, MAX_LEVEL
from headrace.errors import OptionError

RUN = Epoch(1_700_000_000_000, "a1")


def assertion(**changes: Any) -> PressureSignal:
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
    widest = assertion(sender="a.b_c-9", level=MAX_LEVEL, lease_ms=MAX_LEASE_MS, sequence=10**30)
    assert (widest.sender, widest.level, widest.lease_ms) == ("a.b_c-9", 20, 600_000)
    assert assertion(level=1.75).level == 1.75
    assert assertion(level=0, lease_ms=1, receiver="x" * 100).receiver == "x" * 100


@pytest.mark.parametrize("field", ["flow", "sender", "receiver"])
@pytest.mark.parametrize("name", ["", "a/b", "a b", "../x", "x" * 101, "a\n", "ä", 7, None])
def test_a_name_that_is_none_is_refused(field: str, name: object) -> None:
    expected = f"The {field} of an assertion is {name!r}; it must be 1 to 100 letters, digits,"
    with pytest.raises(OptionError, match=re.escape(expected)):
        assertion(**{field: name})


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("level", -1, "from 0 to 20"),
        ("level", 21, "from 0 to 20"),
        ("level", 10**400, "from 0 to 20"),
        ("level", float("inf"), "from 0 to 20"),
        ("level", 20.01, "from 0 to 20"),
        ("level", float("nan"), "from 0 to 20"),
        ("level", "1", "from 0 to 20"),
        ("level", True, "from 0 to 20"),
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
        assertion(**{field: value})


@pytest.mark.parametrize(
    "make",
    [lambda: Epoch(-1, "a"), lambda: Epoch(1, "a/b"), lambda: Epoch(1, "")],
)
def test_an_epoch_needs_a_time_and_a_name(make: Callable[[], Epoch]) -> None:
    with pytest.raises(OptionError, match="An epoch's"):
        make()


def test_of_two_epochs_the_one_that_started_later_is_larger() -> None:
    assert Epoch(1, "z") < Epoch(2, "a") < Epoch(2, "b")
