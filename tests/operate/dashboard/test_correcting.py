"""Which values a form can have, and that it gives back what was not changed as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operate.dashboard.failure_pages import MOST_BYTES, correctable, corrected


def as_browsers_send(text: str) -> str:
    """A text field's value as browsers send it: every end of a line is CR LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")


@given(st.one_of(st.binary(max_size=50), st.text(max_size=50).map(str.encode)))
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_what_nobody_has_changed_comes_back_as_it_was(ends: bytes, value: bytes) -> None:
    value = value.replace(b"n", ends)
    text = correctable(value)
    if text is not None:
        assert corrected(value, as_browsers_send(text)) == value


@pytest.mark.parametrize(
    "value",
    [None, b"\xff", b"a\x00b", b"a\rb", b"a\r\nb\nc", "a\u202eb".encode(), b"x" * (MOST_BYTES + 1)],
)
def test_what_a_browser_would_change_or_nobody_sees_is_in_no_form(value: bytes | None) -> None:
    assert correctable(value) is None
    assert corrected(value, "x") is None
