"""A gate's size ceiling: the largest batch that the handler can process, learned from failures.

A batch has failed because of its size if the whole batch failed, and each of its parts passed. With
p records in the largest part that passed, and f records in the smallest part that failed, the
ceiling of the next batch is::

    after such a failure               1.05 p, where p is at most half of f
    after each batch that passes       1.05 times its size
    after a batch of f or more passes  no ceiling

So the sizes rise to the handler's limit and fall again, like the window of a TCP connection (which
grows by a constant, not by 5 %). About one batch in fifteen fails and is run in parts. This simple
law also follows a limit that changes. With larger steps, more batches would fail; with smaller
steps, the ceiling would follow more slowly.
"""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from headrace.gate.control.bisection import Isolated

GROWTH: Final = 1.05
"""Factor by which the ceiling grows after a batch of about the ceiling's size has passed."""

_AT_CEILING: Final = 0.9
"""A batch that passes raises the ceiling if its size is at least this fraction of the ceiling."""


@dataclass(frozen=True, slots=True)
class SizeCeiling:
    """A learned size ceiling, which the ledger stores with the gate.

    Attributes:
        passed: The largest size that passed (records); 1 or more. Batch sizes grow from it.
        failed: The smallest size that failed (records); above ``passed``.
    """

    passed: int
    failed: int

    @classmethod
    def of(cls, records: int, isolated: Isolated[Any]) -> Self | None:
        """Return the ceiling that follows from the isolation of a failed batch.

        Args:
            records: Number of records in the batch.
            isolated: The outcome of the isolation.

        Returns:
            None if the size was not the reason of the failure: a record was convicted, a part was
            deferred, or a part that failed was not larger than every part that passed.
        """
        passed, failed = isolated.largest_passed, isolated.smallest_failed
        if not isolated.is_whole or failed is None or not 0 < passed < failed <= records:
            return None
        return cls(passed, failed)

    @property
    def records(self) -> int:
        """The largest allowed size of the next batch (records)."""
        return max(int(self.passed * GROWTH), self.passed + 1)

    def after_pass(self, records: int) -> Self | None:
        """Return the ceiling after a batch of ``records`` records has passed as a whole.

        Returns:
            None (no ceiling) if the batch was at least as large as the smallest failed batch or
            part.
        """
        if records >= self.failed:
            return None
        if records < _AT_CEILING * self.records:
            return self
        return replace(self, passed=max(records, self.passed))

    def describe(self) -> str:
        """Describe the failure from which the ceiling was learned.

        >>> SizeCeiling(250, 564).describe()
        '564 records at once failed, 250 passed'
        """
        return f"{self.failed} records at once failed, {self.passed} passed"

    def to_text(self) -> str:
        """Serialize the ceiling as JSON for the ledger."""
        return json.dumps(asdict(self))


def known_ceiling(text: str | None) -> SizeCeiling | None:
    """Parse a ceiling from the ledger. Return None for None and for an invalid text."""
    try:
        ceiling = None if text is None else SizeCeiling(**json.loads(text))
    except (TypeError, ValueError):
        return None
    if ceiling is None or type(ceiling.passed) is not int or type(ceiling.failed) is not int:
        return None
    return ceiling if 1 <= ceiling.passed < ceiling.failed else None
