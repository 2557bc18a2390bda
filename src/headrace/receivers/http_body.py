"""The body of a request: within its size, its time and the memory that there is for all of them."""

import asyncio
import contextlib
from typing import Final

from starlette.requests import ClientDisconnect, Request

from headrace.receivers.decompression import ENCODINGS, DamagedError, Decompressor
from headrace.receivers.refusal import Refusal, come_back
from headrace.receivers.room import Room
from headrace.receivers.settings import HttpSettings

_NO_MEMORY_S: Final = 1.0
"""When memory is asked for again: bodies come and go within about this time."""

_PIECE_BYTES: Final = 64 * 1024
"""Less is put together as it comes, so that a body of single bytes takes no more memory than
another; more is not, for what grows is copied again and again."""

_DISCARD_S: Final = 2.0
"""How long the rest of a refused body is thrown away. If the connection were closed at once, the
sender's system would throw away the answer instead."""


class Body:
    """The body of one request, and the memory that it is lent.

    Args:
        request: Whose body it is.
        settings: The limits.
        room: The memory for all bodies.
    """

    def __init__(self, request: Request, settings: HttpSettings, room: Room) -> None:
        self._request = request
        self._settings = settings
        self._room = room
        self._pieces: list[bytearray] = []
        self._held_bytes = 0
        self._came = request.stream()
        self._ended = False

    async def read(self) -> bytes:
        """All of it, decompressed.

        Raises:
            Refusal: It is too large (413) or too slow (408), nothing says how long it is (411), its
                encoding is not understood (415) or not what it is said to be (400), or there is no
                memory for it at present (429).
            ClientDisconnect: Its sender has gone.
        """
        encoding = self._request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ENCODINGS:
            raise Refusal(
                415,
                "Content-Encoding must be gzip, deflate or identity, and only one of them.",
                {"accept-encoding": ", ".join(ENCODINGS)},
            )
        if not {"content-length", "transfer-encoding"} & set(self._request.headers.keys()):
            raise Refusal(
                411,
                "Nothing says how long the body is; send Content-Length, or Transfer-Encoding:"
                " chunked.",
            )
        length = self._request.headers.get("content-length", "0")
        self._check_sent(int(length) if length.isdecimal() else 0)
        try:
            async with asyncio.timeout(self._settings.body_s):
                await self._read(Decompressor(encoding))
        except TimeoutError as error:
            raise Refusal(
                408, f"The body was not complete after {self._settings.body_s:g} s; send it faster."
            ) from error
        except DamagedError as error:
            raise Refusal(400, f"The body cannot be decompressed ({encoding}): {error}.") from error
        return b"".join(self._pieces)

    @property
    def ended(self) -> bool:
        """Whether all of it came."""
        return self._ended

    async def discard(self) -> None:
        """Throw away what still comes, so that its sender gets to read why; but not for ever."""
        if self._ended:
            return
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DISCARD_S):
                async for _ in self._came:
                    continue

    def release(self) -> None:
        """Give back the memory."""
        self._pieces = []
        self._room.give_back(self._held_bytes)
        self._held_bytes = 0

    async def _read(self, decompressor: Decompressor) -> None:
        sent_bytes = 0
        async for data in self._came:
            sent_bytes += len(data)
            self._check_sent(sent_bytes)
            for piece in decompressor.pieces(data):
                self._hold(piece)
        self._ended = True
        decompressor.end()

    def _check_sent(self, sent_bytes: int) -> None:
        most_bytes = self._settings.max_body_bytes
        if sent_bytes > most_bytes:
            raise Refusal(
                413, f"The body has more than the {most_bytes} bytes that it may; send it in parts."
            )

    def _hold(self, piece: bytes) -> None:
        most_bytes = self._settings.max_decompressed_bytes
        if self._held_bytes + len(piece) > most_bytes:
            raise Refusal(
                413,
                f"The body has more than the {most_bytes} bytes that it may when decompressed;"
                " send it in parts.",
            )
        if not self._room.try_take(len(piece)):
            raise come_back(_NO_MEMORY_S, "There is no memory for more bodies at present")
        self._held_bytes += len(piece)
        if self._pieces and len(self._pieces[-1]) < _PIECE_BYTES:
            self._pieces[-1] += piece
        else:
            self._pieces.append(bytearray(piece))
