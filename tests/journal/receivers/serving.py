"""A receiver at work in the test's own event loop, on real sockets, into a journal in memory."""

import asyncio
import contextlib
import functools
import hmac
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ParamSpec

import httpx
import pytest

from headrace.core.ranges import OffsetRange
from headrace.journal.receivers import HttpReceiver, HttpSettings, Intake, IntakeSettings, Receiver
from headrace.journal.records import Records

Arguments = ParamSpec("Arguments")

DEADLINE_S = 60


class Journal:
    """Keeps what is appended; fails with what it is told to; stands still until it is let go on."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.failures: list[Exception] = []
        self.going = threading.Event()
        self.going.set()
        self.begun = False

    def append(self, records: Records) -> OffsetRange:
        self.begun = True
        assert self.going.wait(DEADLINE_S)
        if self.failures:
            raise self.failures.pop(0)
        start = len(self.values)
        self.values += records.batch.column("value").to_pylist()
        self.keys += records.batch.column("key").to_pylist()
        return OffsetRange("events", 3, start, len(self.values))


@contextlib.asynccontextmanager
async def receiving(
    receiver: Receiver, journal: Journal, settings: IntakeSettings | None = None
) -> AsyncIterator[Intake]:
    """Run a receiver, and stop it as its host would."""
    settings = settings or IntakeSettings(block_interval_ms=10)
    async with Intake(journal.append, settings) as intake:
        running = asyncio.create_task(receiver.receive(intake))
        try:
            yield intake
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that takes each value compared in constant time from now on."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def watched(shown: bytes, expected: bytes) -> bool:
        compared.append(shown)
        return compare(shown, expected)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    return compared


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def until(condition: Any) -> None:
    """Let the loop run until this is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's work, within its deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(bounded())


def in_loop(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Run a test in an event loop, within its deadline."""

    @functools.wraps(test)
    def in_its_loop(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return in_its_loop


TOKEN = "s3cret"  # noqa: S105
LINES = {"content-type": "application/x-ndjson"}
BYTES = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}


POST = b"POST /records HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"


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

    async def raw_post(
        self, length: int, body: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Post some of a body of this length."""
        return await self.raw(POST + b"content-length: %d\r\n\r\n" % length + body)

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def served(
    intake_settings: IntakeSettings | None = None, *, idle_s: float = 1_000, **settings: Any
) -> AsyncIterator[Served]:
    receiver, journal = (
        HttpReceiver(HttpSettings(port=0, **settings), stop_s=DEADLINE_S, idle_s=idle_s).listen(),
        Journal(),
    )
    async with receiving(receiver, journal, intake_settings) as intake:
        it = Served(receiver.port, journal, intake)
        async with it.client:
            yield it
