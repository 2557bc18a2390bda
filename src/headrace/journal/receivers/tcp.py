"""Lines over TCP: for whatever can open a socket and write to it."""

import asyncio
import contextlib
import socket
from collections.abc import Collection
from typing import Final

from headrace.core.timing import wall_clock_ms
from headrace.errors import HeadraceError, JournalError, ReceiverError
from headrace.journal.receivers.access import Access
from headrace.journal.receivers.connections import (
    Connections,
    ListeningReceiver,
    accept,
    set_unless_done,
    take_proxy_header,
    wait_for_descriptor,
)
from headrace.journal.receivers.deduplicator import Receipt
from headrace.journal.receivers.intake import Intake
from headrace.journal.receivers.line_buffer import LineBuffer
from headrace.journal.receivers.memory_budget import MemoryBudget
from headrace.journal.receivers.settings import TcpSettings
from headrace.journal.receivers.tls_tunnel import TlsTunnels

_LINGER_S: Final = 2.0
"""Time for which the lines of a rejected sender are read and dropped (s). If the connection were
closed at once, the sender's system would discard the reason.
"""


class SharedBySenders:
    """State shared by the senders of one receiver.

    At a time ``readers`` senders are read, ``read_bytes`` each. The lines of the others stay with
    the kernel and with their senders, so that many senders under backpressure take no more memory
    than a few. A sender that has more than ``max_unanswered`` chunks of lines without an answer
    does not read its answers: nothing is read from it until it does.
    """

    def __init__(
        self,
        intake: Intake,
        settings: TcpSettings,
        *,
        read_bytes: int = 64 * 1024,
        readers: int = 16,
        max_unanswered: int = 256,
        access: Access | None = None,
    ) -> None:
        self.intake = intake
        self.settings = settings
        self.access = access or Access(settings)
        self.tunnels = TlsTunnels(
            settings.line_s,
            lambda reason: intake.rejections.count("TLS", reason),
            is_proxied=settings.proxy_protocol,
        )
        self.read_bytes = read_bytes
        self.max_unanswered = max_unanswered
        self.connections = Connections(intake.settings.connections(settings.max_connections))
        self.unfinished = MemoryBudget(intake.settings.unfinished_bytes)
        self.reading = asyncio.Semaphore(readers)


class LineSender:
    """One connection, over a non-blocking socket, which it closes in the end."""

    def __init__(
        self,
        connection: socket.socket,
        shared: SharedBySenders,
        settings: TcpSettings | None = None,
    ) -> None:
        self._connection = connection
        self._shared = shared
        self._settings = settings = settings or shared.settings
        self._lines = LineBuffer(settings, shared.unfinished)
        self._is_known = not shared.access.tokens.names
        self._left_s: float | None = settings.line_s
        self._answers: asyncio.Queue[tuple[asyncio.Task[Receipt], int] | None] = asyncio.Queue()
        self._unanswered = asyncio.Semaphore(shared.max_unanswered)
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Receive lines until the sender ends or is rejected."""
        self._serving = asyncio.create_task(self._serve())
        self._serving.add_done_callback(self._close)
        if self._shared.connections.admit(self):
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(lambda _: self._answers.put_nowait(None))
        return self._serving

    def stop(self) -> None:
        """Read no more; what is in the buffer is still acknowledged."""
        if self._reading:
            self._reading.cancel()

    def _close(self, _: asyncio.Task[None]) -> None:
        """Leave nothing behind, even if serving was over before it began."""
        self.stop()
        self._shared.connections.remove(self)
        self._lines.close()
        self._connection.close()

    async def _serve(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the sender has gone, or does not read
                try:
                    await self._answer()
                except HeadraceError as error:
                    await self._read_no_more()
                    await self._reject(error)
        finally:
            await self._read_no_more()

    async def _read_no_more(self) -> None:
        """Stop, and wait for it: until then the loop watches the connection's descriptor."""
        if self._reading:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()  # the sender has the reason, or has gone

    async def _answer(self) -> None:
        if self._reading is None:
            raise ReceiverError(
                f"All {self._settings.max_connections} connections are in use; connect again later."
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
        """Send how many lines more are durable; disconnect a sender that does not read it."""
        try:
            async with asyncio.timeout(self._settings.line_s):
                await self._send(f"ok {count}")
        except TimeoutError:
            self._shared.intake.rejections.count(
                "not reading",
                f"A sender did not read its answers for {self._settings.line_s:g} s; read them, or"
                " raise line_s.",
            )
            raise

    async def _reject(self, error: HeadraceError) -> None:
        kind = "not stored" if isinstance(error, JournalError) else "not taken"
        kind = "no place" if self._reading is None else kind
        self._shared.intake.rejections.count(kind, str(error))
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                await self._send(f"error {error}")
                if self._reading is None:
                    return  # it has no place, and must not take one
                self._connection.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(self._connection, self._shared.read_bytes):
                    continue

    async def _send(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._connection, f"{text}\n".encode())

    async def _read(self) -> None:
        if self._settings.proxy_protocol and self._settings.tls.certificate_file is None:
            await self._take_proxy_header()
        while True:
            await self._wait_for_more()
            async with self._unanswered:
                pass  # a place is free, and nobody else takes it; the others must not wait for it
            async with self._shared.reading:
                try:
                    data = self._connection.recv(self._shared.read_bytes)
                except BlockingIOError:
                    continue  # there is nothing to read after all
                if not data:
                    break
                whole = self._lines.add(data)
                del data  # while the lines wait for their turn, or for memory, they are here once
                if whole:
                    await self._take(whole)
                self._lines.check()
        if self._lines.is_unfinished:
            raise self._lines.cut_off()

    async def _take_proxy_header(self) -> None:
        line_s = self._settings.line_s
        try:
            async with asyncio.timeout(line_s):
                await take_proxy_header(self._connection)
        except TimeoutError as error:
            raise ReceiverError(
                f"The PROXY header was not complete after {line_s:g} s; send it, or raise line_s."
            ) from error

    async def _wait_for_more(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                await _readable(self._connection)
        except TimeoutError as error:
            raise ReceiverError(
                f"{self._lines.next_name} was not complete after {self._settings.line_s:g} s; send"
                " whole lines, or raise line_s."
            ) from error
        if self._left_s is not None:
            self._left_s = max(0.0, self._left_s - (loop.time() - began_s))
        else:  # a line begins
            self._left_s = self._settings.line_s

    async def _take(self, whole: bytes) -> None:
        if not self._is_known:
            whole = self._authenticate(whole)
        if whole:
            await self._submit(whole)
        self._left_s = self._settings.line_s if self._lines.is_unfinished else None

    def _authenticate(self, whole: bytes) -> bytes:
        """Check the token, which is the first line; return the lines after it."""
        first, rest = self._lines.first_of(whole)
        word, _, shown = first.partition(b" ")
        # A line without the word takes as long as one with a wrong token.
        name = self._shared.access.tokens.name_of(shown if word == b"token" else b"")
        if name is None:
            raise ReceiverError(
                "The first line is not the token; send 'token', a space and the token."
            )
        self._shared.intake.token_uses[name] += 1
        self._is_known = True
        return rest

    async def _submit(self, whole: bytes) -> None:
        """Submit lines in portions: what is durable is acknowledged while the rest waits."""
        for part in self._lines.parts_of(whole):
            await self._submit_some(part)

    async def _submit_some(self, lines: bytes) -> None:
        intake = self._shared.intake
        records, error = self._lines.records(lines, wall_clock_ms())
        while records.count:
            await self._unanswered.acquire()
            portion = intake.next_portion(records)
            receipt = intake.submit_nowait(portion, is_awaited=self._settings.acknowledge)
            self._answers.put_nowait((receipt, portion.count))
            await intake.buffered(receipt)
            records = records.slice(portion.count, records.count)
        if error:
            raise error


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    descriptor = connection.fileno()
    loop.add_reader(descriptor, set_unless_done, ready, None)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


class TcpReceiver(ListeningReceiver[TcpSettings]):
    r"""Takes each line that a sender writes, up to ``\n`` or ``\r\n``, for one record.

    With acknowledgements a sender counts: after ``ok 500`` and ``ok 20`` its first 520 lines are
    durable. They come in order, each as soon as its lines are durable, also while later lines wait
    for the rate and when the receiver ends. Without them a sender cannot tell which lines were lost
    when it or the receiver went down. With ``id_field`` it may send unacknowledged lines again:
    they are stored once.

    A sender whose line is rejected gets one line, ``error`` and the reason, and the connection is
    closed; the lines before that one are stored, and acknowledged as usual. A line without an end
    is rejected: nobody can tell whether the rest of it was lost.

    Under backpressure nothing is read, so that senders block on their sockets. Meanwhile a sender
    takes the memory of its unfinished line.

    Args:
        settings: The limits. Default: those of `TcpSettings`.
        stop_s: How long a stop waits for senders who do not read their last acknowledgements (s).
            Default: 5.
    """

    scheme = "tcp"

    def __init__(self, settings: TcpSettings | None = None, *, stop_s: float = 5) -> None:
        super().__init__(settings or TcpSettings())
        self._stop_s = stop_s

    async def receive(self, intake: Intake) -> None:
        """Receive until cancelled, as `Receiver.receive` says.

        Raises:
            ReceiverError: The port cannot be opened.
        """
        listener, access = self._take_listener()
        shared = SharedBySenders(intake, self.settings, access=access)
        senders: dict[asyncio.Task[None], LineSender] = {}
        try:
            while True:
                connection = await accept(listener)
                if (context := access.context) is not None:
                    try:
                        connection = shared.tunnels.open(connection, context)
                    except OSError as error:
                        await wait_for_descriptor(error)
                        continue
                sender = LineSender(connection, shared, self.settings)
                serving = sender.start()
                senders[serving] = sender
                serving.add_done_callback(senders.pop)
                await asyncio.sleep(0)  # accepting goes on at once if there is more to accept
        finally:
            listener.close()
            for sender in senders.values():
                sender.stop()
            await self._end(set(senders))
            await shared.tunnels.close(self._stop_s)

    async def _end(self, serving: Collection[asyncio.Task[None]]) -> None:
        if not serving:
            return
        _, stuck = await asyncio.wait(serving, timeout=self._stop_s)
        for task in stuck:
            task.cancel()
        if stuck:
            await asyncio.wait(stuck)
