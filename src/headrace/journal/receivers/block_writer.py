"""Block writer with group commit: records that arrive during a sync form the next block.

While one block is synced the next block gathers. So single records are acknowledged as soon as the
disk has them, and under load many records share a sync.
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
"""Makes records durable and returns their offsets, or raises JournalError. LaneTakenError means:
another writer has the lane, and no further record can be stored."""

Settle = Callable[[], Sequence[StoredIds]]
"""Returns the blocks that are stored although their append raised, or raises JournalError."""

_SMALL_BYTES: Final = 256 * 1024
_QUIET_S: Final = 0.003
_LOG_EACH_S: Final = 60.0

_LOG: Final = logging.getLogger("headrace.receivers")


@dataclass(frozen=True, slots=True)
class _Buffered:
    records: Records
    stored: asyncio.Future[OffsetRange]


class BlockWriter:
    """Gathers records into blocks and appends them, one block at a time and in order.

    While one block is appended the next block gathers. Without an append in progress, a block is
    due as soon as a sender waits for one of its records, at ``block_bytes``, or
    ``block_interval_ms`` after its first record. A block of more than 256 KiB also waits until
    nothing has arrived for 3 ms, because a sender of so much gains more from fewer blocks. With
    ``at_once`` false, a block always waits for its interval or size: each block is a request to a
    storage that charges for it. A thread of its own appends.

    A failed append fails only the records of its block. The next block is appended as usual, and
    `lost` raises once appending is useless. After a failure, ``settle`` reports in the same thread
    which failed blocks are stored nevertheless (None: never any). ``found`` receives these blocks
    in the event loop, before the next block is appended.
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
        """Start writing, in the running event loop."""
        self._running = asyncio.create_task(self._run())

    def add(self, records: Records, *, is_awaited: bool) -> asyncio.Future[OffsetRange]:
        """Put all records into the current block, even beyond its size, and return a future.

        ``is_awaited`` says whether the sender waits for the answer. The future's result is the
        offsets of the durable records, its exception the JournalError of a failed append.
        Completing or cancelling the future before the append withdraws the records.
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
        """Wait until the lane cannot be written any more, and raise the LaneTakenError."""
        await self._lost.wait()
        assert self._lane_taken is not None  # noqa: S101
        raise self._lane_taken

    async def close(self) -> None:
        """Append the gathered records now, and stop; no records may be added afterwards."""
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
        """Write the next block, and keep no reference to it while the following block gathers."""
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
        """Report failed blocks that are stored nevertheless; return an error if this fails."""
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
        """Log the first failure, then a sum at most once a minute: a full disk fails hundreds."""
        now_s = time.monotonic()
        self._unlogged += count
        if now_s - self._logged_s >= _LOG_EACH_S:
            _LOG.error("A block was not stored, %d records in all: %s", self._unlogged, error)
            self._logged_s, self._unlogged = now_s, 0

    def _note_if_lost(self, error: BaseException) -> None:
        if isinstance(error, LaneTakenError):
            self._lane_taken = error
            self._lost.set()


def _append_all(append: Append, records: Sequence[Records]) -> OffsetRange:
    return append(records[0] if len(records) == 1 else Records.concat(records))
