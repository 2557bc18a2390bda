"""Requests to an HTTP receiver at work, on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.receivers.serving import (
    DEADLINE_S,
    Journal,
    receiving,
)

from headrace.receivers import HttpReceiver, HttpSettings, Intake, IntakeSettings

TOKEN = "s3cret"  # noqa: S105
LINES = {"content-type": "application/x-ndjson"}
BYTES = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}


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
    receiver, journal = (
        HttpReceiver(HttpSettings(port=0, **settings), stop_s=DEADLINE_S).listen(),
        Journal(),
    )
    async with receiving(receiver, journal, intake_settings) as intake:
        it = Served(receiver.port, journal, intake)
        async with it.client:
            yield it
