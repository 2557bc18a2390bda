"""The number of examples of a property: all in `make soak`, two fifths in `make test`, and a fifth
in `make unit`.

`make test` and `make unit` draw the same ones each time, `make nightly` and `make soak` others.
"""

from typing import Any, Final

from hypothesis import settings

FULL: Final = 50
"""Examples of a property that says nothing itself, in `make soak`."""

SOME: Final = 20
"""The same in `make test`."""

FEW: Final = 10
"""The same in `make unit`."""


def count_of(full: int) -> int:
    """Return the number of examples of so many that this run makes: one at least."""
    return max(full * settings().max_examples // FULL, 1)


def examples(full: int, **others: Any) -> settings:
    """A property that has so many examples in `make soak`."""
    return settings(max_examples=count_of(full), **others)
