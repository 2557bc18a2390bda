"""Hostile senders are run here: each kind is a visit, which its copies pay again and again."""

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

MOST_CONNECTIONS = 1_000
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Target:
    """A receiver on 127.0.0.1, and the offsets that it has acknowledged to hostile senders."""

    port: int
    trust: ssl.SSLContext | None = None
    acknowledged: list[tuple[int, int]] = field(default_factory=list)

    async def connect(self, *, tls: bool = True) -> "Connection":
        trust = self.trust if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=trust)
        return Connection(self, reader, writer)


class Connection:
    """One connection; leaving it closes it."""

    def __init__(
        self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._target = target
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> int:
        """Read an answer of HTTP, and return its status."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await self.reader.readexactly(int(length[1]) if length else 0)
        status = int(head[9:12])
        if status == 200 and body.startswith(b'{"lane"'):
            answer = json.loads(body)
            if "duplicates" not in answer:
                self._target.acknowledged.append((answer["first"], answer["until"]))
        return status

    async def ended(self) -> None:
        """Read until the receiver closes the connection."""
        while await self.reader.read(65_536):
            pass

    def reset_on_close(self) -> None:
        """Have its end be a reset (RST) instead of an orderly one."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Visit = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """A kind of hostile sender.

    Attributes:
        name: Its name in tables.
        visit: Its action over one connection, or until that is closed.
        crowd: The connections that each copy has at a time.
    """

    name: str
    visit: Visit
    crowd: int = 1


async def run(kind: Kind, copies: int, duration_s: float, target: Target) -> int:
    """Run so many copies for so long; returns the number of visits."""
    until = time.monotonic() + duration_s
    visits = 0

    async def again_and_again() -> None:
        nonlocal visits
        while time.monotonic() < until:
            visits += 1
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
                await kind.visit(target)
            await asyncio.sleep(0)

    connections = min(copies * kind.crowd, max(MOST_CONNECTIONS, copies))
    running = [asyncio.create_task(again_and_again()) for _ in range(connections)]
    _, late = await asyncio.wait(running, timeout=duration_s)
    for task in late:
        task.cancel()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    return visits
