"""Encrypted connections to ZooKeeper."""

import socket
import ssl
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Has kazoo connect over TLS, with the server's name checked and certificates read once.

    What kazoo does by itself trusts the system's authorities beside the one that is named, and
    leaves sockets open where the other side is refused.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_others: Any
    ) -> ssl.SSLSocket:
        """Connect; called by kazoo.

        Raises:
            OSError: Nobody is there, or it is not to be trusted.
        """
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._context.wrap_socket(plain, server_hostname=hostname)  # closes it if that fails
