"""Serves the dashboard until it is stopped."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from headrace.dashboard.app import Dashboard
from headrace.dashboard.settings import DashboardSettings
from headrace.errors import SetupError

STOP_S: Final = 2
"""Time that a stop waits for answers that are under way (s)."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def serve(settings: DashboardSettings, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        settings: Where, and what.
        started: Called with the dashboard's address once it answers.

    Raises:
        SetupError: The port cannot be opened.
        LedgerError: The ledger's URL is not one.
        SchemaError: The ledger is of another Headrace.
    """
    dashboard = Dashboard(settings)
    dashboard.link.refuse_another_schema()
    listener = open_listener(settings.host, settings.port)
    scheme = "http" if settings.certificate is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = listener.getsockname()[1]
    dashboard.port = port
    server = _Server(
        uvicorn.Config(
            dashboard.app,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=settings.certificate,
            ssl_keyfile=settings.key,
            timeout_graceful_shutdown=STOP_S,
        ),
        lambda: started(f"{scheme}://{host}:{port}/"),
        dashboard,
    )
    with contextlib.closing(listener):
        server.run(sockets=[listener])


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        SetupError: It is taken, or not to be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SetupError(
            f"The dashboard cannot listen on {host} port {port}: {error.strerror or error}; name"
            " another one with --port, or 0 for any that is free."
        ) from error
    return listener


class _Server(uvicorn.Server):
    """Says when it answers, and sends its viewers away when it stops."""

    def __init__(
        self, config: uvicorn.Config, answers: Callable[[], None], dashboard: Dashboard
    ) -> None:
        super().__init__(config)
        self._answers = answers
        self._dashboard = dashboard

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop in good order for SIGTERM and Ctrl-C, and not raise them once more in the end."""
        before = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._answers()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._dashboard.hub.close()
        await super().shutdown(sockets)
