"""Receivers within TLS, on real sockets: senders, their certificates, and handshakes that fail."""

import asyncio
import contextlib
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from tests.journal.receivers.serving import (
    BYTES,
    DEADLINE_S,
    TOKEN,
    Journal,
    in_loop,
    receiving,
    until,
)
from tests.services.certificates import Authority

from headrace.journal.receivers import (
    HttpReceiver,
    HttpSettings,
    Intake,
    TcpReceiver,
    TcpSettings,
    TlsFiles,
)
from headrace.journal.receivers.access import Access

Make = Callable[..., HttpReceiver | TcpReceiver]


class Place:
    """An authority, the files of a receiver, and what senders trust and show."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.server = self.authority.issue("server")
        self.sender = self.authority.issue("sender")

    def trusting(self, *, showing: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.ca)
        if showing:
            context.load_cert_chain(*self.sender)
        return context


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@asynccontextmanager
async def serving(
    receiver: HttpReceiver | TcpReceiver,
) -> AsyncIterator[tuple[Journal, Intake]]:
    journal = Journal()
    async with receiving(receiver.listen(), journal) as intake:
        yield journal, intake


def http(place: Place, ca: str | None = None, **settings: float) -> HttpReceiver:
    tls = TlsFiles(*place.server, ca)
    return HttpReceiver(HttpSettings(port=0, tls=tls, **settings), stop_s=DEADLINE_S)  # type: ignore[arg-type]


def tcp(place: Place, ca: str | None = None, **settings: float) -> TcpReceiver:
    tls = TlsFiles(*place.server, ca)
    settings = {"acknowledge": True} | settings
    return TcpReceiver(TcpSettings(port=0, tls=tls, **settings), stop_s=DEADLINE_S)  # type: ignore[arg-type]


async def post(port: int, context: ssl.SSLContext, body: bytes = b"21.5") -> int:
    async with httpx.AsyncClient(verify=context, trust_env=False, timeout=DEADLINE_S) as client:
        url = f"https://127.0.0.1:{port}/records"
        return (await client.post(url, content=body, headers=BYTES)).status_code


@in_loop
async def test_records_come_over_https(place: Place) -> None:
    receiver = http(place)
    async with serving(receiver) as (journal, _):
        large = b"x" * 3_000_000
        assert await post(receiver.port, place.trusting()) == 200
        assert await post(receiver.port, place.trusting(), large) == 200
        assert journal.values == [b"21.5", large]


@in_loop
async def test_a_sender_that_goes_while_it_is_answered_leaves_no_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = http(place)
    async with serving(receiver) as (journal, intake):
        journal.going.clear()
        _, writer = await asyncio.open_connection(
            "127.0.0.1", receiver.port, ssl=place.trusting(), server_hostname="localhost"
        )
        writer.write(
            b"POST /records HTTP/1.1\r\nhost: a\r\ncontent-type: text/plain\r\n"
            b"content-length: 1\r\n\r\na"
        )
        await until(lambda: intake.statistics.reserved_bytes)
        writer.close()
        await writer.wait_closed()
        journal.going.set()
        await until(lambda: journal.values == [b"a"])
    assert not caplog.records


@in_loop
async def test_lines_come_over_tls_and_are_acknowledged(place: Place) -> None:
    receiver = tcp(place)
    async with serving(receiver) as (journal, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", receiver.port, ssl=place.trusting()
        )
        lines = b"".join(b"%d\n" % number for number in range(200_000))
        writer.write(lines)
        acknowledged = 0
        while acknowledged < 200_000:
            acknowledged += int((await reader.readline()).split()[1])
        assert journal.values == lines.split()
        writer.close()
        await writer.wait_closed()


@in_loop
async def test_a_proxy_header_comes_before_the_handshake(place: Place) -> None:
    receiver = tcp(place, proxy_protocol=True)
    async with serving(receiver) as (journal, intake):
        loop = asyncio.get_running_loop()
        for header in (b"PROXY TCP4 10.0.0.1 10.0.0.2 4711 7070\r\n", b""):
            connection = socket.create_connection(("127.0.0.1", receiver.port))
            connection.setblocking(False)
            await loop.sock_sendall(connection, header)
            opening = asyncio.open_connection(
                sock=connection, ssl=place.trusting(), server_hostname="localhost"
            )
            if not header:
                with pytest.raises(OSError):
                    await opening
                break
            reader, writer = await opening
            writer.write(b"a\n")
            assert await reader.readline() == b"ok 1\n"
            writer.close()
        assert journal.values == [b"a"]
        counted = intake.rejections.drain()
        assert counted
        assert counted.last.startswith("The connection does not begin with a PROXY header")


@in_loop
async def test_what_is_wrong_with_a_line_is_said_within_tls(place: Place) -> None:
    receiver = tcp(place, max_line_bytes=5)
    async with serving(receiver) as (journal, _):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", receiver.port, ssl=place.trusting()
        )
        writer.write(b"good\nmuch too long\n")
        assert (await reader.readline(), (await reader.readline())[:21]) == (
            b"ok 1\n",
            b"error Line 2 is longe",
        )
        assert await reader.read() == b""
        assert journal.values == [b"good"]
        writer.close()


@in_loop
async def test_lines_without_an_acknowledgement_at_the_end_of_the_receiver_get_one(
    place: Place,
) -> None:
    receiver, journal = tcp(place), Journal()
    journal.going.clear()
    running = receiving(receiver.listen(), journal)
    intake = await running.__aenter__()
    reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port, ssl=place.trusting())
    writer.write(b"1\n2\n")
    await until(lambda: intake.statistics.reserved_bytes)
    ending = asyncio.create_task(running.__aexit__(None, None, None))
    journal.going.set()
    assert await reader.read() == b"ok 2\n"
    writer.close()
    await ending


@pytest.mark.parametrize("make", [http, tcp])
def test_a_sender_must_show_a_certificate_of_the_authorities(place: Place, make: Make) -> None:
    @in_loop
    async def story() -> None:
        receiver = make(place, place.authority.ca)
        async with serving(receiver) as (journal, intake):
            shown = await asyncio.open_connection(
                "127.0.0.1", receiver.port, ssl=place.trusting(showing=True)
            )
            if isinstance(receiver, HttpReceiver):
                assert await post(receiver.port, place.trusting(showing=True)) == 200
                with pytest.raises((httpx.TransportError, ssl.SSLError)):
                    await post(receiver.port, place.trusting())
            else:
                shown[1].write(b"21.5\n")
                assert await shown[0].readline() == b"ok 1\n"
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", receiver.port, ssl=place.trusting()
                )
                with contextlib.suppress(OSError):  # asyncio's TLS closes without an alert
                    writer.write(b"21.6\n")
                    assert await reader.read() == b""
            shown[1].close()
            assert journal.values == [b"21.5"]
            counted = intake.rejections.drain()
            assert counted
            assert counted.counts == {"TLS": 1}
            assert "peer did not return a certificate" in counted.last

    story()


@pytest.mark.parametrize("make", [http, tcp])
def test_what_is_no_tls_gets_no_answer_and_is_counted(place: Place, make: Make) -> None:
    @in_loop
    async def story() -> None:
        receiver = make(place)
        async with serving(receiver) as (journal, intake):
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b"HTTP" not in await reader.read()
                writer.close()
            counted = intake.rejections.drain()
            assert counted
            assert counted.counts == {"TLS": 3}
            assert journal.values == []

    story()


@pytest.mark.parametrize(("make", "settings"), [(http, {"header_s": 0.2}), (tcp, {"line_s": 0.2})])
def test_a_handshake_that_does_not_end_is_ended(
    place: Place, make: Make, settings: dict[str, float]
) -> None:
    @in_loop
    async def story() -> None:
        receiver = make(place, **settings)
        async with serving(receiver) as (_, intake):
            reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
            writer.write(b"\x16\x03\x01")
            await reader.read()
            await until(intake.rejections.drain)
            writer.close()

    story()


@pytest.mark.parametrize("make", [http, tcp])
def test_handshakes_take_places_and_no_more_connections_are_let_in(
    place: Place, make: Make
) -> None:
    @in_loop
    async def story() -> None:
        receiver = make(place, max_connections=2)
        async with serving(receiver) as (_, intake):
            silent = [await asyncio.open_connection("127.0.0.1", receiver.port) for _ in range(2)]
            await asyncio.sleep(0)
            with contextlib.suppress(OSError):  # its handshake is not answered
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", receiver.port, ssl=place.trusting()
                )
                await reader.read()
                writer.close()
            assert intake.rejections.totals["no place"] == 1
            for _, writer in silent:
                writer.close()

    story()


@pytest.mark.parametrize("make", [http, tcp])
def test_connections_that_send_nothing_take_little_memory(place: Place, make: Make) -> None:
    @in_loop
    async def story() -> None:
        receiver = make(place)
        async with serving(receiver):
            context = place.trusting()
            _, first = await asyncio.open_connection("127.0.0.1", receiver.port, ssl=context)
            tracemalloc.start()
            try:
                opened = [
                    await asyncio.open_connection("127.0.0.1", receiver.port, ssl=context)
                    for _ in range(40)
                ]
                taken_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            for writer in (first, *(each for _, each in opened)):
                writer.transport.abort()
        # Both ends are here, each with asyncio's own buffer of 256 KiB.
        assert taken_bytes / 40 < 600_000

    story()


@in_loop
async def test_a_certificate_that_is_replaced_is_used_for_the_next_connection(
    place: Place,
) -> None:
    receiver = HttpReceiver(HttpSettings(port=0, tls=TlsFiles(*place.server)))
    async with serving(receiver):
        before = place.trusting()

        async def status(context: ssl.SSLContext) -> int:
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                url = f"https://127.0.0.1:{receiver.port}/records"
                return (await client.post(url, content=b"1", headers=BYTES)).status_code

        assert await status(before) == 200
        renewed = Authority(place.folder, "renewed")
        renewed.issue("server")
        after = ssl.create_default_context(cafile=renewed.ca)
        assert await status(after) == 200
        with pytest.raises(httpx.ConnectError):
            await status(before)


@pytest.mark.parametrize(
    ("begins", "why"),
    [(timedelta(days=-3), "has expired"), (timedelta(days=1), "is not valid yet")],
)
def test_a_certificate_out_of_its_time_is_said_at_the_start_and_refused_later(
    place: Place, begins: timedelta, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = TcpSettings(port=0, tls=TlsFiles(*place.server, place.authority.ca))
    access = Access(settings)
    good = access.context
    place.authority.issue("server", begins)
    assert access.context is good
    assert f"server.pem {why}. The previous certificate stays" in caplog.text
    Access(settings)
    assert f"server.pem {why}; clients will refuse it" in caplog.text


def test_no_token_is_shown_by_settings() -> None:
    assert TOKEN not in repr(TcpSettings(token=TOKEN))
