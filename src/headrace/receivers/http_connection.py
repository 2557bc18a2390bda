"""Connections that have to send their headers in time, and of which there are only so many."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.receivers.connections import Connections
from headrace.receivers.refusals import Refusals

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n"
_LATE = b"HTTP/1.1 408 Request Timeout\r\n"
_END = b"content-length: 0\r\nconnection: close\r\n\r\n"


def guarded(connections: Connections, header_s: float, refusals: Refusals) -> type[H11Protocol]:
    """Uvicorn's protocol, which has neither bound by itself.

    Args:
        connections: How many there may be.
        header_s: How long a request's headers may take, from when its sender connected or was
            last answered (s). What is left of a request that was answered early, such as the body
            of one for a path that there is not, has to come within this time too.
        refusals: Is told of those who found no place.
    """

    class Guarded(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if connections.admit(self, transport.abort):
                self._watch()
            else:
                refusals.count("HTTP 503", "All places for senders are taken.")
                self._turn_away(_FULL)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

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
                self._late = self.loop.call_later(header_s, self._turn_away, _LATE)

        def _stop_watching(self) -> None:
            if self._late:
                self._late.cancel()
                self._late = None

        def _turn_away(self, answer: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer + _END)
                self.transport.close()

    return Guarded
