"""What a dispatch asks before it takes a batch, and tells after it: kept up by `admission`."""

import sys
from collections.abc import Callable
from typing import Protocol

from headrace.backfill.admission import Account, Cost, Live, live_per_s, records_beside
from headrace.errors import LedgerError
from headrace.ledger import Clock, GateRecord, Ledger


class Allowance(Protocol):
    """Decides how much a backfill may take. Asked and told by one thread."""

    def records(self) -> int:
        """How many records may be taken now; 0 for none.

        Raises:
            LedgerError: What it is made of cannot be read.
        """
        ...

    def spent(self, cost: Cost) -> None:
        """Say what a run took, whatever became of it."""
        ...


class Unlimited:
    """Everything at once, for a gate whose stream is not running, or may wait."""

    def records(self) -> int:
        """More than any batch has."""
        return sys.maxsize

    def spent(self, cost: Cost) -> None:
        """Nothing is counted."""


class BesideStream:
    """What the live stream of the same application leaves: see `records_beside`.

    The first run that goes through says nothing of what runs cost: it starts Python workers and
    compiles plans, and its cost would keep the next ones waiting for minutes.

    Args:
        live: Answers how the stream stands.
        clock: Answers the time, in ms since the epoch.
    """

    def __init__(self, live: Callable[[], Live], clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._warm = False
        self._last: Cost | None = None

    def records(self) -> int:
        """See `Allowance.records`."""
        return records_beside(self._live(), self._last, self._clock())

    def spent(self, cost: Cost) -> None:
        """See `Allowance.spent`."""
        if cost.succeeded and self._warm:
            self._last = cost
        self._warm = self._warm or cost.succeeded


class FromOutside:
    """What a stream in another application leaves, as the ledger tells: see `Account`.

    Args:
        ledger: Of the gate.
        gate_name: The gate.
        clock: Answers the time, in ms since the epoch.
    """

    def __init__(self, ledger: Ledger, gate_name: str, clock: Clock) -> None:
        self._ledger = ledger
        self._gate_name = gate_name
        self._clock = clock
        self._account = Account(clock())

    def records(self) -> int:
        """See `Allowance.records`; it reads the ledger.

        Raises:
            LedgerError: The ledger cannot be read, or does not know the gate.
        """
        gate = self._gate()
        now_ms = self._clock()
        samples = self._ledger.rates(self._gate_name)
        self._account = self._account.paid_in(
            now_ms,
            rate_per_s=gate.rate_per_s,
            live_per_s=live_per_s(samples, now_ms, gate.interval_ms),
            interval_ms=gate.interval_ms,
        )
        return self._account.records

    def spent(self, cost: Cost) -> None:
        """See `Allowance.spent`."""
        self._account = self._account.spent(cost.records)

    def _gate(self) -> GateRecord:
        for gate in self._ledger.gates():
            if gate.name == self._gate_name:
                return gate
        raise LedgerError(
            f"Gate {self._gate_name!r} is not declared in the ledger; name one that is, as"
            " headrace status lists them."
        )
