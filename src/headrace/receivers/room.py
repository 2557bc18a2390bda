"""The memory that records may take, lent out in the order in which it is asked for."""

import asyncio
from collections import deque


class Room:
    """So many bytes, of which nobody is lent more than there are. Belongs to one event loop.

    Args:
        most_bytes: How much there is.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def held_bytes(self) -> int:
        """What is lent at present."""
        return self._held_bytes

    def has(self, wanted_bytes: int) -> bool:
        """Whether so much would be lent at once: it is there, and nobody came before."""
        return not self._waiting and self._held_bytes + wanted_bytes <= self.most_bytes

    def try_take(self, wanted_bytes: int) -> bool:
        """Borrow so much if it is there; otherwise nothing is lent, and the answer is False."""
        if not self.has(wanted_bytes):
            return False
        self._held_bytes += wanted_bytes
        return True

    async def take(self, wanted_bytes: int) -> None:
        """Wait until so much is lent, at most `most_bytes`; whoever came first is served first."""
        if self.try_take(wanted_bytes):
            return
        lent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted_bytes, lent))
        try:
            await lent
        except asyncio.CancelledError:
            if lent.done() and not lent.cancelled():  # lent, but whom it is for has gone
                self._held_bytes -= wanted_bytes
            self._lend()
            raise

    def give_back(self, held_bytes: int) -> None:
        """Return what was borrowed, all or a part of it."""
        self._held_bytes -= held_bytes
        self._lend()

    def _lend(self) -> None:
        while self._waiting:
            wanted_bytes, lent = self._waiting[0]
            if not lent.done():
                if self._held_bytes + wanted_bytes > self.most_bytes:
                    return
                self._held_bytes += wanted_bytes
                lent.set_result(None)
            self._waiting.popleft()
