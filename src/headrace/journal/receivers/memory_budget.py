"""Memory limit of the records in a receiver, granted in the order of requests."""

import asyncio
import gc
import sys
from collections import deque
from typing import Final

import pyarrow as pa

from headrace.journal.block import decode, encode
from headrace.journal.records import SCHEMA, Records

_RECORD_BYTES: Final = 40
"""Memory of a record besides its own bytes: column offsets and timestamp. Without this charge,
empty records would be unlimited.
"""


_ID_BYTES: Final = 160
"""Memory of a record's own id, in its column and as a Python string, besides twice its bytes."""


def memory_bytes(records: Records) -> int:
    """Return an upper estimate of the memory of records and their ids (bytes)."""
    count, size_bytes = records.ids
    return records.bytes + _RECORD_BYTES * records.count + 2 * size_bytes + _ID_BYTES * count


class MemoryBudget:
    """Grants at most ``max_bytes`` at a time, first come, first served; for one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reserved_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def reserved_bytes(self) -> int:
        """Granted memory that has not been released (bytes)."""
        return self._reserved_bytes

    def is_available(self, wanted_bytes: int) -> bool:
        """Whether `try_acquire` would succeed now."""
        return not self._waiting and self._reserved_bytes + wanted_bytes <= self.max_bytes

    def try_acquire(self, wanted_bytes: int) -> bool:
        """Acquire memory without waiting. Return whether enough was free and no task waits."""
        if not self.is_available(wanted_bytes):
            return False
        self._reserved_bytes += wanted_bytes
        return True

    async def acquire(self, wanted_bytes: int) -> None:
        """Wait until memory of at most `max_bytes` is granted."""
        if self.try_acquire(wanted_bytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted_bytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted after the task was cancelled
                self._reserved_bytes -= wanted_bytes
            self._grant()
            raise

    def release(self, reserved_bytes: int) -> None:
        """Release a grant, or some of its bytes."""
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
"""Longest wait of the event loop for a thread that parses a large body (s)."""


def warm_up() -> None:
    """Load the modules that the first record needs, and tune the interpreter for a receiver.

    With its first array Arrow imports pandas, which takes a tenth of a second. A full garbage
    collection takes as long, because it visits every object of every module while all threads
    wait. Objects from before the first record live as long as the process, so they are frozen
    (`gc.freeze`). A thread switch interval of 0.2 ms, a 25th of the default, lets the event loop
    run while threads parse. These changes affect the whole process: call this only in a process
    that runs nothing but a receiver.
    """
    records = Records.of([b"{}"], timestamp_ms=0)
    block = encode(records, journal_id=_SAMPLE_ID, writer=_SAMPLE_ID, lane=0, first=0)
    data = b"".join(bytes(memoryview(buffer)) for buffer in block.parts)
    decode(pa.py_buffer(data), "a sample", SCHEMA.names)
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
