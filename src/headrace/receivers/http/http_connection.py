"""Connections over HTTP: how a request is framed, how long its headers may take, and rejections."""

import asyncio
import json
import math
import re
import sys
from asyncio import sslproto
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final
from urllib.parse import unquote

import h11
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.receivers.access import Access
from headrace.receivers.connections import Connections
from headrace.receivers.event_log import Rejections
from headrace.receivers.http.paced_flow import PacedFlow
from headrace.receivers.settings import HttpSettings
from headrace.receivers.tls_tunnel import handshake_failure
from headrace.receivers.turns import FIRST_PART_BYTES, Turns, Work

_TLS_BUFFER_BYTES: Final = 64 * 1024
"""Size of asyncio's read buffer for each TLS connection. The default of 256 KiB would be 200 MB for
800 connections that send nothing.
"""

_READ_BYTES: Final = 32 * 1024
"""The most that is read of a connection at once, and that waits to be parsed or taken."""

_DISCARD_S: Final = 2.0
"""Time for which what follows bytes that are no request is read and dropped (s)."""

_SMALL_BYTES: Final = 1024
_READS_AT_ONCE: Final = 3
"""After so many reads of a body small ones wait for a turn."""

_ABSOLUTE: Final = re.compile(rb"https?://[^/]*(/.*)?", re.IGNORECASE | re.DOTALL)


class HttpRejection(Exception):  # noqa: N818  # it is an answer, not a fault of ours
    """Ends the handling of a request that is not taken.

    The answer has the status, the headers, and the sentence: what was wrong and what to do, nothing
    secret. It counts as a rejection of a kind. Default: its status.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        headers: dict[str, str] | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(sentence)
        self.kind = kind or f"HTTP {status}"
        self.status = status
        self.sentence = sentence
        self.headers = headers or {}

    @property
    def body(self) -> bytes:
        """The answer's body: JSON with the sentence."""
        return json.dumps({"error": self.sentence}).encode()

    def count(self, rejections: Rejections) -> None:
        """Count it under its kind."""
        rejections.count(self.kind, self.sentence)


def retry_after(delay_s: float, why: str, kind: str | None = None) -> HttpRejection:
    """429, with the whole seconds after which it is worth sending again."""
    wait_s = max(1, math.ceil(delay_s))
    sentence = f"{why}; send it again in {wait_s} s."
    return HttpRejection(429, sentence, {"retry-after": str(wait_s)}, kind)


_FULL: Final = HttpRejection(
    503, "All connections are in use; send it again in 1 s.", {"retry-after": "1"}, "no place"
)
_SLOW: Final = HttpRejection(
    503,
    "The body came slowly while others waited for a place; send it faster, or again in 1 s.",
    {"retry-after": "1"},
    "slow body",
)
_AMBIGUOUS: Final = HttpRejection(
    400,
    "The request has both Content-Length and Transfer-Encoding, so that where it ends depends on"
    " who reads it; send one of them.",
)


_ONCE: Final = (b"authorization", b"content-type", b"content-encoding")


def with_strict_framing(
    application: ASGIApp,
    settings: HttpSettings,
    reject: Callable[[Request, HttpRejection], Response],
) -> ASGIApp:
    """An application that checks what RFC 9112 asks of a server beyond what h11 and uvicorn check.

    A request with both Content-Length and Transfer-Encoding is rejected, and its connection closed
    (6.1): a proxy that goes by the other one would take a part of it for the next request. So is
    one that says twice who sends what, of which a proxy may have checked the other; and one whose
    headers are too long, for h11 limits only those that do not come at once. A target in absolute
    form, as a proxy is sent, is that of its path (3.2.2). ``reject`` makes the answer to a request
    whose body is not read; it closes the connection.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if (rejection := _refused(scope, settings)) is not None:
            await reject(Request(scope, receive), rejection)(scope, receive, send)
            return
        if absolute := _ABSOLUTE.fullmatch(scope["raw_path"]):
            path: bytes = absolute[1] or b"/"
            scope = {**scope, "raw_path": path, "path": unquote(path.decode("ascii"))}
        await application(scope, receive, send)

    return run


def _refused(scope: Scope, settings: HttpSettings) -> HttpRejection | None:
    names = [name for name, _ in scope["headers"]]
    if {b"content-length", b"transfer-encoding"} <= set(names):
        return _AMBIGUOUS
    if sum(len(name) + len(value) for name, value in scope["headers"]) > settings.max_header_bytes:
        return _too_long(settings)
    for name in _ONCE:
        if names.count(name) > 1:
            shown = name.decode().title()
            return HttpRejection(400, f"The header {shown} is there more than once; send it once.")
    return None


class _LimitedProtocol(H11Protocol):
    """Uvicorn's protocol with a limit of connections and of time, and rejections in JSON.

    Connections without a place, and bytes that are no request, are counted. ``header_s`` is also
    the time for the rest of a request that was answered early, such as the body of one for an
    unknown path.

    What was read is parsed in parts, larger ones while each takes little time. When a slice of time
    is over, the rest waits for its turn, and nothing is read meanwhile. So chunks of one byte, each
    of which takes as long as one of 16 KiB, cost their sender's time.
    """

    clients: ClassVar[Connections]
    turns: ClassVar[Turns]
    flow: PacedFlow
    settings: ClassVar[HttpSettings]
    rejections: ClassVar[Rejections]
    _late: asyncio.TimerHandle | None = None
    _has_ended = False
    _sends_ahead = False
    _is_discarding = False
    _unparsed = b""
    _body_reads = 0
    _part_bytes = FIRST_PART_BYTES

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = _READ_BYTES
        self.flow = PacedFlow(transport, self._is_ahead)
        self._work = Work(self.turns)
        if self.clients.admit(self, self._evict):
            self._watch()
        else:
            _FULL.count(self.rejections)
            self._close_with(_FULL)

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            return
        if self._unparsed:  # it was read although nothing was to be
            self._unparsed += data
        elif len(data) < _SMALL_BYTES and self._body_reads >= _READS_AT_ONCE:
            self._wait_for_turn(data)  # hundreds of slow bodies may go on at the same time
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse as much as a slice of time allows; the rest waits."""
        self._work.begin()
        at = 0
        is_over = False
        while at < len(data) and not is_over and not self._is_ending():
            part = data[at : at + self._part_bytes]
            at += len(part)
            self._parse_part(part)
            before_s = self._work.spent_s
            is_over = self._work.is_over()
            took_s = self._work.spent_s - before_s
            self._part_bytes = self.turns.next_part_bytes(self._part_bytes, took_s, _READ_BYTES)
        if is_over:
            self._wait_for_turn(data[at:])

    def _wait_for_turn(self, data: bytes) -> None:
        self._unparsed = data
        self.flow.hold()
        self.turns.call(self._go_on)

    def _go_on(self) -> None:
        self._work.renew()
        data, self._unparsed = self._unparsed, b""
        if self.transport.is_closing():
            return
        self.flow.release()
        if data and not self._is_discarding:
            self._parse(data)

    def _is_ending(self) -> bool:
        return self._is_discarding or self.transport.is_closing()

    def _parse_part(self, data: bytes) -> None:
        if self._is_answering() and self.conn.their_state is h11.DONE:
            self._sends_ahead = True
            self.flow.pause_reading()
        super().data_received(data)
        if self._is_answering() and len(self.cycle.body) >= _READ_BYTES:
            self.flow.pause_reading()  # until the application has taken it
        self._watch(len(data))

    def _evict(self) -> None:
        """Give the place away, with an answer if a body was coming."""
        if self._is_answering() and self.conn.their_state is h11.SEND_BODY:
            _SLOW.count(self.rejections)
            self._disconnect()
            self.transport.write(_closing(_SLOW))
        self.transport.abort()

    def _disconnect(self) -> None:
        """Have the application answer no more; that would be a second answer."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Keep the connection until a whole request is answered whose sender has closed its half.

        As `nc -N` does, and whatever else sends one request and then says that it is done.
        """
        self._has_ended = True
        if self._is_discarding:
            return False
        return self._is_answering() and self.conn.their_state is not h11.SEND_BODY

    def on_response_complete(self) -> None:
        super().on_response_complete()  # and begins the next request that is there
        self._sends_ahead = self._is_answering()
        if self._has_ended and not self._sends_ahead:
            self.transport.close()
        self._watch()

    def _is_ahead(self) -> bool:
        """Whether more is there than the request that is answered, which is whole."""
        return self._sends_ahead and self._is_answering() and self.conn.their_state is h11.DONE

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Reject what is no request, unless it comes after the answer to its beginning."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        rejection = _protocol_error(sys.exception(), self.settings)
        rejection.count(self.rejections)
        if self.cycle is not None:
            self._disconnect()
        if not self.transport.can_write_eof():  # within TLS
            self._close_with(rejection)
            return
        # Closed while there is more to read, it would lose the answer: that is dropped for a time.
        self.transport.write(_closing(rejection))
        self.transport.write_eof()
        self._is_discarding = True
        self.loop.call_later(_DISCARD_S, self.transport.abort)

    def shutdown(self) -> None:
        """End it when the receiver stops."""
        if self._is_discarding:
            self.transport.abort()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self.clients.remove(self)
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self, received_bytes: int = 0) -> None:
        # Answered, but not idle: the rest of the body is to come, and means nothing.
        is_awaited = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
        if self._is_ending():
            self._stop_watching()
        elif not is_awaited:
            if self.conn.their_state is h11.SEND_BODY:
                self.clients.sending(self, received_bytes)
                self._body_reads += 1
            else:
                self.clients.busy(self)
                self._body_reads = 0
            self._stop_watching()
        elif self._late is None:
            self.clients.idle(self)
            header_s = self.settings.header_s
            late = HttpRejection(
                408, f"No whole request came within {header_s:g} s; send its headers faster."
            )
            self._late = self.loop.call_later(header_s, self._close_with, late)

    def _stop_watching(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    def _close_with(self, rejection: HttpRejection) -> None:
        if not self.transport.is_closing():
            self.transport.write(_closing(rejection))
            self.transport.close()


class _TlsProtocol(_LimitedProtocol):
    """The same within TLS. A connection counts from its beginning, and so does ``header_s``.

    Each connection meets the certificates that are in force when it begins.
    """

    access: ClassVar[Access]
    _handshake: asyncio.Task[None] | None = None
    _is_secured = False
    _is_lost = False

    def connection_made(self, transport: Any) -> None:
        if self.clients.admit(self, transport.abort):
            self._early: list[bytes] = []
            self._handshake = self.loop.create_task(self._secure(transport))
        else:
            _FULL.count(self.rejections)
            transport.abort()  # an answer would need a handshake

    def data_received(self, data: bytes) -> None:
        if self._is_secured:
            super().data_received(data)
        else:
            self._early.append(data)  # it came with the end of the handshake

    def eof_received(self) -> bool:  # type: ignore[override]
        """Let the connection end: within TLS no half of one is closed by itself."""
        return False

    async def _secure(self, transport: Any) -> None:
        context, header_s = self.access.context, self.settings.header_s
        assert context is not None  # noqa: S101
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=header_s,
                ssl_shutdown_timeout=header_s,
            )
        except OSError as error:
            self.rejections.count("TLS", handshake_failure(error))
            self.clients.remove(self)
            return
        self.clients.remove(self)
        if self._is_lost or secured is None:  # evicted during the handshake
            return
        super().connection_made(secured)
        self._is_secured = True
        for data in self._early:
            super().data_received(data)
        self._early = []

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._is_secured:
            super().connection_lost(exc)


def limited_protocol(
    connections: Connections,
    settings: HttpSettings,
    rejections: Rejections,
    access: Access | None,
    turns: Turns,
) -> type[H11Protocol]:
    """The protocol of one receiver; without TLS if ``access`` is None, or has no certificate."""
    is_secured = access is not None and access.context is not None
    if is_secured:
        sslproto.SSLProtocol.max_size = min(sslproto.SSLProtocol.max_size, _TLS_BUFFER_BYTES)
    kind = _TlsProtocol if is_secured else _LimitedProtocol
    given = {
        "clients": connections,
        "settings": settings,
        "rejections": rejections,
        "access": access,
        "turns": turns,
    }
    return type("LimitedProtocol", (kind,), given)


def _protocol_error(error: BaseException | None, settings: HttpSettings) -> HttpRejection:
    """Return the rejection for the protocol's error, without its text, which may be secret."""
    status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
    if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return _too_long(settings)
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return HttpRejection(
            status, "Transfer-Encoding must be chunked, and nothing else; send that."
        )
    return HttpRejection(
        HTTPStatus.BAD_REQUEST,
        "The request is not well-formed HTTP/1.1; correct its first line, headers or chunks.",
    )


def _closing(rejection: HttpRejection) -> bytes:
    body = rejection.body
    headers = {
        **rejection.headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {rejection.status} {HTTPStatus(rejection.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _too_long(settings: HttpSettings) -> HttpRejection:
    return HttpRejection(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"The headers have more than the {settings.max_header_bytes} bytes allowed; send fewer or"
        " shorter ones.",
    )
