"""Snapshots of all gates. An update reads only the gates that have changed in the ledger."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from headrace.core.timing import wall_clock_ms
from headrace.gate import Ledger, Unresolved
from headrace.operate.status.lags import LagWatch
from headrace.operate.status.moment import OVERVIEW, by_gate, read_histories, snapshots_of
from headrace.operate.status.snapshot import GateSnapshot
from headrace.operate.status.sources import Sources
from headrace.operate.status.stages import StageSnapshot, stages_of
from headrace.operate.status.states import GateHistory

AGAIN_MS: Final = 5_000
"""Age (ms) at which the snapshot of an unchanged gate is renewed: the gate may have stalled."""

AT_ONCE: Final = 64
"""An update renews the snapshots of at most this many unchanged gates, so that it ends soon."""

MOST_ACTIONS: Final = 1_000
"""An update reads at most this many of the newest actions of operators."""

_NOTHING: Final = Unresolved()


class Fleet:
    """Keeps a snapshot of each gate. One thread at a time updates the snapshots; others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_ms = 0
        self.histories: Mapping[str, GateHistory] = {}
        """The ledger's records of each gate."""
        self.snapshots: Mapping[str, GateSnapshot] = {}
        self.lags: Final = LagWatch(Sources())
        """Lags of the gates."""
        self.stages: tuple[StageSnapshot, ...] = ()
        self.revisions: Mapping[str, tuple[Any, ...]] = {}
        """For each gate, a value that changes whenever the gate changes."""
        self.elsewhere: tuple[Any, ...] = ()
        self.acted: int | None = None
        """Number of the newest action of an operator; None if there is none."""

    def look(self, ledger: Ledger) -> None:
        """Update all snapshots. If the ledger cannot be read, raise LedgerError and keep them."""
        with self._lock:
            self._look(ledger)

    def last_lags(self, gate: str) -> list[int | None]:
        """Return the lags of a gate's last batches, the oldest first."""
        history = self.histories.get(gate)
        return [] if history is None else [batch.lag for batch in reversed(history.batches)]

    def _look(self, ledger: Ledger) -> None:
        now_ms, revision = wall_clock_ms(), ledger.moments.revision()
        revisions = {
            name: (*seen, revision.unresolved.get(name, _NOTHING))
            for name, seen in revision.gates.items()
        }
        changed = {name for name, seen in revisions.items() if self.revisions.get(name) != seen}
        if revision.acted != self.acted:
            # Only an action's own row names the gate of an action on failures.
            newest = ledger.operator_limits.history(None, MOST_ACTIONS)
            changed |= {entry.gate for entry in newest if entry.number > (self.acted or 0)}
        again = now_ms - self._read_ms >= AGAIN_MS
        histories = {name: entry for name, entry in self.histories.items() if name in revisions}
        if changed:
            gates = [entry for entry in ledger.gates.all() if entry.name in changed]
            histories |= {
                entry.gate.name: entry for entry in read_histories(ledger, gates, OVERVIEW)
            }
        if again:  # not in the revision: heartbeats of receivers, and limits that expire
            receivers, limits = by_gate(ledger.moments.receivers()), ledger.operator_limits.all()
            histories = {
                name: replace(
                    entry, receivers=receivers.get(name, ()), operator_limits=limits.get(name)
                )
                for name, entry in histories.items()
            }
        if again or revision.elsewhere != self.elsewhere:
            self.stages = tuple(stages_of(ledger, now_ms))
        due = (name for name, entry in self.snapshots.items() if now_ms - entry.time_ms >= AGAIN_MS)
        names = (changed | set(islice(due, AT_ONCE))) & histories.keys()
        if names or histories.keys() != self.snapshots.keys():
            wanted = [histories[name] for name in names]
            fresh = snapshots_of(ledger, wanted, self.lags, wait_s=0)
            kept = {name: entry for name, entry in self.snapshots.items() if name in histories}
            self.snapshots = kept | {entry.gate: entry for entry in fresh}
        if again:
            self._read_ms = now_ms
        self.histories = histories
        self.revisions, self.elsewhere = revisions, revision.elsewhere
        self.acted = revision.acted
