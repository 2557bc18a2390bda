"""A port of its own for what a receiver says of itself: for those that speak no HTTP to senders."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from headrace.receivers.connections import Connections, listen
from headrace.receivers.event_log import Rejections
from headrace.receivers.http.http_connection import limited_protocol
from headrace.receivers.http.status_routes import status_routes
from headrace.receivers.intake import Intake
from headrace.receivers.settings import HttpSettings
from headrace.receivers.turns import Turns

_STOP_S = 1
_CONNECTIONS = 50


class QuietServer(uvicorn.Server):
    """Leaves signals to the host."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def quiet_config(
    app: ASGIApp, protocol: Any, settings: HttpSettings, *, stop_s: int, **more: Any
) -> uvicorn.Config:
    """Return uvicorn's configuration without its log, websockets, and what it says of itself.

    Args:
        app: What is served.
        protocol: Class of the connections, as `limited_protocol` makes it.
        settings: Its limits.
        stop_s: How long a stop waits for requests that are being answered (s).
        **more: More of uvicorn's settings.
    """
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=settings.max_header_bytes,
        timeout_graceful_shutdown=stop_s,
        **more,
    )


@contextlib.asynccontextmanager
async def serving_status(intake: Intake, host: str, port: int) -> AsyncIterator[int]:
    """Serve ``/health``, ``/ready`` and ``/metrics``; answers the port.

    Its clients do not count among the senders, nor what is wrong with their requests.

    Raises:
        ReceiverError: The port cannot be opened.
    """
    listener = listen(host, port)
    settings = HttpSettings(host=host, max_connections=_CONNECTIONS)
    protocol = limited_protocol(Connections(_CONNECTIONS), settings, Rejections(), None, Turns())
    app = Starlette(routes=status_routes(intake))
    server = QuietServer(quiet_config(app, protocol, settings, stop_s=_STOP_S))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
