"""Lines over TCP, on real sockets."""

import asyncio
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.journal.receivers.serving import (
    DEADLINE_S,
    Journal,
    comparisons,
    in_loop,
    receiving,
    run,
    until,
)

from headrace.errors import JournalError, ReceiverError
from headrace.journal.receivers import IntakeSettings, TcpReceiver, TcpSettings

_TOKEN = "s3cret"  # noqa: S105


class Client:
    """A sender of lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> str:
        return (await self.reader.readline()).decode().rstrip("\n")

    async def acknowledged(self, count: int) -> None:
        """Read acknowledgements until they come to this many lines."""
        while count > 0:
            word, lines = (await self.answer()).split()
            assert word == "ok"
            count -= int(lines)
        assert count == 0

    async def end(self) -> list[str]:
        """Send no more, and read all there is to come."""
        self.writer.write_eof()
        return (await self.reader.read()).decode().splitlines()


@asynccontextmanager
async def connected(receiver: TcpReceiver) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def tcp(**settings: object) -> TcpReceiver:
    defaults: dict[str, object] = {"port": 0, "acknowledge": True}
    made = TcpSettings(**(defaults | settings))  # type: ignore[arg-type]
    return TcpReceiver(made, stop_s=DEADLINE_S).listen()


@in_loop
async def test_lines_are_acknowledged_when_they_are_durable() -> None:
    journal, receiver = Journal(), tcp()
    async with receiving(receiver, journal), connected(receiver) as client:
        journal.going.clear()
        await client.send(b"a\nb\r\n\nunfin")
        answer = asyncio.create_task(client.answer())
        await until(lambda: receiver.port)
        assert not answer.done()
        assert journal.values == []

        journal.going.set()
        assert await answer == "ok 3"
        assert journal.values == [b"a", b"b", b""]
        await client.send(b"ished\n")
        assert await client.answer() == "ok 1"
        assert await client.end() == []
    assert journal.values == [b"a", b"b", b"", b"unfinished"]


@in_loop
async def test_without_acknowledge_nothing_is_answered() -> None:
    journal, receiver = Journal(), tcp(acknowledge=False)
    async with receiving(receiver, journal), connected(receiver) as client:
        await client.send(b"a\nb\n")
        assert await client.end() == []
        assert journal.values == [b"a", b"b"]


@in_loop
async def test_a_line_without_an_end_is_not_stored() -> None:
    journal, receiver = Journal(), tcp()
    async with receiving(receiver, journal), connected(receiver) as client:
        await client.send(b"whole\ncut of")
        assert await client.end() == [
            "ok 1",
            r"error Line 2 has no end, and was not stored; end every line with \n.",
        ]
    assert journal.values == [b"whole"]


@pytest.mark.parametrize("rest", [b"", b"\nafter\n"])
@in_loop
async def test_a_line_that_is_too_long_is_refused_and_those_before_it_stored(rest: bytes) -> None:
    journal, receiver = Journal(), tcp(max_line_bytes=100)
    async with receiving(receiver, journal), connected(receiver) as client:
        await client.send(b"x" * 100 + b"\r\n" + b"b\n" + b"y" * 102 + rest)
        await client.acknowledged(2)
        assert await client.answer() == (
            "error Line 3 is longer than the 100 bytes that a line may have; send it in parts,"
            " or raise max_line_bytes."
        )
        assert await client.reader.read() == b""
    assert journal.values == [b"x" * 100, b"b"]


@in_loop
async def test_a_line_without_end_takes_bounded_memory_and_is_refused() -> None:
    receiver = tcp(max_line_bytes=300_000)
    settings = IntakeSettings(block_bytes=1_000_000, max_memory_bytes=16 * 400_000)
    async with receiving(receiver, Journal(), settings):
        async with connected(receiver) as one, connected(receiver) as other:
            await one.send(b"x" * 290_000)
            other.writer.write(b"y" * 290_000)  # with the first one's more than all may have
            refused = asyncio.create_task(other.answer())
            refused_too = asyncio.create_task(one.answer())
            await asyncio.wait([refused, refused_too], return_when=asyncio.FIRST_COMPLETED)
            done = next(task for task in (refused, refused_too) if task.done())
            assert "limit of 400000 bytes" in done.result()
        async with connected(receiver) as client:
            await client.send(b"z" * 299_000 + b"\n")
            assert await client.answer() == "ok 1"


@in_loop
async def test_lines_that_are_not_json_are_refused_where_they_must_be() -> None:
    journal, receiver = Journal(), tcp(check_json=True)
    async with receiving(receiver, journal), connected(receiver) as client:
        await client.send(b'{"a":1}\n2\n{"b":\n{"c":3}\n')
        await client.acknowledged(2)
        assert (await client.answer()).startswith("error Line 3 is not JSON: ")
        assert await client.reader.read() == b""
    assert journal.values == [b'{"a":1}', b"2"]


@in_loop
async def test_only_senders_with_the_token_are_accepted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = comparisons(monkeypatch)
    caplog.set_level(logging.DEBUG)
    journal, receiver = Journal(), tcp(token=_TOKEN)
    assert _TOKEN not in repr(receiver.settings)
    async with receiving(receiver, journal):
        for first in (b"a\n", b"token s3cre\n", b"token s3crets\n", b"token \n", b"s3cret\n"):
            async with connected(receiver) as client:
                await client.send(first + b"b\n")
                assert await client.end() == [
                    "error The first line has no valid token; send 'token', a space and the token"
                    " first."
                ]
        assert journal.values == []
        async with connected(receiver) as client:
            await client.send(b"token s3cret\r\n")
            await client.send(b"c\n")
            assert await client.answer() == "ok 1"
        assert journal.values == [b"c"]
    assert "s3cre" not in caplog.text
    assert compared[:2] == [b"", b"s3cre"]
    assert len(compared) == 6


@in_loop
async def test_a_failed_append_ends_the_connection_and_the_next_one_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "headrace.receivers")
    journal, receiver = Journal(), tcp()
    journal.failures = [JournalError("The disk is full; make room.")]
    async with receiving(receiver, journal):
        async with connected(receiver) as client:
            await client.send(b"a\n")
            assert await client.answer() == "error The disk is full; make room."
            assert await client.reader.read() == b""
        async with connected(receiver) as client:
            await client.send(b"a\n")
            assert await client.answer() == "ok 1"
    assert journal.values == [b"a"]
    assert "The disk is full" in caplog.text


@in_loop
async def test_a_stop_acknowledges_what_is_in_the_buffer() -> None:
    journal, receiver = Journal(), tcp()
    async with connected(receiver) as client:  # not accepted yet
        async with receiving(receiver, journal):
            journal.going.clear()
            await client.send(b"a\nb\n")
            await until(lambda: journal.begun)
            asyncio.get_running_loop().call_later(0.01, journal.going.set)
        assert await client.answer() == "ok 2"
        assert await client.reader.read() == b""
    assert journal.values == [b"a", b"b"]


@in_loop
async def test_lines_are_acknowledged_as_they_are_stored_while_the_rest_waits_for_the_rate() -> (
    None
):
    journal, receiver = Journal(), tcp()
    async with connected(receiver) as client:
        async with receiving(receiver, journal) as intake:
            intake.set_rate(200)
            await client.send(b"".join(b"%d\n" % number for number in range(5_000)))
            await client.acknowledged(200)  # the burst of a second
            await client.acknowledged(20)  # what a tenth of a second admits
            await until(lambda: intake.statistics.waiting_records)
        # The end is clean: what is stored is acknowledged, and what waited is not stored.
        answers = (await client.reader.read()).decode().splitlines()
        assert all(answer.startswith("ok ") for answer in answers)
        said = 220 + sum(int(answer.removeprefix("ok ")) for answer in answers)
    assert journal.values == [b"%d" % number for number in range(said)]
    assert said < 5_000


@in_loop
async def test_lines_that_are_sent_again_with_their_ids_are_stored_once() -> None:
    journal, receiver = Journal(), tcp(id_field="id")
    lines = [b'{"id":%d,"value":"x"}' % number for number in range(10)]
    async with receiving(receiver, journal) as intake:
        for again in (lines[:6], lines[3:], lines):
            async with connected(receiver) as client:
                await client.send(b"\n".join(again) + b"\n")
                await client.acknowledged(len(again))
        assert intake.statistics.duplicate_records == 13
    assert journal.values == lines


@in_loop
async def test_a_line_without_an_id_is_refused_and_those_before_it_stored() -> None:
    journal, receiver = Journal(), tcp(id_field="event")
    async with receiving(receiver, journal), connected(receiver) as client:
        await client.send(b'{"event":"a"}\n{"event":7}\n{"id":1}\n{"event":"b"}\n')
        await client.acknowledged(2)
        assert (await client.answer()).startswith(
            "error Line 3 has no message id: it must be a JSON object whose field 'event' is"
        )
        assert await client.reader.read() == b""
    assert journal.values == [b'{"event":"a"}', b'{"event":7}']


@in_loop
async def test_a_sender_that_is_too_fast_is_not_read_from_and_memory_stays_bounded() -> None:
    journal, receiver = Journal(), tcp(acknowledge=False)
    bound = 4_000_000
    settings = IntakeSettings(
        block_interval_ms=10, block_bytes=bound // 4, max_memory_bytes=4 * bound
    )
    line = b"x" * 199 + b"\n"
    async with receiving(receiver, journal, settings) as intake, connected(receiver) as client:
        journal.going.clear()
        sent = 0
        tracemalloc.start()

        async def send() -> None:
            nonlocal sent
            for _ in range(400):  # 16 MB
                await client.send(line * 200)
                sent += 200

        sending = asyncio.create_task(send())
        await until(lambda: intake.statistics.reserved_bytes > bound * 0.7)
        before = -1
        while sent != before:  # until no more can be sent
            before = sent
            await asyncio.wait([sending], timeout=0.3)
        assert not sending.done()
        assert intake.statistics.reserved_bytes <= bound
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # Besides the buffer, what is being read, and what the sender in this process holds.
        assert most < bound + 3_000_000

        journal.going.set()
        await sending
        await client.end()
        assert len(journal.values) == sent == 80_000
        assert intake.statistics.reserved_bytes == 0


@in_loop
async def test_many_senders_that_have_to_wait_take_no_more_memory_than_a_few() -> None:
    journal, receiver = Journal(), tcp(acknowledge=False)
    bound = 8_500_000  # of which a hundred connections are a part
    settings = IntakeSettings(block_interval_ms=10, block_bytes=bound, max_memory_bytes=4 * bound)
    chunk = (b"x" * 199 + b"\n") * 1_300
    senders = [socket.socket() for _ in range(100)]
    try:
        async with receiving(receiver, journal, settings) as intake:
            journal.going.clear()
            tracemalloc.start()
            for sender in senders:
                sender.connect(("127.0.0.1", receiver.port))
                sender.setblocking(False)
                sender.send(chunk)
            await until(lambda: intake.statistics.reserved_bytes > bound * 0.7)
            for _ in range(200):  # every one of them has had its turn
                await asyncio.sleep(0)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < bound + 16 * 3 * len(chunk)
            journal.going.set()
    finally:
        for sender in senders:
            sender.close()


@in_loop
async def test_a_sender_may_have_any_number_of_answers() -> None:
    receiver = tcp()
    settings = IntakeSettings(block_interval_ms=0.1)
    async with receiving(receiver, Journal(), settings), connected(receiver) as client:
        for _ in range(600):
            await client.send(b"a\n")
            assert await client.answer() == "ok 1"


@in_loop
async def test_a_line_that_takes_too_long_is_refused_and_silence_between_lines_is_not() -> None:
    receiver = tcp(line_s=0.2)
    serving = receiving(receiver, Journal())
    async with serving, connected(receiver) as silent, connected(receiver) as slow:
        await slow.send(b"a\n")
        assert await slow.answer() == "ok 1"
        assert (await silent.answer()).startswith("error Line 1 was not complete after 0.2")
        await slow.send(b"b\n")
        assert await slow.answer() == "ok 1"
        await slow.send(b"c")
        assert (await slow.answer()).startswith("error Line 3 was not complete after 0.2")


def test_a_port_that_is_taken_is_refused_with_a_sentence() -> None:
    receiver = tcp()
    with pytest.raises(
        ReceiverError, match=rf"cannot listen on port {receiver.port} of host '127.0.0.1'"
    ):
        tcp(port=receiver.port)
    with pytest.raises(ReceiverError, match="cannot listen on port 0 of host 'no such host'"):
        tcp(host="no such host")
    run(stopped(receiver))


PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\1\x7f\0\0\1\x1f\x90\x1b\x9e"


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 4711 7070\r\n", "a header of the PROXY protocol"),
        (b"PROXY TCP6 ::1 ::1 4711 7070\r\n", "a header of the PROXY protocol"),
        (b"PROXY UNKNOWN\r\n", "a header of the PROXY protocol"),
        (PROXY_2, "a header of the PROXY protocol"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", "an HTTP request"),
        (b"POST /records?a=b HTTP/1.0\n\n", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP request"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\n", "TLS"),
    ],
)
@pytest.mark.parametrize("is_cut", [False, True])
@in_loop
async def test_a_connection_that_begins_with_another_protocol_is_refused_and_stores_nothing(
    begin: bytes, words: str, *, is_cut: bool
) -> None:
    receiver, journal = tcp(), Journal()
    async with receiving(receiver, journal), connected(receiver) as it:
        if is_cut and begin != PROXY_2:  # which comes at once
            for place in range(12):
                await it.send(begin[place : place + 1])
                await asyncio.sleep(0)
            begin = begin[12:]
        await it.send(begin + b"a\nb\n")
        answer = await it.reader.read()
        assert answer.startswith(b"error Line 1 begins like " + words.encode() + b", not")
        assert answer.endswith(b".\n")
        assert journal.values == []


@pytest.mark.parametrize(
    "line",
    [b"PROXY", b"PROXY TCP", b"GET / HTTP", b"get / HTTP/1.1", b"\x16", b"\r", b"GET HTTP/1.1"],
)
@in_loop
async def test_a_line_that_only_looks_like_another_protocol_is_a_line(line: bytes) -> None:
    receiver, journal = tcp(), Journal()
    async with receiving(receiver, journal), connected(receiver) as it:
        await it.send(line + b"\nGET / HTTP/1.1\n")
        await it.acknowledged(2)
        assert journal.values == [line.removesuffix(b"\r"), b"GET / HTTP/1.1"]


HEADERS = (
    b"PROXY TCP4 10.0.0.1 10.0.0.2 4711 7070\r\n",
    b"PROXY UNKNOWN\r\n",
    PROXY_2,
    PROXY_2[:14] + b"\x01\0" + bytes(256),
)


@pytest.mark.parametrize("header", HEADERS)
@in_loop
async def test_a_proxy_header_is_taken_off_where_it_is_asked_for(header: bytes) -> None:
    receiver, journal = tcp(proxy_protocol=True), Journal()
    async with receiving(receiver, journal), connected(receiver) as it:
        for place in range(len(header)):
            await it.send(header[place : place + 1])
        await it.send(b"a\nPROXY UNKNOWN\n")
        await it.acknowledged(2)
        assert journal.values == [b"a", b"PROXY UNKNOWN"]


@pytest.mark.parametrize(
    "begin",
    [
        b"lines without a header\n",
        b"PROXY " + b"x" * 200 + b"\r\n",
        PROXY_2[:12] + b"\x11" + PROXY_2[13:] + b"a\n",
    ],
)
@in_loop
async def test_a_connection_without_the_proxy_header_that_was_asked_for_is_refused(
    begin: bytes,
) -> None:
    receiver, journal = tcp(proxy_protocol=True), Journal()
    async with receiving(receiver, journal), connected(receiver) as it:
        await it.send(begin)
        assert (await it.answer()).startswith(
            "error The connection does not begin with a PROXY header"
        )
        assert journal.values == []


async def stopped(receiver: TcpReceiver) -> None:
    async with receiving(receiver, Journal()), connected(receiver) as client:
        await client.send(b"a\n")
        assert await client.answer() == "ok 1"
