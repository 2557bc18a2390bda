"""Connections that are let in, those that are evicted, and the count of rejections."""

import asyncio
import socket

from tests.receivers.serving import Journal, in_loop, receiving

from headrace.errors import JournalError
from headrace.receivers import TcpReceiver, TcpSettings
from headrace.receivers.connections import Acceptor, Connections, listen
from headrace.receivers.event_log import RejectionCounts, Rejections


def test_the_longest_idle_one_goes_when_another_one_comes_and_no_busy_one() -> None:
    gone: list[str] = []
    connections = Connections(2)
    assert connections.admit("a", lambda: gone.append("a"))
    assert connections.admit("b", lambda: gone.append("b"))
    connections.busy("a")
    assert connections.admit("c", lambda: gone.append("c"))
    assert (gone, len(connections)) == (["b"], 2)

    connections.busy("c")
    assert not connections.admit("d", lambda: None)
    connections.idle("c")
    connections.idle("a")
    assert connections.admit("d", lambda: None)
    assert gone == ["b", "c"], "a has been idle for a shorter time"


def test_a_closed_connection_frees_its_place_once() -> None:
    connections = Connections(1)
    assert connections.admit("a", lambda: None)
    connections.remove("a")
    connections.busy("a")
    connections.idle("a")
    connections.remove("a")

    assert len(connections) == 0
    assert not connections.evict_slowest()
    assert connections.admit("b", lambda: None)


def test_rejections_are_counted_until_they_are_drained() -> None:
    rejections = Rejections()
    assert rejections.drain() is None
    for kind in ("a", "b", "b"):
        rejections.count(kind, f"It is {kind}.")
    assert rejections.drain() == RejectionCounts({"a": 1, "b": 2}, "It is b.")
    assert rejections.drain() is None


@in_loop
async def test_rejected_senders_of_lines_are_counted_by_kind() -> None:
    receiver = TcpReceiver(TcpSettings(port=0, max_line_bytes=5)).listen()
    journal = Journal()
    journal.failures.append(JournalError("The disk is full; make room."))
    async with receiving(receiver, journal) as intake:
        for line in (b"short\n", b"too long\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
            writer.write(line)
            assert (await reader.readline()).startswith(b"error ")
            writer.transport.abort()
        refused = intake.rejections.drain()
    assert refused
    assert refused.counts == {"not stored": 1, "not taken": 1}


@in_loop
async def test_the_newest_connection_is_accepted_first_and_the_others_stay() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        acceptor = Acceptor(listener, Connections(1))
        senders = [socket.create_connection(address, 10) for _ in range(3)]
        accepted = [await acceptor.next()]
        senders.append(socket.create_connection(address, 10))
        accepted += [await acceptor.next() for _ in range(2)]
        shown = [connection.getpeername() for connection in accepted]
        assert shown == [senders[number].getsockname() for number in (2, 3, 1)]
        acceptor.close()
        senders[0].settimeout(10)
        assert senders[0].recv(1) == b""
        for connection in (*accepted, *senders):
            connection.close()
