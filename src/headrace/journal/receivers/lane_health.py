"""Health of a receiver's lane: whether it can store records now.

Health is a probe, not a memory of the last failure. A load balancer sends no records to an
unhealthy receiver, so no append would ever show that its disk has space again.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from headrace.core.backoff import Backoff
from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.journal.records import Records

_FRESH_S: Final = 5.0
"""Time for which a stored block or a passed probe counts as healthy (s)."""

_FAILING_S: Final = 1.0
"""Delay before a failed probe is repeated (s)."""

_DISTRUST: Final = Backoff(first_ms=10_000, most_ms=30_000)
"""Time for which passed probes are ignored; grows with each block that failed in a row."""

_SLOW_S: Final = 10.0
"""Duration from which a block or a probe counts as hanging (s)."""

_PROBE_BYTES: Final = 4096


class LaneHealth:
    """Watches the blocks of a lane, and probes its storage when no blocks arrive.

    Storage is healthy if a block was stored within the last five seconds and none has failed
    since. Otherwise a probe writes a file, syncs and removes it. The file has the size of the
    failed block, at least 4 KiB. So a receiver that a load balancer has removed becomes healthy
    again without traffic. Probes run one at a time in a thread, at most every five seconds, or
    every second while they fail. Blocks may fail although probes pass, for instance on a store
    that refuses the names of blocks. So each failed block lengthens the time for which passed
    probes are ignored.

    Args:
        append: Makes records durable and returns their offsets, or raises JournalError.
        probe: Writes and removes a number of bytes, or raises JournalError. Default: None, no
            probes.
        journal: The journal's name, for metrics.
        lane: The lane.
        clock: Returns a monotonic time (s). Default: `time.monotonic`.

    Attributes:
        no_broker: The reason why the broker delivers nothing, in a sentence; None while the broker
            delivers, or for a receiver without a broker.
    """

    def __init__(
        self,
        append: Callable[[Records], OffsetRange],
        probe: Callable[[int], None] | None = None,
        *,
        journal: str = "",
        lane: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.journal = journal
        self.lane = lane
        self.no_broker: str | None = None
        self._append = append
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._good_s: float | None = None
        self._appending_s: float | None = None
        self._failure: tuple[str, int] | None = None
        self._failed_s = -math.inf
        self._failed_blocks = 0
        """Consecutive failed blocks."""
        self._probed: tuple[float, str | None] | None = None
        self._probing: tuple[float, Future[None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-probe")

    def append(self, records: Records) -> OffsetRange:
        """Append records and note success or failure; raises the errors of ``append``."""
        self._appending_s = self._clock()
        try:
            offsets = self._append(records)
        except JournalError as error:
            with self._lock:
                self._failure, self._failed_s = (str(error), records.bytes), self._clock()
                self._failed_blocks += 1
                self._good_s = None
            raise
        finally:
            self._appending_s = None
        with self._lock:
            self._good_s, self._failure, self._failed_blocks = self._clock(), None, 0
        return offsets

    async def trouble(self) -> str | None:
        """Return the reason why no records can be stored or received now, or None."""
        if self.no_broker is not None:
            return self.no_broker
        now_s = self._clock()
        begun_s = self._appending_s
        if begun_s is not None and now_s - begun_s > _SLOW_S:
            return f"A block is being written for {now_s - begun_s:.0f} s already; see to the disk."
        with self._lock:
            if self._good_s is not None and now_s - self._good_s <= _FRESH_S:
                return None
            failure = self._failure
            distrust_s = _DISTRUST.wait_ms(self._failed_blocks - 1) / 1000
            is_in_vain = now_s - self._failed_s < distrust_s
        if failure is not None and is_in_vain:
            return failure[0]
        if self._probe is None:
            return failure[0] if failure else None
        return await self._probe_result(now_s, max(_PROBE_BYTES, failure[1] if failure else 0))

    def close(self) -> None:
        """Stop the probe thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _probe_result(self, now_s: float, size_bytes: int) -> str | None:
        """Return the error of the last probe after the last failure, or of a new probe."""
        if self._probed is not None:
            at_s, trouble = self._probed
            if at_s >= self._failed_s and now_s - at_s <= (_FAILING_S if trouble else _FRESH_S):
                return trouble
        if self._probing is not None and self._probing[0] < self._failed_s:
            await _ended(self._probing[1], _SLOW_S)
            self._probing = None
        if self._probing is None:
            assert self._probe is not None  # noqa: S101
            self._probing = self._clock(), self._thread.submit(self._probe, size_bytes)
        begun_s, probing = self._probing
        left_s = max(0.0, _SLOW_S - (now_s - begun_s))
        await _ended(probing, left_s)
        if not probing.done():
            return "The journal does not answer; see to its disk or its network."
        error = probing.exception()
        if error is not None and not isinstance(error, JournalError):
            raise error
        trouble = None if error is None else str(error)
        self._probing, self._probed = None, (begun_s, trouble)
        return trouble


async def _ended(probing: Future[None], wait_s: float) -> None:
    waiting = asyncio.wrap_future(probing)
    # The caller reads the probe's exception; asyncio would log this future's as never retrieved.
    waiting.add_done_callback(lambda future: future.cancelled() or future.exception())
    await asyncio.wait([waiting], timeout=wait_s)
