"""Intake: the path of all received records into a journal, with limits of memory and rate.

Records wait and are never dropped. An intake reserves memory before it accepts a record, and
releases the memory when the record is durable. The rate limit comes before the buffer, so a slow
job blocks the senders' sockets. `Records` are stored in columns, so a request of 500 records costs
about as much as a single record.
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
    """Histogram of durations (s), for one event loop.

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
        """Add a duration (s) to its bucket and to the sum."""
        self._counts[bisect_left(self._buckets_s, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """For each bucket: its upper bound (s) as text, and the number of durations up to it."""
        ends = [*map(str, self._buckets_s), "+Inf"]
        return list(zip(ends, accumulate(self._counts), strict=True))


REFUSING_S: Final = 5.0
"""Retry delay that a refused sender gets while all senders must wait (s)."""

_CLOSED: Final = "The receiver stops and accepts no more records; send them again later."


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Refusal of records: the memory or the rate is used up, or all senders must wait.

    Attributes:
        delay_s: Estimated time until a retry can succeed (s).
        refusing: Sentence with the reason why all senders must wait; None if only the memory or the
            rate is used up.
    """

    delay_s: float
    refusing: str | None = None


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """Counts of an intake since it was opened, and its current memory.

    Attributes:
        stored_records: Number of records that were made durable.
        stored_bytes: Size of the keys, values and headers of these records (bytes).
        failed_records: Number of records whose block could not be appended; their senders received
            the error.
        duplicate_records: Number of records that were recognized as duplicates by their message
            ids.
        reserved_bytes: Memory of the accepted records that are not durable yet (bytes), at most
            ``buffer_bytes``.
        waiting_records: Number of accepted records that wait for the rate limit.
        ids_bytes: Memory of the remembered message ids (bytes).
    """

    stored_records: int
    stored_bytes: int
    failed_records: int
    duplicate_records: int
    reserved_bytes: int
    waiting_records: int
    ids_bytes: int


class Intake:
    """Path of records into a journal, where they become durable, within memory and rate limits.

    Submitted records pass four steps in the order of their submission: deduplicator, memory budget,
    limiter and block writer. When their block is durable, a receipt reports their offsets. Records
    that are submitted together are stored in order and without other records between them, though
    not always in one block. Records count towards ``buffer_bytes`` from submission until they are
    durable. While this memory is used up, further submissions wait, so a slow job slows the senders
    down.

    A record is stored at least once if its sender repeats every unacknowledged record. A record
    with a remembered message id is stored once, and the sender of a duplicate receives the offsets
    of the original. ::

        async with Intake(writer.append, settle=writer.settle) as intake:
            receipt = await intake.submit(Records.of([b"21.5"], timestamp_ms=now_ms))

    Use an intake only in the event loop in which it was opened. On closing, the intake makes the
    buffered records durable. It refuses new records, and records that wait for the rate limit or
    for memory.

    Args:
        append: Function that makes a block durable and returns its offsets, or raises JournalError.
            A separate thread calls it, with one block at a time.
        settings: Sizes and intervals. Default: ``IntakeSettings()``.
        settle: Function that returns the message ids and offsets of blocks that are durable
            although ``append`` raised an error. The same thread calls it before the first append
            after a failure. Default: None, for an ``append`` that never stores a block if it
            raises.
        at_once: Whether to write a block as soon as the previous block is durable. Otherwise a
            block waits for ``block_interval_ms`` or ``block_bytes``, for storages that charge for
            each write. Default: on.
        health: Health of the lane. The intake calls `LaneHealth.append` of this object, instead of
            the argument ``append``. Default: a `LaneHealth` of ``append``, without probes.

    Attributes:
        rejections: Counter of rejected requests and connections, which receivers increase and
            `host` logs.
        token_uses: Number of requests and connections with each token, by the token's name.
        health: Health of the lane: whether records can be stored.
        latencies: Histogram of the durations from submission until records were durable (s).
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
        """Sentence with the reason why all senders must wait; None if they need not wait."""
        return next(iter(self._refusals.values()), None)

    def refuse(self, by: str, reason: str | None) -> None:
        """Make all senders wait for a reason, or withdraw the reason with None.

        ``by`` names the caller, and each caller has a reason of its own. Senders wait until all
        reasons are withdrawn. Records in the buffer are still stored.
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
        """Counts since the intake was opened, and its current memory."""
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
        """Number of records, 1 or more, that the current rate limit admits in one chunk."""
        return self._limiter.records_at_once

    def next_portion(self, records: Records) -> Records:
        """Return the first chunk of these records: as many as the rate limit admits at once.

        A receiver that submits portions one after another can acknowledge each portion as soon as
        it is durable.
        """
        return self._limiter.next_chunk(records)

    def set_rate(self, records_per_s: float | None, bytes_per_s: float | None = None) -> None:
        """Set the rate limits, also for records that already wait. None means no limit.

        Raises:
            OptionError: A rate is not a finite number above 0. The old rates stay in force.
        """
        self._limiter.set_rate(records_per_s, bytes_per_s)

    def restore(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Remember the message ids of records that were stored before a restart.

        ``offsets`` are the offsets of these records. Call this with the oldest block first.
        """
        self._deduplicator.restore(ids, offsets)

    async def submit(self, records: Records, message_id: str | None = None) -> Receipt:
        """Submit records, 1 or more, wait until they are durable, and return their receipt.

        With a ``message_id``, all records belong to this message. Records of the message that are
        already stored are not stored again. Without a ``message_id``, each record may have an id in
        its id column.

        Raises:
            ReceiverError: The records need more memory than ``buffer_bytes``, or the intake closes.
            JournalError: The block could not be appended, or a repeated record turned out to be
                stored while this call waited. In either case, send all these records again.
        """
        return await self.submit_nowait(records, message_id=message_id)

    def submit_nowait(
        self, records: Records, *, message_id: str | None = None, is_awaited: bool = True
    ) -> asyncio.Task[Receipt]:
        """Submit records without waiting, and return the task whose result is their receipt.

        Before you submit more records, await `buffered`, so that submissions are no faster than the
        rate limit. Set ``is_awaited`` to false if no sender waits for the receipt; the block then
        collects records for up to ``block_interval_ms``. Raises the errors of `submit`.
        """
        self._check(records)
        return self._start(records, message_id, is_awaited=is_awaited)

    def try_submit(
        self, records: Records, wait_s: float = 0.0, message_id: str | None = None
    ) -> asyncio.Task[Receipt] | RetryAfter:
        """Submit records if their estimated wait for the rate limit is at most ``wait_s``.

        Do not wait: return the task whose result is their receipt, or `RetryAfter` if the records
        were refused. Raises the errors of `submit`.
        """
        self._check(records)
        if (refusing := self.refusing) is not None:
            return RetryAfter(REFUSING_S, refusing)
        if not self._budget.is_available(memory_bytes(records)):
            return RetryAfter(max(wait_s, self.settings.block_interval_ms / 1000))
        delay_s = self._limiter.delay_s(records)
        return RetryAfter(delay_s) if delay_s > wait_s else self._start(records, message_id)

    async def buffered(self, receipt: asyncio.Task[Receipt]) -> None:
        """Wait until the submitted records of this receipt are in the buffer.

        If this call is cancelled while it waits, the receipt is cancelled and the records are not
        stored. But if the receipt is for more than `records_at_once` records, the first ones may be
        stored.
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
        """Wait until another writer has taken the lane; failures of single blocks do not count.

        Raises:
            LaneTakenError: Another writer has taken the lane; no further record can be stored.
        """
        await self._blocks.lost()

    async def close(self) -> None:
        """Refuse records outside the buffer, and wait until all buffered records are durable."""
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
                f"{records.count} records with {records.bytes} bytes were submitted at once, but"
                f" records may take {self._budget.max_bytes} bytes, a quarter of max_memory_bytes;"
                " submit fewer records at once, or raise max_memory_bytes."
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
    """State of submitted records until their receipt: memory, start time, and progress."""

    memory_bytes: int
    buffered: asyncio.Future[None]
    is_awaited: bool
    has_memory: bool = False
    since_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
