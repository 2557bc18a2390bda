"""What the log lines of a receiver say to programs, besides their text."""

import logging
from typing import Any, Final

_ATTRIBUTE: Final = "headrace_event"


def event(name: str, **values: Any) -> dict[str, dict[str, Any]]:
    """What to pass as ``extra`` with a log line.

    Args:
        name: What has happened, in one word.
        values: What about it; to be written as JSON.
    """
    return {_ATTRIBUTE: {"event": name, **values}}


def event_of(line: logging.LogRecord) -> dict[str, Any]:
    """What was passed with a log line; ``{"event": "log"}`` with one that is not ours."""
    told: dict[str, Any] = getattr(line, _ATTRIBUTE, {"event": "log"})
    return told


def number(value: float) -> str:
    """A number for people.

    >>> number(12345.6), number(2.54321)
    ('12,346', '2.54')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
