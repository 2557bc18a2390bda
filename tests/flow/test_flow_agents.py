"""Agents of two stages, with threads of their own, and signals over the ledger's database."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.flow.admitting import Admitting
from tests.services.waiting import wait_until

from headrace.control import HopSettings, InputQueue
from headrace.flow import ledger_signals
from headrace.flow.agent import StageAgent, StageSpec
from headrace.ledger import Ledger

SETTINGS = HopSettings(
    overload_bytes=10_000,
    light_load_bytes=1000,
    overload_sensitivity_ms=300,
    light_load_sensitivity_ms=300,
    lease_ms=60_000,
)


class Flood:
    """A queue into which more comes at every look."""

    arrived = 0

    def measure(self) -> InputQueue:
        self.arrived += 5000
        return InputQueue(self.arrived, self.arrived, self.arrived)

    def close(self) -> None:
        pass


class Drought(Flood):
    """A queue in which nothing ever waits."""

    def measure(self) -> InputQueue:
        return InputQueue(0, 0, 0)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as opened:
        opened.declare_gate("shop.parse", interval_ms=100, source="journal", estimator="{}")
        opened.declare_gate("shop.store", interval_ms=100, source="journal", estimator="{}")
        yield opened


def test_an_overloaded_stage_holds_the_one_before_it_until_it_ends(ledger: Ledger) -> None:
    parse = StageSpec("shop", "parse", "shop.parse", 100, (), ("store",), SETTINGS)
    store = StageSpec("shop", "store", "shop.store", 100, ("parse",), (), SETTINGS)
    admitting = Admitting(ledger, "shop.parse")

    def held_by() -> str | None:
        admitting.admit()
        return admitting.held_by()

    with ExitStack() as agents:
        signals = ledger_signals(ledger, "shop", "parse", ["store"])
        agents.callback(StageAgent(parse, ledger, signals, Drought()).start().close)
        ending = agents.enter_context(ExitStack())
        signals = ledger_signals(ledger, "shop", "store")
        ending.callback(StageAgent(store, ledger, signals, Flood()).start().close)
        wait_until(lambda: held_by() == "store", timeout_s=100)
        wait_until(lambda: len(ledger.published_states("shop")) == 2, timeout_s=100)
        ending.close()
        wait_until(lambda: held_by() is None, timeout_s=50)
    assert ledger.published_states("shop") == ()
