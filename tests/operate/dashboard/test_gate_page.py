"""Statements that a gate's page makes once, and actions that it offers."""

from dataclasses import replace

import pytest
from tests.operate.cli.histories import NOW_MS, learnt, with_lags
from tests.operate.dashboard.histories import add_batch
from tests.operate.dashboard.test_failure_lists import regions

from headrace.gate.control.hold import SinkOutage
from headrace.gate.control.limits import OperatorAction, OperatorActionKind, OperatorLimits
from headrace.gate.ledger.gates import GateClaim, GateQuery
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import QueryEnd
from headrace.operate.dashboard.fleet import Fleet
from headrace.operate.dashboard.gate_page import beyond_state, by_lag, cells_of
from headrace.operate.dashboard.pages import environment
from headrace.operate.status.gate_actions import impossible_actions
from headrace.operate.status.moment import take_snapshot
from headrace.operate.status.needs import headline
from headrace.operate.status.parts import PartitionSnapshot, QuerySnapshot
from headrace.operate.status.states import GateState


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
    ended = take_snapshot(with_lags(0), NOW_MS)
    running = replace(ended, query=QuerySnapshot("a program", None, NOW_MS))
    nothing = impossible_actions(operator_limits, running)
    assert set(nothing) == impossible | {"retry-sink", "lift-ceiling"}
    assert set(impossible_actions(operator_limits, ended)) - set(nothing) == {"stop"}
    outage = SinkOutage("a batch", NOW_MS, 1, NOW_MS, "refused", is_certain=True)
    waiting = replace(running, waiting=outage, ceiling="1,000 records")
    assert set(impossible_actions(operator_limits, waiting)) == impossible


@pytest.mark.parametrize("state", GateState)
def test_the_headline_does_not_say_the_state_again(state: GateState) -> None:
    snapshot = replace(take_snapshot(with_lags(9_000, 9_500), NOW_MS), state=state)
    assert not beyond_state(snapshot).lower().startswith(str(state))
    assert headline(snapshot).endswith(beyond_state(snapshot))


def test_a_partition_of_which_nothing_is_left_is_not_marked() -> None:
    all_read, most, some = (
        PartitionSnapshot("orders", number, lag, 100, "rate")
        for number, lag in enumerate((100, 900, 300))
    )
    heats = dict(cells_of([all_read, most, some]))
    assert heats[all_read] == 0 < heats[some] < heats[most]
    assert by_lag([all_read, most, some]) == [most, some, all_read]


def test_a_stopped_gate_has_one_truth_and_its_time(url: str) -> None:
    with Ledger.open(url) as ledger:
        add_batch(ledger, start=500, lag=100)
        claim = GateClaim("orders", "me", "driver", None, "a program", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 30_000) is None
        assert ledger.gates.end("orders", "driver", QueryEnd.FINISHED)
        html, of_list = (regions(url, ledger, page) for page in ("/gate/orders", "/"))
    assert "600 records processed, none left" in html
    assert "<b>0</b> left <time" in html and "0 <small>left <time" in of_list
    for gone in ("drained in", "arriving", "falling", "heat-5", "heat-1"):
        assert gone not in html and gone not in of_list.replace('data-label="drained in"', "")
    assert '<td data-label="left" class="num">0</td>' in html


def test_a_gate_that_an_operator_has_stopped_has_no_pace() -> None:
    falling = with_lags(9_000, 8_000, 7_000)
    assert take_snapshot(falling, NOW_MS).drain_s is not None
    stopped = OperatorLimits("orders", NOW_MS, stop=action(OperatorActionKind.STOP))
    snapshot = take_snapshot(replace(falling, operator_limits=stopped), NOW_MS)
    assert snapshot.state is GateState.STOPPED
    assert (snapshot.drain_s, snapshot.lag_trend, snapshot.arrival_rate_per_s) == (None,) * 3


@pytest.mark.parametrize(
    ("law", "shown", "not_shown"),
    [("pid", "proportional", "a record costs"), ("learned", "a record costs", "proportional")],
)
def test_each_law_shows_what_it_knows(law: str, shown: str, not_shown: str) -> None:
    history = with_lags(9_000, 9_500, 10_000)
    gate = learnt(history.gate, fixed_s=0.1, law=law)
    template = environment().get_template("regions/gate_law.html")
    html = template.render(gate=take_snapshot(replace(history, gate=gate), NOW_MS))
    assert shown in html and not_shown not in html


def test_a_gate_falls_behind_only_once_there_is_a_trend() -> None:
    def state(*lags: int, batches_of_the_query: int) -> GateState:
        history = with_lags(*lags)
        since_ms = history.batches[batches_of_the_query - 1].created_time_ms
        who = ("me", None, None, "a program", None, None)
        query = GateQuery(*who, since_ms, NOW_MS + 30_000, 1)
        return take_snapshot(replace(history, query=query), NOW_MS).state

    assert state(9_000, batches_of_the_query=1) is GateState.STEADY
    assert state(9_000, 19_000, batches_of_the_query=2) is GateState.STEADY
    assert state(9_000, 19_000, 20_000, batches_of_the_query=3) is GateState.FALLING_BEHIND
    restarted = (500, 500, 500, 90_000, 91_000)
    assert state(*restarted, batches_of_the_query=2) is GateState.STEADY
    assert state(*restarted, 92_000, batches_of_the_query=3) is GateState.FALLING_BEHIND


def test_the_list_knows_the_query_of_a_gate_that_has_just_begun(url: str) -> None:
    fleet = Fleet()
    with Ledger.open(url) as ledger:
        fleet.look(ledger)
        claim = GateClaim("orders", "me", "driver", None, "a program", 1_000, "kafka", "pid")
        assert ledger.gates.claim(claim, 30_000) is None
        add_batch(ledger, start=500, lag=100)
        fleet.look(ledger)
        query = fleet.snapshots["orders"].query
        assert query is not None and query.program == "a program"
        assert ledger.gates.end("orders", "driver", QueryEnd.FINISHED)
        fleet.look(ledger)
    assert fleet.snapshots["orders"].state is GateState.FINISHED
