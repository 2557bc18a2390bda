"""Lines over TCP: the receiver for whatever can open a socket and write to it."""

import asyncio
import errno
import logging
import socket
from collections.abc import Collection
from typing import Final, Self

from headrace.receivers.intake import Intake
from headrace.receivers.listening import listen
from headrace.receivers.settings import TcpSettings
from headrace.receivers.tcp_sender import Sender, Shared

_LOG: Final = logging.getLogger("headrace.receivers")
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTORS_S: Final = 0.1
_STOP_S: Final = 5.0
"""How long a stop waits for senders who do not take their last acknowledgements."""


class TcpReceiver:
    r"""Takes each line that a sender writes, up to ``\n`` or ``\r\n``, for one record.

    A sender that wants to know what it need not keep turns on acknowledgements, and counts: after
    ``ok 500`` and ``ok 20`` its first 520 lines are durable. They come in order, at the latest one
    block interval and one sync after the lines. A sender that does without cannot tell what was
    lost when it or the receiver went down.

    Whoever sends what is not taken gets one line, ``error`` and what was wrong, and the connection
    is closed; the lines before that one are stored, and acknowledged as ever. A line without an end
    is not taken: nobody can tell whether the rest of it was lost.

    Under backpressure nothing is read, so that senders block on their sockets. What a sender takes
    in memory meanwhile is what it has sent of an unfinished line.

    Args:
        settings: See `TcpSettings`.
    """

    def __init__(self, settings: TcpSettings | None = None) -> None:
        self.settings = settings or TcpSettings()
        self._listener: socket.socket | None = None
        self._port = self.settings.port

    def listen(self) -> Self:
        """Open the port; `receive` does it where it was not done.

        Raises:
            ReceiverError: It cannot be opened.
        """
        self._opened()
        return self

    @property
    def port(self) -> int:
        """The port it listens on; the one of the settings until it does."""
        return self._port

    async def receive(self, intake: Intake) -> None:
        """Receive until cancelled; see `Receiver.receive`.

        Raises:
            ReceiverError: The port cannot be opened.
        """
        listener = self._opened()
        shared = Shared(intake, self.settings)
        senders: dict[asyncio.Task[None], Sender] = {}
        try:
            while True:
                sender = Sender(await _accept(listener, shared), shared)
                serving = sender.start()
                senders[serving] = sender
                serving.add_done_callback(senders.pop)
                await asyncio.sleep(0)  # accepting goes on at once if there is more to accept
        finally:
            self._listener = None
            listener.close()
            for sender in senders.values():
                sender.stop()
            await _end(senders)

    def _opened(self) -> socket.socket:
        if self._listener is None:
            self._listener = listen(self.settings.host, self.settings.port)
            self._port = self._listener.getsockname()[1]
        return self._listener


async def _accept(listener: socket.socket, shared: Shared) -> socket.socket:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return (await loop.sock_accept(listener))[0]
        except ConnectionError:
            continue  # it was gone before it was accepted
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
            # Whoever closes next makes a place; until then there is no way to wait for one.
            if not shared.connections.close_longest_idle():
                _LOG.warning("A connection cannot be accepted: %s", error)
            await asyncio.sleep(_NO_DESCRIPTORS_S)


async def _end(serving: Collection[asyncio.Task[None]]) -> None:
    if not serving:
        return
    _, stuck = await asyncio.wait(set(serving), timeout=_STOP_S)
    for task in stuck:
        task.cancel()
    if stuck:
        await asyncio.wait(stuck)
