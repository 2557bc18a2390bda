"""What may stand in an assertion."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from headrace.control import Assertion, Incarnation
from headrace.control.assertion import MOST_LEASE_MS, MOST_LEVELS
from headrace.errors import OptionError

RUN = Incarnation(1_700_000_000_000, "a1")


def assertion(**changes: Any) -> Assertion:
    fields: dict[str, Any] = {
        "flow": "shop",
        "sender": "enrich",
        "receiver": "parse",
        "incarnation": RUN,
        "sequence": 0,
        "level": 1,
        "lease_ms": 10_000,
    }
    return Assertion(**(fields | changes))


def test_it_holds_what_it_was_given_up_to_the_bounds() -> None:
    widest = assertion(sender="a.b_c-9", level=MOST_LEVELS, lease_ms=MOST_LEASE_MS, sequence=10**30)
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
        ("incarnation", "a1", "must be a value of Incarnation"),
    ],
)
def test_a_number_out_of_its_range_is_refused(field: str, value: object, allowed: str) -> None:
    with pytest.raises(OptionError, match=allowed):
        assertion(**{field: value})


@pytest.mark.parametrize(
    "make",
    [lambda: Incarnation(-1, "a"), lambda: Incarnation(1, "a/b"), lambda: Incarnation(1, "")],
)
def test_an_incarnation_needs_a_time_and_a_name(make: Callable[[], Incarnation]) -> None:
    with pytest.raises(OptionError, match="An incarnation's"):
        make()


def test_of_two_incarnations_the_one_that_started_later_is_larger() -> None:
    assert Incarnation(1, "z") < Incarnation(2, "a") < Incarnation(2, "b")
