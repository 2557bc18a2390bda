"""Who runs a batch: one process, for as long as it renews its lease."""

import logging
import os
import threading
import uuid
from pathlib import Path
from typing import Final, Self

from headgate.backfill import LEASE_MS
from headgate.errors import LedgerError
from headgate.ledger import Ledger
from headgate.ledger.patience import waiting_ends

OWNER_POLL_S: Final = 0.5
"""How often it is looked whether another owner's lease has run out."""

_RENEWALS: Final = 5
"""How often a lease is renewed within its own length, so that a few may be missed."""

_LOG: Final = logging.getLogger("headgate.gate")


def new_owner() -> str:
    """A name for one run in this process.

    It tells machine, process and when that began, so that another process of the same machine can
    see whether this one is gone: see `is_gone`.
    """
    return f"{_process(os.getpid())}/{uuid.uuid4().hex}"


def is_here(owner: str | None) -> bool:
    """Whether what it owns is no other process's: it is a run in this one, or nobody."""
    return owner is None or owner.startswith(f"{_process(os.getpid())}/")


def is_gone(owner: str) -> bool:
    """Whether an owner's process is known to have ended.

    Without that knowledge (it ran on another machine or in another container, or this system does
    not tell) the answer is no, and its lease has to run out.
    """
    machine, _, rest = owner.partition(":")
    process = rest.partition(":")[0]
    if machine != _machine() or not machine or not process.isdecimal():
        return False
    return not owner.startswith(f"{_process(int(process))}/")


class Leases:
    """Keeps batches for their owner, however long they take; within ``with``.

    Args:
        ledger: of the batches.
        owner: whose they are.
        lease_ms: how long a lease is.
    """

    def __init__(self, ledger: Ledger, owner: str, lease_ms: int = LEASE_MS) -> None:
        self.owner: Final = owner
        self._ledger = ledger
        self._lease_ms = lease_ms
        self._kept: set[str] = set()
        self._changing = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="headgate-leases", daemon=True)

    def keep(self, *batches: str) -> None:
        """Keep these too, until they are settled."""
        with self._changing:
            self._kept.update(batches)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        with waiting_ends(self._done.is_set, "it was not needed any more"):
            while not self._done.wait(self._lease_ms / _RENEWALS / 1000):
                self._renew_all()

    def _renew_all(self) -> None:
        with self._changing:
            kept = list(self._kept)
        for batch in kept:
            try:
                if not self._ledger.renew(batch, self.owner, self._lease_ms):
                    with self._changing:
                        self._kept.remove(batch)
            except LedgerError as error:
                if self._done.is_set():
                    return
                _LOG.warning("The lease of batch %s was not renewed: %s", batch, error)


def _process(process: int) -> str:
    """A process that is no other one's: the number alone is used again after its end."""
    return f"{_machine()}:{process}:{_started(process)}"


def _machine() -> str:
    """The machine, since its start, and the space in which its processes are numbered."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').readlink()}".replace(":", "")
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process began, in ticks since the machine's start; empty if there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The second field, the command in brackets, may have spaces and brackets in it.
    return fields.rpartition(")")[2].split()[19]
