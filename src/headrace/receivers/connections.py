"""The port that a receiver listens on, and how many senders may be connected to it."""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Final, Generic, Self, TypeVar

from headrace.errors import ReceiverError
from headrace.receivers.access import Access
from headrace.receivers.settings import HttpSettings, TcpSettings

Answer = TypeVar("Answer")

_LOG: Final = logging.getLogger("headrace.receivers")

_BACKLOG: Final = 1024

_MOST_WAITING: Final = 256
"""Connections that are accepted and wait; further ones wait in the system's queue. Each takes a
descriptor, and nothing else."""

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


Listening = TypeVar("Listening", HttpSettings, TcpSettings)


class ListeningReceiver(Generic[Listening]):
    """Base of the receivers that listen on a port."""

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

    def _take_listener(self) -> tuple[socket.socket, Access]:
        """The open port, for the caller to close, and who may send there."""
        self.listen()
        listener, self._listener = self._listener, None
        assert listener is not None  # noqa: S101
        assert self._access is not None  # noqa: S101
        return listener, self._access


FAST_BYTES_PER_S: Final = 64 * 1024
"""A body that comes faster (bytes/s) is not evicted."""


class Connections:
    """Up to ``max_connections`` connections (1 or more); a new one replaces the slowest one.

    A connection can be replaced while it is idle, that is, until it has sent something whole, and
    while it sends a body. Each counts from when it became idle or its body began; every byte of a
    body moves that moment on, as much as it takes at `FAST_BYTES_PER_S`. Whose moment is the
    earliest is evicted. So a client that only opens connections, or sends slowly, replaces its own
    ones while others are served. Belongs to one event loop.
    """

    def __init__(self, max_connections: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._max = max_connections
        self._now_s = now_s
        self._open: dict[Hashable, Callable[[], None]] = {}
        self._since_s: dict[Hashable, float] = {}
        self._sending: set[Hashable] = set()
        self._slowest: deque[tuple[Hashable, float]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Hashable, evict: Callable[[], None]) -> bool:
        """Count a new connection, idle at first, if there is a place for it or one can be made.

        ``evict`` ends it at once, when its place is given away. Returns whether it is counted;
        otherwise all are busy, and it must be rejected.
        """
        if len(self) >= self._max and not self.evict_slowest():
            return False
        self._open[connection] = evict
        self._since_s[connection] = self._now_s()
        return True

    def busy(self, connection: Hashable) -> None:
        """It has sent something that is whole, and keeps its place."""
        self._sending.discard(connection)
        self._since_s.pop(connection, None)

    def idle(self, connection: Hashable) -> None:
        """It was answered, and may be replaced."""
        self._sending.discard(connection)
        if connection in self._open:
            self._since_s.setdefault(connection, self._now_s())

    def sending(self, connection: Hashable, size_bytes: int) -> None:
        """So many bytes more of a body have come."""
        if connection in self._sending:
            self._since_s[connection] += size_bytes / FAST_BYTES_PER_S
        elif connection in self._open:
            self._sending.add(connection)
            self._since_s[connection] = self._now_s()

    def remove(self, connection: Hashable) -> None:
        """It is closed; one that is not counted any more may be closed too."""
        self.busy(connection)
        self._open.pop(connection, None)

    def evict_slowest(self) -> bool:
        """Make a place. Returns whether there was one to evict."""
        for _ in range(2):
            while self._slowest:
                connection, since_s = self._slowest.popleft()
                if self._since_s.get(connection) == since_s:
                    self._evict(connection)
                    return True
            # A moment only ever moves on, so a sorted list is right until it is used up.
            now_s = self._now_s()
            slow = [each for each in self._since_s.items() if each[1] <= now_s]
            self._slowest = deque(sorted(slow, key=itemgetter(1)))
        return False

    def evict_slowest_body(self) -> bool:
        """Make room where bodies are. Returns whether there was a slow one to evict."""
        slowest = min(self._sending, key=self._since_s.__getitem__, default=None)
        if slowest is None or self._since_s[slowest] > self._now_s():
            return False
        self._evict(slowest)
        return True

    def _evict(self, connection: Hashable) -> None:
        evict = self._open[connection]
        self.remove(connection)
        evict()


class Acceptor:
    """Accepts connections one at a time, the newest first.

    Senders that reconnect at once whenever they have lost their place wait behind one that comes
    now and then: otherwise it would wait until each of them has had another turn. Between two
    connections the others are served. Belongs to one event loop.
    """

    def __init__(self, listener: socket.socket, connections: Connections) -> None:
        self._listener = listener
        self._connections = connections
        self._waiting: list[socket.socket] = []

    async def next(self) -> socket.socket:
        """Wait for a connection, which is the caller's to close."""
        while True:
            try:
                if not self._waiting:
                    accepted, _ = await asyncio.get_running_loop().sock_accept(self._listener)
                    self._waiting.append(accepted)
                self._accept_waiting()
            except ConnectionError:
                continue  # it was gone before it was accepted
            except OSError as error:
                if not self._waiting:
                    await self.make_room(error)
                    continue
            return self._waiting.pop()

    def close(self) -> None:
        """Close those that wait."""
        for connection in self._waiting:
            connection.close()
        self._waiting = []

    async def make_room(self, error: OSError) -> None:
        """Wait for a descriptor where there was none; raises any other error."""
        if error.errno not in _NO_DESCRIPTORS:
            raise error
        # The next connection that closes makes a place; there is no way to wait for one.
        if not self._connections.evict_slowest():
            _LOG.warning("A connection cannot be accepted: %s", error)
        await asyncio.sleep(_NO_DESCRIPTORS_S)

    def _accept_waiting(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._waiting) < _MOST_WAITING:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._waiting.append(connection)
