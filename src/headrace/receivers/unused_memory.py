"""Memory that allocators keep after it was freed goes back to the system."""

import asyncio
import ctypes
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

_STATM: Final = Path("/proc/self/statm")
_LEAST_S: Final = 1.0
_MOST_S: Final = 4.0
_UNUSED_BYTES: Final = 8 * 2**20
"""Less than so much above the process that was idle is not worth a look."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 2**20


def resident_bytes() -> float:
    """The resident memory of this process; infinity where the system does not tell."""
    with suppress(OSError):
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return math.inf


async def keep_giving_back(
    resident: Callable[[], float] = resident_bytes,
    trim: Callable[[], None] | None = None,
    *,
    least_s: float = _LEAST_S,
    most_s: float = _MOST_S,
) -> None:
    """Give unused memory back while the process takes more than now; runs until it is cancelled.

    The C library and Arrow keep what was freed for the next one who needs as much: after a few
    large requests, or a thousand connections, that is more than the receiver otherwise has. It is
    looked at every ``least_s``; while that gives back little, less often, down to ``most_s``.
    """
    idle_bytes, wait_s = resident(), least_s
    while True:
        await asyncio.sleep(wait_s)
        before_bytes = resident()
        if before_bytes < idle_bytes + _UNUSED_BYTES:
            wait_s = least_s
            continue
        await asyncio.to_thread(trim or give_back)
        gave_back = before_bytes - resident() >= _UNUSED_BYTES
        wait_s = least_s if gave_back else min(2 * wait_s, most_s)


def give_back() -> None:
    """Give unused memory back now; where the C library has no way to, Arrow's alone."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def give_back_large_blocks() -> None:
    """Have the C library give a block of a mebibyte or more back when it is freed; for good.

    By itself it raises that limit to the largest block that was freed, up to 32 MiB, and keeps
    twice as much at the end of the heap of each thread, where `give_back` does not reach. No-op
    with another C library than that of GNU.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
