"""Somebody who may write to ZooKeeper, and what they can do to a flow: two stages with agents."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.exceptions import (
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from tests.flow.stages import RunningStage
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.flow.ledger_transport import ledger_states
from headrace.flow.signal_codec import bottlenecks
from headrace.ledger import Ledger

WAIT_S = 60.0
FUTURE = 2**60
CHAIN = ("parse", "store")


class Flow:
    """``parse`` and ``store``, with signals over ZooKeeper; and the attacker's own client."""

    def __init__(self, world: ZookeeperWorld, ledger: Ledger) -> None:
        self.world = world
        self.ledger = ledger
        self._started_ms = time.time_ns() // 1_000_000
        self.parse, self.store = (RunningStage(world, ledger, name, CHAIN) for name in CHAIN)
        for stage in (self.parse, self.store):
            world.callback(stage.close)
            path = f"{world.root}/taskstate/{stage.name}"
            wait_until(lambda path=path: world.stranger.exists(path), WAIT_S)  # type: ignore[misc]
        self.message = f"{world.root}/taskmessage/parse/store"
        self.presence = f"{world.root}/taskpresence/store"

    def throttled_by(self) -> str | None:
        self.parse.admit()
        return self.parse.throttled_by()

    def forge(self, *, started_ms: int | None = None, ephemeral: bool = True) -> None:
        """Put a signal where the one of ``store`` would be, instead of whatever is there."""
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

    def assert_forgery_throttles_nobody(self) -> None:
        wait_until(self._is_removed, WAIT_S)
        assert self.throttled_by() is None
        assert bottlenecks(ledger_states(self.ledger, self.world.flow).values()) == []

    def _is_removed(self) -> bool:
        try:
            return self.world.stranger.exists(self.message) is None
        except (ConnectionLoss, SessionExpiredError):  # of the attacker's own client
            return False

    def assert_store_can_throttle(self) -> None:
        self.store.queue.flood()
        wait_until(lambda: self.throttled_by() == "store", WAIT_S)
        self.store.queue.drain()
        wait_until(lambda: self.throttled_by() is None, WAIT_S)


@pytest.fixture
def flow_of_two(own_zookeeper: ZookeeperServer, flow: str, tmp_path: Path) -> Iterator[Flow]:
    with (
        Ledger.open(f"sqlite:///{tmp_path}/headrace.db") as ledger,
        ZookeeperWorld(flow, own_zookeeper.hosts, session_timeout_s=BRIEF_SESSION_S) as world,
    ):
        yield Flow(world, ledger)


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "ignores what 'store' seems to have sent" in line]


def test_a_forged_signal_throttles_nobody_and_is_logged_once(
    flow_of_two: Flow, own_zookeeper: ZookeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Through a session that is lost and a server that restarts; and no stage is blamed for it."""
    flow, world = flow_of_two, flow_of_two.world
    for started_ms, ephemeral in ((None, True), (FUTURE, True), (None, False), (FUTURE, False)):
        flow.forge(started_ms=started_ms, ephemeral=ephemeral)
        flow.assert_forgery_throttles_nobody()
    assert len(refusals(caplog)) == 1
    before = world.sessions["parse"].id
    flow.forge(started_ms=FUTURE)
    world.expire("parse")
    wait_until(lambda: world.sessions["parse"].id != before, WAIT_S)
    flow.assert_forgery_throttles_nobody()
    flow.forge(started_ms=FUTURE, ephemeral=False)
    own_zookeeper.stop()
    own_zookeeper.start()
    flow.assert_forgery_throttles_nobody()
    assert len(refusals(caplog)) == 1
    flow.assert_store_can_throttle()


def test_what_a_stage_has_said_nobody_else_can_write_over(flow_of_two: Flow) -> None:
    flow, stranger = flow_of_two, flow_of_two.world.stranger
    root = flow.world.root
    for path in (flow.presence, f"{root}/taskstate/parse", f"{root}/taskstate/store"):
        wait_until(lambda path=path: stranger.exists(path), WAIT_S)  # type: ignore[misc]
        with pytest.raises(NoAuthError):
            stranger.set(path, b"{}")


def test_who_takes_the_presence_of_a_stage_throttles_nobody_and_loses_it_again(
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
    flow.assert_forgery_throttles_nobody()

    def is_back() -> bool:
        stat = stranger.exists(flow.presence)
        return stat is not None and stat.ephemeralOwner == flow.world.sessions["store"].id

    wait_until(is_back, WAIT_S)
    assert "was made by somebody else and is replaced" in caplog.text
    flow.assert_store_can_throttle()
