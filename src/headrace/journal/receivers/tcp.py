"""Receiver of lines over TCP, for any sender that can write to a socket."""

import asyncio
import contextlib
from typing import Final, cast

from headrace.core.timing import wall_clock_ms
from headrace.errors import HeadraceError, JournalError, ReceiverError
from headrace.journal.receivers.access import Access
from headrace.journal.receivers.connections import (
    LINGER_S,
    READ_BYTES,
    Connections,
    Doorway,
    ListeningReceiver,
    SenderProtocol,
)
from headrace.journal.receivers.deduplicator import Receipt
from headrace.journal.receivers.intake import Intake
from headrace.journal.receivers.lines import SenderLines
from headrace.journal.receivers.memory_budget import MemoryBudget
from headrace.journal.receivers.settings import TcpSettings

_FEW_BYTES: Final = 4 * 1024
"""Maximum size of one read from a sender (bytes) while the lines of many senders wait."""


class SharedBySenders:
    """State that all sender connections of one TCP receiver share.

    While a sender's lines wait, the receiver reads nothing more from this sender. While the lines
    of ``readers`` senders wait, the receiver reads at most 4 KiB at a time from any other sender.
    The remaining bytes stay in the kernel and with the sender, so waiting senders take little
    memory. Reading from a sender also pauses while ``max_unanswered`` of its chunks are unanswered.
    """

    def __init__(
        self,
        intake: Intake,
        settings: TcpSettings,
        *,
        read_bytes: int = READ_BYTES,
        readers: int = 16,
        max_unanswered: int = 256,
        access: Access | None = None,
    ) -> None:
        self.intake = intake
        self.settings = settings
        self.access = access or Access(settings)
        self.max_unanswered = max_unanswered
        is_secured = settings.tls.certificate_file is not None
        self.is_secured = is_secured
        self.connections = Connections(
            intake.settings.connections(settings.max_connections, is_secured=is_secured)
        )
        self.unfinished = MemoryBudget(intake.settings.unfinished_bytes)
        self.open: set[LineSender] = set()
        self.taking = 0
        self._readers = readers
        self._buffer = memoryview(bytearray(read_bytes))

    @property
    def buffer(self) -> memoryview:
        """Buffer for the next read of any connection; each read copies its bytes out of the buffer.

        It has only 4 KiB while the lines of many senders wait.
        """
        return self._buffer if self.taking < self._readers else self._buffer[:_FEW_BYTES]


class LineSender(SenderProtocol):
    """Connection of one sender of lines.

    Reading pauses while the sender's lines wait for memory or the rate limit, so TCP blocks the
    sender.
    """

    _transport: asyncio.Transport

    def __init__(self, shared: SharedBySenders) -> None:
        super().__init__(shared.connections)
        self._shared = shared
        self._settings = settings = shared.settings
        self._loop = asyncio.get_running_loop()
        self._lines = SenderLines(settings, shared.unfinished)
        self._is_known = not shared.access.tokens.names
        self._left_s: float | None = settings.line_s
        self._began_s = 0.0
        self._late: asyncio.TimerHandle | None = None
        self._answers: asyncio.Queue[tuple[asyncio.Task[Receipt], int] | HeadraceError | None] = (
            asyncio.Queue()
        )
        self._unanswered = asyncio.Semaphore(shared.max_unanswered)
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._taking: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_over = self._has_ended = False

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start reading, or reject the connection if too many connections are open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1)  # detects unread answers at once
        self._shared.open.add(self)
        self._serving = self._loop.create_task(self._serve())
        if self.refused is not None:
            self._end(self.refused)
        elif self.has_place:
            self._watch()
        else:
            most = self._settings.max_connections
            self._end(ReceiverError(f"All {most} connections are in use; connect again later."))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that asyncio fills with the next read."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process the ``nbytes`` bytes that asyncio has read, and pause reading meanwhile."""
        if self._is_over:
            return  # the bytes are discarded
        data = bytes(self._shared.buffer[:nbytes])
        self._unwatch()
        self._transport.pause_reading()
        self._shared.taking += 1
        self._taking = self._loop.create_task(self._take(data))
        self._taking.add_done_callback(self._taken)

    def eof_received(self) -> bool:
        """Stop reading, acknowledge the received lines, then close the connection.

        An unfinished line is rejected. Return whether asyncio must keep the sending half open.
        """
        self._has_ended = True
        if not self._is_over:
            self._end(self._lines.cut_off() if self._lines.is_unfinished else None)
        return not self._shared.is_secured  # TLS connections cannot be half-closed

    def pause_writing(self) -> None:
        """Stop sending: the sender does not read its answers, and must do so within ``line_s``."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Continue to send answers, because the sender reads them."""
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the open connections; lines already read are still stored."""
        self._unwatch()
        self._may_write.set()
        if not self._is_over:
            self._is_over = True
            if self._taking is None or self._taking.done():
                self._answers.put_nowait(None)
        self._lines.close()
        self._shared.open.discard(self)
        self.give_place_back()

    def stop(self) -> None:
        """Stop reading because the receiver stops; buffered records are still acknowledged."""
        if not self._is_over:
            self._end(None)

    def abort(self) -> None:
        """Close the connection at once, without sending pending answers."""
        self._transport.abort()
        if self._serving is not None:
            self._serving.cancel()

    # Reading.

    def _end(self, error: HeadraceError | None) -> None:
        """Stop reading, acknowledge the accepted lines, then send the error if there is one."""
        self._take_no_more()
        self._answers.put_nowait(error)

    def _take_no_more(self) -> None:
        self._is_over = True
        self._unwatch()
        if self._taking is not None and self._taking is not asyncio.current_task():
            self._taking.cancel()

    async def _take(self, data: bytes) -> None:
        try:
            async with self._unanswered:
                pass  # waits until an answer may be queued; the place is taken in _submit_some
            whole = self._lines.add(data)
            del data  # so that waiting lines are in memory only once
            if whole and not self._is_known:
                whole = self._authenticate(whole)
            if whole:
                await self._submit(whole)
                self._left_s = self._settings.line_s if self._lines.is_unfinished else None
            self._lines.check()
        except HeadraceError as error:
            if not self._is_over:
                self._end(error)
        except Exception:
            self._transport.abort()  # a bug in Headrace
            raise
        if self._transport.is_closing():
            self._answers.put_nowait(None)
        elif not self._is_over:
            self._watch()
            self._transport.resume_reading()

    def _taken(self, _: asyncio.Task[None]) -> None:
        self._shared.taking -= 1

    def _watch(self) -> None:
        """Start the time limit of the unfinished line, or of the sender's first line.

        Between lines a sender may be silent for any time.
        """
        self._began_s = self._loop.time()
        if self._left_s is not None:
            self._late = self._loop.call_later(self._left_s, self._too_late)

    def _unwatch(self) -> None:
        """Pause the time limit of the current line while the sender's bytes are processed."""
        if self._left_s is None:  # a line begins
            self._left_s = self._settings.line_s
        elif self._late is not None:
            self._left_s = max(0.0, self._left_s - (self._loop.time() - self._began_s))
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._end(
            ReceiverError(
                f"{self._lines.next_name} was not complete after {self._settings.line_s:g} s; send"
                " whole lines, or raise line_s."
            )
        )

    def _authenticate(self, whole: bytes) -> bytes:
        """Check the token in the first line, and return the lines after it.

        Raises ReceiverError if the first line is not a valid token.
        """
        first, rest = self._lines.first_of(whole)
        word, _, shown = first.partition(b" ")
        # A line without the word is compared too, so that it takes as long as a wrong token.
        name = self._shared.access.tokens.name_of(shown if word == b"token" else b"")
        if name is None:
            raise ReceiverError(
                "The first line has no valid token; send 'token', a space and the token first."
            )
        self._shared.intake.token_uses[name] += 1
        self._is_known = True
        return rest

    async def _submit(self, whole: bytes) -> None:
        """Submit lines in portions, to acknowledge the first portions while later lines wait."""
        for chunk in self._lines.parts_of(whole):
            await self._submit_some(chunk)

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

    # Answering.

    async def _serve(self) -> None:
        try:
            error = await self._answer()
        except HeadraceError as not_stored:
            error = not_stored
        except TimeoutError:
            self._transport.abort()
            return
        if error is not None:
            await self._reject(error)
        self._transport.close()

    async def _answer(self) -> HeadraceError | None:
        """Acknowledge durable lines in order until the connection ends.

        Return the error to send as the last answer, or None.
        """
        while isinstance(answer := await self._answers.get(), tuple):
            receipt, count = answer
            await asyncio.wait([receipt])
            if receipt.cancelled():
                continue  # withdrawn by a stop; the sender repeats lines without an answer
            receipt.result()
            self._unanswered.release()
            if self._settings.acknowledge:
                await self._acknowledge(count)
        return answer

    async def _acknowledge(self, count: int) -> None:
        """Send ``ok`` with the number of newly durable lines.

        Raises TimeoutError if the sender does not read its answers within ``line_s``.
        """
        if not self._transport.is_closing():
            self._transport.write(f"ok {count}\n".encode())
        try:
            async with asyncio.timeout(self._settings.line_s):
                await self._may_write.wait()
        except TimeoutError:
            self._shared.intake.rejections.count(
                "not reading",
                f"A sender did not read its answers for {self._settings.line_s:g} s; read them, or"
                " raise line_s.",
            )
            raise

    async def _reject(self, error: HeadraceError) -> None:
        """Count a rejection, send its error to the sender, and discard bytes for `LINGER_S`."""
        kind = "not stored" if isinstance(error, JournalError) else "not taken"
        self._shared.intake.rejections.count(kind if self.has_place else "no place", str(error))
        if not self._is_over:
            self._take_no_more()
        self._lines.close()
        if self._transport.is_closing():
            return
        self._transport.write(f"error {error}\n".encode())
        if self._has_ended or not self.has_place:
            return  # the sender sends nothing more, or has no place
        with contextlib.suppress(OSError, NotImplementedError):
            self._transport.write_eof()
        self._transport.resume_reading()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await asyncio.shield(self.closed)


class TcpReceiver(ListeningReceiver[TcpSettings]):
    r"""Receiver of lines over TCP; each line, up to ``\n`` or ``\r\n``, becomes a record.

    Acknowledgements are counts of lines: after ``ok 500`` and ``ok 20``, a sender's first 520 lines
    are durable. The receiver sends them in order, as soon as the lines are durable, even if later
    lines wait for the rate limit or the receiver stops. Without acknowledgements a sender cannot
    know which lines were lost in a crash of the sender or the receiver. With ``id_field`` a sender
    may repeat unacknowledged lines, and they are stored only once.

    If a line is rejected, the receiver sends one line with ``error`` and the reason, and closes the
    connection. Earlier lines are stored and acknowledged as usual. A line without a line end is
    rejected, because its rest may be lost.

    Under backpressure the receiver pauses reading, so that senders block on their sockets. A
    waiting sender takes only the memory of its unfinished line.

    Args:
        settings: Address and limits. Default: ``TcpSettings()``.
        stop_s: Time for which a stop waits until senders read their last acknowledgements (s).
            Default: 5.
    """

    scheme = "tcp"

    def __init__(self, settings: TcpSettings | None = None, *, stop_s: float = 5) -> None:
        super().__init__(settings or TcpSettings())
        self._stop_s = stop_s

    async def receive(self, intake: Intake) -> None:
        """Receive lines until cancelled; on cancellation, first acknowledge the buffered records.

        Raises:
            OptionError: The token file, or a file with a certificate or key, cannot be used.
            ReceiverError: The port cannot be opened.
        """
        listener, access = self._take_listener()
        shared = SharedBySenders(intake, self.settings, access=access)
        doorway = Doorway(
            lambda: LineSender(shared),
            self.settings.line_s,
            intake.rejections.count,
            context=lambda: access.context,
            is_proxied=self.settings.proxy_protocol,
        )
        try:
            await doorway.accept_all(listener)
        finally:
            for sender in set(shared.open):
                sender.stop()
            await self._end(shared)

    async def _end(self, shared: SharedBySenders) -> None:
        if not shared.open:
            return
        ends = {sender.closed for sender in shared.open}
        await asyncio.wait(ends, timeout=self._stop_s)
        for sender in set(shared.open):
            sender.abort()
        await asyncio.wait(ends)
