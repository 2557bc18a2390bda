"""Structured events in receivers' log lines, and counters of rejected requests and connections."""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

_ATTRIBUTE: Final = "headrace_event"


def event(name: str, **values: Any) -> dict[str, dict[str, Any]]:
    """Return the ``extra`` argument of a logging call that attaches an event to the log line.

    The event has a name and values that can be serialized as JSON.
    """
    return {_ATTRIBUTE: {"event": name, **values}}


def event_of(line: logging.LogRecord) -> dict[str, Any]:
    """Return the event that `event` attached to a log line; default: ``{"event": "log"}``."""
    values: dict[str, Any] = getattr(line, _ATTRIBUTE, {"event": "log"})
    return values


def readable(value: float) -> str:
    """Return a number as text: whole from 100 on, below 100 with three significant digits.

    >>> readable(12345.6), readable(2.54321)
    ('12,346', '2.54')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class RejectionCounts:
    """Number of rejections of each kind since the last log line, and the newest reason."""

    counts: dict[str, int]
    last: str

    def __str__(self) -> str:
        ordered = sorted(self.counts.items(), key=lambda entry: -entry[1])
        kinds = ", ".join(f"{count:,} x {kind}" for kind, count in ordered)
        return f"{kinds}; the last one: {self.last}"


class Rejections:
    """Counter of rejected requests and connections, for one event loop.

    Attributes:
        totals: Number of rejections of each kind since the start.
    """

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._last = ""

    def count(self, kind: str, reason: str) -> None:
        """Count one rejection.

        ``kind`` is a label with few different values, such as an HTTP status. ``reason`` is the
        error message for the client, without secrets.
        """
        self.totals[kind] += 1
        self._counts[kind] += 1
        self._last = reason

    def drain(self) -> RejectionCounts | None:
        """Return and reset the rejections since the last call; None if there were none."""
        if not self._counts:
            return None
        rejected = RejectionCounts(dict(self._counts), self._last)
        self._counts.clear()
        return rejected
