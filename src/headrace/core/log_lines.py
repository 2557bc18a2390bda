"""Headrace's log lines in a program that configures no logging: with time, level and logger."""

import logging
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_REPEATED: Final = (
    "There was an exception while executing the Python Proxy",
    "Exception occurred while shutting down connection",
)
"""Beginnings of py4j's lines about an error that Spark reports, or about a closed connection."""


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the standard error as long as the program has no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_lines() -> None:
    """Write warnings of Headrace with time and level, unless the program handles its log itself.

    Py4j's tracebacks of errors that Spark reports, too, are dropped. A second call is harmless.
    """
    logger = logging.getLogger("headrace")
    if not logger.handlers:
        lines = _Lines()
        lines.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(lines)
    logging.getLogger("py4j.clientserver").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_REPEATED)
