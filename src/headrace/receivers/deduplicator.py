"""Records with message ids: what is sent again is stored once, also after a restart."""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.journal import Journal
from headrace.journal.records import Records, message_ids

MAX_ID_CHARACTERS: Final = 200
"""The longest message id of a sender. Each one that is remembered takes memory."""

_RESTORE_S: Final = 10.0
_RESTORE_BLOCKS: Final = 10_000
_RESTORE_BYTES: Final = 256 * 1024 * 1024
"""Size of the latest blocks from which ids are restored (bytes): from a disk, which takes a second
or two, over half an hour of blocks; over a network, where each block is a request, as many as the
time allows. A broker sends unacknowledged messages again, after many restarts in a row as well.
"""

_SEPARATOR: Final = "\0"
"""Stands between a message's id and the number of a record of it: no id of a sender can have it."""

_LOG: Final = logging.getLogger("headrace.receivers")

StoredIds: TypeAlias = tuple[Sequence[str | None], OffsetRange]
"""The message ids of a block, and its offsets."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to records that are durable.

    Attributes:
        offsets: Where the new ones are; where all are duplicates, the first to the last offset of
            the records that they repeat. Between the first and the last there may be records of
            others only if a part of these was stored earlier.
        duplicates: How many of them had been stored before, by their message ids.
    """

    offsets: OffsetRange
    duplicates: int = 0


def is_message_id(text: str) -> bool:
    """Whether a sender may use this as a message id: 1 to `MAX_ID_CHARACTERS`, without U+0000.

    Ids are compared as they are, case, space and accents included.
    """
    return 0 < len(text) <= MAX_ID_CHARACTERS and _SEPARATOR not in text


def record_ids(message_id: str, count: int) -> list[str]:
    """The ids of a message's records; none of them is another message's, or another record's."""
    if count == 1:
        return [message_id]
    return [f"{message_id}{_SEPARATOR}{number}" for number in range(count)]


class Deduplicator:
    """A window of the newest ``max_ids`` message ids, with what became of their records.

    The oldest id is forgotten first. Belongs to one event loop.
    """

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._window: _Window = OrderedDict()
        self.duplicate_records = 0

    def restore(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Note that the records at these offsets have these ids.

        A delivery with one of them that is not being appended yet is aborted: it repeats a record
        whose block seemed to have failed. Sent again, that record of it is a duplicate.
        """
        for position, message_id in enumerate(ids):
            if message_id is not None:
                before = self._window.get(message_id)
                self._remember(message_id, _offset(offsets, position))
                if isinstance(before, Delivery):
                    before.abort(message_id)

    def deliver(self, records: Records) -> "Delivery":
        """Tell new records from duplicates, and note that the new ones are on their way."""
        delivery = Delivery(self._window, records)
        ids = message_ids(records.batch)
        if ids is not None:
            new, repeated = [], []
            for position, message_id in enumerate(ids):
                if message_id is not None and message_id in self._window:
                    repeated.append(message_id)
                    continue
                new.append(position)
                if message_id is not None:
                    self._remember(message_id, delivery)
            delivery.begin(ids, new, repeated)
            self.duplicate_records += len(repeated)
        return delivery

    def _remember(self, message_id: str, where: "OffsetRange | Delivery") -> None:
        self._window[message_id] = where
        self._window.move_to_end(message_id)
        if len(self._window) > self._max_ids:
            self._window.popitem(last=False)


class Delivery:
    """Records on their way into the lane; ``new`` has those that are no duplicates."""

    def __init__(self, window: "_Window", records: Records) -> None:
        self._window = window
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stored: list[asyncio.Future[OffsetRange]] = []
        self._aborted: JournalError | None = None
        self._unsettled: list[str | None] = []
        self._repeated: Sequence[str] = ()
        self._awaited: set[asyncio.Future[None]] = set()
        self.new = records

    def begin(self, ids: Sequence[str | None], new: Sequence[int], repeated: Sequence[str]) -> None:
        """Note the ids of all records, the places of the new ones, and the ids of the others."""
        self._unsettled = [ids[position] for position in new]
        self._repeated = repeated
        if repeated:
            # It waits for earlier deliveries alone. A record of theirs that is not stored may come
            # again, with one that waits in turn for the memory that this one has.
            places = [self._window.get(message_id) for message_id in repeated]
            self._awaited = {each._ended for each in places if isinstance(each, Delivery)}
            self.new = _at(self.new, new)

    def buffered(self, count: int, stored: asyncio.Future[OffsetRange]) -> None:
        """Note that the next records are in the buffer; the future gets their offsets."""
        ids, self._unsettled = self._unsettled[:count], self._unsettled[count:]
        if ids:
            self._stored.append(stored)
            stored.add_done_callback(partial(self._settle, ids))
            if self._aborted:
                stored.set_exception(self._aborted)

    def abort(self, message_id: str) -> None:
        """Store nothing more of it, because this record of it turned out to be stored."""
        self._aborted = JournalError(
            f"The record with the message id {_sender_id(message_id)!r} was sent again before it"
            " was known that it is stored; send it once more, with what came with it."
        )
        for stored in self._stored:
            if not stored.done():
                stored.set_exception(self._aborted)

    def end(self) -> None:
        """Store nothing more; records that are not in the buffer are new when they come again."""
        self._forget(self._unsettled)
        self._ended.set_result(None)

    async def receipt(self, stored: Sequence[OffsetRange]) -> Receipt:
        """Wait until the records that these repeat are durable too; or JournalError."""
        if self._awaited:
            await asyncio.wait(self._awaited)
        originals = [self._original(message_id) for message_id in self._repeated]
        offsets = stored or originals
        first = min(offsets, key=lambda part: part.start)
        until = max(part.until for part in offsets)
        whole = OffsetRange(first.topic, first.partition, first.start, until)
        return Receipt(whole, len(self._repeated))

    def _original(self, message_id: str) -> OffsetRange:
        where = self._window.get(message_id)
        if not isinstance(where, OffsetRange):
            raise JournalError(
                f"The record with the message id {_sender_id(message_id)!r} was being stored when"
                " it came again, and is not durable; send it once more."
            )
        return where

    def _settle(self, ids: Sequence[str | None], stored: asyncio.Future[OffsetRange]) -> None:
        if stored.exception():
            self._forget(ids)
            return
        for position, message_id in enumerate(ids):
            if message_id is not None and self._window.get(message_id) is self:
                self._window[message_id] = _offset(stored.result(), position)

    def _forget(self, ids: Sequence[str | None]) -> None:
        for message_id in ids:
            if message_id is not None and self._window.get(message_id) is self:
                del self._window[message_id]


_Window: TypeAlias = OrderedDict[str, OffsetRange | Delivery]
"""The ids by age, each with its record's offset or with the delivery that is storing it."""


def _sender_id(record_id: str) -> str:
    return record_id.partition(_SEPARATOR)[0]


def _at(records: Records, positions: Sequence[int]) -> Records:
    return Records(records.batch.take(pa.array(positions, pa.int64())))


def _offset(offsets: OffsetRange, position: int) -> OffsetRange:
    start = offsets.start + position
    return OffsetRange(offsets.topic, offsets.partition, start, start + 1)


async def newest_ids(
    journal: Journal,
    lane: int,
    max_ids: int,
    stop: asyncio.Event,
    now_s: Callable[[], float] = time.monotonic,
) -> list[StoredIds]:
    """Read the message ids of a lane's newest blocks, oldest block first, to restore them.

    It ends with the block that completes ``max_ids`` records, at a block that cannot be read, after
    10 s of the monotonic clock, or when ``stop`` is set; a damaged block and the time are logged. A
    thread reads. When this returns or raises, also for being cancelled, the thread no longer uses
    the journal.

    Raises:
        JournalError: The lane cannot be listed.
    """
    enough = threading.Event()
    reading = asyncio.create_task(
        asyncio.to_thread(_read_ids, journal, lane, max_ids, enough.is_set, now_s)
    )
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        enough.set()
        stopping.cancel()
        await asyncio.wait((reading, stopping))
    return reading.result()[::-1]


def _read_ids(
    journal: Journal,
    lane: int,
    max_ids: int,
    is_enough: Callable[[], bool],
    now_s: Callable[[], float],
) -> list[StoredIds]:
    journal.firsts(lane)  # a lane that cannot be listed is not one whose blocks are damaged
    parts = journal.read_back(lane)
    found: list[StoredIds] = []
    count = size_bytes = 0
    began_s = now_s()
    for number in range(_RESTORE_BLOCKS):
        if count >= max_ids or size_bytes >= _RESTORE_BYTES or is_enough():
            break
        if now_s() - began_s >= _RESTORE_S:
            _LOG.warning(
                "Only the message ids of the newest %s records, in %s blocks, were restored within"
                " %g s; older records that are sent again are stored again.",
                f"{count:,}",
                f"{number:,}",
                _RESTORE_S,
            )
            break
        try:
            first, records = next(parts, (0, None))
        except JournalError as error:
            _LOG.warning("Message ids before a damaged block are not restored: %s", error)
            break
        if records is None:
            break
        count += records.count
        size_bytes += records.batch.nbytes
        if (ids := message_ids(records.batch)) is not None:
            found.append((ids, OffsetRange(journal.name, lane, first, first + records.count)))
    return found
