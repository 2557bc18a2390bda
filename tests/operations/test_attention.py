import pytest
from tests.cli.histories import INTERVAL_MS, NOW_MS, a_batch, a_gate

from headrace.ledger import Status
from headrace.operations.attention import HANGS, SHORTEST_HANGS_MS, Urgency
from headrace.operations.gate_history import GateHistory
from headrace.operations.snapshot import take_snapshot
from headrace.operations.states import GateState

HANGS_MS = max(HANGS * INTERVAL_MS, SHORTEST_HANGS_MS)


@pytest.mark.parametrize(
    ("running_ms", "urgency"), [(HANGS_MS, Urgency.WATCH), (HANGS_MS + 1, Urgency.NOW)]
)
def test_a_batch_that_is_late_is_watched_and_one_that_hangs_needs_somebody_now(
    running_ms: int, urgency: Urgency
) -> None:
    running = a_batch(1, NOW_MS - running_ms, 1_000, status=Status.IN_PROGRESS)
    snapshot = take_snapshot(GateHistory(a_gate(), (running,)), NOW_MS)
    assert snapshot.state is GateState.OVERDUE
    assert [need.urgency for need in snapshot.needs] == [urgency]
