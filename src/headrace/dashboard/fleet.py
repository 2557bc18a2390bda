"""All gates as they were at the last look; only what has changed since is read again."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from headrace.control import OperatorLimits
from headrace.core.timing import wall_clock_ms
from headrace.ledger import (
    BatchRecord,
    GateQuery,
    GateRecord,
    Ledger,
    Missed,
    Pulse,
    RateSample,
    Unresolved,
)
from headrace.status.attention import gate_needs
from headrace.status.lags import GateLag, LagWatch
from headrace.status.snapshot import GateSnapshot, take_snapshot
from headrace.status.sources import Sources
from headrace.status.stages import StageSnapshot, stages_of
from headrace.status.states import GateHistory, sorted_query
from headrace.status.words import reason_first

LOOK_BACK: Final = 12
"""Batches of each gate that the overview knows."""

AGAIN_MS: Final = 5_000
"""Interval at which snapshots of unchanged gates are taken again (ms): some have stalled."""

AT_ONCE: Final = 64
"""Most such gates at one look, so that none takes long."""

_NOTHING: Final = Unresolved()


class Fleet:
    """Keeps a snapshot of each gate. One thread looks at a time; the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pulse: Pulse | None = None
        self._known: dict[str, tuple[GateRecord, tuple[BatchRecord, ...], Any]] = {}
        self._read_ms = 0
        self._actions: Mapping[str, int] = {}
        self.snapshots: Mapping[str, GateSnapshot] = {}
        self.operator_limits: Mapping[str, OperatorLimits] = {}
        """What operators have put in force, of each gate."""
        self.lags: Final = LagWatch(Sources())
        """How far each gate is behind."""
        self._queries: Mapping[str, tuple[GateQuery, bool]] = {}
        self._missed: Mapping[str, Missed] = {}
        self.stages: tuple[StageSnapshot, ...] = ()
        self.revisions: Mapping[str, tuple[Any, ...]] = {}
        """Of each gate, another value whenever something about it has changed."""
        self.elsewhere: tuple[Any, ...] = ()
        self.repaired: int | None = None
        """The number of the newest action about failures."""

    def look(self, ledger: Ledger) -> None:
        """Bring all up to date.

        Raises:
            LedgerError: The ledger cannot be read; what was known stays.
        """
        with self._lock:
            self._look(ledger)

    def last_lags(self, gate: str) -> list[int | None]:
        """The lag of a gate's last batches, the oldest first."""
        known = self._known.get(gate)
        return [] if known is None else [batch.lag for batch in reversed(known[1])]

    def _look(self, ledger: Ledger) -> None:
        now_ms, pulse = wall_clock_ms(), ledger.fleet.pulse()
        revisions = {
            name: (*seen, pulse.unresolved.get(name, _NOTHING))
            for name, seen in pulse.gates.items()
        }
        changed = {name for name, seen in revisions.items() if self.revisions.get(name) != seen}
        gone = self._known.keys() - revisions.keys()
        if changed or gone:
            self._read(ledger, changed)
        for name in gone:
            del self._known[name]
        again = now_ms - self._read_ms >= AGAIN_MS
        if again or pulse.actions != self._actions:
            self.operator_limits, self._actions = ledger.operator_limits.all(), pulse.actions
        if again or any(sorted_query(self._queries.get(name))[0] is None for name in changed):
            self._queries = ledger.gates.last_queries()
        if again or pulse.repaired != self.repaired:
            self._missed = ledger.proofs.all_missed()
        if again or pulse.elsewhere != self.elsewhere:
            self.stages = tuple(stages_of(ledger, now_ms))
        if again:
            self._read_ms = now_ms
        due = (name for name, each in self.snapshots.items() if now_ms - each.time_ms >= AGAIN_MS)
        names = (changed | set(islice(due, AT_ONCE))) & self._known.keys()
        if names or gone:
            seen = [each for each in ledger.metrics.gates() if each.name in names]
            lags = self.lags.of(ledger, seen, now_ms)
            kept = {name: each for name, each in self.snapshots.items() if name not in gone}
            self.snapshots = kept | {
                name: self._snapshot(name, pulse, now_ms, lags.get(name)) for name in names
            }
        self.revisions, self.elsewhere = revisions, pulse.elsewhere
        self.repaired = pulse.repaired

    def _read(self, ledger: Ledger, changed: set[str]) -> None:
        gates = {gate.name: gate for gate in ledger.gates.all()}
        found = ledger.fleet.newest_batches(sorted(changed & gates.keys()), LOOK_BACK)
        for name, (batches, samples) in found.items():
            self._known[name] = gates[name], batches, samples

    def _snapshot(self, name: str, pulse: Pulse, now_ms: int, lag: GateLag | None) -> GateSnapshot:
        gate, batches, samples = self._known[name]
        kept: tuple[RateSample, ...] = samples
        # What the gate's row says of the end is newer than the last look at the queries.
        query, gone = sorted_query(None if gate.ended else self._queries.get(name))
        history = GateHistory(
            gate=gate,
            batches=batches,
            samples=kept,
            unresolved=pulse.unresolved.get(name, _NOTHING),
            operator_limits=self.operator_limits.get(name),
            query=query,
            gone=gone,
            missed=self._missed.get(name, Missed()),
        )
        return reasons_first(take_snapshot(history, now_ms, lag))


def reasons_first(snapshot: GateSnapshot) -> GateSnapshot:
    """The same with the class of each error behind its reason, as pages show it."""
    shown = replace(
        snapshot,
        error=snapshot.error and reason_first(snapshot.error),
        ended_error=snapshot.ended_error and reason_first(snapshot.ended_error),
    )
    return replace(shown, needs=tuple(gate_needs(shown))) if shown != snapshot else snapshot
