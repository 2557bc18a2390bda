"""Log of receivers: events for programs besides the text, and counts of rejected requests."""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

_ATTRIBUTE: Final = "headrace_event"


def event(name: str, **values: Any) -> dict[str, dict[str, Any]]:
    """The ``extra`` of a log line: the event's name, and its values, which JSON can hold."""
    return {_ATTRIBUTE: {"event": name, **values}}


def event_of(line: logging.LogRecord) -> dict[str, Any]:
    """The event of a log line; ``{"event": "log"}`` of a line without one."""
    found: dict[str, Any] = getattr(line, _ATTRIBUTE, {"event": "log"})
    return found


def readable(value: float) -> str:
    """A number for people.

    >>> readable(12345.6), readable(2.54321)
    ('12,346', '2.54')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class RejectionCounts:
    """Rejections within some time, by kind, and the reason of the last one."""

    counts: dict[str, int]
    last: str

    def __str__(self) -> str:
        ordered = sorted(self.counts.items(), key=lambda each: -each[1])
        kinds = ", ".join(f"{count:,} x {kind}" for kind, count in ordered)
        return f"{kinds}; the last one: {self.last}"


class Rejections:
    """Counts rejections until they are logged, so that thousands are one line; of one loop.

    Attributes:
        totals: How many there were since the beginning, by kind.
    """

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._last = ""

    def count(self, kind: str, reason: str) -> None:
        """Count one rejection of a kind, such as a status of HTTP; there are few kinds.

        The reason is the sentence that its sender received; nothing secret.
        """
        self.totals[kind] += 1
        self._counts[kind] += 1
        self._last = reason

    def drain(self) -> RejectionCounts | None:
        """Return the rejections since the last call; None if there were none."""
        if not self._counts:
            return None
        rejected = RejectionCounts(dict(self._counts), self._last)
        self._counts.clear()
        return rejected
