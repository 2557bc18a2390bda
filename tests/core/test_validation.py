import math

import pytest

from headrace.core.options import require_name, require_number, require_whole
from headrace.errors import OptionError


@pytest.mark.parametrize("value", [None, "", "a b", "ä", "x" * 101, 7])
def test_what_is_no_name_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match=r"The stage is .*; it must be 1 to 100 letters"):
        require_name("The stage", value)
    require_name("The stage", "a.b_c-9")


@pytest.mark.parametrize("value", [0, 11, 2.0, True, "2", None])
def test_what_is_no_whole_number_within_its_bounds_is_refused(value: object) -> None:
    with pytest.raises(OptionError) as refused:
        require_whole("size", value, 1, 10, unit="bytes")
    assert str(refused.value) == f"size is {value!r} bytes; it must be a whole number from 1 to 10."
    with pytest.raises(OptionError, match="it must be a whole number of 12 or more"):
        require_whole("size", value, 12)
    require_whole("size", 1, 1, 10)
    require_whole("size", 10**30, 1)


@pytest.mark.parametrize("value", [-1, 0, math.nan, math.inf, -math.inf, True, "1", None])
def test_what_is_no_finite_number_above_its_bound_is_refused(value: object) -> None:
    with pytest.raises(OptionError) as refused:
        require_number("wait", value, "s", above=True)
    assert str(refused.value) == f"wait is {value!r} s; it must be a finite number above 0."


@pytest.mark.parametrize("value", [1.9, 3.1, math.nan, math.inf])
def test_a_number_may_have_a_least_and_a_most(value: float) -> None:
    with pytest.raises(OptionError, match="must be a finite number of 2 or more and at most 3"):
        require_number("share", value, least=2, most=3)
    for allowed in (2, 2.5, 3):
        require_number("share", allowed, least=2, most=3)
