"""Hostile senders over HTTP, with bodies of NDJSON, JSON and bytes."""

import asyncio
import gzip
import secrets
import zlib
from collections.abc import Callable
from functools import cache

from tests.receivers.zoo.sending import Kind, Target, Visit

NDJSON = b"content-type: application/x-ndjson\r\n"
JSON = b"content-type: application/json\r\n"
BYTES = b"content-type: application/octet-stream\r\n"
GZIP = b"content-encoding: gzip\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def head(more: bytes, length: int | None = None, path: bytes = b"/records") -> bytes:
    """The head of a POST, which ends here where its body has a length or chunks."""
    end = b"" if length is None else b"content-length: %d\r\n\r\n" % length
    return b"POST " + path + b" HTTP/1.1\r\nhost: zoo\r\n" + more + end


def post(body: bytes, more: bytes = BYTES, path: bytes = b"/records") -> bytes:
    return head(more, len(body), path) + body


def message_id() -> bytes:
    """A header with an id of 200 characters that is like no other."""
    return b"headrace-message-id: " + secrets.token_hex(100).encode() + b"\r\n"


def asking(request: Callable[[], bytes]) -> Visit:
    """Send a request again and again over one connection, and read each answer."""

    async def visit(target: Target) -> None:
        async with await target.connect() as connection:
            while True:
                await connection.write(request())
                await connection.answer()

    return visit


def staying(start: Callable[[], bytes], drop: bytes = b"", every_s: float = 0.1) -> Visit:
    """Send the start of a request, then a drop from time to time, until the connection ends."""

    async def visit(target: Target) -> None:
        async with await target.connect() as connection:
            await connection.write(start())
            ending = asyncio.create_task(connection.ended())
            try:
                while not ending.done():
                    await asyncio.wait([ending], timeout=every_s if drop else None)
                    await connection.write(drop)
            finally:
                ending.cancel()

    return visit


def endless(start: Callable[[], bytes], more: bytes) -> Visit:
    """Send the start of a request and then more and more, as long as it is read."""

    async def visit(target: Target) -> None:
        async with await target.connect() as connection:
            await connection.write(start())
            while True:
                await connection.write(more)

    return visit


async def pipelined_and_read(target: Target) -> None:
    async with await target.connect() as connection:
        while True:
            await connection.write(post(b"1") * 500)
            for _ in range(500):
                await connection.answer()


async def connect_and_reset(target: Target) -> None:
    async with await target.connect() as connection:
        connection.reset_on_close()


async def half_a_body_and_reset(target: Target) -> None:
    async with await target.connect() as connection:
        await connection.write(head(BYTES, 1_000_000) + b"x" * 500_000)
        connection.reset_on_close()


async def half_closed(target: Target) -> None:
    async with await target.connect() as connection:
        await connection.write(post(b"1") * 20)
        if connection.writer.can_write_eof():
            connection.writer.write_eof()
        await connection.ended()


async def answers_read_slowly(target: Target) -> None:
    async with await target.connect() as connection:
        writing = asyncio.create_task(connection.write(post(b"1") * 20_000))
        try:
            while await connection.reader.read(100):
                await asyncio.sleep(0.02)
        finally:
            writing.cancel()


@cache
def chunks_of_one_byte() -> bytes:
    return head(BYTES + CHUNKED) + b"\r\n" + b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n"


@cache
def gzip_of(body: bytes) -> bytes:
    return gzip.compress(body, 6)


@cache
def empty_members() -> bytes:
    return post(gzip.compress(b"") * 200_000, BYTES + GZIP)


@cache
def members_of_one_byte() -> bytes:
    return post(gzip.compress(b"1") * 150_000, BYTES + GZIP)


@cache
def endless_gzip_name() -> bytes:
    return post(b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"n" * 8_000_000, BYTES + GZIP)


@cache
def flushed_deflate() -> bytes:
    made = zlib.compressobj()
    parts = [made.compress(b"1") + made.flush(zlib.Z_FULL_FLUSH) for _ in range(200_000)]
    return post(b"".join(parts) + made.flush(), BYTES + b"content-encoding: deflate\r\n")


def one_byte_records_with_an_id() -> bytes:
    return post(gzip_of(b"1\n" * 199_000), NDJSON + GZIP + message_id())


@cache
def as_large_as_allowed() -> bytes:
    return post(b"x" * 8_388_608)


@cache
def bomb() -> bytes:
    return post(gzip_of(b"x" * 33_554_432), BYTES + GZIP)


@cache
def bomb_above_the_limit() -> bytes:
    return post(gzip_of(b"x" * 200_000_000), BYTES + GZIP)


@cache
def array_of_ones() -> bytes:
    return post(gzip_of(b"[" + b"1," * 198_999 + b"1]"), JSON + GZIP)


@cache
def array_of_commas() -> bytes:
    return post(gzip_of(b"[[" + b"1," * 1_590_000 + b"1]]"), JSON + GZIP)


@cache
def array_of_too_many() -> bytes:
    return post(gzip_of(b"[" + b"1," * 1_590_000 + b"1]"), JSON + GZIP)


@cache
def deep_json() -> bytes:
    return post(gzip_of(b"[" * 8_000_000), JSON + GZIP)


@cache
def long_integers() -> bytes:
    return post(gzip_of(b"[" + b",".join([b"9" * 4_300] * 7_000) + b"]"), JSON + GZIP)


@cache
def many_keys() -> bytes:
    fields = b",".join(b'"%x":1' % number for number in range(150_000))
    return post(gzip_of(b"{" + fields + b"}"), JSON + GZIP)


@cache
def escapes() -> bytes:
    return post(gzip_of(b'"' + b"\\u00e9" * 5_000_000 + b'"'), JSON + GZIP)


@cache
def many_headers() -> bytes:
    return head(BYTES + b"".join(b"a%d:b\r\n" % n for n in range(1_800)), 1) + b"1"


def long_key() -> bytes:
    return post(b"1", BYTES + b"headrace-key: " + b"k" * 15_000 + b"\r\n" + message_id())


def get(path: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nhost: zoo\r\n\r\n"


KINDS = (
    Kind("pipelining, answers unread", endless(bytes, post(b"1") * 500)),
    Kind("pipelining, answers read", pipelined_and_read),
    Kind("pipelining, answers read slowly", answers_read_slowly),
    Kind("pipelining with ids, answers unread", endless(bytes, post(b"1", BYTES + message_id()))),
    Kind("chunks of one byte", asking(chunks_of_one_byte)),
    Kind(
        "endless chunk extension", endless(lambda: head(BYTES + CHUNKED) + b"\r\n1;", b"e" * 9999)
    ),
    Kind(
        "endless trailers",
        endless(lambda: head(BYTES + CHUNKED) + b"\r\n0\r\n", b"trailer: 1\r\n" * 999),
    ),
    Kind("empty gzip members", asking(empty_members)),
    Kind("gzip members of one byte", asking(members_of_one_byte)),
    Kind("endless name in gzip's header", asking(endless_gzip_name)),
    Kind("deflate, flushed after each byte", asking(flushed_deflate)),
    Kind("199 000 one-byte records with an id", asking(one_byte_records_with_an_id)),
    Kind("bodies of 8 MiB", asking(as_large_as_allowed)),
    Kind("gzip of 32 MiB", asking(bomb)),
    Kind("gzip of 200 MB", asking(bomb_above_the_limit)),
    Kind("array of 199 000 ones", asking(array_of_ones)),
    Kind("record with 1 590 000 commas", asking(array_of_commas)),
    Kind("array of 1 590 000 ones", asking(array_of_too_many)),
    Kind("8 000 000 open brackets", asking(deep_json)),
    Kind("integers of 4300 digits", asking(long_integers)),
    Kind("object with 150 000 fields", asking(many_keys)),
    Kind("string of 5 000 000 escapes", asking(escapes)),
    Kind("1 800 headers", asking(many_headers)),
    Kind("endless header", endless(lambda: b"POST /records HTTP/1.1\r\na: ", b"a" * 9_999)),
    Kind("keys of 15 000 bytes, with ids", asking(long_key)),
    Kind("small bodies, each with an id", asking(lambda: post(b"1", BYTES + message_id()))),
    Kind("GET /metrics", asking(lambda: get(b"/metrics"))),
    Kind("GET /health", asking(lambda: get(b"/health"))),
    Kind("malformed requests", asking(lambda: b"\x16\x03\x01 \0\r\n\r\n")),
    Kind("idle connections", staying(bytes), crowd=150),
    Kind("slow headers", staying(lambda: b"POST /records HTTP/1.1\r\na: ", b"a"), crowd=150),
    Kind("slow bodies", staying(lambda: head(BYTES, 1_000), b"a"), crowd=150),
    Kind(
        "slow bodies without an end of 8 MiB",
        staying(lambda: head(BYTES, 8_388_608) + b"x" * 500_000, b"a"),
        crowd=4,
    ),
    Kind(
        "expected 100-continue, no body",
        staying(lambda: head(BYTES + b"expect: 100-continue\r\n", 9_999)),
        crowd=50,
    ),
    Kind("connections that are reset", connect_and_reset),
    Kind("half a body, then a reset", half_a_body_and_reset),
    Kind("half-closed connections", half_closed),
)
