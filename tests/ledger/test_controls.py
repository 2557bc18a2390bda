"""What operators put in force for a gate, and what is kept of it."""

import itertools
import threading
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.ledger.conftest import Execute
from tests.ledger.samples import declare_clicks
from tests.services.examples import examples

from headrace.control import Control, ControlAction, ControlKind
from headrace.errors import LedgerError, OptionError
from headrace.ledger import Ledger
from headrace.testing import ManualClock

_gates = itertools.count()


@dataclass(frozen=True)
class Call:
    """An operator's call, some time after the one before."""

    kind: ControlKind
    by: str
    why: str
    rate: float
    for_ms: int | None
    after_ms: int

    def made(self, ledger: Ledger, gate: str, now_ms: int) -> Control:
        if self.kind is ControlKind.LIMIT:
            until = None if self.for_ms is None else now_ms + self.for_ms
            return ledger.controls.limit(gate, self.rate, self.by, self.why, until)
        return {
            ControlKind.PAUSE: ledger.controls.pause,
            ControlKind.DRAIN: ledger.controls.drain,
            ControlKind.RESUME: ledger.controls.resume,
            ControlKind.UNLIMIT: ledger.controls.unlimit,
            ControlKind.LIFT_CEILING: ledger.controls.lift_ceiling,
        }[self.kind](gate, self.by, self.why)


calls = st.builds(
    Call,
    st.sampled_from(ControlKind),
    st.sampled_from(["ops", "größe", "a" * 100]),
    st.sampled_from(["", "sink migration", "'; DROP TABLE gate; --", "x" * 500]),
    st.floats(min_value=1e-3, max_value=1e9),
    st.none() | st.integers(-5, 5),
    st.integers(0, 4),
)


class Model:
    """A gate's controls as the documentation has them."""

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self.actions: list[ControlAction] = []

    def add(self, call: Call, now_ms: int) -> None:
        limits = call.kind is ControlKind.LIMIT
        until = None if call.for_ms is None or not limits else now_ms + call.for_ms
        rate = call.rate if limits else None
        self.actions.append(
            ControlAction(0, self.gate, call.kind, call.by, call.why, now_ms, rate, until)
        )

    def newest(self, *kinds: ControlKind) -> ControlAction | None:
        return next((each for each in reversed(self.actions) if each.kind in kinds), None)

    def control(self, now_ms: int) -> Control:
        hold = self.newest(ControlKind.PAUSE, ControlKind.DRAIN, ControlKind.RESUME)
        if hold is not None and hold.kind is ControlKind.RESUME:
            hold = None
        limit = self.newest(ControlKind.LIMIT, ControlKind.UNLIMIT)
        if limit is not None and (
            limit.kind is ControlKind.UNLIMIT
            or (limit.until_ms is not None and limit.until_ms <= now_ms)
        ):
            limit = None
        return Control(self.gate, now_ms, hold, limit)


def unnumbered(control: Control) -> Control:
    """The same without what only the database chooses."""
    hold, limit = (
        None if each is None else replace(each, number=0) for each in (control.hold, control.limit)
    )
    return replace(control, hold=hold, limit=limit, newest=None)


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
        assert unnumbered(call.made(ledger, gate, clock())) == model.control(clock())
    clock.now_ms += later_ms
    in_force = ledger.controls.of(gate)
    assert unnumbered(in_force) == model.control(clock())
    assert ledger.controls.all()[gate] == in_force
    history = ledger.controls.history(gate)
    assert [replace(each, number=0) for each in history] == model.actions[::-1]
    numbers = [each.number for each in history]
    assert numbers == sorted(set(numbers), reverse=True)
    assert in_force.newest == (numbers[0] if numbers else None)
    assert ledger.controls.history(gate, limit=2) == history[:2]


def test_a_gate_that_nobody_touched_is_under_no_control(ledger: Ledger, clock: ManualClock) -> None:
    nothing = Control("orders", clock())
    assert ledger.controls.of("orders") == nothing
    assert not nothing.paused
    assert not nothing.draining
    assert nothing.describe() is None
    assert ledger.controls.of("unheard of") == Control("unheard of", clock())
    assert ledger.controls.history("orders") == ()


def test_a_control_says_who_and_why_and_since_when(ledger: Ledger, clock: ManualClock) -> None:
    clock.now_ms = 1_700_000_000_000
    ledger.controls.pause("orders", "ops", "sink migration")
    control = ledger.controls.limit("orders", 200, "jo", until_ms=clock() + 7_200_000)
    assert control.paused
    assert control.describe() == (
        "paused by ops: sink migration, since 22:13:20 UTC; "
        "limited to 200 records/s by jo, since 22:13:20 UTC until 2023-11-15 00:13:20 UTC"
    )
    clock.now_ms += 86_400_000
    later = ledger.controls.of("orders")
    assert later.describe() == "paused by ops: sink migration, since 2023-11-14 22:13:20 UTC"


def test_a_gate_s_controls_are_its_own(ledger: Ledger) -> None:
    declare_clicks(ledger)
    ledger.controls.pause("orders", "ops")
    assert not ledger.controls.of("clicks").paused
    assert ledger.controls.history("clicks") == ()
    assert [name for name, each in ledger.controls.all().items() if each.paused] == ["orders"]


def test_an_action_is_seen_once_and_with_it_those_before(
    ledger: Ledger, clock: ManualClock
) -> None:
    ledger.controls.limit("orders", 5, "ops")
    paused = ledger.controls.pause("orders", "ops")
    assert not paused.seen
    assert paused.newest is not None
    first_ms = clock.now_ms = clock() + 10
    ledger.controls.mark_seen("orders", paused.newest)
    assert ledger.controls.of("orders").seen
    clock.now_ms += 10
    assert not ledger.controls.drain("orders", "ops").seen
    ledger.controls.mark_seen("orders", paused.newest)
    assert [each.seen_ms for each in ledger.controls.history("orders")] == [
        None,
        first_ms,
        first_ms,
    ]


def test_a_gate_that_is_not_declared_cannot_be_controlled(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"'clicks' is not declared in .*headrace status"):
        ledger.controls.pause("clicks", "ops")
    assert ledger.controls.history("clicks") == ()


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_limit_that_is_no_rate_is_refused(ledger: Ledger, rate: float) -> None:
    with pytest.raises(OptionError, match=r"A limit is .* records/s; it must be a finite number"):
        ledger.controls.limit("orders", rate, "ops")
    assert ledger.controls.of("orders").limit is None


@pytest.mark.parametrize(("by", "why"), [("", ""), (" \n", ""), ("a" * 101, ""), ("a", "b" * 501)])
def test_a_name_or_a_reason_of_another_length_is_refused(ledger: Ledger, by: str, why: str) -> None:
    with pytest.raises(OptionError, match="characters; give"):
        ledger.controls.pause("orders", by, why)
    assert ledger.controls.history("orders") == ()


def test_what_a_database_cannot_hold_is_written_out(ledger: Ledger) -> None:
    ledger.controls.pause("orders", "o\x00ps", " a\n\tb\ud800 ")
    (action,) = ledger.controls.history("orders")
    assert (action.by, action.why) == (r"o\x00ps", r"a b\ud800")


def test_an_action_of_an_unknown_kind_is_damage(ledger: Ledger, execute: Execute) -> None:
    ledger.controls.pause("orders", "ops")
    execute(text("UPDATE operator_action SET kind = 'explode'"))
    with pytest.raises(LedgerError, match="'explode', which is none of pause, drain, resume"):
        ledger.controls.of("orders")


def test_of_calls_at_once_the_one_that_is_last_in_the_history_is_in_force(ledger: Ledger) -> None:
    def act(number: int) -> None:
        ledger.controls.pause("orders", f"pause {number}")
        ledger.controls.drain("orders", f"drain {number}")

    threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    history = ledger.controls.history("orders")
    assert len(history) == 8
    assert ledger.controls.of("orders").hold == history[0]
