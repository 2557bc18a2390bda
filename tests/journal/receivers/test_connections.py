"""Connections that are let in, and the count of rejections."""

import asyncio

from tests.journal.receivers.serving import Journal, in_loop, receiving

from headrace.errors import JournalError
from headrace.journal.receivers import TcpReceiver, TcpSettings
from headrace.journal.receivers.connections import Connections
from headrace.journal.receivers.event_log import RejectionCounts, Rejections


def test_a_closed_connection_frees_its_place_once() -> None:
    connections = Connections(1)
    assert connections.admit("a")
    assert not connections.admit("b")
    for _ in range(2):
        connections.remove("a")
    assert len(connections) == 0
    assert connections.admit("b")


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
