"""Somebody who may write to ZooKeeper, and what they can do to a flow: two stages with agents."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError
from tests.flow.admitting import Admitting
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.control import HopSettings, InputQueue
from headrace.flow.agent import StageAgent, StagePlace
from headrace.flow.culprit import culprits
from headrace.flow.signals_ledger import ledger_states
from headrace.ledger import Ledger

SETTINGS = HopSettings(
    overload_bytes=10_000,
    light_load_bytes=1_000,
    overload_sensitivity_ms=300,
    light_load_sensitivity_ms=300,
    lease_ms=3_000,
)
WAIT_S = 60.0
FUTURE = 2**60


class Queue:
    """Nothing waits, or more and more."""

    def __init__(self) -> None:
        self.grows = 0
        self._waiting = 0
        self._arrived = 0

    def look(self) -> InputQueue:
        self._arrived += 5_000
        self._waiting = self._waiting + self.grows if self.grows else 0
        return InputQueue(self._waiting, self._waiting, self._arrived)

    def close(self) -> None:
        pass


class Flow:
    """``parse`` and ``store``, with signals over ZooKeeper; and the attacker's own client."""

    def __init__(self, world: ZookeeperWorld, ledger: Ledger) -> None:
        self.world = world
        self.ledger = ledger
        self.queue = Queue()
        self.admitting = Admitting(ledger, f"{world.flow}.parse")
        self._started_ms = time.time_ns() // 1_000_000
        for name, before, after, queue in (
            ("parse", (), ("store",), Queue()),
            ("store", ("parse",), (), self.queue),
        ):
            gate = f"{world.flow}.{name}"
            ledger.declare_gate(gate, interval_ms=100, source="journal", estimator="{}")
            place = StagePlace(world.flow, name, gate, 100, before, after, SETTINGS)
            signals = world.join(name, after)
            agent = StageAgent(place, ledger, signals, queue, shows_in_ledger=True)
            world.callback(agent.start().close)
        wait_until(lambda: self.state("parse") and self.state("store"), WAIT_S)

    @property
    def message(self) -> str:
        return f"{self.world.root}/taskmessage/parse/store"

    @property
    def presence(self) -> str:
        return f"{self.world.root}/taskpresence/store"

    def state(self, stage: str) -> bool:
        return bool(self.world.stranger.exists(f"{self.world.root}/taskstate/{stage}"))

    def held_by(self) -> str | None:
        self.admitting.admit()
        return self.admitting.held_by()

    def forge(self, *, started_ms: int | None = None, ephemeral: bool = True) -> None:
        """Put an assertion where the one of ``store`` would be, instead of whatever is there."""
        body = {
            "flow": self.world.flow,
            "sender": "store",
            "receiver": "parse",
            "epoch": {"started_ms": started_ms or self._started_ms, "id": "forged"},
            "sequence": 1_000,
            "level": 20,
            "lease_ms": 600_000,
        }
        stranger = self.world.stranger
        with suppress(NoNodeError):
            stranger.delete(self.message)
        stranger.create(self.message, json.dumps(body).encode(), ephemeral=ephemeral, makepath=True)

    def is_removed(self) -> bool:
        return self.world.stranger.exists(self.message) is None

    def assert_nobody_is_held(self) -> None:
        assert self.held_by() is None
        assert culprits(ledger_states(self.ledger, self.world.flow).values()) == []


@pytest.fixture
def flow_of_two(own_zookeeper: ZookeeperServer, flow: str, tmp_path: Path) -> Iterator[Flow]:
    with (
        Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger,
        ZookeeperWorld(flow, own_zookeeper.hosts, session_timeout_s=BRIEF_SESSION_S) as world,
    ):
        yield Flow(world, ledger)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "ignores what 'store' seems to have sent" in line]


def test_a_forged_assertion_holds_nobody_and_is_told_once(
    flow_of_two: Flow, own_zookeeper: ZookeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Through a session that is lost and a server that restarts; and no stage is blamed for it."""
    flow, world = flow_of_two, flow_of_two.world
    for started_ms, ephemeral in ((None, True), (FUTURE, True), (None, False), (FUTURE, False)):
        flow.forge(started_ms=started_ms, ephemeral=ephemeral)
        wait_until(flow.is_removed, WAIT_S)
        flow.assert_nobody_is_held()
    assert len(refusals(caplog)) == 1
    before = world.sessions["parse"].id
    flow.forge(started_ms=FUTURE)
    world.expire("parse")
    wait_until(lambda: world.sessions["parse"].id != before, WAIT_S)
    wait_until(flow.is_removed, WAIT_S)
    flow.assert_nobody_is_held()
    flow.forge(started_ms=FUTURE, ephemeral=False)
    own_zookeeper.stop()
    own_zookeeper.start()
    wait_until(flow.is_removed, WAIT_S)
    flow.assert_nobody_is_held()
    assert len(refusals(caplog)) == 1
    flow.queue.grows = 1_000
    wait_until(lambda: flow.held_by() == "store", WAIT_S)
    flow.queue.grows = 0
    wait_until(lambda: flow.held_by() is None, WAIT_S)


def test_what_a_stage_has_said_nobody_else_can_write_over(flow_of_two: Flow) -> None:
    flow, stranger = flow_of_two, flow_of_two.world.stranger
    root = flow.world.root
    for path in (flow.presence, f"{root}/taskstate/parse", f"{root}/taskstate/store"):
        wait_until(lambda path=path: stranger.exists(path), WAIT_S)  # type: ignore[misc]
        with pytest.raises(NoAuthError):
            stranger.set(path, b"{}")


def test_who_takes_the_presence_of_a_stage_presses_nobody_and_loses_it_again(
    flow_of_two: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow, stranger = flow_of_two, flow_of_two.world.stranger

    def is_taken() -> bool:
        try:
            stranger.delete(flow.presence)
            stranger.create(flow.presence, b"", ephemeral=True)
        except (NodeExistsError, NoNodeError):
            return False
        return True

    wait_until(is_taken, WAIT_S)
    flow.forge()
    wait_until(flow.is_removed, WAIT_S)
    flow.assert_nobody_is_held()

    def is_back() -> bool:
        stat = stranger.exists(flow.presence)
        return stat is not None and stat.ephemeralOwner == flow.world.sessions["store"].id

    wait_until(is_back, WAIT_S)
    assert "was made by somebody else and is made anew" in caplog.text
    flow.queue.grows = 1_000
    wait_until(lambda: flow.held_by() == "store", WAIT_S)
