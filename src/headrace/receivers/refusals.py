"""What receivers have refused, counted, so that the log tells of thousands in one line."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refused:
    """Refusals of some time.

    Attributes:
        counts: How many, by kind.
        last: Why the last one was.
    """

    counts: dict[str, int]
    last: str

    def __str__(self) -> str:
        """For people: the most frequent kind first."""
        ordered = sorted(self.counts.items(), key=lambda each: -each[1])
        kinds = ", ".join(f"{count:,} x {kind}" for kind, count in ordered)
        return f"{kinds}; the last one: {self.last}"


class Refusals:
    """Counts refusals until somebody asks. Belongs to one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last = ""

    def count(self, kind: str, why: str) -> None:
        """Count one.

        Args:
            kind: Of few, such as a status of HTTP.
            why: The sentence that its sender was told; nothing secret.
        """
        self._counts[kind] += 1
        self._last = why

    def taken(self) -> Refused | None:
        """Those since this was asked last; None if there were none."""
        if not self._counts:
            return None
        refused = Refused(dict(self._counts), self._last)
        self._counts.clear()
        return refused
