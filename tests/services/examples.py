"""How many examples a test has: all in `make test`, a fifth of them in `make unit`.

`make unit` is run after each change, and must end soon; what it leaves out, `make test` runs.
"""

from typing import Any, Final

from hypothesis import settings

FULL: Final = 50
"""What a property has in `make test` where it says nothing itself."""

FEW: Final = 10
"""The same in `make unit`."""


def count_of(full: int) -> int:
    """How many of so many are made in this run: one at least."""
    return max(full * settings().max_examples // FULL, 1)


def examples(full: int, **others: Any) -> settings:
    """A property that has so many examples in `make test`."""
    return settings(max_examples=count_of(full), **others)
