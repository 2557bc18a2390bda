"""Whether a receiver can store records at present, asked by whoever sends it some or none."""

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
"""For how long a block that was stored, or a probe, says that the next one can be stored too."""

_FAILING_S: Final = 1.0
"""For how long a probe that failed is not tried again."""

_DISTRUST: Final = Backoff(first_ms=10_000, most_ms=30_000)
"""Time for which a probe that passes is not believed, by the blocks that failed after a first."""

_SLOW_S: Final = 10.0
"""Time after which a slow block or probe means that the storage is out of order (s)."""

_PROBE_BYTES: Final = 4096


class LaneHealth:
    """Watches the blocks of a lane, and probes its storage when there are none.

    A storage is in order if a block was stored within the last five seconds and none has failed
    since. Otherwise it is asked: a probe writes a file of the size of the block that failed, or of
    4 KiB, makes it durable and removes it. So a receiver that a load balancer has taken out, for it
    could store nothing, comes back by itself. One probe runs at a time, in a thread, at most once
    in five seconds, or in one while they fail. Where blocks fail although probes pass, as with a
    store that refuses the names of blocks, a probe counts for less with each block that fails.

    Args:
        append: Makes records durable and answers their offsets, or raises JournalError.
        probe: Writes and removes so many bytes, or raises JournalError. None: nothing is probed.
        journal: The journal's name, for metrics.
        lane: The lane.
        clock: The time (s), from any moment on. Default: that of the machine.

    Attributes:
        no_broker: Why the broker sends no records, in a sentence; None where it does, or a receiver
            has none.
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
        """Blocks in a row that have failed."""
        self._probed: tuple[float, str | None] | None = None
        self._probing: tuple[float, Future[None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-probe")

    def append(self, records: Records) -> OffsetRange:
        """Append, and take note of how it ends; raises what ``append`` raises."""
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
        """Why nothing can be stored, or nothing comes, at present; None if there is no trouble."""
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
        """Probe no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _probe_result(self, now_s: float, size_bytes: int) -> str | None:
        """Return the last probe's trouble, or a new one's; none from before a failure counts."""
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
    # Its error is read from the probe itself; asyncio would log this one as forgotten.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([waiting], timeout=wait_s)
