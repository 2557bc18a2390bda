"""The one path from receivers into a journal: bounded, rate-limited, acknowledged when durable.

Submissions wait and nothing is dropped. Memory is acquired before a record is accepted, and
released when the record is durable. The token bucket comes before the buffer, so a slow job
blocks the senders' sockets. `Records` are columns: a bulk request of 500 records costs as much
as a single record.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final, NoReturn, Self

from headrace.core.ranges import OffsetRange
from headrace.errors import ReceiverError
from headrace.journal.receivers.block_writer import Append, BlockWriter, Settle
from headrace.journal.receivers.deduplicator import Deduplicator, Delivery, Receipt
from headrace.journal.receivers.event_log import Rejections
from headrace.journal.receivers.lane_health import LaneHealth
from headrace.journal.receivers.limiter import Limiter
from headrace.journal.receivers.memory_budget import MemoryBudget, memory_bytes
from headrace.journal.receivers.settings import IntakeSettings
from headrace.journal.records import Records

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Latencies:
    """Histogram of durations; for one event loop.

    >>> latencies = Latencies((0.1, 1.0))
    >>> for duration_s in (0.05, 0.1, 0.5, 3.0):
    ...     latencies.count(duration_s)
    >>> latencies.cumulative, latencies.sum_s
    ([('0.1', 2), ('1.0', 3), ('+Inf', 4)], 3.65)
    """

    def __init__(self, buckets_s: Sequence[float] = BUCKETS_S) -> None:
        self._buckets_s = tuple(buckets_s)
        self._counts = [0] * (len(self._buckets_s) + 1)
        self.sum_s = 0.0

    def count(self, duration_s: float) -> None:
        """Count one duration (s)."""
        self._counts[bisect_left(self._buckets_s, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """The upper bound of each bucket, with the number of durations up to this bound."""
        ends = [*map(str, self._buckets_s), "+Inf"]
        return list(zip(ends, accumulate(self._counts), strict=True))


REFUSING_S: Final = 5.0
"""Retry delay while all senders wait (s)."""

_CLOSED: Final = "The intake is closed, and takes no records any more; send them again later."


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Records were refused: there is no memory or token for them, or all senders must wait.

    Attributes:
        delay_s: An estimate of the time until a retry can succeed (s).
        refusing: The reason why all senders must wait, in a sentence; None if they need not.
    """

    delay_s: float
    refusing: str | None = None


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """Counts of an intake since it was opened, and its memory.

    Attributes:
        stored_records: Records that are durable.
        stored_bytes: Bytes of keys, values and headers of the stored records.
        failed_records: Records whose block could not be appended; their senders received the error.
        duplicate_records: Records that were recognized as duplicates by their message ids.
        reserved_bytes: Memory that records occupy now, at most ``buffer_bytes``.
        waiting_records: Records in this memory that wait for the rate.
        ids_bytes: Memory of the remembered message ids.
    """

    stored_records: int
    stored_bytes: int
    failed_records: int
    duplicate_records: int
    reserved_bytes: int
    waiting_records: int
    ids_bytes: int


class Intake:
    """Takes records from receivers and makes them durable, never faster than the rate allows.

    Records that are submitted pass four steps, in the order in which they came: the deduplicator,
    the memory budget, the limiter and the block writer. When their block is durable, the receipt
    has their offsets. Records submitted together stay together and in order, though not always in
    one block. They count towards ``buffer_bytes`` from submission until they are durable, and
    further submissions wait: a slow job slows the senders down.

    A record is stored at least once if its sender repeats every unacknowledged record. A record
    with a remembered id is stored once: the sender of a duplicate receives the offsets of the
    original. ::

        async with Intake(writer.append, settle=writer.settle) as intake:
            receipt = await intake.submit(Records.of([b"21.5"], timestamp_ms=now_ms))

    An intake belongs to the event loop in which it was opened. Closing it refuses new records and
    records that wait for their turn, and first makes buffered records durable.

    Args:
        append: Makes a block durable and returns its offsets, or raises JournalError. Called in a
            thread of its own, one block at a time.
        settings: Sizes and intervals. Default: those of `IntakeSettings`.
        settle: Returns the blocks that are durable although ``append`` raised, with their records'
            ids. Called in the same thread before the first append after a failure. Default: None,
            for an ``append`` that never stores a block and raises.
        at_once: Whether to write a block as soon as the previous block is durable. Otherwise a
            block waits for ``block_interval_ms`` or ``block_bytes``, for storages that charge for
            each write. Default: on.
        health: Watches and replaces ``append``. Default: a `LaneHealth` of ``append`` without
            probes.

    Attributes:
        rejections: Rejected requests; receivers count them and `host` logs them.
        token_uses: Uses of each token, by the token's name; receivers count them.
        health: Whether records can be stored.
        latencies: Durations from submission until records were durable.
    """

    def __init__(
        self,
        append: Append,
        settings: IntakeSettings | None = None,
        *,
        settle: Settle | None = None,
        at_once: bool = True,
        health: LaneHealth | None = None,
    ) -> None:
        self.settings = settings or IntakeSettings()
        self.rejections = Rejections()
        self.token_uses: Counter[str] = Counter()
        self.health = health or LaneHealth(append)
        self.latencies = Latencies()
        self._budget = MemoryBudget(self.settings.buffer_bytes)
        self._deduplicator = Deduplicator(self.settings.ids_bytes)
        self._limiter = Limiter(self.settings.block_bytes)
        self._blocks = BlockWriter(
            self.health.append,
            self.settings,
            settle,
            self._deduplicator.restore,
            at_once=at_once,
        )
        self._open = False
        self._refusals: dict[str, str] = {}
        self._released = asyncio.Event()
        self._submissions: dict[asyncio.Task[Receipt], _Submission] = {}
        self._stored_records = self._stored_bytes = self._failed_records = 0

    async def __aenter__(self) -> Self:
        self._blocks.open()
        self._open = True
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether the intake accepts records."""
        return self._open

    @property
    def refusing(self) -> str | None:
        """The reason why senders wait whatever their rate, in a sentence; None if they need not."""
        return next(iter(self._refusals.values()), None)

    def refuse(self, by: str, reason: str | None) -> None:
        """Make senders wait, or withdraw one caller's reason (None); other callers' reasons stay.

        Records in the buffer are still stored.
        """
        before = self.refusing
        if reason is None:
            self._refusals.pop(by, None)
        else:
            self._refusals[by] = reason
        if before is not None and self.refusing is None:
            self._released.set()
            self._released = asyncio.Event()

    @property
    def statistics(self) -> IntakeStatistics:
        """The counts since the intake was opened, and its memory now."""
        return IntakeStatistics(
            self._stored_records,
            self._stored_bytes,
            self._failed_records,
            self._deduplicator.duplicate_records,
            self._budget.reserved_bytes,
            self._limiter.waiting_records,
            self._deduplicator.size_bytes,
        )

    @property
    def records_at_once(self) -> int:
        """Highest number of records, 1 or more, that the current rate admits at once."""
        return self._limiter.records_at_once

    def next_portion(self, records: Records) -> Records:
        """Return the first records of a batch, as many as the current rate admits at once.

        Portions that are submitted one after another are acknowledged as each becomes durable.
        """
        return self._limiter.next_chunk(records)

    def set_rate(self, records_per_s: float | None, bytes_per_s: float | None = None) -> None:
        """Change the rates, also for waiting records. Default: None, no limit.

        Raises:
            OptionError: A rate is not a finite number above 0; the old rates stay in force.
        """
        self._limiter.set_rate(records_per_s, bytes_per_s)

    def restore(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Remember the ids of the records at these offsets, oldest first, after a restart."""
        self._deduplicator.restore(ids, offsets)

    async def submit(self, records: Records, message_id: str | None = None) -> Receipt:
        """Submit records, 1 or more, and wait until they are durable.

        With a message id the records are one message, and records of it that are stored already
        are not stored again. Without a message id each record may have an id in its column.

        Raises:
            ReceiverError: The records need more memory than ``buffer_bytes``, or the intake closes.
            JournalError: The block could not be appended and may not be stored; send the records
                again. Or a repeated record turned out to be stored while this call waited; send all
                records again as well.
        """
        return await self.submit_nowait(records, message_id=message_id)

    def submit_nowait(
        self, records: Records, *, message_id: str | None = None, is_awaited: bool = True
    ) -> asyncio.Task[Receipt]:
        """Submit records, and return the task that `submit` awaits; raises as `submit`.

        Await `buffered` to limit the speed of submissions. With ``is_awaited`` false, no sender
        waits for the receipt, and the block gathers records for up to ``block_interval_ms``.
        """
        self._check(records)
        return self._start(records, message_id, is_awaited=is_awaited)

    def try_submit(
        self, records: Records, wait_s: float = 0.0, message_id: str | None = None
    ) -> asyncio.Task[Receipt] | RetryAfter:
        """Submit records if their estimated wait is at most ``wait_s``, without waiting.

        Return the task that `submit` awaits, or `RetryAfter` for records that were not accepted.
        Raises as `submit`.
        """
        self._check(records)
        if (refusing := self.refusing) is not None:
            return RetryAfter(REFUSING_S, refusing)
        if not self._budget.is_available(memory_bytes(records)):
            return RetryAfter(max(wait_s, self.settings.block_interval_ms / 1000))
        delay_s = self._limiter.delay_s(records)
        return RetryAfter(delay_s) if delay_s > wait_s else self._start(records, message_id)

    async def buffered(self, receipt: asyncio.Task[Receipt]) -> None:
        """Wait until submitted records are in the buffer, before submitting more.

        Cancelling the caller before then withdraws the records: their receipt is cancelled, and
        they are not stored. Of more than `records_at_once` records, the first may still be stored.
        """
        if (submission := self._submissions.get(receipt)) is None:
            return
        try:
            await asyncio.wait((submission.buffered, receipt), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not submission.buffered.done():
                receipt.cancel()
            raise

    async def lost(self) -> NoReturn:
        """Wait until the lane cannot be written any more; failures of single blocks do not count.

        Raises:
            LaneTakenError: Another writer has the lane; no further record will be stored.
        """
        await self._blocks.lost()

    async def close(self) -> None:
        """Refuse unbuffered records, and return when all buffered records are durable."""
        if not self._open:
            return
        self._open = False
        await asyncio.sleep(0)  # new tasks start, and can then raise ReceiverError
        for receipt, submission in self._submissions.items():
            if not submission.buffered.done():
                receipt.cancel()
        await self._blocks.close()
        if self._submissions:
            await asyncio.wait(self._submissions)

    def _check(self, records: Records) -> None:
        if not self._open:
            raise ReceiverError(_CLOSED)
        if memory_bytes(records) > self._budget.max_bytes:
            raise ReceiverError(
                f"{records.count} records of {records.bytes} bytes were submitted at once, and the"
                f" quarter of max_memory_bytes that records may take is {self._budget.max_bytes};"
                " submit fewer at a time, or raise it."
            )

    def _start(
        self, records: Records, message_id: str | None, *, is_awaited: bool = True
    ) -> asyncio.Task[Receipt]:
        buffered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        submission = _Submission(memory_bytes(records), buffered, is_awaited)
        submission.has_memory = self._budget.try_acquire(submission.memory_bytes)
        receipt = asyncio.create_task(self._store(records, message_id, submission))
        self._submissions[receipt] = submission
        receipt.add_done_callback(self._forget)
        return receipt

    def _forget(self, receipt: asyncio.Task[Receipt]) -> None:
        submission = self._submissions.pop(receipt)
        if submission.has_memory:
            self._budget.release(submission.memory_bytes)
        if not receipt.cancelled() and receipt.exception() is None:  # the sender may be gone
            self.latencies.count(asyncio.get_running_loop().time() - submission.since_s)

    async def _store(
        self, records: Records, message_id: str | None, submission: "_Submission"
    ) -> Receipt:
        delivery = self._deduplicator.deliver(records, message_id)
        try:
            if not submission.has_memory:
                await self._budget.acquire(submission.memory_bytes)
                submission.has_memory = True
            stored = await self._admit(delivery, is_awaited=submission.is_awaited)
            submission.buffered.set_result(None)
            if stored:
                await asyncio.wait(stored)
        except asyncio.CancelledError:
            if not self._open:
                raise ReceiverError(_CLOSED) from None
            raise
        finally:
            delivery.end()
        return await delivery.receipt([block.result() for block in stored])

    async def _admit(
        self, delivery: Delivery, *, is_awaited: bool
    ) -> list[asyncio.Future[OffsetRange]]:
        while self.refusing is not None:
            await self._released.wait()
        stored: list[asyncio.Future[OffsetRange]] = []
        async with aclosing(self._limiter.admit(delivery.new)) as admitted:
            async for admitted_chunk in admitted:
                chunk, ranges = delivery.next_chunk(admitted_chunk)
                stored.append(block := self._blocks.add(chunk, is_awaited=is_awaited))
                delivery.buffered(ranges, block)
                block.add_done_callback(partial(self._count, chunk))
        return stored

    def _count(self, chunk: Records, stored: asyncio.Future[OffsetRange]) -> None:
        if stored.exception():
            self._failed_records += chunk.count
        else:
            self._stored_records += chunk.count
            self._stored_bytes += chunk.bytes


@dataclass(slots=True)
class _Submission:
    """Memory and progress of one submission."""

    memory_bytes: int
    buffered: asyncio.Future[None]
    is_awaited: bool
    has_memory: bool = False
    since_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
