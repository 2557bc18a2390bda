"""The limits of the HTTP receiver: what is too large, too slow, too much or too many."""

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.receivers.serving import (
    BYTES,
    JSON,
    LINES,
    POST,
    in_loop,
    served,
    until,
)

from headrace.journal.receivers import IntakeSettings
from headrace.journal.receivers.http.http_body import DamagedError, Decompressor

pytestmark = pytest.mark.nightly


@in_loop
async def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    async with served(max_body_bytes=1_000) as it:
        assert (await it.post(b"x" * 1_000, BYTES)).status_code == 200
        for body in (b"x" * 1_001, pieces()):
            answer = await it.post(body, BYTES)
            assert answer.status_code == 413
            assert "more than 1000 bytes" in answer.json()["error"]
        # A client need not send a body that will be refused.
        reader, writer = await it.raw(
            POST + b"expect: 100-continue\r\ncontent-length: 1000000000\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert len(it.journal.values) == 1


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "deflate"])
@in_loop
async def test_a_compressed_body_is_decompressed(encoding: str) -> None:
    lines = b"".join(b'{"i":%d}\n' % i for i in range(50_000))
    body = zlib.compress(lines) if encoding == "deflate" else gzip.compress(lines)
    async with served() as it:
        answer = await it.post(body, LINES | {"content-encoding": encoding})
        assert answer.json() == {"lane": 3, "first": 0, "until": 50_000}
        assert it.journal.values == lines.splitlines()


def bomb(megabytes: int) -> bytes:
    """So many megabytes of nothing, of which each is compressed apart and so the same bytes."""
    compressor = zlib.compressobj(9, wbits=-15)
    megabyte = compressor.compress(bytes(1_000_000)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return gzip.compress(b"")[:10] + megabyte * megabytes


@in_loop
async def test_a_gzip_bomb_is_refused_and_takes_bounded_memory() -> None:
    body = bomb(1_000)
    limit = 4_000_000
    async with served(max_decompressed_bytes=limit) as it:
        await it.post(b"warm", BYTES)
        tracemalloc.start()
        try:
            answer = await it.post(body, BYTES | {"content-encoding": "gzip"})
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.status_code == 413
        assert f"more than {limit} bytes" in answer.json()["error"]
        assert most < 4 * limit + 4 * len(body)
        assert (await it.post(b"a", BYTES)).status_code == 200


def _one_line_each(count: int) -> bytes:
    return b"1\n" * count


def _one_array(count: int) -> bytes:
    return b"[" + b"1," * count + b"1]"


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (LINES, _one_line_each(8_000_000), "more than 1000 lines"),
        (JSON, _one_array(8_000_000), "8000 commas or more"),
        (JSON, b"[" + _one_array(8_000_000) + b"]", "8000 commas or more"),
        (JSON, b"[" + b'{"k":1},' * 1_500_000 + b"1]", "8000 commas or more"),
    ],
)
@in_loop
async def test_more_records_than_allowed_are_refused_before_they_are_built(
    kind: dict[str, str], body: bytes, says: str
) -> None:
    packed = gzip.compress(body)
    async with served(max_records=1_000) as it:
        await it.post(b"1", JSON)
        tracemalloc.start()
        try:
            answer = await it.post(packed, kind | {"content-encoding": "gzip"})
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answer.status_code == 413
        assert says in answer.json()["error"]
        assert most < 2_000_000
        assert (await it.post(_one_line_each(1_000), LINES)).status_code == 200
        assert (await it.post(_one_line_each(1_001), LINES)).status_code == 413
        assert (await it.post(_one_array(999), JSON)).status_code == 200
        assert (await it.post(_one_array(1_000), JSON)).status_code == 413


@pytest.mark.parametrize(
    "body",
    [b"[" * 500_000, b'{"k":' * 500_000, b"9" * 4_000_000, b'{"%b":1' % (b"k" * 4_000_000)],
)
@in_loop
async def test_deep_nesting_huge_numbers_and_long_names_take_bounded_memory(body: bytes) -> None:
    async with served() as it:
        await it.post(b"1", JSON)
        for kind in (JSON, LINES):
            tracemalloc.start()
            try:
                answer = await it.post(body, kind)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer.status_code == 400
            assert most < 4 * len(body) + 2_000_000  # the sender's own copies are in it


@in_loop
async def test_a_long_key_for_many_records_is_refused() -> None:
    async with served(max_decompressed_bytes=100_000, max_body_bytes=100_000) as it:
        key = {"Headrace-Key": "k" * 10_000}
        assert (await it.post(_one_line_each(10), LINES | key)).status_code == 200
        answer = await it.post(_one_line_each(11), LINES | key)
        assert answer.status_code == 413
        assert "key has 10000 bytes, and its copies for 11 records" in answer.json()["error"]


@in_loop
async def test_under_backpressure_the_answer_has_retry_after() -> None:
    async with served(wait_s=0) as it:
        it.intake.set_rate(0.01)
        assert (await it.post(b"a", BYTES)).status_code == 200
        answer = await it.post(b"b", BYTES)
        assert answer.status_code == 429
        assert 90 <= int(answer.headers["retry-after"]) <= 100
        assert "send the request again in" in answer.json()["error"]

        it.intake.set_rate(1_000_000)
        assert (await it.post(b"b", BYTES)).status_code == 200
        assert it.journal.values == [b"a", b"b"]


def _bounded(body: int, bodies: int) -> dict[str, Any]:
    memory = IntakeSettings(10, block_bytes=1_000, max_memory_bytes=4 * bodies)
    limits = {"max_body_bytes": body, "max_decompressed_bytes": body}
    return {"intake_settings": memory, **limits}


@in_loop
async def test_bodies_that_are_on_their_way_take_bounded_memory() -> None:
    async with served(**_bounded(60_000, 130_000)) as it:
        slow = []
        answers = []
        for _ in range(4):
            slow.append(await it.raw_post(60_000, b"x" * 50_000))
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
        assert (await it.post(b"x" * 60_000, BYTES)).status_code == 200


@in_loop
async def test_a_sender_that_goes_before_its_answer_makes_a_place() -> None:
    async with served(max_connections=1) as it:
        it.journal.going.clear()
        _, writer = await it.raw_post(1, b"a")
        await until(lambda: it.intake.statistics.reserved_bytes)
        writer.transport.abort()
        it.journal.going.set()
        while (await it.client.get("/health")).status_code != 200:
            await asyncio.sleep(0)  # until the receiver has noticed


@in_loop
async def test_headers_that_are_too_long_are_refused_however_they_come() -> None:
    async with served() as it:
        for cut in (0, 30):
            head = b"POST /records HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 65_000
            head += b"\r\ncontent-length: 1\r\n\r\nx"
            answers, sender = await it.raw(head[:cut])
            sender.write(head[cut:])
            assert (await answers.read()).startswith(b"HTTP/1.1 431 ")
            sender.close()
        assert it.journal.values == []


@in_loop
@pytest.mark.parametrize(
    "header", ["authorization: Bearer x", "content-type: text/plain", "content-encoding: gzip"]
)
async def test_a_header_that_is_there_twice_is_refused(header: str) -> None:
    async with served() as it:
        head = f"POST /records HTTP/1.1\r\nhost: x\r\n{header}\r\n{header}\r\n"
        head += "content-length: 1\r\n\r\nx"
        answers, sender = await it.raw(head.encode())
        answer = await answers.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"twice; send it once." in answer
        assert it.journal.values == []
        sender.close()


GET: Final = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@in_loop
async def test_headers_that_take_too_long_are_refused() -> None:
    async with served(header_s=0.2) as it:
        slow, one = await it.raw(b"POST /records HTTP/1.1\r\nhost: x\r\n")
        again, other = await it.raw(GET + b"GET /he")
        assert (await slow.read()).startswith(b"HTTP/1.1 408 ")
        # Its first request is answered; the second one is never whole.
        answers = await again.read()
        assert answers.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in answers
        for writer in (one, other):
            writer.close()


@pytest.mark.parametrize("between", [b"", b"\r\n"])
@in_loop
async def test_a_connection_that_is_idle_is_closed_without_a_word(between: bytes) -> None:
    """An answer to no request would be taken for the answer to the next one."""
    async with served(header_s=0.2, idle_s=0.2) as it:
        silent, one = await it.raw(b"")
        answered, other = await it.raw(GET + between)
        assert await silent.read() == b""
        assert (await answered.read()).count(b"HTTP/1.1 ") == 1
        for writer in (one, other):
            writer.close()


@in_loop
async def test_an_answered_connection_waits_longer_for_a_request_than_its_headers_may_take() -> (
    None
):
    async with served(header_s=0.1) as it:
        answered, one = await it.raw(GET)
        await answered.readuntil(b"\r\n\r\n")
        # A sender that connects later, and begins nothing, is closed meanwhile.
        silent, other = await it.raw(b"")
        assert await silent.read() == b""
        one.write(GET)
        await answered.readuntil(b"HTTP/1.1 200 ")
        one.write(b"GET /he")
        assert b"HTTP/1.1 408 " in await answered.read()
        for writer in (one, other):
            writer.close()


@pytest.mark.parametrize("request_line", ["POST /nowhere", "GET /health"])
@in_loop
async def test_a_request_answered_before_the_end_of_its_body_does_not_keep_its_connection_for_ever(
    request_line: str,
) -> None:
    head = f"{request_line} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n".encode()
    async with served(header_s=0.2) as it:
        reader, writer = await it.raw(head)
        assert (await reader.readline())[:11] in (b"HTTP/1.1 20", b"HTTP/1.1 40")
        writer.write(b"x")
        assert b"HTTP/1.1 " not in await reader.read()
        writer.close()


@in_loop
async def test_a_connection_answered_before_the_end_of_a_body_can_go_on_after_it() -> None:
    async with served(header_s=1_000) as it:
        reader, writer = await it.raw(
            b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\nabc"
        )
        assert (await reader.readuntil(b'."}')).startswith(b"HTTP/1.1 404 ")
        writer.write(b"def" + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()


@in_loop
async def test_a_body_that_takes_too_long_is_refused() -> None:
    async with served(body_s=0.2) as it:
        reader, writer = await it.raw_post(100, b"abc")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer
        writer.close()
        assert it.journal.values == []


@in_loop
async def test_a_sender_that_goes_in_the_middle_of_its_body_leaves_nothing_behind() -> None:
    async with served(**_bounded(1_000, 1_500)) as it:
        for _ in range(5):
            _, writer = await it.raw_post(1000, b"x" * 900)
            writer.close()
            await writer.wait_closed()
        # As soon as the receiver has noticed.
        while (await it.post(b"y" * 1_000, BYTES)).status_code != 200:
            await asyncio.sleep(0)


compressions: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
}


def decompressed(encoding: str, data: bytes, cuts: list[int]) -> bytes:
    decompressor = Decompressor(encoding)
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found, start = b"", 0
    for end in ends:
        for piece in decompressor.pieces(data[start:end]):
            assert len(piece) <= 64 * 1024 or encoding == "identity"
            found += piece
        start = end
    decompressor.end()
    return found


@given(
    st.sampled_from(sorted(compressions)),
    st.binary(max_size=300),
    st.integers(1, 2_000),
    st.lists(st.integers(0, 10_000), max_size=5),
)
def test_however_it_comes_it_is_what_was_compressed(
    encoding: str, data: bytes, times: int, cuts: list[int]
) -> None:
    data *= times
    assert decompressed(encoding, compressions[encoding](data), cuts) == data


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_breaks_off_at_any_byte_is_damaged(encoding: str) -> None:
    data = compressions[encoding](b"some data" * 20)
    for end in range(1, len(data)):
        with pytest.raises(DamagedError, match="is incomplete"):
            decompressed(encoding, data[:end], [])


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_follows_or_is_changed_is_damaged(encoding: str) -> None:
    data = compressions[encoding](b"some data" * 20)
    with pytest.raises(DamagedError):
        decompressed(encoding, data + b"more", [])
    with pytest.raises(DamagedError):
        decompressed(encoding, data[:-1] + bytes([data[-1] ^ 1]), [])


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.lists(st.integers(0, 300)))
def test_the_members_of_a_gzip_file_come_one_after_the_other(
    members: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(gzip.compress(member) for member in members)
    assert decompressed("gzip", data, cuts) == b"".join(members)
