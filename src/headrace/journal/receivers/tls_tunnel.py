"""TLS for receivers that read from a socket themselves: its bytes reach them through another."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

from headrace.errors import ReceiverError
from headrace.journal.receivers.connections import take_proxy_header

_READ_BYTES: Final = 64 * 1024

_LINGER_S: Final = 2.0
"""Time for which a sender may still send after its last answer (s). If the connection were closed
at once, the sender's system would discard the answer.
"""


class TlsTunnels:
    """The connections of one receiver that are encrypted; belongs to one event loop.

    Args:
        handshake_s: How long a handshake may take (s).
        failed: Receives why a handshake has failed, as a sentence.
        is_proxied: Whether a PROXY header comes before each handshake.
    """

    def __init__(
        self, handshake_s: float, failed: Callable[[str], None], *, is_proxied: bool = False
    ) -> None:
        self._handshake_s = handshake_s
        self._is_proxied = is_proxied
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()

    def open(self, connection: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """A socket that reads and writes what the sender at the other end of TLS does.

        It is there before the handshake, and ends where that fails. Closing it closes the
        connection, when everything that was written has been sent. Both are non-blocking.

        Raises:
            OSError: There are no descriptors left; the connection is closed.
        """
        try:
            inner, outer = socket.socketpair()
        except OSError:
            connection.close()
            raise
        inner.setblocking(False)
        outer.setblocking(False)
        task = asyncio.create_task(self._run(_Tunnel(connection, outer, context)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return inner

    async def close(self, timeout_s: float) -> None:
        """Wait until all that was written has been sent, but no longer than this (s)."""
        if not self._running:
            return
        _, late = await asyncio.wait(set(self._running), timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _run(self, tunnel: "_Tunnel") -> None:
        outward = asyncio.create_task(tunnel.outward())
        handshake = asyncio.create_task(self._handshake(tunnel))
        try:
            await asyncio.wait((handshake, outward), return_when=asyncio.FIRST_COMPLETED)
            if handshake.done() and handshake.result():
                await tunnel.carry(outward)
        finally:  # the receiver may have closed its end before the handshake's
            for task in (handshake, outward):
                task.cancel()
            await asyncio.gather(handshake, outward, return_exceptions=True)
            tunnel.close()

    async def _handshake(self, tunnel: "_Tunnel") -> bool:
        try:
            async with asyncio.timeout(self._handshake_s):
                if self._is_proxied:
                    await tunnel.take_proxy_header()
                await tunnel.handshake()
        except TimeoutError:
            self._failed(
                f"A TLS handshake was not over after {self._handshake_s:g} s; connect faster."
            )
        except ReceiverError as error:
            self._failed(str(error))
        except OSError as error:
            self._failed(handshake_failure(error))
        else:
            return True
        return False


def handshake_failure(error: OSError) -> str:
    """The sentence for a handshake that has failed."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    words = (reason or error.strerror or "the connection was closed").replace("_", " ").lower()
    return f"A TLS handshake has failed ({words}); connect with TLS, and a certificate if asked."


class _Tunnel:
    """One connection: ``outer`` is encrypted, ``plain`` is the receiver's."""

    def __init__(
        self, connection: socket.socket, plain: socket.socket, context: ssl.SSLContext
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._plain = plain
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=True)
        self._sending = asyncio.Lock()
        self._ready = asyncio.Event()

    def close(self) -> None:
        self._connection.close()
        self._plain.close()

    async def take_proxy_header(self) -> None:
        await take_proxy_header(self._connection)

    async def handshake(self) -> None:
        """Raises OSError where it fails; its sender is sent the alert that says why."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()
                raise
            else:
                await self._flush()
                self._ready.set()
                return

    async def carry(self, outward: "asyncio.Task[None]") -> None:
        """Carry both ways until both have ended; ``outward`` runs already."""
        inward = asyncio.create_task(self._inward())
        try:
            await asyncio.wait([outward])
            await asyncio.wait([inward], timeout=_LINGER_S)
        finally:
            inward.cancel()
            await asyncio.gather(inward, return_exceptions=True)

    async def _inward(self) -> None:
        try:
            while data := await self._read():
                await self._loop.sock_sendall(self._plain, data)
        finally:
            with contextlib.suppress(OSError):
                self._plain.shutdown(socket.SHUT_WR)

    async def _read(self) -> bytes:
        """Return the next decrypted bytes; empty at the end."""
        while True:
            try:
                return self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def outward(self) -> None:
        """Send what the receiver writes, from the end of the handshake on, until it closes."""
        while data := await self._loop.sock_recv(self._plain, _READ_BYTES):
            await self._ready.wait()
            self._tls.write(data)
            await self._flush()
        if not self._ready.is_set():
            return
        with contextlib.suppress(ssl.SSLError):  # it says that its answer is still to come
            self._tls.unwrap()
        await self._flush()
        self._connection.shutdown(socket.SHUT_WR)

    async def _fill(self) -> None:
        if data := await self._loop.sock_recv(self._connection, _READ_BYTES):
            self._arrived.write(data)
        else:
            self._arrived.write_eof()

    async def _flush(self) -> None:
        async with self._sending:
            while data := self._leaving.read():
                await self._loop.sock_sendall(self._connection, data)
