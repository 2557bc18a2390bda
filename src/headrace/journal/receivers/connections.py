"""Listening on a TCP port: accepting connections, limiting their number, and starting TLS.

`Doorway` accepts a connection, counts it and starts its time limit before asyncio begins the TLS
handshake. So a client that opens connections and sends nothing cannot exceed the limit of
connections. Each handshake uses the certificate that is current at that time.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from headrace.errors import ReceiverError
from headrace.journal.receivers.access import Access
from headrace.journal.receivers.settings import ListeningSettings

Answer = TypeVar("Answer")

_LOG: Final = logging.getLogger("headrace.receivers")

_BACKLOG: Final = 1024

READ_BYTES: Final = 64 * 1024

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTORS_S: Final = 0.1


def listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking socket that listens for TCP connections; port 0 is any free port.

    Raises:
        ReceiverError: The port is in use, or the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> ReceiverError:
    return ReceiverError(
        f"The receiver cannot listen on port {port} of host {host!r} ({error}); choose an address"
        " of this machine and a free port, or port 0 for any free port."
    )


PROXY_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
"""First bytes of a header of the PROXY protocol, version 2. In version 1 the header is a text line
that begins with ``PROXY``."""

_MOST_PROXY_1_BYTES: Final = 107


async def take_proxy_header(connection: socket.socket) -> None:
    """Read and discard the PROXY header at the start of a connection. Leave later bytes unread.

    Raises:
        ReceiverError: The connection does not begin with a PROXY header.
        OSError: The connection has ended.
    """
    header = await _exactly(connection, len(PROXY_2))
    if header == PROXY_2:
        kind = await _exactly(connection, 4)
        if kind[0] >> 4 == 2:
            await _exactly(connection, int.from_bytes(kind[2:]))
            return
    elif header.startswith(b"PROXY "):
        while len(header) < _MOST_PROXY_1_BYTES and not header.endswith(b"\r\n"):
            header += await _exactly(connection, 1)
        if header.endswith(b"\r\n"):
            return
    raise ReceiverError(
        "The connection does not begin with a PROXY header of version 1 or 2; configure the proxy"
        " to send this header, or start the receiver without --proxy-protocol."
    )


async def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        more = await asyncio.get_running_loop().sock_recv(connection, size_bytes - len(data))
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        data += more
    return data


def set_unless_done(future: asyncio.Future[Answer], value: Answer) -> None:
    """Set a future's result, unless the future is done or cancelled."""
    if not future.done():
        future.set_result(value)


def authority(host: str, port: int, own_host: str | None = None) -> str:
    """Return ``host:port`` for a URL, with brackets around an IPv6 address.

    ``own_host`` replaces a host that means all addresses of this machine, such as ``0.0.0.0``.
    """
    if own_host is not None and host in ("", "0.0.0.0", "::"):  # noqa: S104
        host = own_host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Listening = TypeVar("Listening", bound=ListeningSettings)


class ListeningReceiver(Generic[Listening]):
    """Base class of receivers that listen on a TCP port."""

    scheme: ClassVar[str]
    """Scheme of the receiver's URL without TLS, such as ``http``; with TLS an ``s`` is added."""
    path: ClassVar[str] = ""

    def __init__(self, settings: Listening) -> None:
        self.settings: Listening = settings
        self._port = settings.port
        self._listener: socket.socket | None = None
        self._access: Access | None = None

    def listen(self) -> Self:
        """Open the port before `receive` is called, so that the port number is known.

        Raises:
            OptionError: The token file, or a file with a certificate or key, cannot be used.
            ReceiverError: The port cannot be opened.
        """
        if self._listener is None:
            self._access = Access(self.settings)
            self._listener = listen(self.settings.host, self._port)
            self._port = self._listener.getsockname()[1]
        return self

    @property
    def port(self) -> int:
        """Number of the open port; before `listen`, the port in the settings."""
        return self._port

    def address(self, own_host: str | None = None) -> str:
        """Return the URL to which senders connect.

        ``own_host`` replaces a host that means all addresses, such as ``0.0.0.0``.
        """
        tls = "" if self.settings.tls.certificate_file is None else "s"
        place = authority(self.settings.host, self._port, own_host)
        return f"{self.scheme}{tls}://{place}{self.path}"

    def close(self) -> None:
        """Close the port that `listen` opened, unless `receive` already uses it; idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _take_listener(self) -> tuple[socket.socket, Access]:
        """Return the listening socket, which the caller must close, and its access control."""
        self.listen()
        listener, self._listener = self._listener, None
        assert listener is not None  # noqa: S101
        assert self._access is not None  # noqa: S101
        return listener, self._access


class Connections:
    """Set of open connections, limited to ``max_connections``, 1 or more."""

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._open: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Hashable) -> bool:
        """Add a new connection. Return False if ``max_connections`` are already open."""
        if len(self._open) >= self._max:
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: Hashable) -> None:
        """Remove a closed connection; do nothing if `admit` had refused it."""
        self._open.discard(connection)


class SenderProtocol(asyncio.BufferedProtocol):
    """Protocol of one sender's connection, which counts as open before its TLS handshake begins.

    Attributes:
        has_place: Whether the connection is within the limit of open connections.
        refused: Error because of which the receiver refuses the connection, such as a missing PROXY
            header; None for an accepted connection.
        closed: Future that completes when the connection has ended.
    """

    refused: ReceiverError | None = None

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.has_place = connections.admit(self)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def give_place_back(self) -> None:
        """Remove the connection from the open connections, and complete `closed`."""
        self._connections.remove(self)
        set_unless_done(self.closed, None)


class Doorway:
    """Acceptor that takes TCP connections, reads PROXY headers and starts TLS.

    After the PROXY header and the TLS handshake, each connection gets a new protocol object.

    Args:
        new: Returns a new protocol object for a connection.
        handshake_s: Time limit of the PROXY header, and also of the TLS handshake (s).
        failed: Called when a connection fails to start, with the kind of the failure and the error
            message.
        context: Returns the TLS context for a new connection; None for no TLS.
        is_proxied: Whether each connection begins with a PROXY header. Default: off.
    """

    def __init__(
        self,
        new: Callable[[], SenderProtocol],
        handshake_s: float,
        failed: Callable[[str, str], None],
        *,
        context: Callable[[], ssl.SSLContext | None],
        is_proxied: bool = False,
    ) -> None:
        self._new = new
        self._handshake_s = handshake_s
        self._failed = failed
        self._context = context
        self._is_proxied = is_proxied
        self._beginning: set[asyncio.Task[None]] = set()

    async def accept_all(self, listener: socket.socket) -> None:
        """Accept connections until this task is cancelled.

        On cancellation, close the listening socket, and all connections without a complete
        handshake.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except ConnectionError:
                    continue  # the client closed the connection before it was accepted
                except OSError as error:
                    await _wait_for_descriptor(error)
                    continue
                task = loop.create_task(self._begin(connection))
                self._beginning.add(task)
                task.add_done_callback(self._beginning.discard)
        finally:
            listener.close()
            for task in self._beginning:
                task.cancel()
            if self._beginning:
                await asyncio.wait(self._beginning)

    async def _begin(self, connection: socket.socket) -> None:
        context, protocol = self._context(), self._new()
        begun = False
        try:
            if self._is_proxied:
                try:
                    await self._take_proxy_header(connection)
                except ReceiverError as error:
                    protocol.refused = error
            if context is None:
                await self._hand_over(connection, protocol)
            elif protocol.refused is not None:
                self._failed("TLS", str(protocol.refused))
                return
            elif protocol.has_place:  # rejecting with an answer would need a handshake first
                await self._hand_over(
                    connection,
                    protocol,
                    ssl=context,
                    ssl_handshake_timeout=self._handshake_s,
                    ssl_shutdown_timeout=LINGER_S,
                )
            else:
                self._failed("no place", "All connections are in use; connect again later.")
                return
            begun = True
        except (OSError, TimeoutError) as error:
            if context is not None:
                self._failed("TLS", _handshake_failure(error, self._handshake_s))
        finally:
            if not begun:
                connection.close()
                protocol.give_place_back()

    async def _take_proxy_header(self, connection: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._handshake_s):
                await take_proxy_header(connection)
        except TimeoutError as error:
            raise ReceiverError(
                f"The PROXY header was not complete within {self._handshake_s:g} s; check the proxy"
                " and its network."
            ) from error

    async def _hand_over(
        self, connection: socket.socket, protocol: SenderProtocol, **tls: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: protocol, connection, **tls)


LINGER_S: Final = 2.0
"""Time from the last answer until the receiver closes the connection (s). If the receiver closed
the connection at once while the sender still sends, TCP would reset the connection, and the
sender's system could discard the answer.
"""


def _handshake_failure(error: OSError, handshake_s: float) -> str:
    if isinstance(error, ConnectionAbortedError) and error.errno is None:  # asyncio's timeout
        return f"A TLS handshake was not complete after {handshake_s:g} s; connect faster."
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    words = (reason or error.strerror or "the connection was closed").replace("_", " ").lower()
    return (
        f"A TLS handshake has failed ({words}); connect with TLS, and with a certificate if the"
        " receiver asks for it."
    )


async def _wait_for_descriptor(error: OSError) -> None:
    """Wait 0.1 s if the error says that the system is out of file descriptors or memory.

    Raise any other error. When a connection closes, a descriptor is free again, but no event
    reports this.
    """
    if error.errno not in _NO_DESCRIPTORS:
        raise error
    _LOG.warning("The receiver cannot accept a connection now: %s", error)
    await asyncio.sleep(_NO_DESCRIPTORS_S)
