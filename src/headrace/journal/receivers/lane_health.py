"""Health of a receiver's lane: whether its storage can store records now.

The health depends on appends and on probes of the storage. A load balancer sends no records to an
unhealthy receiver. So without probes, no append would ever show that the disk has space again.
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
"""Time for which the lane counts as healthy after a stored block or a successful probe (s)."""

_FAILING_S: Final = 1.0
"""Delay between a failed probe and the next probe (s)."""

_DISTRUST: Final = Backoff(first_ms=10_000, most_ms=30_000)
"""After two failed blocks in a row, successful probes are ignored for this time: 10 s. The time
doubles with each further failed block, up to 30 s."""

_SLOW_S: Final = 10.0
"""Duration of an append or a probe after which the storage counts as hanging (s)."""

_PROBE_BYTES: Final = 4096


class LaneHealth:
    """Health of a lane, from its appends and from probes of its storage.

    The storage is healthy if a block was stored within the last five seconds, and no block has
    failed since. Otherwise a probe writes a file, syncs it and removes it. The file has the size of
    the failed block, at least 4 KiB. So a receiver that a load balancer has removed becomes healthy
    again without any records. Probes run in a thread, one at a time, at most every five seconds, or
    every second while they fail. Blocks may fail although probes succeed, for instance on a storage
    that refuses the names of blocks. So after two failed blocks in a row, successful probes are
    ignored for 10 s. The time doubles with each further failed block, up to 30 s.

    Args:
        append: Function that makes records durable and returns their offsets, or raises
            JournalError.
        probe: Function that writes and removes a file of a given size (bytes), or raises
            JournalError. Default: None, no probes.
        journal: Name of the journal, for metrics.
        lane: Number of the lane, for metrics.
        clock: Function that returns a monotonic time (s). Default: `time.monotonic`.

    Attributes:
        no_broker: Sentence with the reason why the broker delivers no messages; None while it
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
        """Number of blocks that failed since the last stored block."""
        self._probed: tuple[float, str | None] | None = None
        self._probing: tuple[float, Future[None]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-probe")

    def append(self, records: Records) -> OffsetRange:
        """Append records and return their offsets. Success or failure changes the lane's health.

        Raises the errors of ``append``.
        """
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
        """Return a sentence with the reason why no records can be stored or received now.

        Return None if the lane is healthy. Probe the storage first if necessary.
        """
        if self.no_broker is not None:
            return self.no_broker
        now_s = self._clock()
        begun_s = self._appending_s
        if begun_s is not None and now_s - begun_s > _SLOW_S:
            return f"Writing a block already takes {now_s - begun_s:.0f} s; check the disk."
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
        """Stop the thread of the probes, without waiting for a running probe."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _probe_result(self, now_s: float, size_bytes: int) -> str | None:
        """Return the error of a probe, or None if it succeeded. Probe again if no result is recent.

        Results of probes before the last failed block do not count.
        """
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
            return "The journal's storage does not answer; check its disk or its network."
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
