"""Warnings that are told once, however often there is a reason."""

import logging
import threading
from typing import Final

MOST: Final = 100
"""How many things are told at most while none of them is over: others could make up any number."""


class Told:
    """Remembers of what was warned, from any thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log: Final = log
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, about: str, sentence: str) -> None:
        """Warn, unless it was done already about the same thing."""
        with self._lock:
            if about in self._told or len(self._told) > MOST:
                return
            self._told.add(about)
            is_last = len(self._told) > MOST
        self._log.warning("%s", sentence)
        if is_last:
            self._log.warning("There is more of the kind, which is not told.")

    def is_over(self, about: str) -> None:
        """Warn again when there is a reason the next time."""
        with self._lock:
            self._told.discard(about)
