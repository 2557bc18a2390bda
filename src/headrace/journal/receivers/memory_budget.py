"""Memory limit of a receiver's records and request bodies, and estimates of their memory."""

import asyncio
import gc
import sys
from collections import deque
from typing import Final

import pyarrow as pa

from headrace.journal.block import decode, encode
from headrace.journal.records import SCHEMA, Records

_RECORD_BYTES: Final = 40
"""Memory of a record in addition to its own bytes: column offsets and timestamp (bytes). Without
this amount, the number of empty records in memory would be unlimited.
"""


_ID_BYTES: Final = 160
"""Memory of a record's message id, without its text (bytes). The text counts twice: one copy is in
the id column, the other copy is a Python string."""


def memory_bytes(records: Records) -> int:
    """Return an upper estimate of the memory of records and their message ids (bytes)."""
    count, size_bytes = records.ids
    return records.bytes + _RECORD_BYTES * records.count + 2 * size_bytes + _ID_BYTES * count


class MemoryBudget:
    """Memory limit of ``max_bytes``, granted in the order of requests; for one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reserved_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def reserved_bytes(self) -> int:
        """Memory that is granted and not released yet (bytes)."""
        return self._reserved_bytes

    def is_available(self, wanted_bytes: int) -> bool:
        """Whether ``wanted_bytes`` are free now and no task waits for memory."""
        return not self._waiting and self._reserved_bytes + wanted_bytes <= self.max_bytes

    def try_acquire(self, wanted_bytes: int) -> bool:
        """Reserve memory without waiting; return False if `is_available` is false."""
        if not self.is_available(wanted_bytes):
            return False
        self._reserved_bytes += wanted_bytes
        return True

    async def acquire(self, wanted_bytes: int) -> None:
        """Wait until ``wanted_bytes`` are granted, after all earlier requests for memory.

        ``wanted_bytes`` must be at most ``max_bytes``.
        """
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
        """Release ``reserved_bytes`` of the granted memory."""
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
"""Interval after which a thread that parses a large body must let the event loop run (s)."""


def warm_up() -> None:
    """Load the modules that the first record needs, and tune the interpreter for a receiver.

    Arrow imports pandas for its first array, which takes 0.1 s. A full garbage collection visits
    the objects of all modules; it also takes 0.1 s, during which all threads wait. Objects that
    exist before the first record live as long as the process, so they are frozen (`gc.freeze`). The
    thread switch interval becomes 0.2 ms, a 25th of the default, so that the event loop runs while
    threads parse. These changes affect the whole process, so call this only in a process that runs
    nothing but a receiver.
    """
    records = Records.of([b"{}"], timestamp_ms=0)
    block = encode(records, journal_id=_SAMPLE_ID, writer=_SAMPLE_ID, lane=0, first=0)
    data = b"".join(bytes(memoryview(buffer)) for buffer in block.parts)
    decode(pa.py_buffer(data), "a sample", SCHEMA.names)
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_S)
