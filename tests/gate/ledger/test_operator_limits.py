"""Limits that operators put in force for a gate, and their history."""

import itertools
import threading
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.gate.ledger.conftest import Execute
from tests.gate.ledger.samples import declare_clicks
from tests.services.examples import examples

from headrace.errors import LedgerError, OptionError
from headrace.gate.control.limits import OperatorAction, OperatorActionKind, OperatorLimits
from headrace.gate.ledger.gates import GateClaim
from headrace.gate.ledger.ledger import Ledger
from headrace.testing import ManualClock

_gates = itertools.count()


@dataclass(frozen=True)
class Call:
    """An operator's call, some time after the one before."""

    kind: OperatorActionKind
    by: str
    why: str
    rate: float
    for_ms: int | None
    after_ms: int

    def made(self, ledger: Ledger, gate: str, now_ms: int) -> OperatorLimits:
        if self.kind is OperatorActionKind.LIMIT:
            until = None if self.for_ms is None else now_ms + self.for_ms
            return ledger.operator_limits.limit(gate, self.rate, self.by, self.why, until)
        return {
            OperatorActionKind.PAUSE: ledger.operator_limits.pause,
            OperatorActionKind.DRAIN: ledger.operator_limits.drain,
            OperatorActionKind.RESUME: ledger.operator_limits.resume,
            OperatorActionKind.UNLIMIT: ledger.operator_limits.unlimit,
            OperatorActionKind.STOP: ledger.operator_limits.stop,
            OperatorActionKind.LIFT_CEILING: ledger.operator_limits.lift_ceiling,
        }[self.kind](gate, self.by, self.why)


calls = st.builds(
    Call,
    st.sampled_from(
        [
            kind
            for kind in OperatorActionKind
            if not kind.is_on_failures
            and kind
            not in {
                OperatorActionKind.ADOPT,
                OperatorActionKind.RESTART,
                OperatorActionKind.CONTINUED,
            }
        ]
    ),
    st.sampled_from(["ops", "größe", "a" * 100]),
    st.sampled_from(["", "sink migration", "'; DROP TABLE gate; --", "x" * 500]),
    st.floats(min_value=1e-3, max_value=1e9),
    st.none() | st.integers(-5, 5),
    st.integers(0, 4),
)


class Model:
    """A gate's operator limits as the documentation has them."""

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self.actions: list[OperatorAction] = []

    def add(self, call: Call, now_ms: int) -> None:
        limits = call.kind is OperatorActionKind.LIMIT
        until = None if call.for_ms is None or not limits else now_ms + call.for_ms
        rate = call.rate if limits else None
        self.actions.append(
            OperatorAction(0, self.gate, call.kind, call.by, call.why, now_ms, rate, until)
        )

    def newest(self, *kinds: OperatorActionKind) -> OperatorAction | None:
        return next((each for each in reversed(self.actions) if each.kind in kinds), None)

    def operator_limits(self, now_ms: int) -> OperatorLimits:
        hold = self.newest(
            OperatorActionKind.PAUSE, OperatorActionKind.DRAIN, OperatorActionKind.RESUME
        )
        if hold is not None and hold.kind is OperatorActionKind.RESUME:
            hold = None
        limit = self.newest(OperatorActionKind.LIMIT, OperatorActionKind.UNLIMIT)
        if limit is not None and (
            limit.kind is OperatorActionKind.UNLIMIT
            or (limit.until_ms is not None and limit.until_ms <= now_ms)
        ):
            limit = None
        stop = self.newest(OperatorActionKind.STOP)
        return OperatorLimits(self.gate, now_ms, hold, limit, stop=stop)


def unnumbered(operator_limits: OperatorLimits) -> OperatorLimits:
    """The same without what only the database chooses."""
    hold, limit, stop = (
        None if each is None else replace(each, number=0)
        for each in (operator_limits.hold, operator_limits.limit, operator_limits.stop)
    )
    return replace(operator_limits, hold=hold, limit=limit, stop=stop, newest=None)


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(calls, max_size=8), later_ms=st.integers(0, 9))
def test_any_calls_leave_in_force_what_was_said_last_and_all_of_them_in_the_history(
    ledger: Ledger, clock: ManualClock, made: list[Call], later_ms: int
) -> None:
    gate = f"gate {next(_gates)}"
    ledger.gates.declare(gate, interval_ms=1, source="kafka", estimator="pid")
    model = Model(gate)
    for call in made:
        clock.now_ms += call.after_ms
        model.add(call, clock())
        assert unnumbered(call.made(ledger, gate, clock())) == model.operator_limits(clock())
    clock.now_ms += later_ms
    in_force = ledger.operator_limits.of(gate)
    assert unnumbered(in_force) == model.operator_limits(clock())
    assert ledger.operator_limits.all()[gate] == in_force
    history = ledger.operator_limits.history(gate)
    assert [replace(each, number=0) for each in history] == model.actions[::-1]
    numbers = [each.number for each in history]
    assert numbers == sorted(set(numbers), reverse=True)
    assert in_force.newest == (numbers[0] if numbers else None)
    assert ledger.operator_limits.history(gate, limit=2) == history[:2]


def test_a_stop_is_of_the_query_that_has_the_gate_and_a_pause_outlives_it(ledger: Ledger) -> None:
    ledger.operator_limits.pause("orders", "ops")
    ledger.operator_limits.stop("orders", "ops", "a new version")
    assert ledger.operator_limits.to_stop(["orders", "clicks"]) == ["orders"]
    claim = GateClaim("orders", "a query", None, None, "a test", 1_000, "kafka", "pid")
    assert ledger.gates.claim(claim, 30_000) is None
    in_force = ledger.operator_limits.of("orders")
    assert (in_force.stop, in_force.paused) == (None, True)
    assert ledger.operator_limits.to_stop(["orders"]) == []


def test_a_gate_that_nobody_touched_is_under_no_control(ledger: Ledger, clock: ManualClock) -> None:
    nothing = OperatorLimits("orders", clock())
    assert ledger.operator_limits.of("orders") == nothing
    assert not nothing.paused
    assert not nothing.draining
    assert nothing.describe() is None
    assert ledger.operator_limits.of("unheard of") == OperatorLimits("unheard of", clock())
    assert ledger.operator_limits.history("orders") == ()


def test_a_control_says_who_and_why_and_since_when(ledger: Ledger, clock: ManualClock) -> None:
    clock.now_ms = 1_700_000_000_000
    ledger.operator_limits.pause("orders", "ops", "sink migration")
    operator_limits = ledger.operator_limits.limit(
        "orders", 200, "jo", until_ms=clock() + 7_200_000
    )
    assert operator_limits.paused
    assert operator_limits.describe() == (
        "paused by ops: sink migration, since 22:13:20 UTC; "
        "limited to 200 records/s by jo, since 22:13:20 UTC until 2023-11-15 00:13:20 UTC"
    )
    clock.now_ms += 86_400_000
    later = ledger.operator_limits.of("orders")
    assert later.describe() == "paused by ops: sink migration, since 2023-11-14 22:13:20 UTC"


def test_a_gate_s_controls_are_its_own(ledger: Ledger) -> None:
    declare_clicks(ledger)
    ledger.operator_limits.pause("orders", "ops")
    assert not ledger.operator_limits.of("clicks").paused
    assert ledger.operator_limits.history("clicks") == ()
    assert [name for name, each in ledger.operator_limits.all().items() if each.paused] == [
        "orders"
    ]


def test_an_action_is_seen_once_and_with_it_those_before(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.operator_limits.limit("orders", 5, "ops")
    paused = ledger.operator_limits.pause("orders", "ops")
    assert not paused.seen
    assert paused.newest is not None
    first_ms = clock.now_ms = clock() + 10
    ledger.operator_limits.mark_seen("orders", paused.newest)
    assert ledger.operator_limits.of("orders").seen
    clock.now_ms += 10
    assert not ledger.operator_limits.drain("orders", "ops").seen
    ledger.operator_limits.mark_seen("orders", paused.newest)
    assert [each.seen_ms for each in ledger.operator_limits.history("orders")] == [
        None,
        first_ms,
        first_ms,
    ]


def test_a_gate_that_is_not_declared_cannot_be_controlled(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"'clicks' is not declared in .*headrace status"):
        ledger.operator_limits.pause("clicks", "ops")
    assert ledger.operator_limits.history("clicks") == ()


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_no_rate_is_refused(ledger: Ledger, rate: float) -> None:
    with pytest.raises(OptionError, match=r"A limit is .* records/s; it must be a finite number"):
        ledger.operator_limits.limit("orders", rate, "ops")
    assert ledger.operator_limits.of("orders").limit is None


@pytest.mark.parametrize(("by", "why"), [("", ""), (" \n", ""), ("a" * 101, ""), ("a", "b" * 501)])
def test_a_name_or_a_reason_of_another_length_is_refused(ledger: Ledger, by: str, why: str) -> None:
    with pytest.raises(OptionError, match="characters; give"):
        ledger.operator_limits.pause("orders", by, why)
    assert ledger.operator_limits.history("orders") == ()


def test_what_a_database_cannot_hold_is_written_out(ledger: Ledger) -> None:
    ledger.operator_limits.pause("orders", "o\x00ps", " a\n\tb\ud800 ")
    (action,) = ledger.operator_limits.history("orders")
    assert (action.by, action.why) == (r"o\x00ps", r"a b\ud800")


def test_an_action_of_an_unknown_kind_is_damage(ledger: Ledger, execute: Execute) -> None:
    ledger.operator_limits.pause("orders", "ops")
    execute(text("UPDATE action SET kind = 'explode'"))
    with pytest.raises(LedgerError, match=r"kind 'explode' \(known: pause, drain, resume"):
        ledger.operator_limits.of("orders")


def test_of_calls_at_once_the_one_that_is_last_in_the_history_is_in_force(ledger: Ledger) -> None:
    def act(number: int) -> None:
        ledger.operator_limits.pause("orders", f"pause {number}")
        ledger.operator_limits.drain("orders", f"drain {number}")

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    history = ledger.operator_limits.history("orders")
    assert len(history) == 8
    assert ledger.operator_limits.of("orders").hold == history[0]


def test_what_is_set_for_a_start_is_obeyed_by_it_and_by_no_plan(ledger: Ledger) -> None:
    before = ledger.operator_limits.adopt("orders", "4f" * 8, "ops", "a new ledger")
    assert before.newest is None, "no plan looks at it"
    ledger.operator_limits.restart("orders", "ops", "the table is built anew")
    number = ledger.operator_limits.pause("orders", "ops").newest
    assert number is not None
    ledger.operator_limits.mark_seen("orders", number)
    adopted, restarted = ledger.operator_limits.for_the_start("orders")
    assert (adopted.kind, adopted.target) == (OperatorActionKind.ADOPT, "4f" * 8)
    assert restarted.author == "ops: the table is built anew"
    ledger.operator_limits.start_obeyed("orders")
    assert ledger.operator_limits.for_the_start("orders") == (restarted,)
    ledger.operator_limits.restarted("orders")
    assert ledger.operator_limits.for_the_start("orders") == ()


def test_where_a_query_went_on_is_said_until_a_start_has_seen_it(ledger: Ledger) -> None:
    assert ledger.operator_limits.new_checkpoints(["orders"]).get("orders") is None
    ledger.operator_limits.continued("orders", "it goes on at 5")
    number = ledger.operator_limits.pause("orders", "ops").newest
    assert number is not None
    ledger.operator_limits.mark_seen("orders", number)
    assert ledger.operator_limits.new_checkpoints(["orders"]).get("orders") == "it goes on at 5"
    ledger.operator_limits.start_obeyed("orders")
    assert ledger.operator_limits.new_checkpoints(["orders"]).get("orders") is None
