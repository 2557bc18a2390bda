"""Warnings that are logged once, until they are over."""

import logging

import pytest

from headrace.core.timing import MAX_WARNINGS, WarnOnce


def test_a_warning_is_logged_once_until_its_reason_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = WarnOnce(logging.getLogger("headrace"))
    for _ in range(3):
        warnings.warn("b is wrong", about="b")
    assert caplog.messages == ["b is wrong"]
    assert warnings.clear("b") is not None
    assert warnings.clear("b") is None
    warnings.warn("b is wrong again", about="b")
    assert caplog.messages[1:] == ["b is wrong again"]


def test_whoever_makes_up_reasons_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    warnings = WarnOnce(logging.getLogger("headrace"))
    for number in range(10 * MAX_WARNINGS):
        warnings.warn("%d is wrong", number, about=str(number))
    assert len(caplog.messages) == MAX_WARNINGS + 2
    assert (
        caplog.messages[-1]
        == "Further warnings of this kind are not logged until earlier problems are solved."
    )
