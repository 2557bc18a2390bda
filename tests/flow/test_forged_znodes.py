"""Somebody who may write to ZooKeeper, and what they can do to a flow: two stages with agents."""

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

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
from headrace.gate.ledger.ledger import Ledger

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
        self.state = f"{world.root}/taskstate/store"

    def throttled_by(self) -> str | None:
        self.parse.admit()
        return self.parse.throttled_by()

    def forge(self, *, started_ms: int | None = None, ephemeral: bool = True) -> None:
        """Put a signal where the one of ``store`` would be, instead of whatever is there."""
        stranger = self.world.stranger
        with suppress(NoNodeError):
            stranger.delete(self.message)
        body = self.body(started_ms=started_ms)
        stranger.create(self.message, body, ephemeral=ephemeral, makepath=True)

    def body(self, *, started_ms: int | None = None) -> bytes:
        """A signal of ``store`` that throttles ``parse`` as hard as can be."""
        signal = {
            "flow": self.world.flow,
            "sender": "store",
            "receiver": "parse",
            "epoch": {"started_ms": started_ms or self._started_ms, "id": "forged"},
            "sequence": 1_000,
            "level": 20,
            "lease_ms": 600_000,
        }
        return json.dumps(signal).encode()

    def assert_forgery_throttles_nobody(self) -> None:
        """It would throttle for longer than this waits, and the stage's own replaces it."""
        assert self.throttled_by() is None
        self.assert_store_can_throttle()
        wait_until(
            lambda: self.bottlenecks() == [], WAIT_S
        )  # both write to the ledger now and then

    def bottlenecks(self) -> list[str]:
        return bottlenecks(ledger_states(self.ledger, self.world.flow).values())

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
    return [line for line in caplog.messages if "ignores a signal in the name of 'store'" in line]


def test_a_forged_signal_throttles_nobody_and_is_logged_once(
    flow_of_two: Flow, own_zookeeper: ZookeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Through a session that is lost and a server that restarts; and no stage is blamed for it."""
    flow, world = flow_of_two, flow_of_two.world
    for started_ms, ephemeral in ((None, True), (FUTURE, True), (None, False), (FUTURE, False)):
        flow.forge(started_ms=started_ms, ephemeral=ephemeral)
        flow.assert_forgery_throttles_nobody()
    wait_until(lambda: len(refusals(caplog)) == 1, WAIT_S)
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


def test_what_a_stage_has_said_nobody_else_can_write_over(flow_of_two: Flow) -> None:
    flow, stranger = flow_of_two, flow_of_two.world.stranger
    root = flow.world.root
    for path in (f"{root}/taskstate/parse", f"{root}/taskstate/store"):
        wait_until(lambda path=path: stranger.exists(path), WAIT_S)  # type: ignore[misc]
        with pytest.raises(NoAuthError):
            stranger.set(path, b"{}")


def forgeries(flow: Flow, own: bytes) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield the nodes that forge a stage's: the path, the data, and the options of the creation.

    ``own`` is the data that the stage itself has written there.
    """
    signature, _, text = own.partition(b" ")
    session = flow.world.stranger.client_id[0]
    as_its_own = hmac.new(
        b"guessed",
        b"%d %b %b" % (session, f"{flow.world.root}/taskstate".encode(), text),
        hashlib.sha256,
    ).hexdigest()
    signal = flow.body(started_ms=FUTURE)
    of_flow = {"flow": flow.world.flow, "stage": "store", "throttled_by": None}
    bodies = [
        b"",
        b" ",
        b"{}",
        signal,
        b" " + signal,
        b"0" * 64 + b" " + signal,
        signature + b" " + signal,  # a signature of the stage's, on another text
        as_its_own.encode() + b" " + signal,  # of another secret
        own,  # word for word, in another session
        own[:-1],
        json.dumps(of_flow).encode(),
        b"\xff" * 5_000,
    ]
    for path in (flow.message, flow.state):
        for body in bodies:
            yield path, body, {"ephemeral": True}
    for body in (signal, own):
        yield flow.message, body, {"ephemeral": False}


def put(flow: Flow, path: str, body: bytes, how: dict[str, Any]) -> bool:
    """Write one of them in place of what is there; whether that went well."""
    stranger = flow.world.stranger
    with suppress(NoNodeError):
        stranger.delete(path)
    try:
        stranger.create(path, body, makepath=True, **how)
    except (NodeExistsError, ConnectionLoss, SessionExpiredError):
        return False
    return True


@pytest.mark.parametrize("when", ["runs", "restarts", "is gone"])
def test_who_makes_all_nodes_of_a_stage_anew_neither_slows_nor_blinds_another(
    flow_of_two: Flow, when: str
) -> None:
    flow = flow_of_two
    own = wait_until(lambda: flow.world.stranger.get(flow.state)[0])
    if when == "restarts":
        flow.world.expire("store")
    if when == "is gone":
        flow.store.close()
    made = [put(flow, *each) for each in forgeries(flow, own) if flow.throttled_by() is None]
    assert len(made) == 26, "none of them throttles"
    assert sum(made) > 20
    assert bottlenecks(ledger_states(flow.ledger, flow.world.flow).values()) == []
    if when != "is gone":
        flow.assert_store_can_throttle()
