"""Whether a gate that drains is done, and a flow, stage by stage, from the first to the last."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.control import OperatorActionKind, OperatorLimits
from headrace.ledger import Ledger, Status


@dataclass(frozen=True, slots=True)
class DrainState:
    """Progress of a gate's drain, at one moment.

    Attributes:
        gate: The gate.
        operator_limits: What operators have put in force for it.
        has_query: Whether a query stands behind it.
        running: How many of its batches and children are being run, live and as backfills.
        failed: How many failed, and wait in the ledger to be run again.
        waiting: Records that wait in its source, where somebody has asked; None else.
        resumed_by: Who has ended this drain, after which the gate admits records again.
        sink_away: Whether its batch waits for its sink, and the gate plans nothing meanwhile.
    """

    gate: str
    operator_limits: OperatorLimits
    has_query: bool
    running: int
    failed: int
    waiting: int | None = None
    resumed_by: str | None = None
    sink_away: bool = False

    @property
    def can_stop(self) -> bool:
        """Whether the query can be stopped, with nothing of what it admitted cut off.

        Once its planner has seen the drain it begins no batch, so what runs then is the last.
        Without a query nothing runs that could be cut off.
        """
        if not self.has_query:
            return True
        limits = self.operator_limits
        return limits.hold is not None and limits.seen and self.running == 0

    @property
    def sentence(self) -> str:
        """The same in words."""
        if not self.has_query:
            return f"{self.gate}: no query runs behind it; there is nothing to stop."
        if self.resumed_by is not None:
            return f"{self.gate}: {self.resumed_by} has resumed it, so it does not drain any more."
        if self.operator_limits.hold is None:
            first = "admits what comes first" if self.waiting is None else f"{self.waiting} wait"
            return f"{self.gate}: not draining yet; {first}."
        if not self.operator_limits.hold.seen_ms:
            return f"{self.gate}: {self._when_it_plans()}"
        if self.running:
            batches = "1 batch runs" if self.running == 1 else f"{self.running} batches run"
            return f"{self.gate}: {batches}; nothing more is admitted."
        return f"{self.gate}: drained, its query can be stopped.{self._failed_too()}"

    def _when_it_plans(self) -> str:
        if not self.sink_away:
            return "its query has not planned since; it sees this at its next plan."
        return (
            "its batch waits for its sink, and it drains when that is back; `headrace retry"
            f" {self.gate}` tries now, and a query that is stopped runs it at its next start."
        )

    def _failed_too(self) -> str:
        if not self.failed:
            return ""
        batches = "batch waits" if self.failed == 1 else "batches wait"
        return f" {self.failed} failed {batches} in the ledger, to be run again by a backfill."


def drain_state(ledger: Ledger, gate: str, waiting: int | None = None) -> DrainState:
    """Return the present progress of a gate's drain."""
    counts = ledger.operator_limits.open_batches(gate)
    return DrainState(
        gate=gate,
        operator_limits=ledger.operator_limits.of(gate),
        has_query=ledger.gates.query(gate) is not None,
        running=counts.get(Status.IN_PROGRESS, 0) + counts.get(Status.BACKFILLING, 0),
        failed=counts.get(Status.FAILED, 0),
        waiting=waiting,
        sink_away=ledger.sink_outages.get(gate) is not None,
    )


class FlowDrain:
    """Drains the stages of a flow, each once nothing more can come to it.

    A stage stops admitting when every stage before it can be stopped and nothing waits in its own
    source. The first stages, which read the flow's sources, stop at once.

    Args:
        ledger: Where the stages' gates are.
        upstream: The gates directly before each gate, in an order in which they come first.
        waiting: How many records wait in a gate's source; None where that is not known, and then
            the stage goes on admitting.
        drain: Puts the drain of a gate in force.
    """

    def __init__(
        self,
        ledger: Ledger,
        upstream: Mapping[str, Sequence[str]],
        waiting: Callable[[str], int | None],
        drain: Callable[[str], object],
    ) -> None:
        self._ledger = ledger
        self._upstream = upstream
        self._waiting = waiting
        self._drain = drain
        self._asked: set[str] = set()

    def step(self) -> Iterator[DrainState]:
        """Go as far as is possible now; how each stage stands, the first ones first."""
        done: set[str] = set()
        for gate, before in self._upstream.items():
            state = drain_state(self._ledger, gate)
            if gate not in self._asked and done.issuperset(before):
                waiting = self._waiting(gate) if before and state.has_query else 0
                if waiting == 0:
                    self._drain(gate)
                    self._asked.add(gate)
                state = drain_state(self._ledger, gate, waiting)
            elif gate in self._asked and state.has_query and state.operator_limits.hold is None:
                state = replace(state, resumed_by=self._last_resumed(gate))
            if gate in self._asked and state.can_stop:
                done.add(gate)
            yield state

    def _last_resumed(self, gate: str) -> str | None:
        """Return the operator who resumed a gate last, whatever else was done to it since."""
        done = self._ledger.operator_limits.history(gate)
        return next((each.by for each in done if each.kind is OperatorActionKind.RESUME), None)
