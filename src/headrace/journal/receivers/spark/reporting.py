"""Reports of a receiver's task to the driver, the orders in answer, and the driver's server.

The two exchange lines of JSON, in turn: the task reports twice a second, and each report is
answered with an order. Nothing of it is ever unpickled or evaluated, and no line is longer than
4096 bytes.
"""

import asyncio
import hmac
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from headrace.errors import ReceiverError
from headrace.journal.receivers.connections import listen

MAX_LINE_BYTES: Final = 4096

REPORT_S: Final = 0.5
"""Interval of a task's reports (s), and so how soon it learns that it must stop."""

SILENCE_S: Final = 30.0
"""After so long without a line from the other side it counts as gone."""

_LOG: Final = logging.getLogger("headrace.receivers.spark")


class Order(StrEnum):
    """Order to a task.

    ``WAIT``: another task runs its receiver. ``RECEIVE``: run it, or go on. ``STOP``: end cleanly.
    """

    WAIT = "wait"
    RECEIVE = "receive"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a task on itself.

    Its receiver is ``receiving`` if it has its lane; senders connect to the address, if it listens.
    """

    token: str = field(repr=False)
    host: str
    receiving: bool = False
    address: str | None = None

    def encode(self) -> bytes:
        """A line, with its end."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Report":
        """Read a line; ReceiverError where it is no report."""
        match _parsed(line):
            case {
                "token": str(token),
                "host": str(host),
                "receiving": bool(receiving),
                "address": str() | None as address,
            }:
                return cls(token, host, receiving, address)
        raise ReceiverError("What was sent is no report of a receiver's task.")


def encode_order(order: Order) -> bytes:
    """A line, with its end."""
    return json.dumps({"order": order}).encode() + b"\n"


def decode_order(line: bytes) -> Order:
    """Read a line; ReceiverError where it is no order."""
    match _parsed(line):
        case {"order": str(word)} if word in set(Order):
            return Order(word)
    raise ReceiverError("What was sent is no order of a driver.")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


async def read_line(reader: asyncio.StreamReader, timeout_s: float) -> bytes:
    """The next line, with its end, from a reader made with ``limit=MAX_LINE_BYTES``.

    Raises:
        ReceiverError: None comes in this time, or it is too long, or the connection ends.
    """
    try:
        async with asyncio.timeout(timeout_s):
            line = await reader.readline()
    except TimeoutError as error:
        raise ReceiverError(f"Nothing was heard for {timeout_s:g} s.") from error
    except ValueError as error:  # asyncio's word for it
        raise ReceiverError(f"A line was longer than {MAX_LINE_BYTES} bytes.") from error
    except OSError as error:
        raise ReceiverError(f"The connection broke: {error}.") from error
    if not line.endswith(b"\n"):
        raise ReceiverError("The connection was closed.")
    return line


class _Supervision(NamedTuple):
    on_report: Callable[[object, Report], Order]
    on_disconnect: Callable[[object], None]


class ReportServer:
    """Listens for tasks, in a thread of its own, until it is closed.

    A client that does not show an expected token gets no answer. Each line and its time are
    bounded, and so is the number of connected clients that have not reported yet.

    Args:
        host: Where to listen.
        port: At which port; 0 for any that is free.
        silence_s: After so long without a report a task counts as gone (s). Default: 30. Shorter,
            and a pause of a worker costs its receiver; longer, and a lost task is replaced later.
        first_report_s: How long the first report may take (s). Default: 10.
        max_unauthenticated: How many clients may be connected without a report. Default: 64.

    Raises:
        ReceiverError: The port cannot be opened.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        silence_s: float = SILENCE_S,
        first_report_s: float = 10.0,
        max_unauthenticated: int = 64,
    ) -> None:
        self._listener = listen(host, port)
        self.port: Final[int] = self._listener.getsockname()[1]
        self._silence_s = silence_s
        self._first_report_s = first_report_s
        self._max_unauthenticated = max_unauthenticated
        self._expected: dict[bytes, _Supervision] = {}
        self._lock = threading.Lock()
        self._served: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._unauthenticated = 0
        self._has_warned = False
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._listen()), name="headrace-reports", daemon=True
        )
        self._thread.start()

    def expect(
        self,
        token: str,
        on_report: Callable[[object, Report], Order],
        on_disconnect: Callable[[object], None],
    ) -> None:
        """Accept the tasks with this token.

        The server's thread calls both functions, with what stands for the connection: ``on_report``
        answers a report, ``on_disconnect`` is called when the connection has ended, or was silent
        for too long.
        """
        with self._lock:
            self._expected[token.encode()] = _Supervision(on_report, on_disconnect)

    def forget(self, token: str) -> None:
        """Accept them no more: their connections are closed at their next report."""
        with self._lock:
            del self._expected[token.encode()]

    def close(self) -> None:
        """End all connections, and stop listening."""
        self._loop.result().call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _listen(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=MAX_LINE_BYTES)
        await self._closing.wait()
        server.close()
        await asyncio.sleep(0)  # a client that has just come begins to be served
        for writer in self._served.values():
            writer.close()
        if self._served:
            await asyncio.wait(self._served)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._served[task] = writer
        try:
            if report := await self._first(reader):
                await self._follow(report, reader, writer)
        except ReceiverError as error:  # why a task's is lost, its job says
            _LOG.debug("A connection to the driver has ended: %s", error)
        finally:
            writer.close()
            del self._served[task]

    async def _first(self, reader: asyncio.StreamReader) -> Report | None:
        if self._unauthenticated >= self._max_unauthenticated:
            return None
        self._unauthenticated += 1
        try:
            return Report.decode(await read_line(reader, self._first_report_s))
        finally:
            self._unauthenticated -= 1

    async def _follow(
        self, report: Report, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        supervision = self._supervision(report.token)
        if supervision is None:
            self._warn_of_unauthenticated(writer)
            return
        try:
            while self._supervision(report.token) is supervision:
                writer.write(encode_order(supervision.on_report(writer, report)))
                report = Report.decode(await read_line(reader, self._silence_s))
        finally:
            supervision.on_disconnect(writer)

    def _warn_of_unauthenticated(self, writer: asyncio.StreamWriter) -> None:
        if not self._has_warned:  # once, so that nobody can fill the log
            self._has_warned = True
            _LOG.warning(
                "A client at %s has connected to the driver without the token of a receiver, and"
                " was not answered; more of them are not logged.",
                writer.get_extra_info("peername"),
            )

    def _supervision(self, token: str) -> _Supervision | None:
        """Whose token it is; how long that takes does not tell how much of it is right."""
        shown = token.encode(errors="replace")
        with self._lock:
            found = [
                supervision
                for expected, supervision in self._expected.items()
                if hmac.compare_digest(shown, expected)
            ]
        return found[0] if found else None
