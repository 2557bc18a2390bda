"""Which errors of a database are outages, and how the ledger waits until one is over."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from headrace.core.backoff import Backoff
from headrace.core.stop import cancellation
from headrace.errors import LedgerError
from headrace.ledger.sqlite_file import is_busy


def is_outage(error: SQLAlchemyError) -> bool:
    """Whether the database could not be reached, or cut the connection, or is locked by another.

    Not so if a server is there and refuses: a wrong password, a database that does not exist.
    """
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or is_busy(error.orig):
        return True
    if isinstance(error.orig, sqlite3.Error):
        return False
    from headrace.ledger.server_outages import is_server_outage  # noqa: PLC0415  (a server's driver)

    return is_server_outage(error.orig)


def is_refusal(error: SQLAlchemyError) -> bool:
    """Whether the database has answered a commit with an error, so that everything is undone."""
    if not isinstance(error, DBAPIError) or error.connection_invalidated:
        return False
    if isinstance(error.orig, sqlite3.Error):
        return isinstance(error.orig, sqlite3.IntegrityError) or is_busy(error.orig)
    from headrace.ledger.server_outages import is_server_refusal  # noqa: PLC0415  (a server's driver)

    return is_server_refusal(error.orig)


def is_locked_by_others(error: BaseException | None) -> bool:
    """Whether a driver's error says that somebody else's transaction was waited for too long."""
    if error is None or isinstance(error, sqlite3.Error):
        return is_busy(error)
    from headrace.ledger.server_outages import is_locked  # noqa: PLC0415  (a server's driver)

    return is_locked(error)


QUERY_RETRY_TIMEOUT_S: Final = 600.0
"""How long a running query waits for its ledger: longer than a restart, a failover or an upgrade of
a database server takes, so that none of these ends a query; and short enough that whoever looks
after the query hears the same morning of a database that is gone for good."""

_BACKOFF: Final = Backoff(first_ms=100, most_ms=2_000)
"""Between two tries. A connection that was cut alone is replaced within the first wait; a database
that is reachable again is noticed within the longest."""

_LOG: Final = logging.getLogger("headrace.ledger")
_Answer = TypeVar("_Answer")


class OutageError(LedgerError):
    """The database cannot be reached, or has cut the connection, and waiting may cure that.

    What was being written may have happened or not: the answer is what was lost.
    """


def next_wait_s(tries: int, waited_s: float, retry_timeout_s: float) -> float | None:
    """How long to wait before the next try: twice as long as before the last one.

    Args:
        tries: How many were made; 1 or more.
        waited_s: Since the first try.
        retry_timeout_s: How long may be waited in all.

    Returns:
        Seconds; None after the retry timeout.

    >>> [next_wait_s(tries, 10, 600) for tries in (1, 2, 5, 6, 60)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    >>> next_wait_s(9, 599.5, 600), next_wait_s(9, 600, 600)
    (0.5, None)
    """
    if waited_s >= retry_timeout_s:
        return None
    return min(_BACKOFF.wait_ms(tries) / 1000, retry_timeout_s - waited_s)


class Retries:
    """The waiting of everything that uses one database; from any thread.

    However many threads wait, the log says once that waiting began, and once that it is over.
    """

    def __init__(self, ledger: str, retry_timeout_s: float) -> None:
        """Wait for this ledger, named without its secrets, for so long each time."""
        self._ledger: Final = ledger
        self._retry_timeout_s: Final = retry_timeout_s
        self._lock: Final = threading.Lock()
        self._since_s: float | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self._retry_timeout_s > 0

    def wait_out(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Try until the database can be reached, or the retry timeout is over.

        Args:
            attempt: Raises `OutageError` if it is to be tried again; anything else passes.

        Raises:
            LedgerError: The last try's, with the time that was waited, and by what it was ended if
                not by the timeout: see `cancel_when`.
        """
        try:
            return attempt()
        except OutageError as outage:
            return self._again(attempt, outage)

    def _again(self, attempt: Callable[[], _Answer], outage: OutageError) -> _Answer:
        began_s, tries, cancel = time.monotonic(), 0, cancellation()
        try:
            while True:
                waited_s = time.monotonic() - began_s
                tries += 1
                wait_s = next_wait_s(tries, waited_s, self._retry_timeout_s)
                cancelled = cancel is not None and cancel.is_requested()
                if wait_s is None or cancelled:
                    until = f", until {cancel.reason}" if cancel is not None and cancelled else ""
                    raise LedgerError(
                        f"{str(outage).removesuffix('.')}; it was waited for {waited_s:.0f} s"
                        f"{until}."
                    ) from outage
                self._log_unreachable(outage)
                time.sleep(wait_s)
                try:
                    answer = attempt()
                except OutageError as again:
                    outage = again
                else:
                    self._log_reachable()
                    return answer
        finally:
            self._end_waiting()

    def _log_unreachable(self, outage: OutageError) -> None:
        with self._lock:
            if self._since_s is not None:
                return
            self._since_s = time.monotonic()
        _LOG.warning("%s It is tried again for up to %g s.", outage, self._retry_timeout_s)

    def _log_reachable(self) -> None:
        since_s = self._end_waiting()
        if since_s is not None:
            took_s = time.monotonic() - since_s
            _LOG.info("The ledger %s is reachable again after %.1f s.", self._ledger, took_s)

    def _end_waiting(self) -> float | None:
        """Since when it has been waited; only one of those who waited gets it."""
        with self._lock:
            since_s, self._since_s = self._since_s, None
        return since_s
