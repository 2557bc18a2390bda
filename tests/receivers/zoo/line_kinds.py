"""Hostile senders of lines over TCP, and of what is not quite TLS."""

import asyncio
import ssl

from tests.receivers.zoo.http_kinds import (
    BYTES,
    asking,
    connect_and_reset,
    endless,
    head,
    post,
    staying,
)
from tests.receivers.zoo.sending import Kind, Target


async def lines_and_answers(target: Target) -> None:
    async with await target.connect() as connection:
        reading = asyncio.create_task(connection.ended())
        try:
            while not reading.done():
                await connection.write(b"1\n" * 5_000)
        finally:
            reading.cancel()


async def byte_by_byte(target: Target) -> None:
    async with await target.connect() as connection:
        for _ in range(20_000):
            connection.writer.write(b"1")
            await asyncio.sleep(0)


async def half_closed(target: Target) -> None:
    async with await target.connect() as connection:
        await connection.write(b"1\n" * 100 + b"without an end")
        connection.writer.write_eof()
        await connection.ended()


async def too_long(target: Target) -> None:
    async with await target.connect() as connection:
        await connection.write(b"x" * 2_000_000)
        await connection.ended()


LINES = (
    Kind("lines of one byte, answers unread", endless(bytes, b"1\n" * 5_000)),
    Kind("lines of one byte, answers read", lines_and_answers),
    Kind("empty lines", endless(bytes, b"\n" * 10_000)),
    Kind("lines of 1 MiB", endless(bytes, b"x" * 1_048_575 + b"\n")),
    Kind("line of 1 MiB without an end", staying(lambda: b"x" * 1_048_570), crowd=8),
    Kind("lines that are too long", too_long),
    Kind("line without an end, slowly", staying(bytes, b"x"), crowd=150),
    Kind("a line byte by byte", byte_by_byte),
    Kind("idle connections", staying(bytes), crowd=150),
    Kind("connections that are reset", connect_and_reset),
    Kind("half-closed connections", half_closed),
    Kind("bytes of zero", endless(bytes, b"\0" * 9_999 + b"\n")),
)


class Handshakes:
    """The start of a handshake, as a client of TLS makes it."""

    def __init__(self) -> None:
        outgoing = ssl.MemoryBIO()
        client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, False, "zoo")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            self.hello = outgoing.read()


async def handshake_and_reset(target: Target) -> None:
    async with await target.connect() as connection:
        connection.reset_on_close()


async def records_of_one_byte(target: Target) -> None:
    async with await target.connect() as connection:
        await connection.write(head(BYTES, 20_000))
        for number in range(20_000):
            connection.writer.write(b"x")
            if number % 500 == 0:
                await connection.writer.drain()
        await connection.answer()


def in_plain(start: bytes, more: bytes = b"") -> Kind:
    """A kind that has no handshake; it sends this, and more as long as it is read."""

    async def visit(target: Target) -> None:
        async with await target.connect(tls=False) as connection:
            await connection.write(start)
            while more:
                await connection.write(more)
            await connection.ended()

    return Kind("", visit)


_HELLO = Handshakes().hello
TLS = (
    Kind("handshakes, then a reset", handshake_and_reset),
    Kind("half a handshake", in_plain(_HELLO).visit, crowd=150),
    Kind("first byte of a handshake", in_plain(_HELLO[:1]).visit, crowd=150),
    Kind("record of 16 KiB in a handshake", in_plain(b"\x16\x03\x01\x40\x00", b"\0" * 999).visit),
    Kind("plain HTTP", in_plain(post(b"1")).visit),
    Kind("records of one byte", records_of_one_byte),
    Kind("pipelining, answers unread", endless(bytes, post(b"1") * 500)),
    Kind("bodies of 8 MiB", asking(lambda: post(b"x" * 8_388_608))),
    Kind("idle connections", staying(bytes), crowd=150),
    Kind("slow bodies", staying(lambda: head(BYTES, 1_000), b"a"), crowd=150),
)
