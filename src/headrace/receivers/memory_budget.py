"""The memory that records may take, granted in the order in which it is asked for."""

import asyncio
from collections import deque
from typing import Final

from headrace.journal.records import Records

_RECORD_BYTES: Final = 40
"""What a record takes besides its own bytes: offsets of its columns, timestamp. Without it, empty
records would be granted memory without end."""


def memory_bytes(records: Records) -> int:
    """What records take in memory, an upper estimate."""
    return records.bytes + _RECORD_BYTES * records.count


class MemoryBudget:
    """Grants at most ``max_bytes`` at a time, first come, first served; of one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reserved_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def reserved_bytes(self) -> int:
        """What is granted and not released."""
        return self._reserved_bytes

    def is_available(self, wanted_bytes: int) -> bool:
        """Whether `try_acquire` would succeed."""
        return not self._waiting and self._reserved_bytes + wanted_bytes <= self.max_bytes

    def try_acquire(self, wanted_bytes: int) -> bool:
        """Take memory if it is free and nobody waits for some; never waits itself."""
        if not self.is_available(wanted_bytes):
            return False
        self._reserved_bytes += wanted_bytes
        return True

    async def acquire(self, wanted_bytes: int) -> None:
        """Wait for memory, at most `max_bytes`."""
        if self.try_acquire(wanted_bytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted_bytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted to a task that has gone
                self._reserved_bytes -= wanted_bytes
            self._grant()
            raise

    def release(self, reserved_bytes: int) -> None:
        """Give memory back, all of a grant or a part of it."""
        self._reserved_bytes -= reserved_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            wanted_bytes, granted = self._waiting[0]
            if not granted.done():
                if self._reserved_bytes + wanted_bytes > self.max_bytes:
                    return
                self._reserved_bytes += wanted_bytes
                granted.set_result(None)
            self._waiting.popleft()
