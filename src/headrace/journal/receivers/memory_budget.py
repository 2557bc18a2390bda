"""The memory that records may take, granted in the order in which it is asked for."""

import asyncio
import gc
import sys
from collections import deque
from typing import Final

import pyarrow as pa

from headrace.journal.block import decode, encode
from headrace.journal.records import SCHEMA, Records

_RECORD_BYTES: Final = 40
"""Memory of a record besides its own bytes: offsets of its columns, timestamp. Without it, empty
records would be granted memory without end.
"""


_ID_BYTES: Final = 160
"""Memory of a record's own id besides twice its bytes, in its column and as Python's text."""


def memory_bytes(records: Records) -> int:
    """Return the memory of records and of their ids, an upper estimate (bytes)."""
    count, size_bytes = records.ids
    return records.bytes + _RECORD_BYTES * records.count + 2 * size_bytes + _ID_BYTES * count


class MemoryBudget:
    """Grants at most ``max_bytes`` at a time, first come, first served; of one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reserved_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def reserved_bytes(self) -> int:
        """Memory that is granted and not released."""
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


_SAMPLE_ID: Final = bytes(16)


_SWITCH_S: Final = 0.0002
"""How long the event loop waits for a thread that parses a large body (s)."""


def warm_up() -> None:
    """Load the modules of the first record, and spare the collector the present objects.

    Arrow imports pandas with the first array that it makes, which takes a tenth of a second. A full
    collection looks at every object of every module each time, with all threads waiting: a tenth of
    a second as well. Objects from before the first record stay anyway, so they are frozen
    (`gc.freeze`). Threads that compute let the event loop go on 25 times as often as usual. All
    that is for the whole process: call it only if the process is the receiver's.
    """
    records = Records.of([b"{}"], timestamp_ms=0)
    block = encode(records, journal_id=_SAMPLE_ID, writer=_SAMPLE_ID, lane=0, first=0)
    data = b"".join(bytes(memoryview(part)) for part in block.parts)
    decode(pa.py_buffer(data), "a sample", SCHEMA.names)
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
