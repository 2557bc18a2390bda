"""Memory that large requests have left unused, given back to the system."""

import asyncio
import ctypes
from contextlib import suppress
from typing import Final

import pyarrow as pa

_QUIET_S: Final = 1.0
"""So long after the first large request: not for each of many, and not while it is in use."""


class GiveBack:
    """Gives back what allocators keep, a second after it was asked to; of one event loop.

    The C library and Arrow keep what was freed for the next one who needs as much. After a few
    large requests that is more than the receiver otherwise has.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Ask; while one is to come, this does nothing."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_QUIET_S, self._run)

    def _run(self) -> None:
        self._timer = None
        asyncio.get_running_loop().run_in_executor(None, give_back)


def give_back() -> None:
    """Give unused memory back now; where the C library has no way to, Arrow's alone."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
