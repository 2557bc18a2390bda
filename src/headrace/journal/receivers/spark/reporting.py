"""Protocol between receivers' tasks and the driver: the tasks' reports and the driver's orders.

A task sends a report twice a second, and the driver answers each report with an order. Both are
lines of JSON of at most 4096 bytes, and nothing in them is unpickled or evaluated.
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
"""Interval of a task's reports (s). An order of the driver, such as to stop, reaches the task
within this time."""

SILENCE_S: Final = 30.0
"""Time without a line after which a task and the driver consider each other lost (s)."""

_LOG: Final = logging.getLogger("headrace.receivers.spark")


class Order(StrEnum):
    """Order of the driver to a task.

    ``WAIT``: do not start the receiver yet, because another task runs it. ``RECEIVE``: start the
    receiver, or let it continue. ``STOP``: stop the receiver cleanly.
    """

    WAIT = "wait"
    RECEIVE = "receive"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a task to the driver.

    ``token`` authenticates the task. ``host`` is its machine. ``receiving`` is true once the
    receiver has locked its lane. ``address`` is the URL for senders, or None for a receiver that
    does not listen or does not listen yet.
    """

    token: str = field(repr=False)
    host: str
    receiving: bool = False
    address: str | None = None

    def encode(self) -> bytes:
        """Encode the report as a line of JSON, with a line end."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "Report":
        """Parse a line of JSON and return the report; raise ReceiverError for any other line."""
        match _parsed(line):
            case {
                "token": str(token),
                "host": str(host),
                "receiving": bool(receiving),
                "address": str() | None as address,
            }:
                return cls(token, host, receiving, address)
        raise ReceiverError("The received line is not a report of a receiver's task.")


def encode_order(order: Order) -> bytes:
    """Encode an order as a line of JSON, with a line end."""
    return json.dumps({"order": order}).encode() + b"\n"


def decode_order(line: bytes) -> Order:
    """Parse a line of JSON and return the order; raise ReceiverError for any other line."""
    match _parsed(line):
        case {"order": str(word)} if word in set(Order):
            return Order(word)
    raise ReceiverError("The received line is not an order of the driver.")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


async def read_line(reader: asyncio.StreamReader, timeout_s: float) -> bytes:
    """Read the next line, and return it with its line end.

    The reader must have the limit `MAX_LINE_BYTES`.

    Raises:
        ReceiverError: No line arrives within ``timeout_s``, the line is longer than the limit, or
            the connection ends.
    """
    try:
        async with asyncio.timeout(timeout_s):
            line = await reader.readline()
    except TimeoutError as error:
        raise ReceiverError(f"No line was received for {timeout_s:g} s.") from error
    except ValueError as error:  # asyncio raises it beyond the reader's limit
        raise ReceiverError(f"A received line has more than {MAX_LINE_BYTES} bytes.") from error
    except OSError as error:
        raise ReceiverError(f"The connection has failed: {error}.") from error
    if not line.endswith(b"\n"):
        raise ReceiverError("The connection was closed.")
    return line


class _Supervision(NamedTuple):
    on_report: Callable[[object, Report], Order]
    on_disconnect: Callable[[object], None]


class ReportServer:
    """Server in the driver that receives the reports of tasks, in a thread of its own until closed.

    A client without an expected token gets no answer. Each line is limited in size and time, and
    the number of connected clients that have not sent a report is limited.

    Args:
        host: Address on which the server listens.
        port: TCP port on which the server listens; 0 for any free port.
        silence_s: Time without a report after which a task counts as lost (s). Default: 30. If too
            short, a pause of a worker ends its receiver; if too long, a lost task is replaced late.
        first_report_s: Time limit for the first report of a client (s). Default: 10.
        max_unauthenticated: Maximum number of connected clients that have not sent a report.
            Default: 64.

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
        """Accept tasks with this token until `forget` is called.

        The server's thread calls both functions with an object that identifies the connection.
        ``on_report`` takes a report, and returns the order that answers it. ``on_disconnect`` is
        called after the connection has ended, or has sent no report for ``silence_s``.
        """
        with self._lock:
            self._expected[token.encode()] = _Supervision(on_report, on_disconnect)

    def forget(self, token: str) -> None:
        """Reject tasks with this token, and close their connections at their next report."""
        with self._lock:
            del self._expected[token.encode()]

    def close(self) -> None:
        """Stop listening, close all connections, and wait for the server's thread."""
        self._loop.result().call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _listen(self) -> None:
        self._loop.set_result(asyncio.get_running_loop())
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=MAX_LINE_BYTES)
        await self._closing.wait()
        server.close()
        await asyncio.sleep(0)  # lets the handler of a new connection start
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
        except ReceiverError as error:  # the job reports why its task was lost
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
        if not self._has_warned:  # once, so that no client can fill the log
            self._has_warned = True
            _LOG.warning(
                "A client at %s has connected to the driver without the token of a receiver, and"
                " was not answered; further clients without a token are not logged.",
                writer.get_extra_info("peername"),
            )

    def _supervision(self, token: str) -> _Supervision | None:
        """Return the functions to call for a token, or None for an unexpected token.

        The comparison takes the same time whether or not the token matches.
        """
        shown = token.encode(errors="replace")
        with self._lock:
            matches = [
                supervision
                for expected, supervision in self._expected.items()
                if hmac.compare_digest(shown, expected)
            ]
        return matches[0] if matches else None
