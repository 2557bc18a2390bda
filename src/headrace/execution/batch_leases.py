"""Keeps batches for the process that runs them, for as long as it renews their leases."""

import logging
import threading
from typing import Final, Self

from headrace.core.stop import cancel_when
from headrace.errors import LedgerError
from headrace.ledger import Ledger

OWNER_POLL_S: Final = 0.5
"""How often it is checked whether another owner's lease has run out."""

_RENEWALS: Final = 5
"""How often a lease is renewed within its own length, so that a few may be missed."""

_LOG: Final = logging.getLogger("headrace.execution")


class BatchLeases:
    """Keeps batches for their owner, however long they take; within ``with``."""

    def __init__(self, ledger: Ledger, owner: str, lease_ms: int, *batches: str) -> None:
        self.owner: Final = owner
        self.lease_ms: Final = lease_ms
        self._ledger = ledger
        self._kept = set(batches)
        self._changing = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="headrace-leases", daemon=True)

    def keep(self, *batches: str) -> None:
        """Keep these too, until they are resolved."""
        with self._changing:
            self._kept.update(batches)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        with cancel_when(self._done.is_set, "it was not needed any more"):
            while not self._done.wait(self.lease_ms / _RENEWALS / 1000):
                self._renew_all()

    def _renew_all(self) -> None:
        with self._changing:
            kept = list(self._kept)
        for batch in kept:
            try:
                if not self._ledger.batches.renew(batch, self.owner, self.lease_ms):
                    with self._changing:
                        self._kept.remove(batch)
            except LedgerError as error:
                if self._done.is_set():
                    return
                _LOG.warning("The lease of batch %s was not renewed: %s", batch, error)
