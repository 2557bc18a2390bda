"""The log of a process that receives: lines for people, or JSON for programs."""

import json
import logging
import sys

from headrace.cli.lines import printable
from headrace.receivers.event_log import event_of


class TextLines(logging.Formatter):
    """The local time, the level where it is more than information, and one line of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: D102
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        return f"{record.asctime} {level}{printable(record.message)}"


class JsonLines(logging.Formatter):
    """One JSON object: ``time_ms``, ``level``, ``event``, ``message`` and what the event has."""

    def format(self, record: logging.LogRecord) -> str:  # noqa: D102
        told = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            **event_of(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told)


def log_to_terminal(*, as_json: bool) -> None:
    """Write this process's log: text to the standard error, or JSON to the standard output."""
    handler = logging.StreamHandler(sys.stdout if as_json else sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.getLogger().addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
