"""The port that a receiver listens on, and how many senders may be connected to it."""

import asyncio
import socket
from collections.abc import Callable, Hashable
from typing import Final, Self, TypeVar

from headrace.errors import ReceiverError
from headrace.receivers.access import Access
from headrace.receivers.settings import HttpSettings, TcpSettings

Answer = TypeVar("Answer")

_BACKLOG: Final = 1024


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


def set_unless_done(future: asyncio.Future[Answer], value: Answer) -> None:
    """Set a future's result, unless it has one or was cancelled."""
    if not future.done():
        future.set_result(value)


class ListeningReceiver:
    """Base of the receivers that listen on a port."""

    def __init__(self, settings: HttpSettings | TcpSettings) -> None:
        self._listening = settings
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
            self._access = Access(self._listening)
            self._listener = listen(self._listening.host, self._port)
            self._port = self._listener.getsockname()[1]
        return self

    @property
    def port(self) -> int:
        """The port it listens on; before that, the one of the settings."""
        return self._port

    def reload(self) -> str:
        """Read certificates and tokens again, as `Reloadable.reload` says."""
        if self._access is None:
            return "nothing, for the receiver does not listen yet"
        self._access.reload()
        return self._access.description

    def _take_listener(self) -> tuple[socket.socket, Access]:
        """The open port, for the caller to close, and who may send there."""
        self.listen()
        listener, self._listener = self._listener, None
        assert listener is not None  # noqa: S101
        assert self._access is not None  # noqa: S101
        return listener, self._access


class Connections:
    """Up to ``max_connections`` connections (1 or more); a new one replaces the longest idle one.

    A connection is idle until it has sent something whole. So a client that only opens connections
    replaces its own, while others are served. Belongs to one event loop.
    """

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._idle: dict[Hashable, Callable[[], None]] = {}
        self._busy: dict[Hashable, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def admit(self, connection: Hashable, close: Callable[[], None]) -> bool:
        """Count a new connection, idle at first, if there is a place for it or one can be made.

        ``close`` ends it at once, when its place is given away. Returns whether it is counted;
        otherwise all are busy, and it must be rejected.
        """
        if len(self) >= self._max and not self.close_longest_idle():
            return False
        self._idle[connection] = close
        return True

    def busy(self, connection: Hashable) -> None:
        """It has sent something that is whole, and keeps its place."""
        if close := self._idle.pop(connection, None):
            self._busy[connection] = close

    def idle(self, connection: Hashable) -> None:
        """It was answered, and may be replaced."""
        if close := self._busy.pop(connection, None):
            self._idle[connection] = close

    def remove(self, connection: Hashable) -> None:
        """It is closed; one that is not counted any more may be closed too."""
        self._idle.pop(connection, None)
        self._busy.pop(connection, None)

    def close_longest_idle(self) -> bool:
        """Make a place. Returns whether there was one idle."""
        if not self._idle:
            return False
        longest = next(iter(self._idle))
        self._idle.pop(longest)()
        return True
