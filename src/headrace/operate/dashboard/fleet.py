"""All gates as they were at the last look; only what has changed since is read again."""

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
"""Interval at which snapshots of unchanged gates are taken again (ms): some have stalled."""

AT_ONCE: Final = 64
"""Most such gates at one look, so that none takes long."""

MOST_ACTIONS: Final = 1_000
"""Actions of operators that are looked at after one look."""

_NOTHING: Final = Unresolved()


class Fleet:
    """Keeps a snapshot of each gate. One thread looks at a time; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_ms = 0
        self.histories: Mapping[str, GateHistory] = {}
        """The ledger's records of each gate."""
        self.snapshots: Mapping[str, GateSnapshot] = {}
        self.lags: Final = LagWatch(Sources())
        """How far each gate is behind."""
        self.stages: tuple[StageSnapshot, ...] = ()
        self.revisions: Mapping[str, tuple[Any, ...]] = {}
        """Of each gate, another value whenever something about it has changed."""
        self.elsewhere: tuple[Any, ...] = ()
        self.acted: int | None = None
        """The number of the newest action of an operator."""

    def look(self, ledger: Ledger) -> None:
        """Bring all up to date.

        Raises:
            LedgerError: The ledger cannot be read; what was known stays.
        """
        with self._lock:
            self._look(ledger)

    def last_lags(self, gate: str) -> list[int | None]:
        """The lag of a gate's last batches, the oldest first."""
        known = self.histories.get(gate)
        return [] if known is None else [batch.lag for batch in reversed(known.batches)]

    def _look(self, ledger: Ledger) -> None:
        now_ms, revision = wall_clock_ms(), ledger.moments.revision()
        revisions = {
            name: (*seen, revision.unresolved.get(name, _NOTHING))
            for name, seen in revision.gates.items()
        }
        changed = {name for name, seen in revisions.items() if self.revisions.get(name) != seen}
        if revision.acted != self.acted:
            # Of which gate an action on failures was says its own row alone.
            newest = ledger.operator_limits.history(None, MOST_ACTIONS)
            changed |= {each.gate for each in newest if each.number > (self.acted or 0)}
        again = now_ms - self._read_ms >= AGAIN_MS
        histories = {name: each for name, each in self.histories.items() if name in revisions}
        if changed:
            gates = [each for each in ledger.gates.all() if each.name in changed]
            histories |= {each.gate.name: each for each in read_histories(ledger, gates, OVERVIEW)}
        if again:  # receivers report all the time, and limits end by themselves
            receivers, limits = by_gate(ledger.moments.receivers()), ledger.operator_limits.all()
            histories = {
                name: replace(
                    each, receivers=receivers.get(name, ()), operator_limits=limits.get(name)
                )
                for name, each in histories.items()
            }
        if again or revision.elsewhere != self.elsewhere:
            self.stages = tuple(stages_of(ledger, now_ms))
        due = (name for name, each in self.snapshots.items() if now_ms - each.time_ms >= AGAIN_MS)
        names = (changed | set(islice(due, AT_ONCE))) & histories.keys()
        if names or histories.keys() != self.snapshots.keys():
            wanted = [histories[name] for name in names]
            fresh = snapshots_of(ledger, wanted, self.lags, wait_s=0)
            kept = {name: each for name, each in self.snapshots.items() if name in histories}
            self.snapshots = kept | {each.gate: each for each in fresh}
        if again:
            self._read_ms = now_ms
        self.histories = histories
        self.revisions, self.elsewhere = revisions, revision.elsewhere
        self.acted = revision.acted
