"""Statements that a gate's page makes once, and actions that it offers."""

from dataclasses import replace

import pytest
from tests.cli.histories import NOW_MS, with_lags

from headrace.control import OperatorAction, OperatorActionKind, OperatorLimits
from headrace.dashboard.gate_page import beyond_state, impossible_actions
from headrace.status.sentences import headline
from headrace.status.snapshot import take_snapshot
from headrace.status.states import GateState


def action(kind: OperatorActionKind) -> OperatorAction:
    return OperatorAction(1, "orders", kind, "Ada", "a migration", NOW_MS, 250.0)


@pytest.mark.parametrize(
    ("hold", "limit", "impossible"),
    [
        (None, None, {"resume", "unlimit"}),
        (OperatorActionKind.PAUSE, None, {"pause", "unlimit"}),
        (OperatorActionKind.DRAIN, None, {"drain", "unlimit"}),
        (None, OperatorActionKind.LIMIT, {"resume"}),
        (OperatorActionKind.PAUSE, OperatorActionKind.LIMIT, {"pause"}),
    ],
)
def test_an_action_that_would_change_nothing_is_not_offered(
    hold: OperatorActionKind | None, limit: OperatorActionKind | None, impossible: set[str]
) -> None:
    held, limited = (None if kind is None else action(kind) for kind in (hold, limit))
    operator_limits = OperatorLimits("orders", NOW_MS, held, limited)
    nothing = impossible_actions(operator_limits, waits=False, has_ceiling=False)
    assert set(nothing) == impossible | {"retry-sink", "lift-ceiling"}
    ended = impossible_actions(operator_limits, waits=False, runs=False)
    assert set(ended) - set(nothing) == {"stop"}
    assert set(impossible_actions(operator_limits, waits=True, has_ceiling=True)) == impossible


@pytest.mark.parametrize("state", GateState)
def test_the_headline_does_not_say_the_state_again(state: GateState) -> None:
    snapshot = replace(take_snapshot(with_lags(9_000, 9_500), NOW_MS), state=state)
    assert not beyond_state(snapshot).lower().startswith(str(state))
    assert headline(snapshot).endswith(beyond_state(snapshot))
