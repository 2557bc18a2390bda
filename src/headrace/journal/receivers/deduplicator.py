"""Deduplicator, which stores repeated records with message ids only once, also after a restart."""

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
from headrace.errors import CorruptionError, DataLossError, JournalError
from headrace.journal import Journal
from headrace.journal.receivers.id_window import IdRange, Window, named, ranges_of
from headrace.journal.records import Records, message_ids

_RESTORE_S: Final = 10.0
_RESTORE_BLOCKS: Final = 10_000
_RESTORE_BYTES: Final = 256 * 1024 * 1024
"""A starting receiver reads message ids from the newest blocks, up to this total size (bytes).
Blocks of this size have over half an hour of records. A broker repeats unacknowledged messages even
after many restarts in a row. From a disk, the blocks are read in one or two seconds. Over a network
each block is a request, so `_RESTORE_S` limits the time.
"""

_LOG: Final = logging.getLogger("headrace.receivers")

StoredIds: TypeAlias = tuple[Sequence[str | None], OffsetRange]
"""Message ids of a block's records (None for a record without an id), and the block's offsets."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Receipt for submitted records that are durable.

    Attributes:
        offsets: Offsets from the first to the last new record. If all submitted records are
            duplicates, offsets from the first to the last original. If no record is a duplicate,
            the range has no records of other senders.
        duplicates: Number of submitted records that were already stored, recognized by their
            message ids.
    """

    offsets: OffsetRange
    duplicates: int = 0


class Deduplicator:
    """Deduplicator of records, which remembers the newest message ids.

    The ids take at most ``max_bytes`` of memory, and the oldest ids are dropped first. Use a
    deduplicator in one event loop only.
    """

    def __init__(self, max_bytes: int) -> None:
        self._window = Window(max_bytes)
        self.duplicate_records = 0

    @property
    def size_bytes(self) -> int:
        """Memory of the remembered message ids (bytes)."""
        return self._window.size_bytes

    def restore(self, ids: Sequence[str | None], offsets: OffsetRange) -> None:
        """Remember the message ids of stored records; ``ids`` has the form that `named` writes.

        Abort a delivery in progress if it contains one of these messages. This happens if an append
        seemed to fail, the sender repeated the message, and the first copy turns out to be stored.
        When the sender repeats the message again, its stored records count as duplicates.
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
        """Separate new records from duplicates, and return a delivery of the new records.

        Repetitions of the new records now count as duplicates. With a ``message_id``, all records
        belong to this message, numbered from 0. Without a ``message_id``, each record may have an
        id in its id column.
        """
        delivery = Delivery(self._window, records)
        if message_id is not None:
            ranges = [IdRange(message_id, 0, records.count)]
        elif (ids := message_ids(records.batch)) is not None:
            ranges = [IdRange(id_range, 0, 1) for id_range in ids]
        else:
            return delivery
        new: list[IdRange] = []
        repeated: list[IdRange] = []
        places: list[tuple[int, int]] = []
        place = 0
        for id_range in ranges:
            for part, is_new in self._divided(id_range):
                if is_new:
                    new.append(part)
                    places.append((place, place + part.records))
                    if part.message_id is not None:
                        self._window.remember(part, delivery)
                else:
                    repeated.append(part)
                place += part.records
        delivery.begin(new, places, repeated, is_named=message_id is not None)
        self.duplicate_records += sum(id_range.records for id_range in repeated)
        return delivery

    def _divided(self, of: IdRange) -> list[tuple[IdRange, bool]]:
        """Split a message's records into ranges of new records (True) and of duplicates (False)."""
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
    """Submitted records that are being stored; ``new`` are the records that are not duplicates."""

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
        """Set the message ranges of the new records and of the repeated records.

        ``places`` are the row numbers of the new ranges in the submitted records. With
        ``is_named`` the new records have no ids yet, and `next_chunk` adds the ids.
        """
        self._unsettled = deque(new)
        self._is_named = is_named
        self._repeated = repeated
        if repeated:
            # Wait for earlier deliveries only. If their records are not stored, a later delivery
            # may repeat them and wait for this delivery's memory. Waiting for the later delivery
            # would be a deadlock.
            parts = [part for id_range in repeated for part in self._window.parts(id_range)]
            self._awaited = {
                part.place._ended for part in parts if isinstance(part.place, Delivery)
            }
            self.new = _at(self.new, places)

    def next_chunk(self, records: Records) -> tuple[Records, list[IdRange]]:
        """Add message ids to the next new records.

        Return these records, and their ranges within their messages.
        """
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
        """Register records that are now in the buffer; ``stored`` is the future of their offsets.

        When the future completes, the window remembers the offsets of these ranges.
        """
        if ranges:
            self._stored.append(stored)
            stored.add_done_callback(partial(self._settle, ranges))
            if self._aborted:
                stored.set_exception(self._aborted)

    def abort(self, message_id: str | None) -> None:
        """End this delivery with an error: a record with this message id is already stored."""
        self._aborted = JournalError(
            f"The record with the message id {message_id!r} was sent again before the receiver knew"
            " that it was stored; send it again, with all records of the same request."
        )
        for stored in self._stored:
            if not stored.done():
                stored.set_exception(self._aborted)

    def end(self) -> None:
        """End the delivery. Records not yet in the buffer count as new when they are sent again."""
        for id_range in self._unsettled:
            self._window.resolve(id_range, self, None)
        self._unsettled.clear()
        self._ended.set_result(None)

    async def receipt(self, stored: Sequence[OffsetRange]) -> Receipt:
        """Wait until the originals of all repeated records are durable, and return the receipt.

        ``stored`` are the offsets of the new records, empty if there are none.

        Raises:
            JournalError: The original of a repeated record was not stored.
        """
        if self._awaited:
            await asyncio.wait(self._awaited)
        originals = [place for id_range in self._repeated for place in self._originals(id_range)]
        offsets = stored or originals
        first = min(offsets, key=lambda part: part.start)
        until = max(part.until for part in offsets)
        whole = OffsetRange(first.topic, first.partition, first.start, until)
        return Receipt(whole, sum(id_range.records for id_range in self._repeated))

    def _originals(self, repeated: IdRange) -> list[OffsetRange]:
        places = [part.place for part in self._window.parts(repeated)]
        durable = [place for place in places if isinstance(place, OffsetRange)]
        if sum(place.count for place in durable) < repeated.records:
            raise JournalError(
                f"The record with the message id {repeated.message_id!r} was sent again while it"
                " was being stored, and storing it has failed; send it again."
            )
        return durable

    def _settle(self, ranges: Sequence[IdRange], stored: asyncio.Future[OffsetRange]) -> None:
        offsets = None if stored.exception() else stored.result()
        start = offsets.start if offsets else 0
        for id_range in ranges:
            until = start + id_range.records
            place = offsets and OffsetRange(offsets.topic, offsets.partition, start, until)
            if id_range.message_id is not None:
                self._window.resolve(id_range, self, place)
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
    """Return the message ids of a lane's newest blocks, oldest block first.

    Reading goes back from the lane's end. It stops after ``max_ids`` ids, 10 000 blocks or 256 MiB,
    at a damaged block, after 10 s, or when ``stop`` is set. The timeout and a damaged block are
    logged. A separate thread reads. Even after an error or a cancellation, this function waits for
    the end of the thread.

    Raises:
        JournalError: The storage fails. Without the ids, a receiver would store repeated records
            twice.
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
    parts = journal.read_back(lane)
    blocks: list[StoredIds] = []
    count = size_bytes = 0
    began_s = now_s()
    for number in range(_RESTORE_BLOCKS):
        if count >= max_ids or size_bytes >= _RESTORE_BYTES or is_enough():
            break
        if now_s() - began_s >= _RESTORE_S:
            _LOG.warning(
                "Only the newest %s message ids (in %s blocks) were restored in %g s; if senders"
                " repeat records with older ids, these records are stored twice.",
                f"{count:,}",
                f"{number:,}",
                _RESTORE_S,
            )
            break
        try:
            first, records = next(parts, (0, None))
        except CorruptionError as error:
            _LOG.warning(
                "Message ids in blocks older than a damaged block are not restored; if senders"
                " repeat records of these blocks, the records are stored twice: %s",
                error,
            )
            break
        except DataLossError:
            break  # the older blocks were pruned meanwhile
        if records is None:
            break
        ids = message_ids(records.batch)
        size_bytes += records.batch.nbytes
        if ids is not None:
            count += len(ids) - ids.count(None)
            blocks.append((ids, OffsetRange(journal.name, lane, first, first + records.count)))
    return blocks
