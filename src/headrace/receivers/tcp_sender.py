"""One sender of lines: reads them, hands them in, acknowledges them."""

import asyncio
import contextlib
import hmac
import socket
import time
from typing import Final

from headrace.errors import HeadraceError, JournalError, ReceiverError
from headrace.receivers.connections import Connections
from headrace.receivers.intake import Intake
from headrace.receivers.lines import Lines
from headrace.receivers.once import Receipt
from headrace.receivers.room import Room
from headrace.receivers.settings import TcpSettings

_READ_BYTES: Final = 256 * 1024
_READING: Final = 16
"""How many senders are read from at a time. The others' lines stay with the kernel and with those
who sent them, so that many senders under backpressure take no more memory than a few."""

_UNANSWERED: Final = 256
"""How many chunks of lines of one sender may be without an answer. More come from a sender that
does not take its answers; it is not read from until it does."""

_LINGER_S: Final = 2.0
"""How long what a refused sender still sends is thrown away. If the connection were closed at once,
the sender's system would throw away the reason instead."""


class Shared:
    """What the senders of one receiver have in common."""

    def __init__(self, intake: Intake, settings: TcpSettings) -> None:
        self.intake = intake
        self.settings = settings
        self.connections = Connections(settings.max_connections)
        self.unfinished = Room(settings.unfinished_bytes)
        self.reading = asyncio.Semaphore(_READING)


class Sender:
    """One connection.

    Args:
        connection: Does not block. It is closed in the end.
        shared: See `Shared`.
    """

    def __init__(self, connection: socket.socket, shared: Shared) -> None:
        self._connection = connection
        self._shared = shared
        self._settings = shared.settings
        self._lines = Lines(shared.settings, shared.unfinished)
        self._known = shared.settings.token is None
        self._left_s: float | None = shared.settings.line_s
        self._answers: asyncio.Queue[tuple[asyncio.Task[Receipt], int] | None] = asyncio.Queue()
        self._unanswered = asyncio.Semaphore(_UNANSWERED)
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Receive lines until the sender ends, goes, is refused or has to go."""
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._close)
        if self._shared.connections.admit(self, self._leave):
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(lambda _: self._answers.put_nowait(None))
        return self._serving

    def stop(self) -> None:
        """Read no more; what is in the buffer is still acknowledged."""
        if self._reading:
            self._reading.cancel()

    def _leave(self) -> None:
        if self._serving:
            self._serving.cancel()

    def _close(self, _: asyncio.Task[None]) -> None:
        """Leave nothing behind, even if serving was over before it began."""
        self.stop()
        self._shared.connections.leave(self)
        self._lines.close()
        self._connection.close()

    async def _serve(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the sender has gone, or does not read
                await self._answer_or_refuse()
        finally:
            await self._read_no_more()

    async def _answer_or_refuse(self) -> None:
        try:
            await self._answer()
        except HeadraceError as error:
            await self._read_no_more()
            await self._refuse(error)

    async def _read_no_more(self) -> None:
        """Stop, and wait for it: until then the loop watches the connection's descriptor."""
        if self._reading:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()  # the sender has been told, or has gone

    async def _answer(self) -> None:
        if self._reading is None:
            raise ReceiverError(
                f"All {self._settings.max_connections} places for senders are taken; come again"
                " later."
            )
        while answer := await self._answers.get():
            receipt, count = answer
            await asyncio.wait([receipt])
            if receipt.cancelled():
                continue  # withdrawn by a stop; without an answer the sender keeps it
            receipt.result()
            self._unanswered.release()
            if self._settings.acknowledge:
                await self._acknowledge(count)
        if not self._reading.cancelled() and (error := self._reading.exception()):
            raise error

    async def _acknowledge(self, count: int) -> None:
        """Tell how many lines more are durable, or let go a sender that would not hear it."""
        try:
            async with asyncio.timeout(self._settings.line_s):
                await self._say(f"ok {count}")
        except TimeoutError:
            self._shared.intake.refusals.count(
                "not reading",
                f"A sender did not read its answers for {self._settings.line_s:g} s; read them, or"
                " raise line_s.",
            )
            raise

    async def _refuse(self, error: HeadraceError) -> None:
        kind = "not stored" if isinstance(error, JournalError) else "not taken"
        self._shared.intake.refusals.count(kind, str(error))
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._say(f"error {error}")
                if self._reading is None:
                    return  # it has no place, and must not keep one
                self._connection.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(self._connection, _READ_BYTES):
                    continue

    async def _say(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._connection, f"{text}\n".encode())

    async def _read(self) -> None:
        while True:
            await self._wait_for_more()
            async with self._unanswered:
                pass  # there is a place, which nobody else takes; the others must not wait for it
            async with self._shared.reading:
                data = self._received()
                if data is None:
                    continue
                if not data:
                    break
                whole = self._lines.add(data)
                if whole:
                    await self._take(whole)
                self._lines.check()
        if self._lines.unfinished:
            raise ReceiverError(
                f"Line {self._lines.next_number} has no end, and was not taken; end every line"
                r" with \n."
            )

    async def _wait_for_more(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                await _readable(self._connection)
        except TimeoutError as error:
            raise ReceiverError(
                f"Line {self._lines.next_number} was not complete after {self._settings.line_s:g}"
                " s; send whole lines, or raise line_s."
            ) from error
        if self._left_s is not None:
            self._left_s = max(0.0, self._left_s - (loop.time() - began_s))
        else:  # a line begins
            self._left_s = self._settings.line_s

    def _received(self) -> bytes | None:
        """What there is; nothing at the end; None if there is nothing after all."""
        try:
            return self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return None

    async def _take(self, whole: bytes) -> None:
        if not self._known:
            whole = self._identified(whole)
        self._shared.connections.busy(self)
        if whole:
            await self._hand_in(whole)
        self._left_s = self._settings.line_s if self._lines.unfinished else None

    def _identified(self, whole: bytes) -> bytes:
        """Check the first line; answers the lines after it."""
        first, _, rest = whole.partition(b"\n")
        expected = f"token {self._settings.token}".encode()
        if not hmac.compare_digest(first.removesuffix(b"\r"), expected):
            raise ReceiverError("The first line is not the token; send 'token', a space and it.")
        self._known = True
        return rest

    async def _hand_in(self, whole: bytes) -> None:
        records, error = self._lines.records(whole, time.time_ns() // 1_000_000)
        if records.count:
            await self._unanswered.acquire()
            receipt = self._shared.intake.begin(records)
            self._answers.put_nowait((receipt, records.count))
            await self._shared.intake.entered(receipt)
        if error:
            raise error


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    descriptor = connection.fileno()

    def more() -> None:
        loop.remove_reader(descriptor)
        if not ready.done():  # cancelled, and not removed yet
            ready.set_result(None)

    loop.add_reader(descriptor, more)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
