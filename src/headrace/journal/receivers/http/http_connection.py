"""HTTP/1.1 connections of a receiver: parsing, answering, and limits of time and memory.

The package httptools parses requests with the parser llhttp. httptools does not report where in its
input a request ends, so the parser must never get bytes of two requests at once. The parser gets a
body with a declared length up to the end of the body. It gets headers and chunked bodies up to the
next empty line. If a sender sends further requests before it has the answer (pipelining), up to 32
KiB of these requests wait unparsed.
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
"""Time for which a connection may be idle after an answer (s). Load balancers reuse idle
connections for 60 s. If the receiver closed a connection sooner, a request in flight would fail."""

_END: Final = b"\r\n\r\n"
"""Last bytes of a request's headers, and of a chunked body."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_FULL: Final = HttpRejection(
    503,
    "All connections are in use; send the request again in 1 s.",
    {"retry-after": "1"},
    "no place",
)
_DEFECT: Final = HttpRejection(500, "The receiver failed; see its log, and send the request again.")

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]
Routes: TypeAlias = Mapping[str, Mapping[str, Handler]]
"""Request handlers, by path and then by HTTP method."""


class HttpServer:
    """HTTP server on one port, for one event loop, with the state that its connections share.

    Args:
        routes: Request handlers, by path and method.
        usage: Error message for requests with an unknown path or method.
        settings: Limits of size and time.
        connections: Set of open connections with its limit.
        rejections: Counter of rejected requests and connections.
        idle_s: Time for which a connection may be idle after an answer (s). Default: 75.
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
        """Read buffer of all connections. They can share it, because each read copies its bytes at
        once."""
        self.open: set[HttpConnection] = set()
        self.running: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket, access: Access | None, stop_s: float) -> None:
        """Serve connections until cancelled, then close the listening socket and all connections.

        Args:
            listener: Listening socket.
            access: Access control with the TLS certificate; None for no TLS.
            stop_s: Time limit for answers to requests in progress after the cancellation (s).
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
        """Call the request's handler; return its answer, or an error answer if the handler fails.

        Raises SenderGoneError if the rest of the body will not arrive.
        """
        try:
            return await self._handler(request)(request)
        except HttpRejection as rejection:
            rejection.count(self.rejections)
            return rejection.answer
        except SenderGoneError:
            raise
        except Exception:  # noqa: BLE001  # a bug in one request must not stop the next
            _LOG.exception("A request was answered with status 500, because of a bug in Headrace.")
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
    """Bytes that a sender must send next, within a time limit."""

    REQUEST = auto()
    """The connection waits for the first byte of a request."""
    HEAD = auto()
    """The connection waits for the rest of a request's first line and headers."""
    BODY = auto()
    """The connection waits for the rest of a body whose request is already answered."""


class HttpConnection(SenderProtocol):
    """Connection that handles one sender's requests, one after another.

    If a sender sends further requests before it has the answer, these requests wait unparsed. The
    setting ``header_s`` limits the time for a request's headers. It also limits the time for the
    rest of a body if the request was answered early, for instance because of an unknown path. Late
    headers are answered with status 408. If no request has begun, the connection is closed without
    an answer, because the client would mistake the answer for a reply to its next request.
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
        """Reset the state of the connection for the next request."""
        self._request: HttpRequest | None = None
        self._refused: HttpRejection | None = None
        self._target = self._tail = b""
        self._headers: Headers = {}
        self._left_bytes: int | None = None  # rest of a body with a declared length
        self._framing_bytes = 0  # size of the head, later of the framing between chunks
        self._keeps = True
        self._has_begun = self._is_answered = self._is_upgrade = self._expects = False

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, or answer 503 and close if too many connections are open."""
        self._transport = cast(asyncio.Transport, transport)
        self._server.open.add(self)
        if self.has_place:
            self._watch()
        else:
            _FULL.count(self._server.rejections)
            self._close_with(_FULL)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that asyncio fills with the next read."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the ``nbytes`` bytes that asyncio has read into the buffer."""
        if self._is_discarding:
            return
        data = bytes(self._server.buffer[:nbytes])
        if self._rest:  # asyncio may deliver a read after pause_reading
            self._rest, self._at = self._rest[self._at :] + data, 0
            return
        self._rest = data
        self._parse()

    def eof_received(self) -> bool:
        """Return whether to keep the connection open after the sender has closed its half.

        If the receiver has a complete request, the connection stays open for the answer. Senders
        such as `nc -N` close their half after a single request.
        """
        self._has_ended = True
        if self._server.is_secured:  # TLS connections cannot be half-closed
            return False
        return self._is_whole() and not self._is_answered and not self._is_discarding

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the open connections; a complete request is still handled."""
        self._server.open.discard(self)
        self._stop_watching()
        self._rest = b""
        if self._request is not None and not self._request.is_whole:
            self._request.fail()
        self.give_place_back()

    def pause_writing(self) -> None:
        """Begin no further request while the sender does not read its answers."""
        self._is_write_paused = True
        self._pace()

    def resume_writing(self) -> None:
        """Continue with waiting requests, because the sender has read its answers."""
        self._is_write_paused = False
        self._parse()

    def shutdown(self) -> None:
        """The receiver stops: answer a request in progress, then close the connection."""
        if self._is_discarding:
            self._transport.abort()
        elif self._request is None or self._is_answered:
            self._transport.close()
        else:
            self._keeps = False

    def abort(self) -> None:
        """Close the connection at once, without sending pending answers."""
        self._transport.abort()

    # Reading.

    def _parse(self) -> None:
        """Parse the read bytes up to the end of the current request; later bytes wait."""
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
        """Return the end position of the next chunk to parse.

        A chunk never contains bytes of two requests.
        """
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
        """Parse the request again without its upgrade header.

        The receiver ignores the upgrade that the sender offers, and continues with HTTP/1.1.
        """
        lines = [b"%b: %b" % (name, value) for name, of in self._headers.items() for value in of]
        version = self._parser.get_http_version().encode()
        start = b"%b %b HTTP/%b" % (self._parser.get_method(), self._target, version)
        self._begin()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"\r\n".join([start, *lines, b"", b""]))

    def on_message_begin(self) -> None:
        """Record that a request has begun; llhttp calls this at the request's first byte."""
        self._has_begun = True

    def on_url(self, url: bytes) -> None:
        """Append a piece of the request target; llhttp calls this for each piece."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header in `KEPT_HEADERS`; llhttp calls this for each header.

        Trailers after a chunked body are ignored.
        """
        name = name.lower()
        if name in KEPT_HEADERS and self._request is None:
            self._headers.setdefault(name, []).append(value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the headers and start handling the request; llhttp calls this after the headers."""
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
        """Pass a piece of the body to the request; llhttp calls this for each piece."""
        if self._left_bytes is not None:
            self._left_bytes -= len(body)
        self._framing_bytes = 0
        self._expects = False
        if self._request is not None:
            self._request.add(body)

    def on_message_complete(self) -> None:
        """Mark the body as complete; llhttp calls this at the end of a request."""
        if self._request is not None and not self._is_upgrade:
            self._request.end()

    def _wanted(self) -> None:
        """Continue to read the body, because the handler waits for more data.

        If the sender expects ``100 Continue``, send this status first.
        """
        if self._expects and not self._is_ending():
            self._expects = False
            self._transport.write(_CONTINUE)
        self._pace()

    def _pace(self) -> None:
        """Pause reading if bytes wait to be parsed or handled, or the sender reads no answers.

        Otherwise resume reading.
        """
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
        """Reset the state, and parse the next request."""
        self._begin()
        self._parse()

    def _refuse(self, rejection: HttpRejection) -> None:
        """Answer a malformed request with its rejection, and end the connection.

        If the request is already answered, close the connection without a further answer.
        """
        if self._is_answered:
            self._transport.close()
            return
        rejection.count(self._server.rejections)
        if self._request is not None:
            self._request.fail()
        self._end_with(rejection.answer)

    def _end_with(self, answer: HttpAnswer, *, has_body: bool = True) -> None:
        """Send the last answer, discard further bytes for `LINGER_S`, then close the connection."""
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
        """Start the time limit if the connection waits for bytes; otherwise stop the time limit."""
        if self._is_ending():
            if not self._is_discarding:
                self._stop_watching()
        elif (self._request is None or self._is_answered) and not self._is_write_paused:
            # A request that was answered early is not idle: the rest of its body must arrive.
            self._await_more()
        else:
            self._stop_watching()

    def _await_more(self) -> None:
        """Start the time limit for the sender's next bytes.

        When the time is over, close the connection. If headers are incomplete, answer 408 first.
        """
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
                408,
                f"The request's headers were not complete after {header_s:g} s; send them faster.",
            )
        )

    def _stop_watching(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
