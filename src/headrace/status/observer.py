"""Takes the snapshots of gates: from the ledger, and what their sources say of what waits there."""

from collections.abc import Sequence

from headrace.core.timing import wall_clock_ms
from headrace.ledger import GateRecord, Ledger
from headrace.status.lags import LagWatch
from headrace.status.snapshot import GateSnapshot, take_snapshot
from headrace.status.sources import WAIT_FOR_SOURCES_S
from headrace.status.states import GateHistory


class Observer:
    """Looks at gates, as often as it is asked to.

    Args:
        ledger: Their ledger.
        lags: How far they are behind. By default the ledger alone says it.
    """

    def __init__(self, ledger: Ledger, lags: LagWatch | None = None) -> None:
        self._ledger = ledger
        self._lags = LagWatch() if lags is None else lags

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
        now_ms, wanted = wall_clock_ms(), {each.gate.name for each in histories}
        now = [each for each in self._ledger.metrics.gates() if each.name in wanted]
        lags = self._lags.of(self._ledger, now, now_ms, wait_s=wait_s)
        return [take_snapshot(each, now_ms, lags.get(each.gate.name)) for each in histories]
