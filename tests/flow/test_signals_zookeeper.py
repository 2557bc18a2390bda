"""Signals over ZooKeeper: sessions that end, nodes that others have made, rights."""

import logging
import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import ACL, Id, Permissions, make_digest_acl
from tests.flow.samples import a_signal, state_of_stage
from tests.flow.worlds import BRIEF_SESSION_S, ZookeeperWorld
from tests.services.waiting import wait_until
from tests.services.zookeeper import ZookeeperServer

from headrace.flow import Signals, StageState, ZookeeperSession, zookeeper_signals
from headrace.flow.signal_codec import encode
from headrace.gate.control.pressure import PressureSignal

WAIT_S = 30.0
ANYBODY = Id("world", "anyone")
SECRET, GUESSED = "s3cret", "gue55ed"


@pytest.fixture
def world(zookeeper: ZookeeperServer, flow: str) -> Iterator[ZookeeperWorld]:
    with ZookeeperWorld(flow, zookeeper.hosts) as made:
        yield made


@pytest.fixture
def own_world(own_zookeeper: ZookeeperServer, flow: str) -> Iterator[ZookeeperWorld]:
    with ZookeeperWorld(flow, own_zookeeper.hosts, session_timeout_s=BRIEF_SESSION_S) as made:
        yield made


def to_a(world: ZookeeperWorld, sequence: int, level: float = 1) -> PressureSignal:
    return a_signal(level, sequence=sequence, flow=world.flow)


def shows(signals: Signals, state: StageState) -> bool:
    return signals.states().get(state.stage) == state


def test_the_nodes_are_those_that_the_documentation_names(world: ZookeeperWorld) -> None:
    b = world.join("b")
    b.send(to_a(world, 1))
    b.publish(state_of_stage("b", flow=world.flow))
    wait_until(lambda: "b" in b.states() and world.messages("a"))
    root = f"/headrace/{world.flow}"
    for path, value in (
        (f"{root}/taskmessage/a/b", to_a(world, 1)),
        (f"{root}/taskstate/b", state_of_stage("b", flow=world.flow)),
    ):
        data, stat = world.stranger.get(path)
        signature, _, text = data.decode().partition(" ")
        assert (text, len(signature)) == (encode(value), 64)
        assert stat.ephemeralOwner == world.sessions["b"].id


def test_a_state_is_kept_and_updated_not_recreated(world: ZookeeperWorld) -> None:
    world.answer_timeout_s = WAIT_S  # or it is written once more
    b = world.join("b")
    states = [state_of_stage("b", flow=world.flow, queue_bytes=number) for number in range(20)]
    for state in states:
        b.publish(state)
        wait_until(partial(shows, b, state))
    stat = world.stranger.exists(f"{world.root}/taskstate/b")
    assert stat.version == 19, "written twenty times"
    assert stat.czxid != stat.mzxid, "and made once"


@pytest.mark.parametrize("stage", ["a", "b"])
def test_a_session_that_expires_is_begun_again_and_all_goes_on(
    world: ZookeeperWorld, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = world.join("a", ["b"]), world.join("b")
    world.join("onlooker")
    for signals, name in ((a, "a"), (b, "b")):
        signals.publish(state_of_stage(name, flow=world.flow))
    wait_until(lambda: set(a.states()) == {"a", "b"})
    before = world.sessions[stage].id
    with caplog.at_level(logging.INFO, "headrace.flow"):
        world.expire(stage)
        wait_until(lambda: world.sessions[stage].id != before)
        wait_until(lambda: set(a.states()) == {"a", "b"})
        b.send(to_a(world, 1))
        assert a.receive(WAIT_S) == [to_a(world, 1)]
    assert any("was lost; the stages send their signals again" in line for line in caplog.messages)


def test_a_message_that_was_lost_with_its_session_is_sent_again(world: ZookeeperWorld) -> None:
    b = world.join("b")
    b.send(to_a(world, 1))
    wait_until(lambda: world.messages("a") == ["b"])
    before = world.sessions["b"].id
    world.expire("b")
    wait_until(lambda: world.sessions["b"].id != before)
    assert world.join("a", ["b"]).receive(WAIT_S) == [to_a(world, 1)]


def test_twenty_sessions_expire_in_any_order_and_all_that_counts_comes_through_once(
    world: ZookeeperWorld,
) -> None:
    chance = random.Random(6)
    a, b = world.join("a", ["b"]), world.join("b")
    came = []
    for sequence in range(20):
        wait_until(lambda: a.is_connected and b.is_connected)
        todo = [partial(b.send, to_a(world, sequence)), partial(world.expire, chance.choice("ab"))]
        chance.shuffle(todo)
        for do in todo:
            do()
        came += a.receive(WAIT_S)
    assert came == [to_a(world, sequence) for sequence in range(20)]
    assert a.receive() == []


@pytest.mark.parametrize("how", ["stop", "kill", "freeze", "lose data"])
def test_an_outage_passes_and_what_counts_is_delivered(
    own_world: ZookeeperWorld,
    own_zookeeper: ZookeeperServer,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = own_world
    caplog.set_level(logging.INFO, "headrace.flow")
    a, b = world.join("a", ["b"]), world.join("b")
    a.publish(state_of_stage("a", flow=world.flow))
    b.send(to_a(world, 0))
    assert a.receive(WAIT_S) == [to_a(world, 0)]
    wait_until(lambda: "a" in b.states())
    caplog.clear()  # a server that has only just begun may have kept them waiting
    if how == "freeze":
        own_zookeeper.freeze()
    else:
        own_zookeeper.kill() if how == "kill" else own_zookeeper.stop()
    for sequence in range(1, 100):
        b.send(to_a(world, sequence))
    wait_until(lambda: not a.is_connected and not b.is_connected)
    assert a.receive() == []
    assert set(b.states()) == {"a"}, "what is known is known until its lease is over"
    wait_until(lambda: len([line for line in caplog.messages if "is unreachable: " in line]) == 2)
    if how == "freeze":
        own_zookeeper.thaw()
    else:
        if how == "lose data":
            own_zookeeper.lose_data()
        own_zookeeper.start()
    assert a.receive(WAIT_S) == [to_a(world, 99)]
    wait_until(lambda: "a" in b.states())
    assert a.receive() == []
    again = " is reachable again, after "
    wait_until(lambda: len([line for line in caplog.messages if again in line]) >= 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_thread_has_ended_in_an_error_is_replaced(
    own_world: ZookeeperWorld,
) -> None:
    stumbles = threading.Event()

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
        def select(self, *args: Any, **options: Any) -> Any:
            if stumbles.is_set():
                stumbles.clear()
                raise RuntimeError("xids do not match")
            return super().select(*args, **options)

    world = own_world
    b = world.join("b")
    world.make_client = lambda **options: KazooClient(**{**options, "handler": Handler()})
    a = world.join("a", ["b"])
    wait_until(lambda: a.is_connected and b.is_connected)
    stumbles.set()
    wait_until(lambda: not a.is_connected)
    b.send(to_a(world, 1))
    assert a.receive(WAIT_S) == [to_a(world, 1)]
    assert len(world.clients["a"]) == 2


FORGED = {"ephemeral": False}
MALLORYS = [make_digest_acl("mallory", "s", all=True)]


@pytest.mark.parametrize(
    ("nodes", "logged"),
    [
        pytest.param(
            {"taskmessage/a/b": (b"forged", FORGED), "taskstate/b": (b"forged", FORGED)},
            "",
            id="somebody else's node in place of ours",
        ),
        pytest.param(
            {"taskmessage/a": (b"", {}), "taskstate": (b"", {})},
            "",
            id="a folder that is ephemeral",
        ),
        pytest.param(
            {"taskmessage/a/b": (None, {}), "taskstate/z": (None, {})}, "", id="a node without data"
        ),
        pytest.param(
            {"taskmessage/a/b": (b"", {**FORGED, "acl": MALLORYS})},
            "ignores a signal in the name of 'b'",
            id="an unreadable node",
        ),
    ],
)
def test_what_somebody_else_has_made_is_replaced_and_stops_nobody(
    world: ZookeeperWorld,
    nodes: dict[str, tuple[bytes | None, dict[str, Any]]],
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for path, (body, how) in nodes.items():
        folder = path.rpartition("/")[0]
        world.stranger.ensure_path(f"{world.root}/{folder}".rstrip("/"))
        world.forge(path, body, **{**how, "makepath": False})
    a = world.join("a", ["b"])
    wait_until(lambda: logged in caplog.text)
    b = world.join("b")
    b.publish(state_of_stage("b", flow=world.flow))
    b.send(to_a(world, 1))
    assert a.receive(WAIT_S) == [to_a(world, 1)]
    wait_until(lambda: set(a.states()) == {"b"})


def test_a_node_that_would_outlive_its_stage_is_told_and_replaced(
    world: ZookeeperWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.forge("taskmessage/a/b", encode(to_a(world, 1, level=20)).encode(), ephemeral=False)
    state = encode(state_of_stage("z", flow=world.flow)).encode()
    world.forge("taskstate/z", state, ephemeral=False)
    a, b = world.join("a", ["b"]), world.join("b")
    wait_until(lambda: a.states() == {} and caplog.text.count("The node is not ephemeral") == 2)
    b.send(to_a(world, 2))
    assert a.receive(WAIT_S) == [to_a(world, 2)]
    wait_until(lambda: world.messages("a") == [])


def test_a_crowd_of_strangers_stops_nobody(
    world: ZookeeperWorld, caplog: pytest.LogCaptureFixture
) -> None:
    made = [
        world.stranger.create_async(
            f"{world.root}/taskmessage/a/stranger-{number}", b"x", makepath=True
        )
        for number in range(1_000)
    ]
    for each in made:
        each.get(timeout=30)
    a, b = world.join("a", ["b"]), world.join("b")
    b.send(to_a(world, 1))
    assert a.receive(WAIT_S) == [to_a(world, 1)]
    wait_until(lambda: world.messages("a") == [], timeout_s=150)  # deleted one after the other
    assert len([line for line in caplog.messages if line.startswith("Stage 'a'")]) <= 101


def test_what_cannot_be_deleted_comes_once_and_is_told_once(
    world: ZookeeperWorld, caplog: pytest.LogCaptureFixture
) -> None:
    rights = ACL(Permissions.ALL & ~Permissions.DELETE, ANYBODY)
    world.stranger.ensure_path(f"{world.root}/taskmessage")
    world.stranger.create(f"{world.root}/taskmessage/a", b"", acl=[rights])
    a, b = world.join("a", ["b"]), world.join("b")
    b.send(to_a(world, 1))
    assert a.receive(WAIT_S) == [to_a(world, 1)]
    b.send(to_a(world, 2))
    assert a.receive(WAIT_S) == [to_a(world, 2)], "which stands in the same node"
    assert a.receive(2.5) == []
    assert world.messages("a") == ["b"]
    (told,) = [line for line in caplog.messages if "access to the node" in line]
    assert f"{world.root}/taskmessage/a/b" in told
    world.stranger.set_acls(f"{world.root}/taskmessage/a", [ACL(Permissions.ALL, ANYBODY)])
    wait_until(lambda: world.messages("a") == [])


def test_nodes_below_a_stage_s_own_are_told_and_stop_no_other(
    world: ZookeeperWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.forge("taskmessage/a/b/child", b"", ephemeral=False)
    a, b, c = world.join("a", ["b", "c"]), world.join("b"), world.join("c")
    b.send(to_a(world, 1))
    from_c = a_signal(sender="c", flow=world.flow)
    c.send(from_c)
    assert a.receive(WAIT_S) == [from_c]
    wait_until(lambda: "a/b in ZooKeeper" in caplog.text and "child nodes, which" in caplog.text)
    world.stranger.delete(f"{world.root}/taskmessage/a/b", recursive=True)
    assert a.receive(WAIT_S) == [to_a(world, 1)]


def test_with_a_user_nobody_else_reads_or_writes(
    zookeeper: ZookeeperServer, flow: str, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = f"{zookeeper.hosts}/safe"
    user = {"user": "flows"}
    with (
        ZookeeperWorld(flow, hosts, **user, password=SECRET) as ours,
        ZookeeperWorld(flow, hosts, **user, password=GUESSED) as theirs,
    ):
        a, b = ours.join("a", ["b"]), ours.join("b")
        b.publish(state_of_stage("b", flow=flow))
        b.send(to_a(ours, 1))
        assert a.receive(WAIT_S) == [to_a(ours, 1)]
        wait_until(lambda: set(a.states()) == {"b"})
        mallory, spy = theirs.join("b"), theirs.join("a", ["b"])
        wait_until(lambda: mallory.is_connected and spy.is_connected)
        mallory.send(to_a(ours, 2, level=20))
        mallory.publish(state_of_stage("b", "c", flow=flow))
        wait_until(lambda: caplog.text.count("access to the node /safe/") >= 3)
        assert mallory.states() == {}
        b.send(to_a(ours, 3))
        assert a.receive(WAIT_S) == [to_a(ours, 3)]
        assert spy.receive() == []
        assert a.states()["b"] == state_of_stage("b", flow=flow)
        with pytest.raises(NoAuthError):
            ours.stranger.get(f"{ours.root}/taskstate/b")
    assert SECRET not in caplog.text
    assert GUESSED not in caplog.text


def test_two_stages_of_a_process_share_a_session(world: ZookeeperWorld) -> None:
    with ZookeeperSession(world.settings) as session:
        with (
            zookeeper_signals(session, world.flow, "a", ["b"], secret=b"s") as a,
            zookeeper_signals(session, world.flow, "b", secret=b"s") as b,
        ):
            b.publish(state_of_stage("b", flow=world.flow))
            b.send(to_a(world, 1))
            assert a.receive(WAIT_S) == [to_a(world, 1)]
            wait_until(lambda: "b" in a.states())
            b.close()
            assert a.states() == {}
        assert session.is_connected


def test_the_servers_expire_what_a_killed_process_has_said(world: ZookeeperWorld) -> None:
    process = world.join_in_a_process("b")
    wait_until(lambda: world.stranger.get_children(f"{world.root}/taskstate") == ["b"])
    process.kill()
    wait_until(
        lambda: world.stranger.get_children(f"{world.root}/taskstate") == [],
        timeout_s=20 * BRIEF_SESSION_S,
    )
