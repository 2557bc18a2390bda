"""Each refusal of the HTTP receiver is JSON with one sentence, whoever refuses; raw bytes on a
socket."""

import asyncio
import json
from typing import NamedTuple

import pytest
from tests.receivers.serving import in_loop
from tests.receivers.web import Served, served

from headrace.journal.records import Records


class Answer(NamedTuple):
    """The first response on a connection."""

    status: int
    headers: dict[str, str]
    error: str


async def answer_to(it: Served, data: bytes) -> Answer:
    """Send bytes on a connection of their own."""
    reader, writer = await it.raw(data)
    found = await first_answer(reader)
    writer.close()
    return found


async def first_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
    }
    if headers.get("transfer-encoding") == "chunked":
        size = int(await reader.readline(), 16)
    else:
        size = int(headers["content-length"])
    body = json.loads(await reader.readexactly(size))
    assert list(body) == ["error"]
    assert headers["content-type"] == "application/json"
    return Answer(int(head[0].split()[1]), headers, body["error"])


POST = b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"


@pytest.mark.parametrize("body", [b"", b"a record that nobody said the length of"])
@in_loop
async def test_a_body_of_unknown_length_is_refused_and_stores_nothing(body: bytes) -> None:
    async with served() as it:
        answer = await answer_to(it, POST + b"\r\n" + body)
        assert answer.status == 411
        assert "Content-Length" in answer.error
        assert it.journal.values == []
        assert (await it.post(b"", {"content-type": "text/plain"})).status_code == 200
        assert it.journal.values == [b""]


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"no HTTP at all\r\n\r\n", 400, "not well-formed HTTP/1.1"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "not well-formed HTTP/1.1"),
        (POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "not well-formed"),
        (POST + b"content-length: many\r\n\r\n", 400, "not well-formed"),
        (POST + b"transfer-encoding: chunked\r\n\r\nno chunk\r\n", 400, "not well-formed"),
        (POST + b"transfer-encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 5_000, 431, "more than 2000 bytes"),
        (b"HEADLESS", 408, "within 0.2 s"),
        (b"POST /records/ HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n", 404, "/r"),
        (b"GET /health/ HTTP/1.1\r\nhost: evil.example\r\n\r\n", 404, "GET /health"),
        (b"POST /elsewhere HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 404, "/records"),
        (b"GET /records HTTP/1.1\r\nhost: x\r\n\r\n", 405, "POST"),
    ],
)
@in_loop
async def test_whoever_refuses_says_why_in_json(data: bytes, status: int, said: str) -> None:
    async with served(header_s=0.2, max_header_bytes=2_000) as it:
        answer = await answer_to(it, data)
        assert answer.status == status
        assert said in answer.error
        assert answer.error.endswith(".")
        assert "location" not in answer.headers
        assert it.journal.values == []
        refused = it.intake.rejections.drain()
        if status == 408:  # as of every connection that is kept open and not used any more
            assert refused is None
        else:
            assert refused is not None
            assert refused.counts == {f"HTTP {status}": 1}
            assert refused.last == answer.error


@in_loop
async def test_a_method_that_is_refused_is_told_which_are_allowed() -> None:
    async with served() as it:
        answer = await answer_to(it, b"GET /records HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer.headers["allow"] == "POST"


@in_loop
async def test_a_sender_without_a_place_is_told_in_json() -> None:
    async with served(max_connections=1) as it:
        it.journal.going.clear()
        busy, writer = await it.raw(POST + b"content-length: 1\r\n\r\na")
        while not it.intake.statistics.held_bytes:
            await asyncio.sleep(0)
        answer = await answer_to(it, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        it.journal.going.set()
        assert (await busy.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@in_loop
async def test_a_defect_of_the_receiver_is_told_in_json() -> None:
    class Broken:
        """An intake that nothing can be offered to."""

        def offer(self, records: Records, wait_s: float) -> None:
            raise ZeroDivisionError("a defect")

    async with served() as it:
        it.intake.try_submit = Broken().offer  # type: ignore[method-assign, assignment]
        answer = await answer_to(it, POST + b"content-length: 1\r\n\r\na")
        assert answer.status == 500
        assert "the receiver's log" in answer.error


@pytest.mark.parametrize("path", [b"/records", b"/elsewhere"])
@in_loop
async def test_a_bad_chunk_after_the_answer_closes_the_connection_and_says_no_more(
    path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """One answer came; a second one to the same request would be taken for another's."""
    start = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-type: none/such\r\n"
    async with served() as it:
        reader, writer = await it.raw(start + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        assert (await first_answer(reader)).status in (404, 415)
        writer.write(b"no chunk\r\n")
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
    assert caplog.messages == []
