"""Block writer with group commit: records that arrive during a sync form the next block.

While one block is synced, the writer collects records for the next block. So a single record is
acknowledged as soon as it is on disk, and under load many records share one sync.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

from headrace.core.ranges import OffsetRange
from headrace.errors import LaneTakenError
from headrace.journal.receivers.deduplicator import StoredIds
from headrace.journal.receivers.memory_budget import memory_bytes
from headrace.journal.receivers.settings import IntakeSettings
from headrace.journal.records import Records

Append = Callable[[Records], OffsetRange]
"""Function that makes records durable and returns their offsets. It raises JournalError if this
append fails. It raises LaneTakenError if another writer has taken the lane; all further appends
fail too."""

Settle = Callable[[], Sequence[StoredIds]]
"""Function that returns the message ids and offsets of blocks that are stored although their append
raised an error. It raises JournalError if it cannot find these blocks now."""

_SMALL_BYTES: Final = 256 * 1024
_QUIET_S: Final = 0.003
_LOG_EACH_S: Final = 60.0

_LOG: Final = logging.getLogger("headrace.receivers")


@dataclass(frozen=True, slots=True)
class _Buffered:
    records: Records
    stored: asyncio.Future[OffsetRange]


class BlockWriter:
    """Writer that collects records into blocks and appends the blocks in order, one at a time.

    While one block is appended, the writer collects the next block. With no append in progress, the
    writer appends a block at once if a sender waits for one of its records. Otherwise the block
    waits until it has ``block_bytes``, or its first record is ``block_interval_ms`` old. But a
    block of more than 256 KiB is appended only when no record has arrived for 3 ms, because fewer
    blocks mean a higher throughput. With ``at_once`` false, a block always waits for its size or
    interval, because the storage charges for each block. A separate thread appends.

    A failed append fails only the records of its block, and the next block is appended as usual.
    After a failure, the append thread calls ``settle``, which returns failed blocks that are stored
    nevertheless. The event loop passes their message ids and offsets to ``found`` before the next
    append. ``settle`` is None if a failed block is never stored. Once another writer has the lane,
    `lost` raises.
    """

    def __init__(
        self,
        append: Append,
        settings: IntakeSettings,
        settle: Settle | None,
        found: Callable[[Sequence[str | None], OffsetRange], None],
        *,
        at_once: bool = True,
    ) -> None:
        self._append = append
        self._settle = settle
        self._found = found
        self._is_settled = True
        self._interval_s = settings.block_interval_ms / 1000
        self._block_bytes = settings.block_bytes
        self._at_once = at_once
        self._is_awaited = False
        self._first_s = self._last_s = 0.0
        self._buffer: deque[_Buffered] = deque()
        self._buffered_bytes = 0
        self._some = asyncio.Event()
        self._due = asyncio.Event()
        self._lost = asyncio.Event()
        self._lane_taken: LaneTakenError | None = None
        self._logged_s, self._unlogged = -math.inf, 0
        self._is_closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-append")
        self._running: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start the task that writes blocks, in the running event loop."""
        self._running = asyncio.create_task(self._run())

    def add(self, records: Records, *, is_awaited: bool) -> asyncio.Future[OffsetRange]:
        """Add records to the current block, and return a future of their offsets.

        All records go into one block, even if it becomes larger than ``block_bytes``.
        ``is_awaited`` is true if the sender waits for an acknowledgement. The future completes when
        the records are durable, or fails with the JournalError of the append. If you complete or
        cancel the future before the append, the records are not stored.
        """
        loop = asyncio.get_running_loop()
        buffered = _Buffered(records, loop.create_future())
        self._buffer.append(buffered)
        self._last_s = loop.time()
        if len(self._buffer) == 1:
            self._first_s = self._last_s
        self._is_awaited |= is_awaited
        self._buffered_bytes += memory_bytes(records)
        self._wake()
        return buffered.stored

    async def lost(self) -> NoReturn:
        """Wait until another writer has taken the lane, and raise the LaneTakenError."""
        await self._lost.wait()
        assert self._lane_taken is not None  # noqa: S101
        raise self._lane_taken

    async def close(self) -> None:
        """Append the collected records now, and stop. Do not call `add` afterwards."""
        self._is_closing = True
        self._wake()
        if self._running:
            await self._running
        self._thread.shutdown()

    def _wake(self) -> None:
        if self._buffer or self._is_closing:
            self._some.set()
        is_due = self._buffer and self._due_s <= asyncio.get_running_loop().time()
        if is_due or self._buffered_bytes >= self._block_bytes or self._is_closing:
            self._due.set()

    @property
    def _due_s(self) -> float:
        latest_s = self._first_s + self._interval_s
        if not (self._is_awaited and self._at_once):
            return latest_s
        if self._buffered_bytes <= _SMALL_BYTES:
            return self._first_s
        return min(latest_s, self._last_s + _QUIET_S)

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            if not self._buffer:
                return
            await self._wait_until_due()
            await self._write_next()

    async def _write_next(self) -> None:
        """Append the next block.

        This is a separate method, so that no local variable keeps the block in memory while the
        writer waits for the following block.
        """
        unsettled = await self._settle_failed()
        block = self._next_block()
        if block and unsettled:
            self._fail(block, unsettled)
        elif block:
            await self._store(block)

    async def _wait_until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._due.is_set() and loop.time() < self._due_s:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due_s):
                    await self._due.wait()

    def _next_block(self) -> list[_Buffered]:
        block: list[_Buffered] = []
        block_bytes = 0
        while self._buffer and block_bytes < self._block_bytes:
            buffered = self._buffer.popleft()
            size_bytes = memory_bytes(buffered.records)
            self._buffered_bytes -= size_bytes
            if not buffered.stored.done():
                block.append(buffered)
                block_bytes += size_bytes
        self._some.clear()
        self._due.clear()
        self._is_awaited = self._is_awaited and bool(self._buffer)
        self._wake()
        return block

    async def _settle_failed(self) -> BaseException | None:
        """After a failed append, call ``settle`` and pass the stored blocks to ``found``.

        Return the error of ``settle``, or None.
        """
        if self._settle is None or self._is_settled:
            return None
        settling = asyncio.get_running_loop().run_in_executor(self._thread, self._settle)
        await asyncio.wait([settling])
        if error := settling.exception():
            self._note_if_lost(error)
            return error
        self._is_settled = True
        for ids, offsets in settling.result():
            self._found(ids, offsets)
        return None

    async def _store(self, block: Sequence[_Buffered]) -> None:
        records = [buffered.records for buffered in block]
        loop = asyncio.get_running_loop()
        appended = loop.run_in_executor(self._thread, _append_all, self._append, records)
        await asyncio.wait([appended])
        if error := appended.exception():
            self._fail(block, error)
            self._is_settled = False
            await self._settle_failed()  # now, so that most repeated records are recognized
            return
        offsets = appended.result()
        start = offsets.start
        for buffered in block:
            until = start + buffered.records.count
            buffered.stored.set_result(OffsetRange(offsets.topic, offsets.partition, start, until))
            start = until

    def _fail(self, block: Sequence[_Buffered], error: BaseException) -> None:
        count = sum(buffered.records.count for buffered in block)
        self._log_failure(count, error)
        for buffered in block:
            buffered.stored.set_exception(error)
        self._note_if_lost(error)

    def _log_failure(self, count: int, error: BaseException) -> None:
        """Log the number of records that were not stored, at most once a minute.

        On a full disk, hundreds of blocks fail. So the records of all failures within a minute are
        logged as one number.
        """
        now_s = time.monotonic()
        self._unlogged += count
        if now_s - self._logged_s >= _LOG_EACH_S:
            _LOG.error("The journal did not store %d records: %s", self._unlogged, error)
            self._logged_s, self._unlogged = now_s, 0

    def _note_if_lost(self, error: BaseException) -> None:
        if isinstance(error, LaneTakenError):
            self._lane_taken = error
            self._lost.set()


def _append_all(append: Append, records: Sequence[Records]) -> OffsetRange:
    return append(records[0] if len(records) == 1 else Records.concat(records))
