"""Writer of a lane: each append writes one frame, and returns once the frame is durable.

In a directory, an append is one ``writev`` and one ``fdatasync`` of the lane's last segment. A
crash leaves whole frames and at most one incomplete frame at the end, which the next writer
removes. ``tests/journal/shim.py`` checks this against every state that a power failure can leave.
In HDFS and object stores, an append writes a new segment with one frame.
"""

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError, LaneTakenError, OptionError
from headrace.journal.block import MAX_RECORDS, Block, Compression, encode
from headrace.journal.frame import Checked, check_segment, later_headers
from headrace.journal.lane import Identity, Lane, LaneIndex
from headrace.journal.layout import MAX_OFFSET, checked_lane
from headrace.journal.records import Records, message_ids
from headrace.journal.storage import Appending, Storage, as_journal_error

SEGMENT_BYTES: Final = 64 * 2**20
"""Segment size at which a writer begins a new segment (bytes). Larger: pruning frees space later,
and a writer takes longer to open. Smaller: more files."""

SEGMENT_S: Final = 3600.0
"""Age at which a writer begins a new segment (s). Pruning removes whole segments. Without this
limit, the old records of a lane with little traffic could not be removed."""

_WRITER_BYTES: Final = 16

_LOG: Final = logging.getLogger("headrace.journal")


class LaneWriter:
    """Writer of one lane, whose offsets are consecutive from 0. Not thread-safe.

    A lane has one writer. In a directory, a lock excludes a second writer until the process ends.
    Elsewhere, a writer fails permanently once another writer has written the next segment. A
    missing lane (0 to 99999) is created. Opening a writer removes the incomplete frame of an append
    that a crash interrupted.

    Args:
        storage: The journal's storage.
        identity: The journal's identity.
        lane: The lane's number.
        compression: The compression of the blocks. Default: ``lz4``.
        segment_bytes: The segment size at which a new segment begins (bytes), if less than
            `SEGMENT_BYTES`.

    Raises:
        OptionError: The lane's number is not from 0 to 99999.
        JournalError: The lane has another writer, has damaged acknowledged bytes, or cannot be
            read.
    """

    def __init__(
        self,
        storage: Storage,
        identity: Identity,
        lane: int,
        *,
        compression: Compression = "lz4",
        segment_bytes: int | None = None,
    ) -> None:
        self._files = Lane(storage, identity, checked_lane(lane))
        self._compression: Compression = compression
        self._segment_bytes = segment_bytes
        self._writer = secrets.token_bytes(_WRITER_BYTES)
        self._displaced = False
        self._closed = False
        self._failed = False
        self._found: list[tuple[Sequence[str | None], OffsetRange]] = []
        self._file: Appending | None = None
        self._begun_s = 0.0
        self._segment: int | None = None
        self._size = self._end = self._checksum = 0
        folder = self._files.folder
        with as_journal_error(f"Lane {lane} of the journal {storage.url} cannot be opened"):
            storage.create_folder(folder)
            with storage.lock(folder) as lock:
                self._recover()
                self._lock = lock.pop_all()

    @property
    def lane(self) -> int:
        """Number of the lane."""
        return self._files.lane

    @property
    def end(self) -> int:
        """Offset after the last durable record of the lane, as far as this writer knows."""
        return self._end

    @property
    def _most_bytes(self) -> int:
        """Segment size at which this writer begins a new segment (bytes)."""
        return min(SEGMENT_BYTES, self._segment_bytes or SEGMENT_BYTES)

    def append(self, records: Records) -> OffsetRange:
        """Write records as one block; return their offsets once they are durable.

        After an error, do not acknowledge the records. The next append may follow at once. In a
        directory, a failed block is removed. In other storages, a block may be stored although its
        append failed, if only the response was lost. To avoid duplicates, call ``settle`` before
        you append the same records again.

        Raises:
            OptionError: There is no record, or there are more than 16777216.
            LaneTakenError: Another writer has taken over the lane; this writer stays unusable.
            JournalError: The records are not durable.
        """
        block = self._encoded(records)
        header = block.header
        self._failed = True
        with as_journal_error(
            f"{header.count} records could not be made durable at offset {header.first} of"
            f" {self._files.what}"
        ):
            if self._files.storage.appends:
                self._append(block)
            else:
                self._put(block)
        self._end, self._checksum, self._failed = header.until, header.checksum, False
        return self._files.offsets(header.first, header.until)

    def settle(self) -> list[tuple[Sequence[str | None], OffsetRange]]:
        """Find blocks that were stored although their appends failed.

        A storage may store a block long after its append has timed out. If this happens after
        `settle`, the next append fails, and the next `settle` returns the late block.

        Returns:
            The message ids and the offsets of each stored block, in order. Blocks without ids are
            left out, and each block is returned once.

        Raises:
            JournalError: The lane cannot be read now, or another writer has taken over the lane.
        """
        self._make_ready()
        late, self._found = self._found, []
        return late

    def close(self) -> None:
        """Close the writer, so that another writer can open the lane."""
        self._closed = True
        self._let_go()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _encoded(self, records: Records) -> Block:
        """Clean up after a failed append, then encode records as the lane's next block."""
        if not 1 <= records.count <= MAX_RECORDS:
            raise OptionError(
                f"A block of {records.count} records cannot be written; append 1 to {MAX_RECORDS} "
                "records at a time."
            )
        self._make_ready()
        if self._end + records.count > MAX_OFFSET:
            raise JournalError(
                f"{self._files.what} has used all its offsets; write to another lane."
            )
        return encode(
            records,
            journal_id=self._files.identity.id,
            writer=self._writer,
            lane=self.lane,
            first=self._end,
            synced=self._end,
            previous=self._checksum,
            compression=self._compression,
        )

    def _make_ready(self) -> None:
        if self._closed:
            raise JournalError(f"The writer of {self._files.what} is closed; open a new writer.")
        if self._displaced:
            raise self._other_writer()
        if self._failed:
            with as_journal_error(
                f"The end of {self._files.what} cannot be found after an append that failed"
            ):
                if self._files.storage.appends:
                    self._cut_own()
                else:
                    self._find_own()
            self._failed = False

    def _append(self, block: Block) -> None:
        """Append a block to the last segment, or to a new segment.

        After an error, try to remove the block's bytes at once, before a reader plans a batch with
        them.
        """
        try:
            if self._file is None or self._size >= self._most_bytes or self._is_old():
                self._let_go()
                self._file = self._files.storage.begin(self._files.path(block.header.first))
                self._segment, self._size = block.header.first, 0
                self._begun_s = time.monotonic()
            self._file.append(block.parts)
            self._size = self._file.size
        except FileExistsError:
            raise self._other_writer() from None
        except OSError:
            with suppress(OSError, JournalError):
                self._cut_own()
                self._failed = False
            raise

    def _is_old(self) -> bool:
        return time.monotonic() - self._begun_s >= SEGMENT_S

    def _put(self, block: Block) -> None:
        """Write a block as a new segment, unless a repeated request has already stored it."""
        header = block.header
        path = self._files.path(header.first)
        try:
            self._files.storage.put(path, block.parts)
            self._segment = header.first
        except FileExistsError:
            start = self._files.storage.read(path)
            stored, _ = self._files.decoded(header.first, header.first, start, [])
            if stored == header:
                self._segment = header.first
                return  # the HTTP client repeated the request after losing the first response
            if stored.writer != self._writer:
                raise self._other_writer() from None
            raise FileExistsError(
                "a segment of this name exists, from an append of this writer that seemed to fail"
            ) from None

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _recover(self) -> None:
        """Find the lane's end, and remove an incomplete last frame. Read at most two segments."""
        index = self._files.index()
        if index.ends_lost:
            self._end = self._files.lost(index.lost[-1]).until
            return
        if not index.segments:
            return
        last = index.segments[-1]
        checked = self._checked(last)
        frames = checked.frames
        self._segment, self._size, self._end = last, frames.end, frames.until
        self._checksum = frames.checksum or self._checksum_before(index, last)
        if checked.torn_bytes:
            _LOG.warning(
                "%d bytes after byte %d of %s are removed: they are the rest of an interrupted"
                " append, which was never acknowledged.",
                checked.torn_bytes,
                frames.end,
                self._files.shown(self._files.path(last)),
            )
        self._go_on()

    def _checksum_before(self, index: LaneIndex, last: int) -> int:
        """Return the checksum of the frame that ends at the last segment's first offset, or 0."""
        segment = index.before(last)
        if segment is None:
            return 0
        frames = self._files.frames_of(index, segment)
        return frames.checksum if frames.until == last else 0

    def _go_on(self) -> None:
        """Open the last segment for appends, and remove its bytes after the lane's known end."""
        if self._files.storage.appends and self._segment is not None:
            self._file = self._files.storage.go_on(self._files.path(self._segment), self._size)
            self._begun_s = time.monotonic()

    def _checked(self, segment: int) -> Checked:
        """Read and check the last segment. Raise CorruptionError at damaged acknowledged bytes."""
        path = self._files.path(segment)
        data = self._files.storage.settled(path)
        can_tear = self._files.storage.appends
        checked = check_segment(data, self._files.place(segment), is_last=can_tear)
        if checked.defect:
            raise self._files.damaged_after(segment, checked.frames, checked.defect)
        return checked

    def _cut_own(self) -> None:
        """Remove the bytes that this writer's failed append left after the lane's known end.

        Raise LaneTakenError if another writer has appended frames.
        """
        self._let_go()
        index, storage = self._own_index(), self._files.storage
        if self._end in index.segments and self._segment != self._end:
            self._segment, self._size = self._end, 0  # a new segment without frames
        if self._segment is None:
            return
        path = self._files.path(self._segment)
        if storage.synced_size(path) < self._size:
            raise self._gone()
        behind = storage.read(path, self._size).to_pybytes()
        if any(header.writer != self._writer for header in later_headers(behind, 0)):
            raise self._other_writer()
        self._go_on()

    def _find_own(self) -> None:
        """Move the lane's known end after the blocks that were stored despite a failed append."""
        for first in [first for first in self._own_index().segments if first >= self._end]:
            data = self._files.storage.read(self._files.path(first))
            header, batch = self._files.decoded(first, first, data, ["id"])
            if header.writer != self._writer or first != self._end:
                raise self._other_writer()
            if (ids := message_ids(batch)) is not None:
                self._found.append((ids, self._files.offsets(first, header.until)))
            self._segment, self._end, self._checksum = first, header.until, header.checksum

    def _own_index(self) -> LaneIndex:
        """List the lane's files; raise JournalError if this writer's last segment is gone.

        In a directory, raise LaneTakenError if another writer has begun a later segment.
        """
        index = self._files.index()
        if self._segment is not None and self._segment not in index.segments:
            raise self._gone()
        if self._files.storage.appends and index.segments and index.segments[-1] > self._end:
            raise self._other_writer()
        return index

    def _gone(self) -> JournalError:
        return JournalError(
            f"The end of {self._files.what} is missing: its last segment, which ended at offset"
            f" {self._end}, was deleted or truncated by another program; restore the segment."
        )

    def _other_writer(self) -> LaneTakenError:
        self._displaced = True
        return LaneTakenError(
            f"{self._files.what} has another writer by now, so this writer has stopped; a lane has "
            "one writer: stop one of the two, or give each its own lane."
        )
