"""Structured events of receivers' log lines, and counts of rejected requests."""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

_ATTRIBUTE: Final = "headrace_event"


def event(name: str, **values: Any) -> dict[str, dict[str, Any]]:
    """Return the ``extra`` of a log line: the event's name and JSON-serializable values."""
    return {_ATTRIBUTE: {"event": name, **values}}


def event_of(line: logging.LogRecord) -> dict[str, Any]:
    """Return the event of a log line, or ``{"event": "log"}`` for a line without an event."""
    values: dict[str, Any] = getattr(line, _ATTRIBUTE, {"event": "log"})
    return values


def readable(value: float) -> str:
    """Return a number as text with three significant digits, or whole from 100 on.

    >>> readable(12345.6), readable(2.54321)
    ('12,346', '2.54')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class RejectionCounts:
    """Rejections since the last log line, by kind, with the reason of the last rejection."""

    counts: dict[str, int]
    last: str

    def __str__(self) -> str:
        ordered = sorted(self.counts.items(), key=lambda entry: -entry[1])
        kinds = ", ".join(f"{count:,} x {kind}" for kind, count in ordered)
        return f"{kinds}; the last one: {self.last}"


class Rejections:
    """Counts rejections between two log lines; belongs to one event loop.

    Attributes:
        totals: Rejections since the start, by kind.
    """

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._last = ""

    def count(self, kind: str, reason: str) -> None:
        """Count one rejection of a kind, such as an HTTP status; there are few kinds.

        The reason is the sentence sent to the client, without secrets.
        """
        self.totals[kind] += 1
        self._counts[kind] += 1
        self._last = reason

    def drain(self) -> RejectionCounts | None:
        """Return the rejections since the last call, or None without any."""
        if not self._counts:
            return None
        rejected = RejectionCounts(dict(self._counts), self._last)
        self._counts.clear()
        return rejected
