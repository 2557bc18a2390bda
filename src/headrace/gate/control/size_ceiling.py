"""The largest batch that a handler takes, learned from batches that failed because of their size.

A batch failed because of its size if the whole failed, and each of its parts passed. With p for the
largest part that passed and f for the smallest that failed, the largest size of the next batch is::

    after such a failure      1.05 p, where p is at most half of f
    after each good batch     1.05 times its size
    once a batch of f passes  no ceiling

So the sizes go up and down below the limit, as a TCP connection's window does (additive there, 5 %
here), and a batch in about fifteen is run in parts. This simple law follows a limit that rises or
falls. Larger steps fail more often, smaller steps follow later.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from headrace.gate.control.bisection import Isolated

GROWTH: Final = 1.05
"""Growth factor after a good batch."""

_AT_CEILING: Final = 0.9
"""Least ratio of a batch's size to a ceiling that has limited the batch."""


@dataclass(frozen=True, slots=True)
class SizeCeiling:
    """Learned limit of a handler's batches; the ledger stores it with the gate.

    Attributes:
        passed: The size from which batches grow (records); 1 or more.
        failed: The smallest size that failed (records); above ``passed``.
    """

    passed: int
    failed: int

    @classmethod
    def of(cls, records: int, isolated: Isolated[Any]) -> Self | None:
        """Return the ceiling after a batch that failed because of its size; else None.

        The size was not the reason if a part was convicted or left, or if a failed part is no
        larger than a part that passed.
        """
        passed, failed = isolated.largest_passed, isolated.smallest_failed
        if not isolated.is_whole or failed is None or not 0 < passed < failed <= records:
            return None
        return cls(passed, failed)

    @property
    def records(self) -> int:
        """The largest size of the next batch (records)."""
        return max(int(self.passed * GROWTH), self.passed + 1)

    def after_pass(self, records: int) -> Self | None:
        """Return the ceiling after a whole batch passed; None if the pass disproves the ceiling."""
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
        """Serialize the ceiling as JSON."""
        return json.dumps(asdict(self))


def known_ceiling(text: str | None) -> SizeCeiling | None:
    """Parse the ceiling in a ledger; None for no text, and for an invalid one."""
    try:
        ceiling = None if text is None else SizeCeiling(**json.loads(text))
    except (TypeError, ValueError):
        return None
    if ceiling is None or type(ceiling.passed) is not int or type(ceiling.failed) is not int:
        return None
    return ceiling if 1 <= ceiling.passed < ceiling.failed else None
