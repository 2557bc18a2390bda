"""The names that `headrace.testing` makes public, and the page about them."""

from pathlib import Path

import headrace.testing
from headrace.testing.memory import STEPS

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_exported_names_are_there_documented_and_sorted() -> None:
    names = headrace.testing.__all__
    assert names == sorted(names)
    assert all(getattr(headrace.testing, name).__doc__ for name in names)


def test_the_page_has_every_step() -> None:
    assert [step for step in STEPS if f"| `{step}` |" not in PAGE] == []
