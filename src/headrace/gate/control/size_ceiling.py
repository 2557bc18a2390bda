"""The largest batch that a handler takes, as batches that failed for their size have taught.

A batch failed for its size if it failed whole, and each of its parts passed. With p for the largest
part that passed and f for the smallest that failed, the most that the next batch may have is::

    after such a failure      1.05 p, where p is at most half of f
    after each good batch     1.05 times its size
    once a batch of f passes  no ceiling

So the sizes go up and down below the limit, as a TCP connection's window does (additive there,
5 % here), and a batch in about fifteen is run in parts. That is the price of a law of three lines,
which follows a limit that rises or falls. Higher steps fail more often, lower ones follow later.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from headrace.gate.control.bisection import Isolated

GROWTH: Final = 1.05
"""Step after a good batch."""

_AT_CEILING: Final = 0.9
"""Part of a ceiling from which on the ceiling has limited a batch; below, something else did."""


@dataclass(frozen=True, slots=True)
class SizeCeiling:
    """Learned limit of the batches that a handler can take; the ledger keeps it with the gate.

    Attributes:
        passed: The size from which batches grow (records); 1 or more.
        failed: The smallest size that failed (records); above it.
    """

    passed: int
    failed: int

    @classmethod
    def of(cls, records: int, isolated: Isolated[Any]) -> Self | None:
        """Return the ceiling after a batch that failed for its size; None if that was not why.

        It was not if a part of it was convicted or left, or if one that failed is no larger than
        one that passed.
        """
        passed, failed = isolated.largest_passed, isolated.smallest_failed
        if not isolated.is_whole or failed is None or not 0 < passed < failed <= records:
            return None
        return cls(passed, failed)

    @property
    def records(self) -> int:
        """The most records that the next batch may have."""
        return max(int(self.passed * GROWTH), self.passed + 1)

    def after_pass(self, records: int) -> Self | None:
        """Return the ceiling after a batch that passed whole; None where it disproves the limit."""
        if records >= self.failed:
            return None
        if records < _AT_CEILING * self.records:
            return self
        return replace(self, passed=max(records, self.passed))

    def describe(self) -> str:
        """Describe the evidence of the ceiling.

        >>> SizeCeiling(250, 564).describe()
        '564 records at once failed, 250 passed'
        """
        return f"{self.failed} records at once failed, {self.passed} passed"

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def known_ceiling(text: str | None) -> SizeCeiling | None:
    """Return the ceiling that a ledger has; None without one, and where it is not one of these."""
    try:
        ceiling = None if text is None else SizeCeiling(**json.loads(text))
    except (TypeError, ValueError):
        return None
    if ceiling is None or type(ceiling.passed) is not int or type(ceiling.failed) is not int:
        return None
    return ceiling if 1 <= ceiling.passed < ceiling.failed else None
