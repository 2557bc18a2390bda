"""Headrace's log output in programs that do not configure Python's logging themselves."""

import logging
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_REPEATED: Final = (
    "There was an exception while executing the Python Proxy",
    "Exception occurred while shutting down connection",
)
"""First words of py4j's log messages that are dropped. These messages are about closed connections
and about errors that Spark also reports."""


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Log handler that writes to standard error, but only while the root logger has no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_lines() -> None:
    """Write Headrace's log to standard error, in a program that does not configure logging.

    Each line has the time, the level and the logger. If Spark also reports an error, py4j's
    traceback of the error is dropped. Repeated calls have no effect.
    """
    logger = logging.getLogger("headrace")
    if not logger.handlers:
        lines = _Lines()
        lines.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(lines)
    logging.getLogger("py4j.clientserver").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_REPEATED)
