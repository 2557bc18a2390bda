"""Records with message ids: what is sent again is stored once, also after a restart."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError
from headrace.journal import Journal
from headrace.journal.receivers.id_window import IdRange, Window, named, ranges_of
from headrace.journal.records import Records, message_ids

_RESTORE_S: Final = 10.0
_RESTORE_BLOCKS: Final = 10_000
_RESTORE_BYTES: Final = 256 * 1024 * 1024
"""Size of the latest blocks from which ids are restored (bytes): from a disk, which takes a second
or two, over half an hour of blocks; over a network, where each block is a request, as many as the
time allows. A broker sends unacknowledged messages again, after many restarts in a row as well.
"""

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


class Deduplicator:
    """A window of the newest message ids, with what became of their records.

    It takes at most ``max_bytes`` of memory. The oldest is forgotten first. Belongs to one event
    loop.
    """

    def __init__(self, max_bytes: int) -> None:
        self._window = Window(max_bytes)
        self.duplicate_records = 0

    @property
    def size_bytes(self) -> int:
        """Memory of the window."""
        return self._window.size_bytes

    def restore(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Note that the records at these offsets have these ids, as `named` writes them.

        A delivery with one of them that is not being appended yet is aborted: it repeats a record
        whose block seemed to have failed. Sent again, that record of it is a duplicate.
        """
        for place, stored in ranges_of(ids):
            before = self._window.parts(stored)
            start = offsets.start + place
            where = OffsetRange(offsets.topic, offsets.partition, start, start + stored.records)
            self._window.remember(stored, where)
            for part in before:
                if isinstance(part.place, Delivery):
                    part.place.abort(stored.message_id)

    def deliver(self, records: Records, message_id: str | None = None) -> "Delivery":
        """Tell new records from duplicates, and note that the new ones are on their way.

        With a message id they are its records, from number 0 on; otherwise each has the id of its
        own in its column, if any.
        """
        delivery = Delivery(self._window, records)
        if message_id is not None:
            ranges = [IdRange(message_id, 0, records.count)]
        elif (ids := message_ids(records.batch)) is not None:
            ranges = [IdRange(each, 0, 1) for each in ids]
        else:
            return delivery
        new: list[IdRange] = []
        repeated: list[IdRange] = []
        places: list[tuple[int, int]] = []
        place = 0
        for each in ranges:
            for part, is_new in self._divided(each):
                if is_new:
                    new.append(part)
                    places.append((place, place + part.records))
                    if part.message_id is not None:
                        self._window.remember(part, delivery)
                else:
                    repeated.append(part)
                place += part.records
        delivery.begin(new, places, repeated, is_named=message_id is not None)
        self.duplicate_records += sum(each.records for each in repeated)
        return delivery

    def _divided(self, of: IdRange) -> list[tuple[IdRange, bool]]:
        """The records of a message in order, those that are new apart from those that are known."""
        if of.message_id is None:
            return [(of, True)]
        divided: list[tuple[IdRange, bool]] = []
        at = of.first
        for part in self._window.parts(of):
            if at < part.first:
                divided.append((of.part(at, part.first), True))
            divided.append((of.part(part.first, part.until), False))
            at = part.until
        if at < of.until:
            divided.append((of.part(at, of.until), True))
        return divided


class Delivery:
    """Records on their way into the lane; ``new`` has those that are no duplicates."""

    def __init__(self, window: Window, records: Records) -> None:
        self._window = window
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stored: list[asyncio.Future[OffsetRange]] = []
        self._aborted: JournalError | None = None
        self._unsettled: deque[IdRange] = deque()
        self._is_named = False
        self._repeated: Sequence[IdRange] = ()
        self._awaited: set[asyncio.Future[None]] = set()
        self.new = records

    def begin(
        self,
        new: Sequence[IdRange],
        places: Sequence[tuple[int, int]],
        repeated: Sequence[IdRange],
        *,
        is_named: bool,
    ) -> None:
        """Note the new records and their places, and the others.

        ``is_named``: the new records get their ids by `next_chunk`, for they have none yet.
        """
        self._unsettled = deque(new)
        self._is_named = is_named
        self._repeated = repeated
        if repeated:
            # It waits for earlier deliveries alone. A record of theirs that is not stored may come
            # again, with one that waits in turn for the memory that this one has.
            parts = [part for each in repeated for part in self._window.parts(each)]
            self._awaited = {
                part.place._ended for part in parts if isinstance(part.place, Delivery)
            }
            self.new = _at(self.new, places)

    def next_chunk(self, records: Records) -> tuple[Records, list[IdRange]]:
        """The next of the new records with their ids, and which they are."""
        ranges: list[IdRange] = []
        missing = records.count if self._unsettled else 0
        while missing:
            following = self._unsettled.popleft()
            until = min(following.until, following.first + missing)
            ranges.append(following.part(following.first, until))
            missing -= ranges[-1].records
            if until < following.until:
                self._unsettled.appendleft(following.part(until, following.until))
        return named(records, ranges) if self._is_named and ranges else records, ranges

    def buffered(self, ranges: Sequence[IdRange], stored: asyncio.Future[OffsetRange]) -> None:
        """Note that these are in the buffer; the future gets their offsets."""
        if ranges:
            self._stored.append(stored)
            stored.add_done_callback(partial(self._settle, ranges))
            if self._aborted:
                stored.set_exception(self._aborted)

    def abort(self, message_id: str | None) -> None:
        """Store nothing more of it, because this message of it turned out to be stored."""
        self._aborted = JournalError(
            f"The record with the message id {message_id!r} was sent again before it was known"
            " that it is stored; send it once more, with what came with it."
        )
        for stored in self._stored:
            if not stored.done():
                stored.set_exception(self._aborted)

    def end(self) -> None:
        """Store nothing more; records that are not in the buffer are new when they come again."""
        for each in self._unsettled:
            self._window.resolve(each, self, None)
        self._unsettled.clear()
        self._ended.set_result(None)

    async def receipt(self, stored: Sequence[OffsetRange]) -> Receipt:
        """Wait until the records that these repeat are durable too; or JournalError."""
        if self._awaited:
            await asyncio.wait(self._awaited)
        originals = [place for each in self._repeated for place in self._originals(each)]
        offsets = stored or originals
        first = min(offsets, key=lambda part: part.start)
        until = max(part.until for part in offsets)
        whole = OffsetRange(first.topic, first.partition, first.start, until)
        return Receipt(whole, sum(each.records for each in self._repeated))

    def _originals(self, repeated: IdRange) -> list[OffsetRange]:
        places = [part.place for part in self._window.parts(repeated)]
        durable = [place for place in places if isinstance(place, OffsetRange)]
        if sum(place.count for place in durable) < repeated.records:
            raise JournalError(
                f"The record with the message id {repeated.message_id!r} was being stored when it"
                " came again, and is not durable; send it once more."
            )
        return durable

    def _settle(self, ranges: Sequence[IdRange], stored: asyncio.Future[OffsetRange]) -> None:
        offsets = None if stored.exception() else stored.result()
        start = offsets.start if offsets else 0
        for each in ranges:
            until = start + each.records
            place = offsets and OffsetRange(offsets.topic, offsets.partition, start, until)
            if each.message_id is not None:
                self._window.resolve(each, self, place)
            start = until


def _at(records: Records, places: Sequence[tuple[int, int]]) -> Records:
    rows = [np.arange(first, until) for first, until in places]
    chosen = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    return Records(records.batch.take(pa.array(chosen, pa.int64())))


async def newest_ids(
    journal: Journal,
    lane: int,
    max_ids: int,
    stop: asyncio.Event,
    now_s: Callable[[], float] = time.monotonic,
) -> list[StoredIds]:
    """Read the message ids of a lane's newest blocks, oldest block first, to restore them.

    It ends with the block that completes ``max_ids`` ids, or as many records that have none, at a
    block that cannot be read, after 10 s of the monotonic clock, or when ``stop`` is set; a damaged
    block and the time are logged. A thread reads. When this returns or raises, also for being
    cancelled, the thread no longer uses the journal.

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
        ids = message_ids(records.batch)
        count += records.count if ids is None else len(ids) - ids.count(None)
        size_bytes += records.batch.nbytes
        if ids is not None:
            found.append((ids, OffsetRange(journal.name, lane, first, first + records.count)))
    return found
