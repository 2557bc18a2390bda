"""The block generator: what came while the last block was being synced is the next block."""

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
"""Makes records durable and answers their offsets, or raises JournalError; LaneTakenError when none
can be stored from now on, because another writer has the lane."""

Settle = Callable[[], Sequence[StoredIds]]
"""Answers which blocks are stored although appending them has raised, or raises JournalError."""

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

    This is a database's group commit. While one block is appended the next one gathers, and while
    none is, one begins at once: as soon as it has a record that somebody waits for, when it has
    ``block_bytes``, or ``block_interval_ms`` after its first record came. A block that has more
    than 256 KiB waits until nothing has come for 3 ms: a sender of so much gains more by fewer
    blocks. If each block is a request to a storage that charges for it, nothing is ``at_once``: a
    block waits for its interval or its size, whoever waits for it. A thread of its own appends.

    A block that cannot be appended fails its own records only, and the next one is appended as
    usual; `lost` raises when that is in vain. After a failure, ``settle`` answers in the same
    thread which failed blocks are stored nevertheless (None: never one), and ``found`` receives
    that in the event loop, before the next block is appended.
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
        """Begin, in the running event loop."""
        self._running = asyncio.create_task(self._run())

    def add(self, records: Records, *, is_awaited: bool) -> asyncio.Future[OffsetRange]:
        """Put records into the current block, all of them even if it grows beyond its size.

        ``is_awaited`` says whether their sender waits for the answer. Returns their offsets, once
        they are durable, or the JournalError that says why they are not. Ending the future before
        they are being appended withdraws them.
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
        """Wait for as long as the lane can be written; raises the LaneTakenError that ends that."""
        await self._lost.wait()
        assert self._lane_taken is not None  # noqa: S101
        raise self._lane_taken

    async def close(self) -> None:
        """Append what was gathered, now, and stop. Nothing may be added afterwards."""
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
        """Write the next block; nothing of it stays in memory while the one after it gathers."""
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
        """Find out what became of the blocks that failed; answers why that is not known."""
        if self._settle is None or self._is_settled:
            return None
        asked = asyncio.get_running_loop().run_in_executor(self._thread, self._settle)
        await asyncio.wait([asked])
        if error := asked.exception():
            self._note_if_lost(error)
            return error
        self._is_settled = True
        for ids, offsets in asked.result():
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
            await self._settle_failed()  # now, so that most records are known when they come again
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
        """The first, and then once a minute what has failed since: a full disk fails hundreds."""
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
