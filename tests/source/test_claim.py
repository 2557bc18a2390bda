"""Whether a query may have its gate, by what is seen of the one behind it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.errors import GateInUseError
from headrace.ledger import GateQuery
from headrace.processes import is_gone, new_owner, number_of, this_process
from headrace.source.claim import await_turn, describe_process


def query(owner: str, until_ms: int, driver: str | None = None) -> GateQuery:
    return GateQuery(owner, driver, None, "process 7 on web", "/ckpt", "run", 0, until_ms, 0)


class Gate:
    """A gate that answers each look with the next of these, then that it is free."""

    def __init__(self, *answers: GateQuery | None) -> None:
        self._answers: Iterator[GateQuery | None] = iter(answers)
        self.gone: list[str | None] = []
        self.waits = 0

    def look(self, gone: str | None) -> GateQuery | None:
        self.gone.append(gone)
        return next(self._answers, None)

    def wait(self, _seconds: float) -> None:
        self.waits += 1


def await_gate(gate: Gate) -> None:
    await_turn("orders", gate.look, gate.wait)


@pytest.fixture
def ended() -> str:
    """The name of a process that has ended."""
    tell = "from headrace.processes import this_process; print(this_process())"
    told = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def test_a_free_gate_is_not_waited_for() -> None:
    gate = Gate()
    await_gate(gate)
    assert (gate.waits, gate.gone) == (0, [None])


def test_a_query_that_renews_its_lease_is_alive_and_named() -> None:
    gate = Gate(query("blue", 1_000), query("blue", 1_000), query("blue", 6_000))
    with pytest.raises(
        GateInUseError,
        match=r"'orders' is in use by another query, of process 7 on web, since 1970-01-01 00:00:00"
        r" UTC, with the checkpoint /ckpt: a gate has one query at a time",
    ):
        await_gate(gate)
    assert gate.waits == 2


def test_a_query_that_gives_no_sign_of_life_is_waited_for_until_its_lease_is_over() -> None:
    gate = Gate(*[query("blue", 1_000)] * 300)
    await_gate(gate)
    assert gate.waits == 300


def test_a_query_that_took_the_gate_meanwhile_is_watched_from_then_on() -> None:
    gate = Gate(query("blue", 1_000), query("green", 9_000), query("green", 9_000))
    await_gate(gate)
    with pytest.raises(GateInUseError):
        await_gate(Gate(query("blue", 1_000), query("green", 9_000), query("green", 9_500)))


@pytest.mark.parametrize("of", ["planner", "driver"])
def test_a_query_whose_process_has_ended_is_replaced_at_once(ended: str, of: str) -> None:
    assert is_gone(ended)
    owner = f"{ended}/1" if of == "planner" else new_owner()
    gate = Gate(query(owner, 1_000, None if of == "planner" else ended))
    await_gate(gate)
    assert (gate.waits, gate.gone) == (0, [None, owner])


def test_a_query_of_a_process_that_lives_is_not_gone() -> None:
    gate = Gate(query(new_owner(), 1_000, this_process()), query(new_owner(), 1_000))
    await_gate(gate)
    assert gate.gone == [None, None, None]


def test_a_look_that_cannot_take_over_is_content_when_the_process_has_ended(ended: str) -> None:
    gate = Gate(*[query(f"{ended}/1", 1_000)] * 3)
    await_gate(gate)
    assert gate.waits == 0


def test_a_process_is_described_by_its_number() -> None:
    number = number_of(this_process())
    assert number is not None
    assert describe_process(this_process(), otherwise=1).startswith(f"process {number} on ")
    assert describe_process(None, otherwise=1).startswith("process 1 on ")
    assert describe_process("unknown", otherwise=2).startswith("process 2 on ")
