"""The port that a receiver listens on, and how many senders may be connected to it."""

import asyncio
import errno
import logging
import socket
from collections.abc import Hashable
from typing import ClassVar, Final, Generic, Self, TypeVar

from headrace.errors import ReceiverError
from headrace.journal.receivers.access import Access
from headrace.journal.receivers.settings import ListeningSettings

Answer = TypeVar("Answer")

_LOG: Final = logging.getLogger("headrace.receivers")

_BACKLOG: Final = 1024

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTORS_S: Final = 0.1


def listen(host: str, port: int) -> socket.socket:
    """Listen for TCP connections; port 0 is any that is free.

    Raises:
        ReceiverError: The port is taken, or the host is not this machine.
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
        f"Port {port} of {host!r} cannot be listened on ({error}); choose a free port of this"
        " machine, or 0 for any."
    )


PROXY_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
"""How a header of the PROXY protocol begins, version 2; one of version 1 is a line."""

_MOST_PROXY_1_BYTES: Final = 107


async def take_proxy_header(connection: socket.socket) -> None:
    """Read the PROXY header that a connection begins with, and nothing that follows.

    Raises:
        ReceiverError: It begins with anything else.
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
        "The connection begins with no PROXY header of version 1 or 2; have the proxy send one, or"
        " receive without --proxy-protocol."
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
    """Set a future's result, unless it has one or was cancelled."""
    if not future.done():
        future.set_result(value)


def authority(host: str, port: int, own_host: str | None = None) -> str:
    """Return host and port for a URL; a host that stands for all addresses is ``own_host``."""
    if own_host is not None and host in ("", "0.0.0.0", "::"):  # noqa: S104
        host = own_host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


Listening = TypeVar("Listening", bound=ListeningSettings)


class ListeningReceiver(Generic[Listening]):
    """Base of the receivers that listen on a port of TCP."""

    scheme: ClassVar[str]
    """The scheme of the address; that within TLS has an ``s`` behind it."""
    path: ClassVar[str] = ""

    def __init__(self, settings: Listening) -> None:
        self.settings: Listening = settings
        self._port = settings.port
        self._listener: socket.socket | None = None
        self._access: Access | None = None

    def listen(self) -> Self:
        """Open the port before `receive` does, so that it is known.

        Raises:
            OptionError: A file of certificates or of tokens cannot be used.
            ReceiverError: The port cannot be opened.
        """
        if self._listener is None:
            self._access = Access(self.settings)
            self._listener = listen(self.settings.host, self._port)
            self._port = self._listener.getsockname()[1]
        return self

    @property
    def port(self) -> int:
        """The port it listens on; before that, the one of the settings."""
        return self._port

    def address(self, own_host: str | None = None) -> str:
        """Return the URL that senders use, as `Listener.address` says."""
        tls = "" if self.settings.tls.certificate_file is None else "s"
        place = authority(self.settings.host, self._port, own_host)
        return f"{self.scheme}{tls}://{place}{self.path}"

    def close(self) -> None:
        """Close the port, unless `receive` has it; a second call does nothing."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _take_listener(self) -> tuple[socket.socket, Access]:
        """The open port, for the caller to close, and who may send there."""
        self.listen()
        listener, self._listener = self._listener, None
        assert listener is not None  # noqa: S101
        assert self._access is not None  # noqa: S101
        return listener, self._access


class Connections:
    """Up to ``max_connections`` connections (1 or more); further ones are refused."""

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._open: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Hashable) -> bool:
        """Count a new connection. Return whether there was a place for it."""
        if len(self._open) >= self._max:
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: Hashable) -> None:
        """Give back the place of a connection that is closed, if it had one."""
        self._open.discard(connection)


async def accept(listener: socket.socket) -> socket.socket:
    """Wait for a connection, which is the caller's to close."""
    while True:
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        except ConnectionError:
            continue  # it was gone before it was accepted
        except OSError as error:
            await wait_for_descriptor(error)
        else:
            return connection


async def wait_for_descriptor(error: OSError) -> None:
    """Wait a moment where there were no descriptors left; raise any other error.

    The next connection that closes gives one back; there is no way to wait for that.
    """
    if error.errno not in _NO_DESCRIPTORS:
        raise error
    _LOG.warning("A connection cannot be accepted: %s", error)
    await asyncio.sleep(_NO_DESCRIPTORS_S)
