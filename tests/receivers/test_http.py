"""Records over HTTP, on real sockets."""

import asyncio
import gzip
import json
import logging
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.receivers.serving import (
    DEADLINE_S,
    Journal,
    comparisons,
    is_closed,
    receiving,
    run,
    until,
)

from headgate.errors import JournalError, OptionError, ReceiverError
from headgate.receivers import HttpReceiver, HttpSettings, Intake, IntakeSettings

_TOKEN = "s3cret"  # noqa: S105
_LINES = {"content-type": "application/x-ndjson"}
_BYTES = {"content-type": "application/octet-stream"}
_JSON = {"content-type": "application/json"}


class Served:
    """A receiver at work, its journal and a client."""

    def __init__(self, port: int, journal: Journal, intake: Intake) -> None:
        self.port = port
        self.journal = journal
        self.intake = intake
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S, trust_env=False
        )

    async def post(self, body: Any, headers: dict[str, str], **more: str) -> httpx.Response:
        return await self.client.post("/records", content=body, headers=headers | more)

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def served(
    intake_settings: IntakeSettings | None = None, **settings: Any
) -> AsyncIterator[Served]:
    receiver, journal = HttpReceiver(HttpSettings(port=0, **settings)).listen(), Journal()
    async with receiving(receiver, journal, intake_settings) as intake:
        it = Served(receiver.port, journal, intake)
        async with it.client:
            yield it


def test_a_request_is_answered_when_its_records_are_durable() -> None:
    async def work() -> None:
        async with served() as it:
            it.journal.going.clear()
            answer = asyncio.create_task(it.post(b"21.5", _BYTES))
            await until(lambda: it.intake.statistics.held_bytes)
            assert not answer.done()
            assert it.journal.values == []

            it.journal.going.set()
            assert (await answer).status_code == 200
            assert answer.result().json() == {"lane": 3, "first": 0, "until": 1}
            assert it.journal.values == [b"21.5"]
            assert (await it.client.get("/health")).json() == {"status": "ok"}

    run(work())


def test_each_content_type_gives_its_records() -> None:
    async def work() -> None:
        async with served() as it:
            for headers, body, expected in [
                (_JSON, b' {"a": 1.10}\n', [b'{"a": 1.10}']),
                (_JSON, b'[{"a":1}, 2, "x"]', [b'{"a":1}', b"2", b'"x"']),
                (_LINES, b'{"a":1}\r\n{"a":2}\n[3]', [b'{"a":1}', b'{"a":2}', b"[3]"]),
                (_BYTES, b"\x00\xff\n\n", [b"\x00\xff\n\n"]),
                (_BYTES, b"", [b""]),
                ({"content-type": "Text/Plain; charset=utf-8"}, b"a\nb", [b"a\nb"]),
            ]:
                before = len(it.journal.values)
                answer = await it.post(body, headers)
                assert answer.json() == {
                    "lane": 3,
                    "first": before,
                    "until": before + len(expected),
                }
                assert it.journal.values[before:] == expected

    run(work())


def test_a_key_is_given_to_all_records_of_a_request() -> None:
    async def work() -> None:
        async with served() as it:
            await it.post(b"1\n2\n", _LINES, **{"Headgate-Key": "sensor 7"})
            await it.post(b"3", _BYTES)
            assert it.journal.keys == [b"sensor 7", b"sensor 7", None]

    run(work())


def test_a_request_that_is_sent_again_with_its_id_is_stored_once() -> None:
    async def work() -> None:
        async with served() as it:
            one = {"Headgate-Message-Id": "m-1"}
            assert (await it.post(b"a", _BYTES, **one)).json()["first"] == 0
            again = await it.post(b"a", _BYTES, **one)
            assert again.json() == {"lane": 3, "first": 0, "until": 1, "duplicates": 1}

            many = {"Headgate-Message-Id": "m-2"}
            assert (await it.post(b"1\n2\n", _LINES, **many)).json()["until"] == 3
            again = await it.post(b"1\n2\n", _LINES, **many)
            assert again.json() == {"lane": 3, "first": 1, "until": 3, "duplicates": 2}
            assert it.journal.values == [b"a", b"1", b"2"]

            for wrong in ("", "x" * 201):
                answer = await it.post(b"b", _BYTES, **{"Headgate-Message-Id": wrong})
                assert answer.status_code == 400
                assert "1 to 200 characters" in answer.json()["error"]

    run(work())


def test_an_acknowledgement_that_is_lost_after_the_sync_leaves_one_record() -> None:
    async def work() -> None:
        async with served() as it:
            it.journal.going.clear()
            request = (
                b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
                b"headgate-message-id: m\r\ncontent-length: 1\r\n\r\na"
            )
            _, writer = await it.raw(request)
            await until(lambda: it.intake.statistics.held_bytes)
            writer.transport.abort()
            it.journal.going.set()
            again = await it.post(b"a", _BYTES, **{"Headgate-Message-Id": "m"})
            assert again.json() == {"lane": 3, "first": 0, "until": 1, "duplicates": 1}
            assert it.journal.values == [b"a"]

    run(work())


def test_what_is_malformed_or_not_understood_is_refused() -> None:
    async def work() -> None:
        async with served() as it:
            for status, headers, body, words in [
                (400, _LINES, b'{"a":1}\n{"b":\n', "Line 2 is not JSON"),
                (400, _LINES, b"1\n\n2\n", "Line 2 is not JSON"),
                (400, _LINES, b"", "no records"),
                (400, _JSON, b'{"a":', "not JSON"),
                (400, _JSON, b"[]", "no records"),
                (400, _JSON, b"", "not JSON"),
                (400, _JSON, b"\xff", "UTF-8"),
                (400, _JSON, b"[" * 200_000, "not JSON"),
                (400, _BYTES | {"content-encoding": "gzip"}, b"plain", "cannot be decompressed"),
                (400, _BYTES | {"content-encoding": "gzip"}, gzip.compress(b"a" * 99)[:-9], "off"),
                (415, _BYTES | {"content-encoding": "br"}, b"x", "gzip, deflate or identity"),
                (415, {"content-type": "application/xml"}, b"<a/>", "Content-Type must be"),
                (415, {}, b"x", "Content-Type must be"),
            ]:
                answer = await it.post(body, headers)
                assert answer.status_code == status, words
                assert words in answer.json()["error"]
            assert it.journal.values == []
            assert (await it.client.get("/records")).status_code == 405
            assert (await it.client.get("/../journal.json")).status_code == 404
            # The connection is as good as ever.
            assert (await it.post(b"a", _BYTES)).status_code == 200

    run(work())


def test_lines_are_taken_as_they_come_where_json_is_not_checked() -> None:
    async def work() -> None:
        async with served(check_json=False) as it:
            assert (await it.post(b"one\ntwo\n", _LINES)).status_code == 200
            assert it.journal.values == [b"one", b"two"]

    run(work())


def test_only_who_shows_the_token_is_let_in(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = comparisons(monkeypatch)

    async def work() -> None:
        async with served(token=_TOKEN) as it:
            for wrong in ("", "Bearer", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"):
                answer = await it.post(b"a", _BYTES, Authorization=wrong)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "s3cre" not in answer.text
            assert (await it.post(b"a", _BYTES)).status_code == 401
            assert it.journal.values == []
            answer = await it.post(b"a", _BYTES, Authorization="bearer s3cret")
            assert answer.status_code == 200
            assert (await it.client.get("/health")).status_code == 200

    assert _TOKEN not in repr(HttpSettings(token=_TOKEN))
    with caplog.at_level(logging.DEBUG):
        run(work())
    own = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert all("s3cre" not in record.getMessage() for record in own)
    # In constant time, whatever is shown.
    assert compared == [b"", b"", b"s3cre", b"s3crets", b"s3cret", b"", b"", b"s3cret"]


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    async def work() -> None:
        async with served(max_body_bytes=1_000) as it:
            assert (await it.post(b"x" * 1_000, _BYTES)).status_code == 200
            for body in (b"x" * 1_001, pieces()):
                answer = await it.post(body, _BYTES)
                assert answer.status_code == 413
                assert "more than the 1000 bytes" in answer.json()["error"]
            # What will be refused need not be sent.
            reader, writer = await it.raw(
                b"POST /records HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                b"content-type: text/plain\r\ncontent-length: 1000000000\r\n\r\n"
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
            writer.close()
            assert len(it.journal.values) == 1

    run(work())


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_is_decompressed(encoding: str) -> None:
    async def work() -> None:
        lines = b"".join(b'{"i":%d}\n' % i for i in range(50_000))
        body = gzip.compress(lines) if encoding == "gzip" else zlib.compress(lines)
        async with served() as it:
            answer = await it.post(body, _LINES | {"content-encoding": encoding})
            assert answer.json() == {"lane": 3, "first": 0, "until": 50_000}
            assert it.journal.values == lines.splitlines()
            if encoding == "gzip":  # a file may have several members
                parts = gzip.compress(b"a") + gzip.compress(b"") + gzip.compress(b"b")
                await it.post(parts, _BYTES | {"content-encoding": encoding})
                assert it.journal.values[-1] == b"ab"

    run(work())


def bomb(megabytes: int) -> bytes:
    """So many megabytes of nothing, of which each is compressed apart and so the same bytes."""
    compressor = zlib.compressobj(9, wbits=-15)
    megabyte = compressor.compress(bytes(1_000_000)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return gzip.compress(b"")[:10] + megabyte * megabytes


def test_a_gzip_bomb_is_refused_and_takes_bounded_memory() -> None:
    async def work() -> None:
        body = bomb(1_000)
        limit = 4_000_000
        async with served(max_decompressed_bytes=limit) as it:
            await it.post(b"warm", _BYTES)
            tracemalloc.start()
            try:
                answer = await it.post(body, _BYTES | {"content-encoding": "gzip"})
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer.status_code == 413
            assert f"more than the {limit} bytes" in answer.json()["error"]
            assert most < 4 * limit + 4 * len(body)
            assert (await it.post(b"a", _BYTES)).status_code == 200

    run(work())


def test_under_backpressure_requests_are_told_when_to_come_back() -> None:
    async def work() -> None:
        async with served(wait_s=0) as it:
            it.intake.set_rate(0.01)
            assert (await it.post(b"a", _BYTES)).status_code == 200
            answer = await it.post(b"b", _BYTES)
            assert answer.status_code == 429
            assert 90 <= int(answer.headers["retry-after"]) <= 100
            assert "send it again in" in answer.json()["error"]

            it.intake.set_rate(1_000_000)
            assert (await it.post(b"b", _BYTES)).status_code == 200
            assert it.journal.values == [b"a", b"b"]

    run(work())


def test_while_the_buffer_is_full_requests_are_told_to_come_back() -> None:
    async def work() -> None:
        settings = IntakeSettings(block_interval_ms=10, block_bytes=1_000, buffer_bytes=1_000)
        async with served(settings) as it:
            it.journal.going.clear()
            first = asyncio.create_task(it.post(b"x" * 600, _BYTES))
            await until(lambda: it.intake.statistics.held_bytes)
            answer = await it.post(b"y" * 600, _BYTES)
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            it.journal.going.set()
            assert (await first).status_code == 200
            # What never fits is another matter.
            assert (await it.post(b"y" * 1_200, _BYTES)).status_code == 413
            assert it.journal.values == [b"x" * 600]

    run(work())


def _bounded(body: int, bodies: int) -> dict[str, Any]:
    return {"max_body_bytes": body, "max_decompressed_bytes": body, "bodies_bytes": bodies}


def test_bodies_that_are_on_their_way_take_bounded_memory() -> None:
    async def work() -> None:
        async with served(**_bounded(60_000, 130_000)) as it:
            slow = []
            head = (
                b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
                b"content-length: 60000\r\n\r\n"
            )
            answers = []
            for _ in range(4):
                slow.append(await it.raw(head + b"x" * 50_000))
                answers.append(asyncio.create_task(slow[-1][0].readline()))
            # Two fit and wait for the rest of their bodies; the others are refused.
            await until(lambda: sum(answer.done() for answer in answers) == 2)
            refused = [answer.result() for answer in answers if answer.done()]
            assert [line[:12] for line in refused] == [b"HTTP/1.1 429"] * 2
            for (_, writer), answer in zip(slow, answers, strict=True):
                if not answer.done():
                    writer.write(b"x" * 10_000)
                    assert (await answer)[:12] == b"HTTP/1.1 200"
                writer.close()
            assert (await it.post(b"x" * 60_000, _BYTES)).status_code == 200

    run(work())


def test_a_failed_append_is_answered_503_and_the_next_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with served() as it:
            it.journal.failures = [JournalError("The disk is full; make room.")]
            answer = await it.post(b"a", _BYTES)
            assert answer.status_code == 503
            assert answer.json() == {"error": "The disk is full; make room."}
            assert (await it.post(b"a", _BYTES)).json() == {"lane": 3, "first": 0, "until": 1}

    with caplog.at_level(logging.ERROR, "headgate.receivers"):
        run(work())
    assert "The disk is full" in caplog.text


def test_while_the_intake_closes_requests_are_answered_503() -> None:
    async def work() -> None:
        async with served() as it:
            await it.intake.close()
            answer = await it.post(b"a", _BYTES)
            assert answer.status_code == 503
            assert "send them again later" in answer.json()["error"]

    run(work())


def test_a_stop_answers_what_is_in_the_buffer() -> None:
    async def work() -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
            async with served() as it:
                it.journal.going.clear()
                url = f"http://127.0.0.1:{it.port}/records"
                answer = asyncio.create_task(client.post(url, content=b"a", headers=_BYTES))
                await until(lambda: it.intake.statistics.held_bytes)
                asyncio.get_running_loop().call_later(0.01, it.journal.going.set)
            assert (await answer).status_code == 200
            assert it.journal.values == [b"a"]

    run(work())


def test_a_sender_that_goes_before_its_answer_makes_a_place() -> None:
    async def work() -> None:
        async with served(max_connections=1) as it:
            it.journal.going.clear()
            _, writer = await it.raw(
                b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
                b"content-length: 1\r\n\r\na"
            )
            await until(lambda: it.intake.statistics.held_bytes)
            writer.transport.abort()
            it.journal.going.set()
            while (await it.client.get("/health")).status_code != 200:
                await asyncio.sleep(0)  # until the receiver has noticed

    run(work())


def test_five_hundred_half_open_connections_do_not_keep_good_ones_out() -> None:
    async def work() -> None:
        async with served(max_connections=300, header_s=1_000) as it:
            assert (await it.post(b"first", _BYTES)).status_code == 200
            half_open = [socket.socket() for _ in range(500)]
            try:
                for place, connection in enumerate(half_open):
                    connection.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(connection, ("127.0.0.1", it.port))
                    if place % 2:
                        await loop.sock_sendall(connection, b"POST /records HTTP/1.1\r\nhost:")
                async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as late:
                    url = f"http://127.0.0.1:{it.port}/records"
                    answer = await late.post(url, content=b"late", headers=_BYTES)
                    assert answer.status_code == 200
                assert it.journal.values == [b"first", b"late"]
                await until(lambda: is_closed(half_open[0]))
            finally:
                for connection in half_open:
                    connection.close()

    run(work())


def test_when_all_places_are_busy_another_sender_is_refused() -> None:
    async def work() -> None:
        async with served(max_connections=1) as it:
            it.journal.going.clear()
            busy = asyncio.create_task(it.post(b"a", _BYTES))
            await until(lambda: it.intake.statistics.held_bytes)
            reader, writer = await it.raw(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
            writer.close()
            it.journal.going.set()
            assert (await busy).status_code == 200

    run(work())


def test_headers_that_take_too_long_or_too_much_are_refused() -> None:
    async def work() -> None:
        async with served(header_s=0.2, max_header_bytes=2_000) as it:
            silent, one = await it.raw(b"")
            slow, other = await it.raw(b"POST /records HTTP/1.1\r\nhost: x\r\n")
            again, third = await it.raw(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await silent.read()).startswith(b"HTTP/1.1 408 ")
            assert (await slow.read()).startswith(b"HTTP/1.1 408 ")
            # Its first request is answered; the second one never comes.
            answers = await again.read()
            assert answers.startswith(b"HTTP/1.1 200 ")
            assert b"HTTP/1.1 408 " in answers
            large, fourth = await it.raw(b"GET /health HTTP/1.1\r\nx: " + b"y" * 5_000)
            assert (await large.readline()).startswith(b"HTTP/1.1 400 ")
            for writer in (one, other, third, fourth):
                writer.close()

    run(work())


def test_a_body_that_takes_too_long_is_refused() -> None:
    async def work() -> None:
        async with served(body_s=0.2) as it:
            reader, writer = await it.raw(
                b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
                b"content-length: 100\r\n\r\nabc"
            )
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"connection: close" in answer
            writer.close()
            assert it.journal.values == []

    run(work())


def test_a_sender_that_goes_in_the_middle_of_its_body_leaves_nothing_behind() -> None:
    async def work() -> None:
        async with served(**_bounded(1_000, 1_000)) as it:
            for _ in range(5):
                _, writer = await it.raw(
                    b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
                    b"content-length: 1000\r\n\r\n" + b"x" * 900
                )
                writer.close()
                await writer.wait_closed()
            # As soon as the receiver has noticed.
            while (await it.post(b"y" * 1_000, _BYTES)).status_code != 200:
                await asyncio.sleep(0)

    run(work())


def test_a_port_that_is_taken_is_refused_with_a_sentence() -> None:
    async def work() -> None:
        async with served() as it:
            assert (await it.client.get("/health")).status_code == 200
            with pytest.raises(ReceiverError, match=rf"Port {it.port} of '127.0.0.1' cannot be"):
                HttpReceiver(HttpSettings(port=it.port)).listen()

    run(work())


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65_536},
        {"wait_s": -1},
        {"max_header_bytes": 0},
        {"header_s": 0},
        {"max_body_bytes": 0},
        {"max_decompressed_bytes": 0},
        {"body_s": float("nan")},
        {"bodies_bytes": 1_000},
        {"max_connections": 0},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"^{next(iter(wrong))} is "):
        HttpSettings(**wrong)


def test_answers_are_json_with_one_sentence() -> None:
    async def work() -> None:
        async with served() as it:
            answer = await it.post(b"{", _JSON)
            assert answer.headers["content-type"] == "application/json"
            assert list(json.loads(answer.content)) == ["error"]

    run(work())
