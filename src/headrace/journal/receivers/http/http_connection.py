"""HTTP/1.1 connections of a receiver: parsing, answering, and limits of time and memory.

llhttp, by way of httptools, parses requests. httptools does not report where in its input a request
ended, so the parser never gets bytes of two requests at once. A body with a length is fed up to its
end, a head or a chunked body up to the next empty line. Requests that are sent ahead wait as bytes,
at most 32 KiB, until the answer is sent.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Final, TypeAlias, cast

import httptools

from headrace.journal.receivers.access import Access
from headrace.journal.receivers.connections import (
    LINGER_S,
    Connections,
    Doorway,
    SenderProtocol,
)
from headrace.journal.receivers.event_log import Rejections
from headrace.journal.receivers.http.http_message import (
    KEPT_HEADERS,
    MALFORMED,
    READ_BYTES,
    Headers,
    HttpAnswer,
    HttpRejection,
    HttpRequest,
    SenderGoneError,
    protocol_error,
    refusal,
    too_long,
)
from headrace.journal.receivers.settings import HttpSettings

_LOG: Final = logging.getLogger("headrace.receivers")

IDLE_S: Final = 75.0
"""Time that an answered connection may be idle (s). Load balancers reuse connections for 60 s: if
the receiver closed a connection sooner, a request in flight would fail."""

_END: Final = b"\r\n\r\n"
"""End of a head, and of a chunked body."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_FULL: Final = HttpRejection(
    503, "All connections are in use; send it again in 1 s.", {"retry-after": "1"}, "no place"
)
_DEFECT: Final = HttpRejection(500, "The receiver failed; see its log, and send the request again.")

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]
Routes: TypeAlias = Mapping[str, Mapping[str, Handler]]
"""Handlers by path and method."""


class HttpServer:
    """Routes served on one port, with the state that its connections share; for one event loop.

    Args:
        routes: The handlers.
        usage: The sentence of answers to an unknown path or method.
        settings: The limits.
        connections: The places.
        rejections: Counts rejected requests and connections.
        idle_s: Time that an answered connection may wait for its next request (s). Default: 75.
    """

    def __init__(
        self,
        routes: Routes,
        usage: str,
        settings: HttpSettings,
        *,
        connections: Connections,
        rejections: Rejections,
        idle_s: float = IDLE_S,
    ) -> None:
        self._routes = routes
        self._usage = usage
        self.settings = settings
        self.connections = connections
        self.rejections = rejections
        self.idle_s = idle_s
        self.is_secured = self.is_stopping = False
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Read buffer of all connections: its bytes are copied out before any other read."""
        self.open: set[HttpConnection] = set()
        self.running: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket, access: Access | None, stop_s: float) -> None:
        """Serve until cancelled, and close the listener.

        Args:
            listener: The open port.
            access: Certificates for TLS; None without TLS.
            stop_s: Time that a stop waits for requests being answered (s).
        """
        self.is_secured = access is not None and access.context is not None
        doorway = Doorway(
            lambda: HttpConnection(self),
            self.settings.header_s,
            self.rejections.count,
            context=lambda: None if access is None else access.context,
        )
        try:
            await doorway.accept_all(listener)
        finally:
            await self._end(stop_s)

    async def _end(self, stop_s: float) -> None:
        self.is_stopping = True
        for connection in set(self.open):
            connection.shutdown()
        ends = {connection.closed for connection in self.open} | self.running
        if ends:
            await asyncio.wait(ends, timeout=stop_s)
        for connection in set(self.open):
            connection.abort()
        for task in set(self.running):
            task.cancel()
        if ends:
            await asyncio.wait(ends)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request; raises SenderGoneError if its body does not arrive."""
        try:
            return await self._handler(request)(request)
        except HttpRejection as rejection:
            rejection.count(self.rejections)
            return rejection.answer
        except SenderGoneError:
            raise
        except Exception:  # noqa: BLE001  # a bug in one request must not stop the next
            _LOG.exception("A request was answered 500; this is a defect.")
            return _DEFECT.answer

    def _handler(self, request: HttpRequest) -> Handler:
        methods = self._routes.get(request.path)
        if methods is None:
            raise HttpRejection(404, self._usage)
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise HttpRejection(405, self._usage, {"allow": ", ".join(methods)})
        return handler


class _Awaited(Enum):
    """The bytes that a connection must send before its time limit."""

    REQUEST = auto()
    """The first byte of a request."""
    HEAD = auto()
    """The rest of a request's head."""
    BODY = auto()
    """The rest of a body whose request is answered."""


class HttpConnection(SenderProtocol):
    """One sender's connection: each request is read and answered before the next is read.

    Requests sent ahead are neither read nor parsed until the previous request is answered.
    ``header_s`` is the time limit of a head, and of the rest of a body that was answered early,
    for instance because of an unknown path. Only a head that has begun is answered 408. Without a
    request, a client would take the answer for the answer to its next request.
    """

    _transport: asyncio.Transport
    _late: asyncio.TimerHandle | None = None
    _awaited = _Awaited.REQUEST
    _was_ever_answered = False
    _has_ended = _is_discarding = False
    _is_paused = _is_write_paused = False
    _rest, _at = b"", 0

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.connections)
        self._server = server
        self._settings = server.settings
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._begin()

    def _begin(self) -> None:
        """Reset the state for the next request."""
        self._request: HttpRequest | None = None
        self._refused: HttpRejection | None = None
        self._target = self._tail = b""
        self._headers: Headers = {}
        self._left_bytes: int | None = None  # rest of a body with a length
        self._framing_bytes = 0  # size of the head, later of the framing between chunks
        self._keeps = True
        self._has_begun = self._is_answered = self._is_upgrade = self._expects = False

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, or reject the connection if all places are taken."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.open.add(self)
        if self.has_place:
            self._watch()
        else:
            _FULL.count(self._server.rejections)
            self._close_with(_FULL)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes read."""
        if self._is_discarding:
            return
        data = bytes(self._server.buffer[:nbytes])
        if self._rest:  # asyncio may deliver a read after pause_reading
            self._rest, self._at = self._rest[self._at :] + data, 0
            return
        self._rest = data
        self._parse()

    def eof_received(self) -> bool:
        """Keep a half-closed connection until its complete request is answered.

        `nc -N` and other senders of a single request close their half after it.
        """
        self._has_ended = True
        if self._server.is_secured:  # TLS connections cannot be half-closed
            return False
        return self._is_whole() and not self._is_answered and not self._is_discarding

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place of the connection; a complete request is still handled."""
        self._server.open.discard(self)
        self._stop_watching()
        self._rest = b""
        if self._request is not None and not self._request.is_whole:
            self._request.fail()
        self.give_place_back()

    def pause_writing(self) -> None:
        """Begin no request while the sender does not read its answers."""
        self._is_write_paused = True
        self._pace()

    def resume_writing(self) -> None:
        """Continue with waiting requests."""
        self._is_write_paused = False
        self._parse()

    def shutdown(self) -> None:
        """Close the connection when the receiver stops, after answering a request in progress."""
        if self._is_discarding:
            self._transport.abort()
        elif self._request is None or self._is_answered:
            self._transport.close()
        else:
            self._keeps = False

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # Reading.

    def _parse(self) -> None:
        """Parse the bytes that the request in progress allows; the rest waits."""
        while self._at < len(self._rest) and self._may_parse():
            chunk = self._rest[self._at : self._end_of_part()]
            self._at += len(chunk)
            self._feed(chunk)
            if self._is_answered and self._is_whole():  # answered before the end of its body
                self._begin()
        if self._at >= len(self._rest) or self._is_ending():
            self._rest, self._at = b"", 0
            if self._has_ended and not self._is_whole():
                self._transport.close()
        self._watch()
        self._pace()

    def _may_parse(self) -> bool:
        if self._request is None:
            return not self._is_write_paused and not self._is_ending()
        return not self._request.is_whole and not self._is_ending()

    def _is_whole(self) -> bool:
        return self._request is not None and self._request.is_whole

    def _is_ending(self) -> bool:
        return self._is_discarding or self._transport.is_closing()

    def _end_of_part(self) -> int:
        """Return the end of the next chunk to parse, which never has bytes of two requests."""
        end = len(self._rest)
        if self._left_bytes is not None:
            return min(end, self._at + self._left_bytes)
        if self._request is None:  # one byte more than allowed, to detect too long headers
            end = min(end, self._at + self._settings.max_header_bytes - self._framing_bytes + 1)
        if self._tail:
            joined = self._tail + self._rest[self._at : min(end, self._at + 3)]
            if (at := joined.find(_END)) >= 0:
                return self._at + at + len(_END) - len(self._tail)
        at = self._rest.find(_END, self._at, end)
        return end if at < 0 else at + len(_END)

    def _feed(self, part: bytes) -> None:
        self._framing_bytes += len(part)
        self._tail = (self._tail + part[-3:])[-3:]
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            if self._refused is None:
                self._go_on_without_upgrade()
        except httptools.HttpParserCallbackError:
            raise  # a bug in Headrace
        except httptools.HttpParserError as error:
            if not self._is_whole():
                self._refuse(self._refused or protocol_error(error))
            self._keeps = False
            return
        if self._refused is not None:
            self._refuse(self._refused)
        elif (
            self._left_bytes is None
            and not self._is_whole()
            and self._framing_bytes > self._settings.max_header_bytes
        ):
            self._refuse(too_long(self._settings))

    def _go_on_without_upgrade(self) -> None:
        """Parse the body as HTTP/1.1: senders that offer an upgrade must do without it."""
        lines = [b"%b: %b" % (name, value) for name, of in self._headers.items() for value in of]
        version = self._parser.get_http_version().encode()
        start = b"%b %b HTTP/%b" % (self._parser.get_method(), self._target, version)
        self._begin()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"\r\n".join([start, *lines, b"", b""]))

    def on_message_begin(self) -> None:
        """Note the first byte of a request after empty lines; llhttp calls this method."""
        self._has_begun = True

    def on_url(self, url: bytes) -> None:
        """Append to the target; llhttp calls this method."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a known header, unless it is a trailer after the body; llhttp calls this method."""
        name = name.lower()
        if name in KEPT_HEADERS and self._request is None:
            self._headers.setdefault(name, []).append(value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Start handling the request; llhttp calls this method."""
        if self._refused is not None or self._request is not None:
            return
        parser, headers = self._parser, self._headers
        version, method = parser.get_http_version(), parser.get_method()
        self._refused = MALFORMED if method == b"CONNECT" else refusal(version, headers)
        if self._refused is not None:
            return
        if parser.should_upgrade():
            self._is_upgrade = True
            return
        self._keeps = version == "1.1" and parser.should_keep_alive()
        self._expects = [value.lower() for value in headers.get(b"expect", ())] == [b"100-continue"]
        if b"transfer-encoding" not in headers:
            self._left_bytes = int(headers.get(b"content-length", [b"0"])[0])
        self._framing_bytes = 0
        self._request = HttpRequest(method.decode(), self._target, headers, self._wanted)
        task = self._loop.create_task(self._run(self._request))
        self._server.running.add(task)
        task.add_done_callback(self._server.running.discard)

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body to the request; llhttp calls this method."""
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
        self._framing_bytes = 0
        self._expects = False
        if self._request is not None:
            self._request.add(body)

    def on_message_complete(self) -> None:
        """Note the end of the body; llhttp calls this method."""
        if self._request is not None and not self._is_upgrade:
            self._request.end()

    def _wanted(self) -> None:
        """Continue reading, because the handler has taken the bytes of the body so far."""
        if self._expects and not self._is_ending():
            self._expects = False
            self._transport.write(_CONTINUE)
        self._pace()

    def _pace(self) -> None:
        """Pause or resume reading, depending on the current state."""
        if self._has_ended or self._transport.is_closing():
            return
        is_behind = self._request is not None and self._request.is_behind
        is_unread = self._is_write_paused and self._request is None
        pause = bool(self._rest) or is_behind or is_unread
        pause = pause and not self._is_discarding
        if pause != self._is_paused:
            self._is_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Answering.

    async def _run(self, request: HttpRequest) -> None:
        try:
            answer = await self._server.answer(request)
        except SenderGoneError:
            return
        if self._is_ending():
            return
        has_body = request.method != "HEAD"
        if answer.is_last or not self._keeps:
            self._end_with(answer, has_body=has_body)
            return
        self._transport.write(answer.encoded(is_last=False, has_body=has_body))
        self._is_answered = self._was_ever_answered = True
        request.drop()
        if request.is_whole:
            self._next()
        else:
            self._watch()
            self._pace()

    def _next(self) -> None:
        """Continue with the next request."""
        self._begin()
        self._parse()

    def _refuse(self, rejection: HttpRejection) -> None:
        """Reject malformed bytes; close the connection if its request is already answered."""
        if self._is_answered:
            self._transport.close()
            return
        rejection.count(self._server.rejections)
        if self._request is not None:
            self._request.fail()
        self._end_with(rejection.answer)

    def _end_with(self, answer: HttpAnswer, *, has_body: bool = True) -> None:
        """Send the last answer of the connection, then drop further bytes for `LINGER_S`."""
        self._transport.write(answer.encoded(is_last=True, has_body=has_body))
        self._stop_watching()
        if self._has_ended or (self._server.is_stopping and self._is_whole()):
            self._transport.close()
            return
        self._is_discarding = True
        self._rest, self._at = b"", 0
        with contextlib.suppress(OSError):  # the sender is gone
            self._transport.write_eof()
        self._late = self._loop.call_later(LINGER_S, self._transport.abort)
        self._pace()

    def _close_with(self, rejection: HttpRejection) -> None:
        if not self._transport.is_closing():
            self._transport.write(rejection.answer.encoded(is_last=True))
            self._transport.close()

    def _watch(self) -> None:
        """Start or stop the time limit of the bytes that must arrive next."""
        if self._is_ending():
            if not self._is_discarding:
                self._stop_watching()
        elif (self._request is None or self._is_answered) and not self._is_write_paused:
            # Not idle if answered early: the rest of the body must arrive, and is dropped.
            self._await_more()
        else:
            self._stop_watching()

    def _await_more(self) -> None:
        """Close the connection unless its next bytes arrive in time."""
        if self._request is not None:
            awaited = _Awaited.BODY
        else:
            awaited = _Awaited.HEAD if self._has_begun or self._rest else _Awaited.REQUEST
        if self._late is not None and awaited is self._awaited:
            return
        self._stop_watching()
        self._awaited = awaited
        is_idle = awaited is _Awaited.REQUEST and self._was_ever_answered
        self._late = self._loop.call_later(
            self._server.idle_s if is_idle else self._settings.header_s,
            self._too_late if awaited is _Awaited.HEAD else self._transport.close,
        )

    def _too_late(self) -> None:
        header_s = self._settings.header_s
        self._close_with(
            HttpRejection(
                408, f"No whole request came within {header_s:g} s; send its headers faster."
            )
        )

    def _stop_watching(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
