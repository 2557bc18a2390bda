"""Lines over TCP: the receiver for whatever can open a socket and write to it."""

import asyncio
import errno
import logging
import socket
from collections.abc import Collection
from typing import Final

from headrace.receivers.connections import ListeningReceiver
from headrace.receivers.intake import Intake
from headrace.receivers.settings import TcpSettings
from headrace.receivers.tcp.line_sender import LineSender, SharedBySenders

_LOG: Final = logging.getLogger("headrace.receivers")
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_DESCRIPTORS_S: Final = 0.1


class TcpReceiver(ListeningReceiver):
    r"""Takes each line that a sender writes, up to ``\n`` or ``\r\n``, for one record.

    With acknowledgements a sender counts: after ``ok 500`` and ``ok 20`` its first 520 lines are
    durable. They come in order, at the latest one block interval and one sync after the lines.
    Without them a sender cannot tell what was lost when it or the receiver went down.

    A sender whose line is rejected gets one line, ``error`` and the reason, and the connection is
    closed; the lines before that one are stored, and acknowledged as usual. A line without an end
    is rejected: nobody can tell whether the rest of it was lost.

    Under backpressure nothing is read, so that senders block on their sockets. Meanwhile a sender
    takes the memory of its unfinished line.

    Args:
        settings: The limits. Default: those of `TcpSettings`.
        stop_s: How long a stop waits for senders who do not read their last acknowledgements (s).
            Default: 5.
    """

    def __init__(self, settings: TcpSettings | None = None, *, stop_s: float = 5) -> None:
        self.settings = settings or TcpSettings()
        super().__init__(self.settings.host, self.settings.port)
        self._stop_s = stop_s

    async def receive(self, intake: Intake) -> None:
        """Receive until cancelled, as `Receiver.receive` says.

        Raises:
            ReceiverError: The port cannot be opened.
        """
        listener = self._take_listener()
        shared = SharedBySenders(intake, self.settings)
        senders: dict[asyncio.Task[None], LineSender] = {}
        try:
            while True:
                sender = LineSender(await _accept(listener, shared), shared)
                serving = sender.start()
                senders[serving] = sender
                serving.add_done_callback(senders.pop)
                await asyncio.sleep(0)  # accepting goes on at once if there is more to accept
        finally:
            listener.close()
            for sender in senders.values():
                sender.stop()
            await self._end(set(senders))

    async def _end(self, serving: Collection[asyncio.Task[None]]) -> None:
        if not serving:
            return
        _, stuck = await asyncio.wait(serving, timeout=self._stop_s)
        for task in stuck:
            task.cancel()
        if stuck:
            await asyncio.wait(stuck)


async def _accept(listener: socket.socket, shared: SharedBySenders) -> socket.socket:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return (await loop.sock_accept(listener))[0]
        except ConnectionError:
            continue  # it was gone before it was accepted
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
            # The next connection that closes makes a place; there is no way to wait for one.
            if not shared.connections.close_longest_idle():
                _LOG.warning("A connection cannot be accepted: %s", error)
            await asyncio.sleep(_NO_DESCRIPTORS_S)
