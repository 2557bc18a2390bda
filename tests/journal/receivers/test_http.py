"""Records over HTTP, on real sockets; every rejection is JSON with one sentence."""

import asyncio
import gzip
import json
import logging
from typing import NamedTuple

import httpx
import pytest
from tests.journal.receivers.serving import (
    BYTES,
    DEADLINE_S,
    JSON,
    LINES,
    POST,
    TOKEN,
    Served,
    comparisons,
    in_loop,
    served,
    until,
)

from headrace.errors import JournalError
from headrace.journal.receivers import HttpSettings
from headrace.journal.records import Records


@in_loop
async def test_a_request_is_answered_when_its_records_are_durable() -> None:
    async with served() as it:
        it.journal.going.clear()
        answer = asyncio.create_task(it.post(b"21.5", BYTES))
        await until(lambda: it.intake.statistics.reserved_bytes)
        assert not answer.done()
        assert it.journal.values == []

        it.journal.going.set()
        assert (await answer).status_code == 200
        assert answer.result().json() == {"lane": 3, "first": 0, "until": 1}
        assert it.journal.values == [b"21.5"]
        assert (await it.client.get("/health")).json() == {"status": "ok"}


@in_loop
async def test_each_content_type_gives_its_records() -> None:
    async with served() as it:
        for headers, body, expected in [
            (JSON, b' {"a": 1.10}\n', [b'{"a": 1.10}']),
            (JSON, b'[{"a":1}, 2, "x"]', [b'{"a":1}', b"2", b'"x"']),
            (LINES, b'{"a":1}\r\n{"a":2}\n[3]', [b'{"a":1}', b'{"a":2}', b"[3]"]),
            (BYTES, b"\x00\xff\n\n", [b"\x00\xff\n\n"]),
            (BYTES, b"", [b""]),
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


@in_loop
async def test_a_key_is_given_to_all_records_of_a_request() -> None:
    async with served() as it:
        await it.post(b"1\n2\n", LINES, **{"Headrace-Key": "sensor 7"})
        await it.post(b"3", BYTES)
        assert it.journal.keys == [b"sensor 7", b"sensor 7", None]


@in_loop
async def test_a_request_that_is_sent_again_with_its_id_is_stored_once() -> None:
    async with served() as it:
        one = {"Headrace-Message-Id": "m-1"}
        assert (await it.post(b"a", BYTES, **one)).json()["first"] == 0
        again = await it.post(b"a", BYTES, **one)
        assert again.json() == {"lane": 3, "first": 0, "until": 1, "duplicates": 1}

        many = {"Headrace-Message-Id": "m-2"}
        assert (await it.post(b"1\n2\n", LINES, **many)).json()["until"] == 3
        again = await it.post(b"1\n2\n", LINES, **many)
        assert again.json() == {"lane": 3, "first": 1, "until": 3, "duplicates": 2}
        assert it.journal.values == [b"a", b"1", b"2"]
        for other in ("M-1", "m-1:0", "\u00e9", "e\u0301"):
            line = b"headrace-message-id: " + other.encode() + b"\r\n"
            reader, writer = await it.raw(POST + line + b"content-length: 1\r\n\r\nb")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            writer.close()
        assert it.journal.values[3:] == [b"b"] * 4


@in_loop
async def test_an_acknowledgement_that_is_lost_after_the_sync_leaves_one_record() -> None:
    async with served() as it:
        it.journal.going.clear()
        _, writer = await it.raw(POST + b"headrace-message-id: m\r\ncontent-length: 1\r\n\r\na")
        await until(lambda: it.intake.statistics.reserved_bytes)
        writer.transport.abort()
        it.journal.going.set()
        again = await it.post(b"a", BYTES, **{"Headrace-Message-Id": "m"})
        assert again.json() == {"lane": 3, "first": 0, "until": 1, "duplicates": 1}
        assert it.journal.values == [b"a"]


@in_loop
async def test_a_sender_that_closes_its_half_after_its_requests_is_answered() -> None:
    async with served() as it:
        it.journal.going.clear()
        reader, writer = await it.raw(2 * (POST + b"content-length: 1\r\n\r\na"))
        writer.write_eof()
        await until(lambda: it.intake.statistics.reserved_bytes)
        it.journal.going.set()
        answers = await asyncio.wait_for(reader.read(), DEADLINE_S)
        assert answers.count(b"HTTP/1.1 200 OK") == 2
        writer.close()
        reader, writer = await it.raw(POST + b"content-length: 2\r\n\r\na")
        writer.write_eof()  # and the rest never comes
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        assert it.journal.values == [b"a", b"a"]
        writer.close()


@pytest.mark.integration
@in_loop
async def test_a_sender_that_reads_no_answers_is_read_no_further() -> None:
    request = POST + b"content-length: 1\r\n\r\na"
    async with served() as it:
        reader, writer = await it.raw(b"")
        sent = 0
        with pytest.raises(TimeoutError):
            while sent * len(request) < 200 * 2**20:
                writer.write(request * 1_000)
                sent += 1_000
                await asyncio.wait_for(writer.drain(), 2)
        assert sent * len(request) < 32 * 2**20  # what the system buffers, on both sides
        answered = 0
        while answered < 5_000:  # and it goes on when its answers are read
            answered += (await reader.read(2**20)).count(b"HTTP/1.1 200 OK")
        writer.transport.abort()


@in_loop
async def test_what_is_malformed_or_not_understood_is_refused() -> None:
    async with served() as it:
        for status, headers, body, words in [
            (400, LINES, b'{"a":1}\n{"b":\n', "Line 2 is not JSON"),
            (400, LINES, b"1\n\n2\n", "Line 2 is not JSON: it is empty; do not send it"),
            (400, LINES, b"\xef\xbb\xbf1\n2\n", "Line 1 is not JSON: it begins with a byte order"),
            (400, JSON, b"\xef\xbb\xbf[1]", "The body is not JSON: it begins with a byte order"),
            (400, JSON, b"", "The body is not JSON: it is empty; do not send it"),
            (400, LINES, b"", "no records"),
            (400, JSON, b'{"a":', "not JSON"),
            (400, JSON, b"[]", "no records"),
            (400, JSON, b"\xff", "UTF-8"),
            (400, JSON, b"[" * 200_000, "not JSON"),
            (400, BYTES | {"content-encoding": "gzip"}, b"plain", "cannot be decompressed"),
            (400, BYTES | {"content-encoding": "gzip"}, gzip.compress(b"a" * 99)[:-9], "complete"),
            (415, BYTES | {"content-encoding": "br"}, b"x", "gzip, deflate or identity"),
            (415, {"content-type": "application/xml"}, b"<a/>", "Content-Type must be"),
            (415, {}, b"x", "Content-Type must be"),
        ]:
            answer = await it.post(body, headers)
            assert answer.status_code == status, words
            assert words in answer.json()["error"]
        assert it.journal.values == []
        assert (await it.client.get("/../journal.json")).status_code == 404
        # The connection is as good as ever.
        assert (await it.post(b"a", BYTES)).status_code == 200


@in_loop
async def test_lines_need_not_be_json_without_check_json() -> None:
    async with served(check_json=False) as it:
        assert (await it.post(b"one\ntwo\n", LINES)).status_code == 200
        assert it.journal.values == [b"one", b"two"]


@in_loop
async def test_only_requests_with_the_token_are_accepted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = comparisons(monkeypatch)
    assert TOKEN not in repr(HttpSettings(token=TOKEN))
    caplog.set_level(logging.DEBUG)
    async with served(token=TOKEN) as it:
        for wrong in ("", "Bearer", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"):
            answer = await it.post(b"a", BYTES, Authorization=wrong)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "s3cre" not in answer.text
        assert (await it.post(b"a", BYTES)).status_code == 401
        assert it.journal.values == []
        answer = await it.post(b"a", BYTES, Authorization="bearer s3cret")
        assert answer.status_code == 200
        assert (await it.client.get("/health")).status_code == 200
    own = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert all("s3cre" not in record.getMessage() for record in own)
    assert compared == [b"", b"", b"s3cre", b"s3crets", b"s3cret", b"", b"", b"s3cret"]


@in_loop
async def test_a_failed_append_is_answered_503_and_the_next_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "headrace.receivers")
    async with served() as it:
        it.journal.failures = [JournalError("The disk is full; make room.")]
        answer = await it.post(b"a", BYTES)
        assert answer.status_code == 503
        assert answer.json() == {"error": "The disk is full; make room."}
        assert (await it.post(b"a", BYTES)).json() == {"lane": 3, "first": 0, "until": 1}
    assert "The disk is full" in caplog.text


@in_loop
async def test_while_the_intake_closes_requests_are_answered_503() -> None:
    async with served() as it:
        await it.intake.close()
        answer = await it.post(b"a", BYTES)
        assert answer.status_code == 503
        assert "send them again later" in answer.json()["error"]


@in_loop
async def test_a_stop_answers_what_is_in_the_buffer() -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
        async with served() as it:
            it.journal.going.clear()
            url = f"http://127.0.0.1:{it.port}/records"
            answer = asyncio.create_task(client.post(url, content=b"a", headers=BYTES))
            await until(lambda: it.intake.statistics.reserved_bytes)
            asyncio.get_running_loop().call_later(0.01, it.journal.going.set)
        assert (await answer).status_code == 200
        assert it.journal.values == [b"a"]


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


@pytest.mark.parametrize("ids", [(b"",), (b"  ",), (b"y" * 201,), (b"a", b"b"), (b"a", b"a")])
@in_loop
async def test_an_id_that_is_not_valid_is_refused(ids: tuple[bytes, ...]) -> None:
    lines = b"".join(b"headrace-message-id: " + each + b"\r\n" for each in ids)
    async with served() as it:
        answer = await answer_to(it, POST + lines + b"content-length: 1\r\n\r\n1")
        assert answer.status == 400
        assert answer.error.startswith("headrace-message-id ")
        assert it.journal.values == []


@pytest.mark.integration
@pytest.mark.parametrize("path", [b"/records", b"/none"])
@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 13\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"transfer-encoding: Chunked\r\ncontent-length: 0\r\n",
    ],
)
@in_loop
async def test_a_request_with_two_ends_is_refused_and_its_connection_closed(
    path: bytes, lengths: bytes
) -> None:
    """RFC 9112, 6.1. Bytes that follow it on the connection are not taken for a request, either."""
    start = POST.replace(b"/records", path).replace(b"text/plain", b"application/x-ndjson")
    smuggled = POST + b"content-length: 1\r\n\r\n9"
    async with served() as it:
        reader, writer = await it.raw(start + lengths + b"\r\n3\r\n1\n2\r\n0\r\n\r\n" + smuggled)
        answer = await first_answer(reader)
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert "both Content-Length and Transfer-Encoding" in answer.error
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
        assert it.journal.values == []


@pytest.mark.parametrize(
    "target",
    [b"http://there/records", b"HTTP://other:81/records?x=http://y/", b"https://x/%72ecords"],
)
@in_loop
async def test_a_target_in_absolute_form_is_that_of_its_path(target: bytes) -> None:
    """RFC 9112, 3.2.2."""
    async with served() as it:
        post = POST.replace(b"/records", target) + b"content-length: 1\r\n\r\n1"
        reader, writer = await it.raw(post)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert it.journal.values == [b"1"]


@pytest.mark.parametrize("padding", [b"", b'{"a":1}\n' * 10_000])
@in_loop
async def test_an_integer_that_is_too_long_is_refused_by_its_name_in_large_bodies_too(
    padding: bytes,
) -> None:
    number = padding.count(b"\n") + 1
    allowed = "but 4300 are allowed; send it as a string."
    long = f"Line {number} has an integer of 4301 digits, {allowed}"
    async with served() as it:
        answer = await it.post(padding + b'{"a":-' + b"7" * 4301 + b"}\n", LINES)
        assert (answer.status_code, answer.json()["error"]) == (400, long)
        answer = await it.post(b"[1, " + b"7" * 5000 + b"]", JSON)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("The body has an integer of 5000 digits, ")
        assert it.journal.values == []
        for value in (b"-" + b"7" * 4300, b'"' + b"7" * 9000 + b'"'):
            answer = await it.post(padding + b'{"a":' + value + b"}\n", LINES)
            assert answer.status_code == 200
        assert len(it.journal.values) == 2 * number


@pytest.mark.integration
@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"no HTTP at all\r\n\r\n", 400, "not well-formed HTTP/1.1"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "not well-formed HTTP/1.1"),
        (POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "not well-formed"),
        (POST + b"content-length: many\r\n\r\n", 400, "not well-formed"),
        (POST + b"transfer-encoding: chunked\r\n\r\nno chunk\r\n", 400, "not well-formed"),
        (POST + b"transfer-encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"),
        (b"GET /health HTTP/1.1\r\nx: " + b"y" * 5_000, 431, "more than the 2000 bytes allowed"),
        (b"POST /re", 408, "after 0.2 s"),
        (b"POST /records/ HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 0\r\n\r\n", 404, "/r"),
        (b"GET /health/ HTTP/1.1\r\nhost: evil.example\r\n\r\n", 404, "GET /health"),
        (b"POST /elsewhere HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 404, "/records"),
        (b"GET /records HTTP/1.1\r\nhost: x\r\n\r\n", 405, "POST"),
        (POST.replace(b"text", b"image") + b"content-length: 1\r\n\r\na", 415, "Content-Type must"),
    ],
)
@in_loop
async def test_every_rejection_is_json_with_its_reason(data: bytes, status: int, said: str) -> None:
    async with served(header_s=0.2, max_header_bytes=2_000) as it:
        answer = await answer_to(it, data)
        assert answer.status == status
        assert said in answer.error
        assert answer.error.endswith(".")
        assert "location" not in answer.headers
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)
        assert it.journal.values == []
        refused = it.intake.rejections.drain()
        if status == 408:  # as of every connection that is kept open and not used any more
            assert refused is None
        else:
            assert refused is not None
            assert refused.counts == {f"HTTP {status}": 1}
            assert refused.last == answer.error


@in_loop
async def test_a_rejection_for_want_of_a_connection_is_json() -> None:
    async with served(max_connections=1) as it:
        it.journal.going.clear()
        busy, writer = await it.raw_post(1, b"a")
        while not it.intake.statistics.reserved_bytes:
            await asyncio.sleep(0)
        answer = await answer_to(it, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        rejected = it.intake.rejections.drain()
        assert rejected is not None
        assert rejected.counts == {"no place": 1}
        it.journal.going.set()
        assert (await busy.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@in_loop
async def test_a_defect_of_the_receiver_is_answered_in_json() -> None:
    class Broken:
        """An intake that nothing can be offered to."""

        def offer(self, records: Records, wait_s: float) -> None:
            raise ZeroDivisionError("a defect")

    async with served() as it:
        it.intake.try_submit = Broken().offer  # type: ignore[method-assign, assignment]
        answer = await answer_to(it, POST + b"content-length: 1\r\n\r\na")
        assert answer.status == 500
        assert "see its log" in answer.error


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


@pytest.mark.parametrize(
    "last",
    [
        POST + b"connection: close\r\ncontent-length: 2\r\n\r\n21",
        POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"content-length: 2\r\n\r\n21",
        POST + b"Connection: Close\r\ntransfer-encoding: chunked\r\n\r\n2\r\n21\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize(
    "more", [b"", b"\r\n", b".5 is no request", POST + b"content-length: 1\r\n\r\n9"]
)
@in_loop
async def test_what_follows_the_last_request_of_a_connection_is_no_request(
    last: bytes, more: bytes
) -> None:
    """The answer to the request is the only one: a 400 after it would have it sent again."""
    async with served() as it:
        reader, writer = await it.raw(last + more)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"connection: close" in answer
        writer.close()
        assert it.journal.values == [b"21"]
        assert it.intake.rejections.totals == {}


@in_loop
async def test_what_is_sent_behind_a_last_request_does_not_cost_its_answer() -> None:
    async with served() as it:
        it.journal.going.clear()
        reader, writer = await it.raw(POST + b"connection: close\r\ncontent-length: 1\r\n\r\na")
        await until(lambda: it.journal.begun)
        writer.write(b"x" * 2**20)
        await asyncio.sleep(0)
        it.journal.going.set()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"}")
        writer.close()


@in_loop
async def test_requests_sent_ahead_are_answered_in_their_order_and_one_at_a_time() -> None:
    chunks = b"transfer-encoding: chunked\r\n\r\n4;x=1\r\n\r\n\r\n\r\n0\r\na: b\r\n\r\n"
    async with served() as it:
        ahead = POST + chunks + POST + b"content-length: 4\r\n\r\n\r\n\r\n\r\n" + POST + chunks
        it.journal.going.clear()
        reader, writer = await it.raw(ahead * 10)
        await until(lambda: it.journal.begun)
        assert it.intake.statistics.reserved_bytes < 100
        it.journal.going.set()
        for number in range(30):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            answer = await reader.readuntil(b"}")
            assert json.loads(answer)["first"] == number
        writer.close()
        assert it.journal.values == [b"\r\n\r\n"] * 30


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1_000])
@in_loop
async def test_a_request_may_come_in_pieces_of_any_size(step: int) -> None:
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n3\r\n\r\n\r\r\n0\r\n\r\n"
    data = (b"\r\n" + POST + b"content-length: 1\r\n\r\na" + chunked) * 2
    async with served() as it:
        reader, writer = await it.raw(b"")
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await asyncio.sleep(0)
        for _ in range(4):
            assert (await reader.readuntil(b"}")).count(b"HTTP/1.1 200 ") == 1
        assert it.journal.values == [b"a", b"a\r\n\r"] * 2
        writer.close()


@pytest.mark.parametrize(
    "body",
    [b"content-length: 2\r\n\r\n21", b"transfer-encoding: chunked\r\n\r\n2\r\n21\r\n0\r\n\r\n"],
)
@in_loop
async def test_an_offer_of_another_protocol_is_passed_over_and_the_body_is_taken(
    body: bytes,
) -> None:
    """Java's own client offers HTTP/2 so with each first request (RFC 9110, 7.8)."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAA\r\n"
    async with served() as it:
        reader, writer = await it.raw((POST + offer + body) * 2)
        for _ in range(2):
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        assert it.journal.values == [b"21", b"21"]
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT /records HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /records HTTP/2.0\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /records\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        POST + b"host: y\r\ncontent-length: 1\r\n\r\na",
        POST + b"content-length: 1\r\ncontent-length: 1\r\n\r\na",
        POST + b"content-length: +1\r\n\r\na",
        POST + b"content-length : 1\r\n\r\na",
        POST + b"content-length: 1\r\n folded\r\n\r\na",
        POST + b"content-length: 1\n\na",
        POST + b"a: b\0c\r\ncontent-length: 1\r\n\r\na",
        POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    ],
)
@in_loop
async def test_what_two_programs_may_frame_in_two_ways_is_refused_and_ends_the_connection(
    head: bytes,
) -> None:
    async with served() as it:
        reader, writer = await it.raw(head + POST + b"content-length: 1\r\n\r\n9")
        answer = await first_answer(reader)
        assert answer.status in (400, 501)
        assert answer.error.endswith(".")
        assert b"HTTP/1.1" not in await reader.read()
        writer.close()
        assert it.journal.values == []


@pytest.mark.parametrize(
    ("start", "more"),
    [(b"1;", b"e" * 9_999), (b"0\r\n", b"a: b\r\n" * 999), (b"0\r\na", b"a" * 9_999)],
)
@in_loop
async def test_trailers_and_extensions_without_an_end_are_refused(
    start: bytes, more: bytes
) -> None:
    async with served() as it:
        reader, writer = await it.raw(POST + b"transfer-encoding: chunked\r\n\r\n" + start)
        answer = asyncio.create_task(first_answer(reader))
        while not answer.done():
            writer.write(more)
            await asyncio.sleep(0)
        assert answer.result().status == 431
        assert it.journal.values == []
        writer.transport.abort()


@in_loop
async def test_head_is_answered_as_get_is_without_a_body() -> None:
    async with served() as it:
        answer = await it.client.head("/health")
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) > 0
        assert (await it.client.get("/health")).json() == {"status": "ok"}


@in_loop
async def test_a_sender_that_waits_for_100_continue_is_told_to_go_on() -> None:
    async with served() as it:
        reader, writer = await it.raw(POST + b"expect: 100-continue\r\ncontent-length: 1\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"a")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
