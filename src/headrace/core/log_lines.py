"""Log output, with time, level and logger, for programs that do not configure logging."""

import logging
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_REPEATED: Final = (
    "There was an exception while executing the Python Proxy",
    "Exception occurred while shutting down connection",
)
"""Beginnings of py4j messages about a closed connection, or about an error that Spark reports."""


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that writes to standard error unless the root logger has handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_lines() -> None:
    """Log Headrace's warnings to standard error, unless the program configures logging.

    Drop py4j's tracebacks of errors that Spark reports too. Repeated calls have no effect.
    """
    logger = logging.getLogger("headrace")
    if not logger.handlers:
        lines = _Lines()
        lines.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(lines)
    logging.getLogger("py4j.clientserver").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_REPEATED)
