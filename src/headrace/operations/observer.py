"""Takes the snapshots of gates: from the ledger, and what their sources say of what waits there."""

from collections.abc import Sequence
from typing import Final

from headrace.core.clock import wall_clock_ms
from headrace.ledger import GateRecord, Ledger
from headrace.operations.gate_history import GateHistory
from headrace.operations.lags import GateLag, Lags
from headrace.operations.snapshot import GateSnapshot, take_snapshot
from headrace.operations.sources import WAIT_FOR_SOURCES_S, Sources

OLD_S: Final = 60.0
"""From this age (s) of the oldest unread record on, its source is asked when it deletes that."""


class Observer:
    """Looks at gates, as often as it is asked to; it remembers what their lags were.

    Args:
        ledger: Their ledger.
        ask_sources: Whether the brokers or the journal are asked, without secrets, where the ledger
            knows too little: no batch has come for a while, or records have waited for a minute.
    """

    def __init__(self, ledger: Ledger, *, ask_sources: bool = True) -> None:
        self._ledger = ledger
        self._sources = Sources() if ask_sources else None
        self._lags = Lags()

    def look(
        self, gates: Sequence[GateRecord], wait_s: float = WAIT_FOR_SOURCES_S
    ) -> list[GateSnapshot]:
        """These gates as they are now; sources that were not asked before are waited for so long.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        histories = [GateHistory.read(self._ledger, each) for each in gates]
        return self.snapshots(histories, wait_s)

    def snapshots(
        self, histories: Sequence[GateHistory], wait_s: float = WAIT_FOR_SOURCES_S
    ) -> list[GateSnapshot]:
        """The same of gates whose records are read already."""
        ledger, sources, now_ms = self._ledger, self._sources, wall_clock_ms()
        wanted = {each.gate.name for each in histories}
        now = [each for each in ledger.metrics.gates() if each.name in wanted]
        lags = self._lags.of(ledger, now, {} if sources is None else sources.answers(), now_ms)
        if sources is not None:
            asked = [
                each.gate.name
                for each in histories
                if each.is_silent(now_ms) or _is_old(lags.get(each.gate.name))
            ]
            sources.ask(ledger, asked, wait_s)
            if asked:
                lags = self._lags.of(ledger, now, sources.answers(), now_ms)
        return [take_snapshot(each, now_ms, lags.get(each.gate.name)) for each in histories]


def _is_old(lag: GateLag | None) -> bool:
    return lag is not None and (lag.seconds or 0) >= OLD_S
