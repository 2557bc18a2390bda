"""Receivers count what they refuse, by kind, with the reason that its sender was told."""

import asyncio

import httpx
from tests.receivers.serving import DEADLINE_S, Journal, in_loop, receiving, until

from headrace.errors import JournalError
from headrace.receivers import HttpReceiver, HttpSettings, TcpReceiver, TcpSettings
from headrace.receivers.event_log import RejectionCounts, Rejections


def test_refusals_are_counted_until_somebody_asks() -> None:
    rejections = Rejections()
    assert rejections.drain() is None
    for kind in ("a", "b", "b"):
        rejections.count(kind, f"It is {kind}.")
    assert rejections.drain() == RejectionCounts({"a": 1, "b": 2}, "It is b.")
    assert rejections.drain() is None


@in_loop
async def test_refused_requests_are_counted_by_their_status() -> None:
    receiver = HttpReceiver(HttpSettings(port=0)).listen()
    place = f"http://127.0.0.1:{receiver.port}/records"
    async with receiving(receiver, Journal()) as intake:
        async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client:
            for kind in ("image/png", "application/json", "image/png", "text/plain"):
                await client.post(place, content=b"{", headers={"content-type": kind})
        refused = intake.rejections.drain()
    assert refused
    assert refused.counts == {"HTTP 415": 2, "HTTP 400": 1}
    assert "Content-Type must be" in refused.last


@in_loop
async def test_requests_for_which_there_is_no_place_are_counted() -> None:
    receiver = HttpReceiver(HttpSettings(port=0, max_connections=1)).listen()
    journal = Journal()
    journal.going.clear()
    async with receiving(receiver, journal) as intake:
        reader, busy = await asyncio.open_connection("127.0.0.1", receiver.port)
        busy.write(b"POST /records HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n")
        busy.write(b"content-length: 1\r\n\r\na")
        await until(lambda: intake.statistics.held_bytes)
        other, second = await asyncio.open_connection("127.0.0.1", receiver.port)
        assert (await other.read()).startswith(b"HTTP/1.1 503")
        refused = intake.rejections.drain()
        journal.going.set()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        for writer in (busy, second):
            writer.transport.abort()
    assert refused
    assert refused.counts == {"HTTP 503": 1}


@in_loop
async def test_refused_senders_of_lines_are_counted_and_those_whose_lines_were_not_stored() -> None:
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
