"""The block generator: what was let in becomes a block every interval, or when it is large."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NoReturn

from headrace.control import OffsetRange
from headrace.errors import LaneTakenError
from headrace.journal.records import Records
from headrace.receivers.portion import Portion

Append = Callable[[Records], OffsetRange]
"""Makes records durable and answers their offsets, or raises JournalError; LaneTakenError when none
can be stored from now on, for the lane is another writer's."""

Stored = tuple[Sequence[str | None], OffsetRange]
"""The message ids of a block, and where it is."""

Settle = Callable[[], Sequence[Stored]]
"""Answers which blocks are stored although appending them has raised, or raises JournalError."""

_LOG: Final = logging.getLogger("headrace.receivers")


@dataclass(frozen=True, slots=True)
class _Waiting:
    portion: Portion
    stored: asyncio.Future[OffsetRange]
    since_s: float


class Blocks:
    """Gathers records into blocks and has them appended, one block at a time and in order.

    A block is appended ``interval_s`` after its first record came, or when it has ``block_bytes``;
    while one is appended the next one gathers. Appending blocks, so a thread of its own does it.
    A block that cannot be appended fails its own records only, and the next one is appended as if
    nothing had been; `lost` tells when that is in vain. Before that it is settled what became of
    those that failed: where only the answer was lost, their records are stored. Belongs to one
    event loop.

    Args:
        append: Appends one block.
        interval_s: The longest that a block waits for more records (s).
        block_bytes: The size at which it does not wait (bytes of memory).
        settle: Called in the same thread after a block has failed; None where such a block is
            never stored.
        found: Told, in the event loop and between two appends, what ``settle`` answers.
    """

    def __init__(
        self,
        append: Append,
        interval_s: float,
        block_bytes: int,
        *,
        settle: Settle | None,
        found: Callable[[Sequence[str | None], OffsetRange], None],
    ) -> None:
        self._append = append
        self._ask = settle
        self._found = found
        self._unsettled = False
        self._interval_s = interval_s
        self._block_bytes = block_bytes
        self._gathered: deque[_Waiting] = deque()
        self._gathered_bytes = 0
        self._some = asyncio.Event()
        self._due = asyncio.Event()
        self._lost = asyncio.Event()
        self._taken: LaneTakenError | None = None
        self._closing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-append")
        self._running: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin, in the running event loop."""
        self._running = asyncio.create_task(self._run())

    def add(self, portion: Portion) -> asyncio.Future[OffsetRange]:
        """Put records into the current block, which may be the larger for it by all of them.

        Returns:
            Their offsets, when they are durable; or the JournalError that says why they are not.
            Whoever ends it before has them left out, if they are not being appended already.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(portion, loop.create_future(), loop.time())
        self._gathered.append(waiting)
        self._gathered_bytes += portion.memory_bytes
        self._wake()
        return waiting.stored

    async def lost(self) -> NoReturn:
        """Wait for as long as the lane can be written.

        Raises:
            LaneTakenError: It is another writer's; no block will be stored from now on.
        """
        await self._lost.wait()
        assert self._taken is not None  # noqa: S101
        raise self._taken

    async def close(self) -> None:
        """Append what was gathered, now, and stop. Nothing may be added afterwards."""
        self._closing = True
        self._wake()
        if self._running:
            await self._running
        self._thread.shutdown()

    def _wake(self) -> None:
        if self._gathered or self._closing:
            self._some.set()
        if self._gathered_bytes >= self._block_bytes or self._closing:
            self._due.set()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            if not self._gathered:
                return
            await self._wait_until_due(self._gathered[0].since_s + self._interval_s)
            unsettled = await self._settle()
            block = self._next_block()
            if block and unsettled:
                self._fail(block, unsettled)
            elif block:
                await self._store(block)

    async def _wait_until_due(self, time_s: float) -> None:
        try:
            async with asyncio.timeout_at(time_s):
                await self._due.wait()
        except TimeoutError:
            return

    def _next_block(self) -> list[_Waiting]:
        block: list[_Waiting] = []
        size_bytes = 0
        while self._gathered and size_bytes < self._block_bytes:
            waiting = self._gathered.popleft()
            self._gathered_bytes -= waiting.portion.memory_bytes
            if not waiting.stored.done():
                block.append(waiting)
                size_bytes += waiting.portion.memory_bytes
        self._some.clear()
        self._due.clear()
        self._wake()
        return block

    async def _settle(self) -> BaseException | None:
        """Find out what became of the blocks that failed; answers why that is not known."""
        if not (self._ask and self._unsettled):
            return None
        asked = asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
        await asyncio.wait([asked])
        if error := asked.exception():
            self._tell_if_lost(error)
            return error
        self._unsettled = False
        for ids, offsets in asked.result():
            self._found(ids, offsets)
        return None

    async def _store(self, block: Sequence[_Waiting]) -> None:
        records = [waiting.portion.records for waiting in block]
        loop = asyncio.get_running_loop()
        appended = loop.run_in_executor(self._thread, _append_all, self._append, records)
        await asyncio.wait([appended])
        if error := appended.exception():
            self._fail(block, error)
            self._unsettled = True
            await self._settle()  # at once, so that what is sent again is mostly known by then
            return
        offsets = appended.result()
        start = offsets.start
        for waiting in block:
            until = start + waiting.portion.count
            waiting.stored.set_result(OffsetRange(offsets.topic, offsets.partition, start, until))
            start = until

    def _fail(self, block: Sequence[_Waiting], error: BaseException) -> None:
        count = sum(waiting.portion.count for waiting in block)
        _LOG.error("A block of %d records was not stored: %s", count, error)
        for waiting in block:
            waiting.stored.set_exception(error)
        self._tell_if_lost(error)

    def _tell_if_lost(self, error: BaseException) -> None:
        if isinstance(error, LaneTakenError):
            self._taken = error
            self._lost.set()


def _append_all(append: Append, records: Sequence[Records]) -> OffsetRange:
    return append(records[0] if len(records) == 1 else Records.concat(records))
