"""A query's claim on its gate: it is the only one behind it, or it does not start.

The claim is a lease in the ledger. The query's planner renews it in a thread of its own while it
lives; each batch is begun under it, so that a query whose gate was taken over begins no batch.
"""

import logging
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from headrace.core.stop import cancel_when
from headrace.errors import GateInUseError, HeadraceError
from headrace.ledger import GateClaim, GateQuery, Ledger
from headrace.processes import is_gone, number_of

GATE_LEASE_MS: Final = 30_000
"""How long a gate is kept for a query that gives no sign of life: longer than a stall of a planner
or a failover of the ledger's database, and short enough to wait for after a machine was lost."""

_RENEWALS: Final = 6
"""How often a lease is renewed within its own length; so soon a second query is refused, too."""

_LOOK_S: Final = 0.1

_LOG: Final = logging.getLogger("headrace.source")


def describe_process(process: str | None, otherwise: int) -> str:
    """A process of this machine as an operator finds it.

    Args:
        process: its name, as `headrace.processes` gives it.
        otherwise: the number of another one, to name where that name tells nothing.
    """
    number = number_of(process) if process is not None else None
    return f"process {number or otherwise} on {socket.gethostname()}"


def await_turn(
    gate: str,
    try_once: Callable[[str | None], GateQuery | None],
    wait: Callable[[float], None],
) -> None:
    """Return once no other query stands behind a gate.

    A query that is known to have ended is replaced at once. One that renews its lease meanwhile is
    alive. One that does neither is waited for until its lease has run out: its machine may be lost.

    Args:
        gate: the gate's name.
        try_once: answers the query that has the gate, or None if it is free. It is given that
            query's owner where that is known to be gone.
        wait: waits so many seconds, or raises.

    Raises:
        GateInUseError: another query stands behind it, and is alive.
    """
    seen: GateQuery | None = None
    gone: str | None = None
    while (other := try_once(gone)) is not None:
        if seen is None or other.owner != seen.owner:
            seen = other
        elif other.until_ms > seen.until_ms:
            raise GateInUseError(_in_use(gate, other))
        if _has_ended(other):
            if gone == other.owner:
                return
            gone = other.owner
            continue
        wait(_LOOK_S)


def _has_ended(query: GateQuery) -> bool:
    return is_gone(query.owner) or (query.driver is not None and is_gone(query.driver))


def _in_use(gate: str, other: GateQuery) -> str:
    since = datetime.fromtimestamp(other.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    known = [each for each in (other.checkpoint, other.run_id) if each is not None]
    checkpoint = f", with the checkpoint {known[0]}" if known else ""
    return (
        f"The gate {gate!r} is in use by another query, of {other.described}, since"
        f" {since}{checkpoint}: a gate has one query at a time, so stop that one first, or give"
        " this one a gate of another name."
    )


class HeldGate:
    """A gate that a planner has claimed, until `release`.

    Args:
        ledger: the gate's.
        claim: of the planner's query.
        wait: waits so many seconds, or raises where nobody needs the gate any more.

    Raises:
        GateInUseError: another query stands behind the gate.
        LedgerError: the ledger cannot be read or written.
    """

    def __init__(self, ledger: Ledger, claim: GateClaim, wait: Callable[[float], None]) -> None:
        self._ledger = ledger
        self._claim = claim
        await_turn(
            claim.gate,
            lambda gone: ledger.claim_gate(claim, GATE_LEASE_MS, gone=gone),
            wait,
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="headrace-gate", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Let the next query have the gate at once; if that fails, it has to wait for the lease."""
        self._done.set()
        try:
            with cancel_when(lambda: True, "the query ended"):
                self._ledger.release_gate(self._claim.gate, self._claim.owner)
        except HeadraceError as error:
            _LOG.warning("The gate %r was not released: %s", self._claim.gate, error)

    def _renew(self) -> None:
        claim = self._claim
        with cancel_when(self._done.is_set, "the query ended"):
            while not self._done.wait(GATE_LEASE_MS / _RENEWALS / 1000):
                try:
                    if not self._ledger.renew_gate(claim.gate, claim.owner, GATE_LEASE_MS):
                        return  # The next batch of this query is refused, and says why.
                except HeadraceError as error:
                    if not self._done.is_set():
                        _LOG.warning("The lease of gate %r was not renewed: %s", claim.gate, error)
