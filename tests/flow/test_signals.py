"""The contract of `Signals`, over each transport."""

import itertools
import logging
import time
from dataclasses import replace

import pytest
from tests.flow.samples import RUN, a_signal, state_of_stage
from tests.flow.worlds import World
from tests.services.waiting import wait_until

from headrace.errors import OptionError, SignalError
from headrace.flow.signal_codec import encode
from headrace.gate.control.pressure import Epoch, PressureSignal

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

WAIT_S = 30.0


def to_a(world: World, sequence: int, sender: str = "b", level: float = 1) -> PressureSignal:
    return a_signal(level, sequence=sequence, sender=sender, flow=world.flow)


def test_a_signal_reaches_its_receiver_once(world: World) -> None:
    a, b = world.join("a", ["b"]), world.join("b")
    b.send(to_a(world, 1))
    assert a.receive(WAIT_S) == [to_a(world, 1)]
    wait_until(lambda: world.messages("a") == [])
    b.send(to_a(world, 2))
    assert a.receive(WAIT_S) == [to_a(world, 2)], "and not the first one again"


def test_the_signals_of_a_pair_come_in_their_order(world: World) -> None:
    a, b = world.join("a", ["b"]), world.join("b")
    for sequence in range(50):
        b.send(to_a(world, sequence))
    came: list[int] = []
    while not came or came[-1] < 49:
        received = a.receive(WAIT_S)
        assert received, f"nothing after {came}"
        came += [signal.sequence for signal in received]
    assert came == sorted(set(came))


def test_every_upstream_and_every_downstream_is_a_pair_of_its_own(world: World) -> None:
    a, x = world.join("a", ["b", "c"]), world.join("x", ["b"])
    b, c = world.join("b"), world.join("c")
    b.send(to_a(world, 1))
    b.send(replace(to_a(world, 5), receiver="x"))
    c.send(to_a(world, 9, sender="c"))
    came: dict[str, PressureSignal] = {}
    wait_until(lambda: came.update((each.sender, each) for each in a.receive(1)) or len(came) == 2)
    assert came == {"b": to_a(world, 1), "c": to_a(world, 9, sender="c")}
    assert x.receive(WAIT_S) == [replace(to_a(world, 5), receiver="x")]


def test_what_was_sent_before_the_receiver_was_there_is_received(world: World) -> None:
    b = world.join("b")
    b.send(to_a(world, 1))
    wait_until(lambda: world.messages("a") == ["b"])
    b.send(to_a(world, 2))
    wait_until(lambda: b.is_delivered)
    assert world.messages("a") == ["b"], "one message, however long nobody takes it"
    assert world.join("a", ["b"]).receive(WAIT_S) == [to_a(world, 2)]


def test_what_is_older_than_its_lease_is_not_received(world: World) -> None:
    b, c = world.join("b"), world.join("c")
    numbers = itertools.count()

    def stands_there() -> bool:
        b.send(replace(to_a(world, next(numbers), level=3), lease_ms=2_000))
        return world.messages("a") == ["b"]

    wait_until(stands_there)
    wait_until(lambda: b.is_delivered)
    sent_s = time.monotonic()
    wait_until(lambda: time.monotonic() > sent_s + 4)
    c.send(to_a(world, 1, sender="c"))
    a = world.join("a", ["b", "c"])
    assert a.receive(WAIT_S) == [to_a(world, 1, sender="c")]
    wait_until(lambda: world.messages("a") == [])
    assert a.receive() == []


def test_a_new_run_of_the_sender_is_heard(world: World) -> None:
    a = world.join("a", ["b"])
    with world.join("b") as b:
        b.send(to_a(world, 100))
        assert a.receive(WAIT_S) == [to_a(world, 100)]
    newer = replace(to_a(world, 0), epoch=Epoch(RUN.started_ms + 1, "newer"))
    world.join("b").send(newer)
    assert a.receive(WAIT_S) == [newer]


def test_a_receiver_that_comes_back_gets_nothing_that_was_taken(world: World) -> None:
    b = world.join("b")
    with world.join("a", ["b"]) as a:
        b.send(to_a(world, 1))
        assert a.receive(WAIT_S)
        wait_until(lambda: world.messages("a") == [])
    again = world.join("a", ["b"])
    b.send(to_a(world, 2))
    assert again.receive(WAIT_S) == [to_a(world, 2)]


def test_nothing_is_received_by_whoever_does_not_wait_while_nothing_comes(world: World) -> None:
    assert world.join("a", ["b"]).receive() == []


def test_closing_ends_the_waiting_and_refuses_what_comes_after(world: World) -> None:
    b = world.join("b", ["c"])
    assert wait_until(lambda: b.is_connected)
    b.close()
    assert b.receive(WAIT_S) == []
    assert not b.is_connected
    with pytest.raises(SignalError, match=r"stage 'b' .* are closed; open new ones\."):
        b.send(to_a(world, 1))
    with pytest.raises(SignalError, match="closed"):
        b.publish(state_of_stage("b", flow=world.flow))
    b.close()


def test_what_was_sent_last_is_delivered_at_the_end(world: World) -> None:
    a = world.join("a", ["b"])
    with world.join("b") as b:
        wait_until(lambda: b.is_connected)
        b.send(to_a(world, 7, level=0))
    assert a.receive(WAIT_S) == [to_a(world, 7, level=0)]


def test_a_stage_speaks_for_itself_only(world: World) -> None:
    b = world.join("b")
    for signal in (to_a(world, 1, sender="c"), replace(to_a(world, 1), flow="another")):
        with pytest.raises(OptionError, match="sends only its own signals and state"):
            b.send(signal)
    for state in (state_of_stage("c", flow=world.flow), state_of_stage("b", flow="another")):
        with pytest.raises(OptionError, match="sends only its own signals and state"):
            b.publish(state)


@pytest.mark.parametrize(("stage", "downstream"), [("a/b", []), ("a", [""]), ("a", ["../c"])])
def test_what_cannot_be_a_name_is_refused(world: World, stage: str, downstream: list[str]) -> None:
    with pytest.raises(OptionError, match="letters, digits"):
        world.join(stage, downstream)


def test_everybody_sees_the_newest_state_of_every_stage(world: World) -> None:
    a, b, onlooker = world.join("a"), world.join("b"), world.join("onlooker")
    wait_until(lambda: a.is_connected and b.is_connected)
    a.publish(state_of_stage("a", flow=world.flow))
    b.publish(state_of_stage("b", "c", flow=world.flow))
    wait_until(lambda: set(onlooker.states()) == {"a", "b"})
    throttled = state_of_stage("a", "b", flow=world.flow, queue_bytes=None)
    a.publish(throttled)
    wait_until(lambda: onlooker.states().get("a") == throttled)
    assert a.states() == b.states() == onlooker.states()
    assert onlooker.states()["b"] == state_of_stage("b", "c", flow=world.flow)


def test_a_state_ends_with_its_lease(world: World) -> None:
    a, b = world.join("a"), world.join("b")
    b.publish(state_of_stage("b", flow=world.flow))

    def both_are_seen() -> bool:
        a.publish(state_of_stage("a", flow=world.flow, lease_ms=2_000))
        return set(b.states()) == {"a", "b"}

    wait_until(both_are_seen)
    wait_until(lambda: set(b.states()) == {"b"})


def test_the_state_of_a_stage_that_ends_is_gone_at_once(world: World) -> None:
    a, b = world.join("a"), world.join("b")
    a.publish(state_of_stage("a", flow=world.flow))
    wait_until(lambda: "a" in b.states())
    a.close()
    assert b.states() == {}


@pytest.mark.parametrize("world", ["sqlite", "postgresql", "zookeeper"], indirect=True)
def test_the_state_of_a_stage_that_was_killed_ends_with_its_lease(world: World) -> None:
    """A memory is left out: it ends with its process."""
    onlooker = world.join("onlooker")
    process = world.join_in_a_process("a")
    wait_until(lambda: "a" in onlooker.states())
    process.kill()
    wait_until(lambda: onlooker.states() == {})


FORGED = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\x80\x04.", id="a pickle"),
    pytest.param(b"[" * 4_096, id="brackets without end"),
    pytest.param(b" " * 500_000, id="half a megabyte"),
    pytest.param(b'{"flow": "clicks"}', id="too little"),
]


@pytest.mark.parametrize("body", FORGED)
def test_a_forged_message_is_told_once_and_removed(
    world: World, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world.forge_message("a", "b", body)
    a, c = world.join("a", ["b", "c"]), world.join("c")
    wait_until(lambda: world.messages("a") == [])
    world.forge_message("a", "b", body)
    wait_until(lambda: world.messages("a") == [])
    c.send(to_a(world, 1, sender="c"))
    assert a.receive(WAIT_S) == [to_a(world, 1, sender="c")]
    (told,) = [line for line in caplog.messages if "ignores" in line]
    assert told.startswith(f"Stage 'a' of flow {world.flow!r} ignores a signal in the name of 'b'")
    assert len(told) < 1_000


def test_a_message_of_another_pair_or_of_a_stranger_is_told_and_removed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.forge_message("a", "b", encode(to_a(world, 1, sender="c")).encode())
    world.forge_message("a", "c", encode(replace(to_a(world, 1, sender="c"), flow="x")).encode())
    stranger = to_a(world, 1, sender="stranger")
    world.forge_message("a", "stranger", encode(stranger).encode())
    a, d = world.join("a", ["b", "c", "d"]), world.join("d")
    wait_until(lambda: world.messages("a") == [])
    d.send(to_a(world, 1, sender="d"))
    assert a.receive(WAIT_S) == [to_a(world, 1, sender="d")]
    assert len([line for line in caplog.messages if "ignores" in line]) == 3
    assert "The sender is not a stage directly after this stage." in caplog.text
    other_pair, no_session = (
        "sender 'c' and receiver 'a'",
        "It is not of the session of that stage.",
    )
    assert other_pair in caplog.text or no_session in caplog.text


@pytest.mark.parametrize("body", FORGED)
def test_a_forged_state_is_told_once_and_seen_by_nobody(
    world: World, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world.forge_state("z", body)
    world.forge_state("y", encode(state_of_stage("x", flow=world.flow)).encode())
    a = world.join("a")
    a.publish(state_of_stage("a", flow=world.flow))
    wait_until(lambda: set(a.states()) == {"a"})
    assert set(a.states()) == {"a"}
    assert len([line for line in caplog.messages if "is ignored" in line]) == 2


def test_nothing_is_written_or_told_by_stages_that_have_nothing_to_say(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        a, b = world.join("a", ["b"]), world.join("b")
        wait_until(lambda: a.is_connected and b.is_connected)
        assert a.receive(0.1) == b.receive() == []
        assert (world.messages("a"), a.states()) == ([], {})
    lines = [line.getMessage() for line in caplog.records if line.name.startswith("headrace")]
    assert [line for line in lines if "reachable" not in line] == [], "but for a slow server"


def test_sending_waits_for_nobody(world: World) -> None:
    b = world.join("b")
    wait_until(lambda: b.is_connected)
    began_s = time.monotonic()
    for sequence in range(10_000):
        b.send(to_a(world, sequence))
    b.close()
    assert world.join("a", ["b"]).receive(WAIT_S) == [to_a(world, 9_999)], (
        f"what was sent last, {time.monotonic() - began_s:.1f} s later"
    )
