"""How a ledger waits for its database to come back, and what it says of that."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from headrace.core.backoff import Backoff
from headrace.core.stop import cancellation
from headrace.errors import LedgerError

QUERY_PATIENCE_S: Final = 600.0
"""How long a running query waits for its ledger: longer than a restart, a failover or an upgrade of
a database server takes, so that none of these ends a query; and short enough that whoever looks
after the query hears the same morning of a database that is gone for good."""

_BACKOFF: Final = Backoff(first_ms=100, most_ms=2_000)
"""Between two tries. A connection that was cut alone is replaced within the first wait; a database
that is back is noticed within the longest."""

_LOG: Final = logging.getLogger("headrace.ledger")

_Answer = TypeVar("_Answer")


class OutageError(LedgerError):
    """The database cannot be reached, or has cut the connection, and waiting may cure that.

    What was being written may have happened or not: the answer is what was lost.
    """


def next_wait_s(tries: int, waited_s: float, patience_s: float) -> float | None:
    """How long to wait before the next try: twice as long as before the last one.

    Args:
        tries: How many were made; 1 or more.
        waited_s: Since the first try.
        patience_s: How long may be waited in all.

    Returns:
        Seconds; None once patience is at its end.

    >>> [next_wait_s(tries, 10, 600) for tries in (1, 2, 5, 6, 60)]
    [0.1, 0.2, 1.6, 2.0, 2.0]
    >>> next_wait_s(9, 599.5, 600), next_wait_s(9, 600, 600)
    (0.5, None)
    """
    if waited_s >= patience_s:
        return None
    return min(_BACKOFF.wait_ms(tries) / 1000, patience_s - waited_s)


class Patience:
    """The waiting of everything that uses one database; from any thread.

    However many threads wait, the log says once that waiting began, and once that it is over.
    """

    def __init__(self, ledger: str, patience_s: float) -> None:
        """Wait for this ledger, named without its secrets, for so long each time."""
        self._ledger: Final = ledger
        self._patience_s: Final = patience_s
        self._lock: Final = threading.Lock()
        self._since_s: float | None = None

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self._patience_s > 0

    def wait_out(self, attempt: Callable[[], _Answer]) -> _Answer:
        """Try until the database is there, or patience is at its end.

        Args:
            attempt: Raises `OutageError` if it is to be tried again; anything else passes.

        Raises:
            LedgerError: The last try's, with the time that was waited, and by what it was ended if
                not by patience: see `cancel_when`.
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
                wait_s = next_wait_s(tries, waited_s, self._patience_s)
                cancelled = cancel is not None and cancel.is_requested()
                if wait_s is None or cancelled:
                    until = f", until {cancel.reason}" if cancel is not None and cancelled else ""
                    raise LedgerError(
                        f"{str(outage).removesuffix('.')}; it was waited for {waited_s:.0f} s"
                        f"{until}."
                    ) from outage
                self._tell_it_is_away(outage)
                time.sleep(wait_s)
                try:
                    answer = attempt()
                except OutageError as again:
                    outage = again
                else:
                    self._tell_it_is_back()
                    return answer
        finally:
            self._end_waiting()

    def _tell_it_is_away(self, outage: OutageError) -> None:
        with self._lock:
            if self._since_s is not None:
                return
            self._since_s = time.monotonic()
        _LOG.warning("%s It is tried again for up to %g s.", outage, self._patience_s)

    def _tell_it_is_back(self) -> None:
        since_s = self._end_waiting()
        if since_s is not None:
            took_s = time.monotonic() - since_s
            _LOG.info("The ledger %s is back after %.1f s.", self._ledger, took_s)

    def _end_waiting(self) -> float | None:
        """Since when it has been waited; only one of those who waited is told."""
        with self._lock:
            since_s, self._since_s = self._since_s, None
        return since_s
