"""The ledger that the dashboard shows, which may go away and come back."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from sqlalchemy import make_url

from headrace.errors import LedgerError, SchemaError
from headrace.ledger import Ledger, normalize_url, redact_url

Answer = TypeVar("Answer")

TRY_AGAIN_S: Final = 1.0
"""Time until a ledger that did not answer is opened again (s)."""


class LedgerLink:
    """Opens the ledger for reading when somebody asks, and again after it was gone.

    Its methods can be called from any thread.
    """

    def __init__(self, url: str) -> None:
        """Connect to nothing yet.

        Raises:
            LedgerError: The URL is not a ledger's.
        """
        self.url: Final = normalize_url(url)
        self.name: Final = redact_url(url)
        parsed = make_url(self.url)
        self._file = parsed.database if parsed.get_backend_name() == "sqlite" else None
        self._lock = threading.Lock()
        self._opened: Ledger | None = None
        self._identity: tuple[int, int] | None = None
        self._failed: tuple[float, LedgerError] | None = None

    def ask(self, question: Callable[[Ledger], Answer]) -> Answer:
        """The ledger's answer.

        Raises:
            LedgerError: It cannot be reached or read now.
        """
        ledger = self.current()
        try:
            return question(ledger)
        except LedgerError:
            self._forget(ledger)
            raise

    @contextmanager
    def writing(self) -> Iterator[Ledger]:
        """Lend a ledger to change something in; it is never made, nor brought up to date.

        Raises:
            LedgerError: It cannot be reached, or may not be written.
        """
        with Ledger.join(self.url) as ledger:
            yield ledger

    def refuse_another_schema(self) -> None:
        """Look once whether this Headrace can read it; one that is away may come later.

        Raises:
            SchemaError: It is of another Headrace, or no ledger's.
        """
        try:
            self.ask(lambda ledger: None)
        except SchemaError:
            raise
        except LedgerError:
            return

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def current(self) -> Ledger:
        """The ledger, open for reading: to be asked at once, and not to be kept.

        Raises:
            LedgerError: It cannot be reached or read now.
        """
        with self._lock:
            if self._opened is not None and self._identity != self._file_now():
                # Another file has its name, or none: what is open is nobody's any more.
                self._opened.close()
                self._opened = None
            if self._opened is None:
                self._open()
            assert self._opened is not None  # noqa: S101  (for mypy)
            return self._opened

    def _open(self) -> None:
        if self._failed is not None and time.monotonic() - self._failed[0] < TRY_AGAIN_S:
            error = self._failed[1]
            raise type(error)(str(error)) from error
        try:
            self._identity = self._file_now()
            self._opened = Ledger.open(self.url, create=False)
            self._failed = None
        except LedgerError as error:
            self._failed = time.monotonic(), error
            raise

    def _forget(self, ledger: Ledger) -> None:
        with self._lock:
            if self._opened is ledger:
                self._opened = None
        # Others may be reading from it: what they have begun ends by itself.

    def _file_now(self) -> tuple[int, int] | None:
        """Which file it is in, if it is in one; another one after it was replaced."""
        if self._file is None:
            return None
        try:
            found = os.stat(self._file)  # noqa: PTH116  (a URL's text, as SQLite takes it)
        except OSError:
            return None
        return found.st_dev, found.st_ino
