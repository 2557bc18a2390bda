"""Records with message ids: what is sent again is stored once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

from headrace.control import OffsetRange
from headrace.errors import JournalError
from headrace.journal.records import Records, message_ids
from headrace.receivers.portion import Portion
from headrace.receivers.window import Window

LONGEST_ID: Final = 200
"""How many characters a sender's message id may have. Each one that is remembered takes memory."""

_PART: Final = "\0"
"""Stands between a message's id and the number of a record of it: no id of a sender can have it."""

_Where: TypeAlias = "OffsetRange | Delivery"
"""The offset of a stored record, or the delivery that is storing it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to records that are durable.

    Attributes:
        offsets: Where the new ones of them are; where all are duplicates, the first to the last
            offset of the records that they repeat. Between the first and the last there may be
            records of others only if a part of these was stored earlier.
        duplicates: How many of them had been taken before, by their message ids.
    """

    offsets: OffsetRange
    duplicates: int = 0


def is_message_id(given: str) -> bool:
    """Whether this can tell a message from others: it has 1 to `LONGEST_ID` characters.

    They are compared as they are, case, space and accents included. U+0000 is not allowed.
    """
    return 0 < len(given) <= LONGEST_ID and _PART not in given


def record_ids(message_id: str, count: int) -> list[str]:
    """The ids of a message's records; none of them is another message's, or another record's."""
    if count == 1:
        return [message_id]
    return [f"{message_id}{_PART}{number}" for number in range(count)]


def shown(record_id: str) -> str:
    """A record's id as an error names it: that of its message."""
    return record_id.partition(_PART)[0]


class Once:
    """Knows the ids seen last, and what became of their records. Belongs to one event loop.

    Args:
        most: How many ids are remembered.
    """

    def __init__(self, most: int) -> None:
        self.window: Window[_Where] = Window(most)
        self.duplicate_records = 0

    def remember(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Note that the records at these offsets have these ids.

        What is on its way with one of them, and not being appended, is given up: it repeats a
        record whose block seemed to have failed. Sent again, that one of it is a duplicate.
        """
        for position, message_id in enumerate(ids):
            if message_id is not None:
                where = self.window.find(message_id)
                self.window.note(message_id, _one(offsets, position))
                if isinstance(where, Delivery):
                    where.give_up(message_id)

    def deliver(self, portion: Portion) -> "Delivery":
        """Tell what is new in this portion, and note that it is on its way."""
        delivery = Delivery(self.window, portion)
        self.duplicate_records += delivery.duplicates
        return delivery


class Delivery:
    """Records on their way, without those that were seen before.

    Attributes:
        new: What is to be stored.
        duplicates: How many are not.
    """

    def __init__(self, window: Window[_Where], portion: Portion) -> None:
        self._window = window
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stored: list[asyncio.Future[OffsetRange]] = []
        self._given_up: JournalError | None = None
        self._unsettled: list[str | None] = []
        self._seen: list[str] = []
        self._awaited: set[asyncio.Future[None]] = set()
        self.new = portion
        if (ids := message_ids(portion.records.batch)) is not None:
            found = window.sort(ids, self)
            self._unsettled = [ids[position] for position in found.new]
            self._seen = found.seen
            if self._seen:
                # Those alone, which came before this one. A record of theirs that is not stored may
                # come again, with one that waits in turn for the memory that this one has.
                places = map(window.find, self._seen)
                self._awaited = {place._ended for place in places if isinstance(place, Delivery)}
                self.new = Portion.of(_at(portion.records, found.new))
        self.duplicates = len(self._seen)

    def entered(self, count: int, stored: asyncio.Future[OffsetRange]) -> None:
        """Note where the next records will be, as soon as that is known."""
        ids, self._unsettled = self._unsettled[:count], self._unsettled[count:]
        if ids:
            self._stored.append(stored)
            stored.add_done_callback(partial(self._settle, ids))
            if self._given_up:
                stored.set_exception(self._given_up)

    def give_up(self, message_id: str) -> None:
        """Have nothing more of it stored, for this one of its records is found to be."""
        self._given_up = JournalError(
            f"The record with the message id {shown(message_id)!r} was sent again before it was"
            " known that it is stored; send it once more, with what came with it."
        )
        for stored in self._stored:
            if not stored.done():
                stored.set_exception(self._given_up)

    def end(self) -> None:
        """Say that nothing more will be stored; what did not enter is new when it comes again."""
        self._forget(self._unsettled)
        self._ended.set_result(None)

    async def receipt(self, stored: Sequence[OffsetRange]) -> Receipt:
        """Wait until the records that these repeat are durable too, and answer.

        Raises:
            JournalError: They are not.
        """
        if self._awaited:
            await asyncio.wait(self._awaited)
        originals = [self._original(message_id) for message_id in self._seen]
        offsets = stored or originals
        first = min(offsets, key=lambda part: part.start)
        until = max(part.until for part in offsets)
        return Receipt(
            OffsetRange(first.topic, first.partition, first.start, until), self.duplicates
        )

    def _original(self, message_id: str) -> OffsetRange:
        where = self._window.find(message_id)
        if not isinstance(where, OffsetRange):
            raise JournalError(
                f"The record with the message id {shown(message_id)!r} was being stored when it"
                " came again, and is not durable; send it once more."
            )
        return where

    def _settle(self, ids: Sequence[str | None], stored: asyncio.Future[OffsetRange]) -> None:
        if stored.exception():
            self._forget(ids)
            return
        for position, message_id in enumerate(ids):
            if message_id is not None and self._window.find(message_id) is self:
                self._window.change(message_id, _one(stored.result(), position))

    def _forget(self, ids: Sequence[str | None]) -> None:
        for message_id in ids:
            if message_id is not None and self._window.find(message_id) is self:
                self._window.forget(message_id)


def _at(records: Records, positions: Sequence[int]) -> Records:
    """The records at these places, which rise."""
    breaks = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(positions)) if b != a + 1)]
    runs = [positions[a:b] for a, b in pairwise([*breaks, len(positions)])] if positions else []
    return Records.concat(records.slice(run[0], run[-1] + 1) for run in runs)


def _one(offsets: OffsetRange, position: int) -> OffsetRange:
    start = offsets.start + position
    return OffsetRange(offsets.topic, offsets.partition, start, start + 1)
