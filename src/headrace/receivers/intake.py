"""The one way from receivers into a journal: bounded, at a rate, acknowledged when durable."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn, Self

from headrace.control import OffsetRange
from headrace.errors import ReceiverError
from headrace.journal.records import Records
from headrace.receivers.blocks import Append, Blocks, Settle
from headrace.receivers.limiter import Limiter
from headrace.receivers.once import Delivery, Once, Receipt
from headrace.receivers.portion import Portion
from headrace.receivers.refusals import Refusals
from headrace.receivers.room import Room
from headrace.receivers.settings import IntakeSettings

_CLOSED: Final = "The intake is closed, and takes no records any more; send them again later."


@dataclass(frozen=True, slots=True)
class Later:
    """Records were not taken: there is no room for them, or no token.

    Attributes:
        delay_s: When it is worth coming back (s), as far as can be said.
    """

    delay_s: float


@dataclass(frozen=True, slots=True)
class IntakeStatistics:
    """What an intake has done since it was opened, and what it holds.

    Attributes:
        stored_records: Records that are durable.
        stored_bytes: Their keys, values and headers.
        failed_records: Records whose block could not be appended; their senders were told.
        duplicate_records: Records that had been taken before, by their message ids.
        held_bytes: The memory that records take at present, at most ``buffer_bytes``.
        waiting_records: Those of them that wait for the rate.
    """

    stored_records: int
    stored_bytes: int
    failed_records: int
    duplicate_records: int
    held_bytes: int
    waiting_records: int


class Intake:
    """Takes records from receivers and makes them durable, never faster than the rate allows.

    Records wait for room, then for tokens, in the order in which they were handed in; then they are
    in the current block, and when that is durable their offsets are answered. Records handed in
    together stay together and in order, though not always in one block. From the moment when
    they are handed in until they are durable they count towards ``buffer_bytes``, and whoever hands
    in more waits: what a slow job pushes back on is the sender.

    A record is stored at least once if its sender sends again whatever was not acknowledged. A
    record with an id that is still remembered is stored once: the sender gets the offsets of the
    first. ::

        async with Intake(writer.append, settle=writer.settle) as intake:
            receipt = await intake.hand_in(Records.of([b"21.5"], timestamp_ms=now_ms))

    It belongs to the event loop in which it was opened. Closing it refuses what comes from then on
    and what still waits for its turn, and makes the rest durable first.

    Args:
        append: Makes a block durable and answers its offsets, or raises JournalError; called in a
            thread of its own, one block at a time.
        settings: See `IntakeSettings`.
        settle: Answers which blocks are durable although ``append`` has raised, with the ids of
            their records; called in the same thread, before a block is appended after one that
            failed. None where there is never such a block.

    Attributes:
        refusals: What receivers have refused to their senders; they count it, their host tells it.
    """

    def __init__(
        self,
        append: Append,
        settings: IntakeSettings | None = None,
        *,
        settle: Settle | None = None,
    ) -> None:
        self.settings = settings or IntakeSettings()
        self.refusals = Refusals()
        self._room = Room(self.settings.buffer_bytes)
        self._limiter = Limiter(self.settings.block_bytes)
        self._once = Once(self.settings.remembered_ids)
        self._blocks = Blocks(
            append,
            self.settings.block_interval_ms / 1000,
            self.settings.block_bytes,
            settle=settle,
            found=self._once.remember,
        )
        self._open = False
        self._handed: dict[asyncio.Task[Receipt], _Handed] = {}
        self._stored_records = self._stored_bytes = self._failed_records = 0

    async def __aenter__(self) -> Self:
        self._blocks.open()
        self._open = True
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        """Whether it takes records."""
        return self._open

    @property
    def statistics(self) -> IntakeStatistics:
        """What was done so far."""
        return IntakeStatistics(
            self._stored_records,
            self._stored_bytes,
            self._failed_records,
            self._once.duplicate_records,
            self._room.held_bytes,
            self._limiter.waiting_records,
        )

    @property
    def at_once(self) -> int:
        """The most records, 1 or more, that the present rate of records lets in at once."""
        return self._limiter.at_once

    def set_rate(self, records_per_s: float | None, bytes_per_s: float | None = None) -> None:
        """Change what is let in, at once for those who wait too; None, as at first, is no limit.

        Raises:
            OptionError: A rate is not a finite number above 0; the ones in force stay in force.
        """
        self._limiter.set_rate(records_per_s, bytes_per_s)

    def remember(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Know the records at these offsets by their ids, oldest first, as after a restart."""
        self._once.remember(ids, offsets)

    async def hand_in(self, records: Records) -> Receipt:
        """Hand in records, 1 or more, and wait until they are durable.

        Raises:
            ReceiverError: They need more memory than ``buffer_bytes``, or the intake closes.
            JournalError: Their block could not be appended; it is not known to be stored, so send
                them again. Or one of them, which had been sent before, has meanwhile turned out to
                be stored: send them again as well.
        """
        return await self.begin(records)

    def begin(self, records: Records) -> asyncio.Task[Receipt]:
        """Hand in records without waiting for anything; see `entered`.

        Returns:
            What `hand_in` waits for.

        Raises:
            ReceiverError: As `hand_in`.
        """
        return self._start(self._checked(records))

    async def entered(self, receipt: asyncio.Task[Receipt]) -> None:
        """Wait until records that were begun are in the buffer, so that the next ones can follow.

        If the caller is cancelled before, they are withdrawn: the receipt is cancelled, and they
        are not stored, or, if they are more than `at_once` allows, at most the first of them are.
        """
        if (handed := self._handed.get(receipt)) is None:
            return
        try:
            await asyncio.wait((handed.entered, receipt), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not handed.entered.done():
                receipt.cancel()
            raise

    def offer(self, records: Records, wait_s: float = 0.0) -> asyncio.Task[Receipt] | Later:
        """Hand in records if their turn comes within this time, as far as can be said; never wait.

        Returns:
            What `hand_in` waits for; or `Later`, and the records were not taken.

        Raises:
            ReceiverError: As `hand_in`.
        """
        portion = self._checked(records)
        if not self._room.has(portion.memory_bytes):
            return Later(max(wait_s, self.settings.block_interval_ms / 1000))
        delay_s = self._limiter.delay_s(portion)
        if delay_s > wait_s:
            return Later(delay_s)
        return self._start(portion)

    async def lost(self) -> NoReturn:
        """Wait for as long as the lane can be written, and whatever becomes of single blocks.

        Raises:
            LaneTakenError: It is another writer's; no record will be stored from now on.
        """
        await self._blocks.lost()

    async def close(self) -> None:
        """Refuse what is not in the buffer yet, and return when everything that is, is durable."""
        if not self._open:
            return
        self._open = False
        await asyncio.sleep(0)  # what was just handed in begins, and can say why it ends
        for receipt, handed in self._handed.items():
            if not handed.entered.done():
                receipt.cancel()
        await self._blocks.close()
        if self._handed:
            await asyncio.wait(self._handed)

    def _start(self, portion: Portion) -> asyncio.Task[Receipt]:
        handed = _Handed(portion.memory_bytes, asyncio.get_running_loop().create_future())
        handed.lent = self._room.try_take(handed.memory_bytes)
        receipt = asyncio.create_task(self._deliver(portion, handed))
        self._handed[receipt] = handed
        receipt.add_done_callback(self._forget)
        return receipt

    def _checked(self, records: Records) -> Portion:
        if not self._open:
            raise ReceiverError(_CLOSED)
        portion = Portion.of(records)
        if portion.memory_bytes > self._room.most_bytes:
            raise ReceiverError(
                f"{portion.count} records of {portion.bytes} bytes were handed in at once, and"
                f" buffer_bytes is {self._room.most_bytes}; hand in fewer at a time, or raise it."
            )
        return portion

    def _forget(self, receipt: asyncio.Task[Receipt]) -> None:
        handed = self._handed.pop(receipt)
        if handed.lent:
            self._room.give_back(handed.memory_bytes)
        if not receipt.cancelled():
            receipt.exception()  # it was for a sender, who may have gone

    async def _deliver(self, portion: Portion, handed: "_Handed") -> Receipt:
        delivery = self._once.deliver(portion)
        try:
            if not handed.lent:
                await self._room.take(handed.memory_bytes)
                handed.lent = True
            parts = await self._enter(delivery)
            handed.entered.set_result(None)
            if parts:
                await asyncio.wait(parts)
        except asyncio.CancelledError:
            if not self._open:
                raise ReceiverError(_CLOSED) from None
            raise
        finally:
            delivery.end()
        return await delivery.receipt([part.result() for part in parts])

    async def _enter(self, delivery: Delivery) -> list[asyncio.Future[OffsetRange]]:
        """Wait for the tokens of what is new, and put it into the buffer."""
        parts: list[asyncio.Future[OffsetRange]] = []
        async with self._limiter.line(delivery.new) as line:
            async for part in line.portions():
                parts.append(stored := self._blocks.add(part))
                delivery.entered(part.count, stored)
                stored.add_done_callback(partial(self._count, part))
        return parts

    def _count(self, part: Portion, stored: asyncio.Future[OffsetRange]) -> None:
        if stored.exception():
            self._failed_records += part.count
        else:
            self._stored_records += part.count
            self._stored_bytes += part.bytes


@dataclass(slots=True)
class _Handed:
    """Records that were handed in: what they take, and whether they are in the buffer yet."""

    memory_bytes: int
    entered: asyncio.Future[None]
    lent: bool = False
