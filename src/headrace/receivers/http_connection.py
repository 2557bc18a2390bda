"""Connections that have to send their headers in time, and of which there are only so many."""

import asyncio
import sys
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.receivers.connections import Connections
from headrace.receivers.refusal import Refusal
from headrace.receivers.refusals import Refusals
from headrace.receivers.settings import HttpSettings

_FULL: Final = Refusal(
    503, "All places for senders are taken; send it again in 1 s.", {"retry-after": "1"}
)


def guarded(
    connections: Connections, settings: HttpSettings, refusals: Refusals
) -> type[H11Protocol]:
    """Uvicorn's protocol, which has neither bound by itself, and refuses in plain text.

    Args:
        connections: How many there may be.
        settings: How long a request's headers may take, from when its sender connected or was
            last answered (``header_s``), and how large they may be. What is left of a request that
            was answered early, such as the body of one for a path that there is not, has to come
            within this time too.
        refusals: Is told of those who found no place, and of what is no request.
    """
    late = Refusal(
        408, f"No whole request came within {settings.header_s:g} s; send its headers faster."
    )

    class Guarded(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if connections.admit(self, transport.abort):
                self._watch()
            else:
                refusals.count("HTTP 503", _FULL.sentence)
                self._turn_away(_FULL)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def send_400_response(self, msg: str) -> None:
            """Refuse what is no request, unless it comes after the answer to its beginning."""
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.close()
                return
            refusal = _of_protocol(sys.exception(), settings)
            refusals.count(f"HTTP {refusal.status}", refusal.sentence)
            if self.cycle is not None:
                self.cycle.disconnected = (
                    True  # It may be answering; that would be a second answer.
                )
                self.cycle.message_event.set()
            self._turn_away(refusal)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.leave(self)
            self._stop_watching()
            super().connection_lost(exc)

        def _watch(self) -> None:
            # Answered, and not beginning anew: the rest of the body is to come, and means nothing.
            is_awaited = self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE
            if self.transport.is_closing() or not is_awaited:
                connections.busy(self)
                self._stop_watching()
            elif self._late is None:
                connections.idle(self)
                self._late = self.loop.call_later(settings.header_s, self._turn_away, late)

        def _stop_watching(self) -> None:
            if self._late:
                self._late.cancel()
                self._late = None

        def _turn_away(self, refusal: Refusal) -> None:
            if not self.transport.is_closing():
                self.transport.write(_closing(refusal))
                self.transport.close()

    return Guarded


def _of_protocol(error: BaseException | None, settings: HttpSettings) -> Refusal:
    """What the protocol's error says of a request; nothing of its text, which may be secret."""
    status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
    if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return Refusal(
            status,
            f"The headers have more than {settings.max_header_bytes} bytes, which are allowed; send"
            " fewer or shorter ones.",
        )
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return Refusal(status, "Transfer-Encoding must be chunked, and nothing else; send that.")
    return Refusal(
        HTTPStatus.BAD_REQUEST,
        "The request is not well-formed HTTP/1.1; correct its first line, headers or chunks.",
    )


def _closing(refusal: Refusal) -> bytes:
    """A whole response, after which the connection ends."""
    body = refusal.body
    headers = {
        **refusal.headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
