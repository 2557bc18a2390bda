"""Where the tasks of receivers report to their tracker, on the driver."""

import asyncio
import hmac
import logging
import threading
from concurrent.futures import Future
from typing import Final, Protocol

from headrace.errors import ReceiverError
from headrace.receivers.connections import listen
from headrace.tracker.messages import (
    MAX_LINE_BYTES,
    SILENCE_S,
    Order,
    Report,
    encode_order,
    read_line,
)

_LOG: Final = logging.getLogger("headrace.tracker")

_STRANGER_S: Final = 10.0
"""How long the first report may take."""

_MOST_STRANGERS: Final = 64
"""How many connections may be without a report yet."""


class Reporting(Protocol):
    """Whom the reports with a token are for. Called from the channel's thread."""

    def reported(self, connection: object, report: Report) -> Order:
        """A task has reported over this connection; answers what it is to do."""

    def left(self, connection: object) -> None:
        """The connection has ended, or nothing was heard over it for too long."""


class Channel:
    """Listens for tasks, in a thread of its own, until it is closed.

    Whoever does not show a token that is expected is not answered. What comes in is bounded: each
    line, the time for it, and how many may be connected who have not shown a token.

    Args:
        host: Where to listen.
        port: At which port; 0 for any that is free.

    Raises:
        ReceiverError: It cannot be listened there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._listener = listen(host, port)
        self.port: Final[int] = self._listener.getsockname()[1]
        self._expected: dict[bytes, Reporting] = {}
        self._changing = threading.Lock()
        self._attended: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._strangers = 0
        self._has_warned = False
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-tracker", daemon=True)
        self._thread.start()

    def expect(self, token: str, reporting: Reporting) -> None:
        """Listen to the tasks with this token."""
        with self._changing:
            self._expected[token.encode()] = reporting

    def forget(self, token: str) -> None:
        """Listen to them no more: their connections are closed at their next report."""
        with self._changing:
            del self._expected[token.encode()]

    def close(self) -> None:
        """End all connections, and listen no more."""
        self._loop.result().call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        server = await asyncio.start_server(self._attend, sock=self._listener, limit=MAX_LINE_BYTES)
        await self._closing.wait()
        server.close()
        await asyncio.sleep(0)  # who has just come begins to be attended
        for writer in self._attended.values():
            writer.close()
        if self._attended:
            await asyncio.wait(self._attended)

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._attended[task] = writer
        try:
            if report := await self._first(reader):
                await self._follow(report, reader, writer)
        except ReceiverError as error:  # why a task's is lost, its job tells
            _LOG.debug("A connection to the tracker has ended: %s", error)
        finally:
            writer.close()
            del self._attended[task]

    async def _first(self, reader: asyncio.StreamReader) -> Report | None:
        if self._strangers >= _MOST_STRANGERS:
            return None
        self._strangers += 1
        try:
            return Report.decode(await read_line(reader, _STRANGER_S))
        finally:
            self._strangers -= 1

    async def _follow(
        self, report: Report, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        reporting = self._reporting(report.token)
        if reporting is None:
            self._warn_of_stranger(writer)
            return
        try:
            while self._reporting(report.token) is reporting:
                writer.write(encode_order(reporting.reported(writer, report)))
                report = Report.decode(await read_line(reader, SILENCE_S))
        finally:
            reporting.left(writer)

    def _warn_of_stranger(self, writer: asyncio.StreamWriter) -> None:
        if not self._has_warned:  # once, so that no stranger can fill the log
            self._has_warned = True
            _LOG.warning(
                "Somebody at %s has connected to the tracker without the token of a receiver, and"
                " was not answered; there may be more, which will not be told.",
                writer.get_extra_info("peername"),
            )

    def _reporting(self, token: str) -> Reporting | None:
        """Whose token it is; how long that takes does not tell how much of it is right."""
        shown = token.encode(errors="replace")
        with self._changing:
            found = [
                reporting
                for expected, reporting in self._expected.items()
                if hmac.compare_digest(shown, expected)
            ]
        return found[0] if found else None
