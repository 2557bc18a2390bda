"""The writer of a lane: one frame for each append, acknowledged when no crash can lose it.

Where a file can be appended to, an append is one ``writev`` and one ``fdatasync`` of the lane's
last segment. Elsewhere a segment is put whole, with one frame in it.
"""

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

from headrace.core.ranges import OffsetRange
from headrace.errors import CorruptionError, JournalError, LaneTakenError, OptionError
from headrace.journal.block import MAX_RECORDS, Block, Compression, encode
from headrace.journal.frame import Checked, check_segment, later_headers
from headrace.journal.lane import Identity, Lane, LaneIndex
from headrace.journal.layout import MAX_OFFSET, checked_lane
from headrace.journal.records import Records, message_ids
from headrace.journal.storage import Appending, Storage, as_journal_error

SEGMENT_BYTES: Final = 64 * 2**20
"""Size from which on a new segment is begun. Larger: what is pruned is freed later, and a writer
takes longer to open. Smaller: more files."""

SEGMENT_S: Final = 3600.0
"""Time for which a segment is appended to (s), so that a slow lane can be pruned as well."""

_WRITER_BYTES: Final = 16

_LOG: Final = logging.getLogger("headrace.journal")


class LaneWriter:
    """Appends to one lane, whose offsets are dense from 0 on. Not for several threads at once.

    While it is open, no other writer can have the lane: in a directory a lock prevents that, which
    is released when the process ends; elsewhere, a writer that finds the next name taken by another
    stops for good. A lane from 0 to 99999 is made where it is not there. What a crash has left of
    an append that was never acknowledged is cut off.

    Raises:
        OptionError: There is no such lane.
        JournalError: Another writes it, acknowledged bytes are damaged, or it cannot be read.
    """

    def __init__(
        self, storage: Storage, identity: Identity, lane: int, *, compression: Compression = "lz4"
    ) -> None:
        self._files = Lane(storage, identity, checked_lane(lane))
        self._compression: Compression = compression
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
        """The lane that it writes."""
        return self._files.lane

    @property
    def end(self) -> int:
        """The offset after the last acknowledged record, or after those found at the beginning."""
        return self._end

    def append(self, records: Records) -> OffsetRange:
        """Write records as one block; answers their offsets when no crash can lose them.

        After an error nothing is acknowledged. In a directory nothing of it is left. Elsewhere the
        records may be in the lane nevertheless, whole, where only the answer was lost: sent again
        they are there twice, unless the caller asks ``settle`` first. The next append may be tried
        at once: it looks up first where the lane ends.

        Raises:
            OptionError: There is no record, or there are more than 16777216.
            LaneTakenError: The lane is another writer's by now, and never this one's again.
            JournalError: They are not durable.
        """
        block = self._encoded(records)
        header = block.header
        self._failed = True
        with as_journal_error(
            f"{header.count} records could not be made durable as offset {header.first} of"
            f" {self._files.what}"
        ):
            if self._files.storage.appends:
                self._append(block)
            else:
                self._put(block)
        self._end, self._checksum, self._failed = header.until, header.checksum, False
        return self._files.offsets(header.first, header.until)

    def settle(self) -> list[tuple[Sequence[str | None], OffsetRange]]:
        """Find out which blocks are in the lane although their appends have failed.

        A storage may still perform a request that timed out: such a block can come for as long as
        no other has its offset. The next append fails then, and `settle` returns it after that.

        Returns:
            The message ids and the offsets of each that has any, in order; each is returned once.

        Raises:
            JournalError: That cannot be known now, or the lane is another writer's by now.
        """
        self._make_ready()
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Let another writer have the lane."""
        self._closed = True
        self._let_go()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _encoded(self, records: Records) -> Block:
        """Records as the lane's next block."""
        if not 1 <= records.count <= MAX_RECORDS:
            raise OptionError(
                f"A block of {records.count} records cannot be written; 1 to {MAX_RECORDS} are "
                "allowed: append in parts."
            )
        self._make_ready()
        if self._end + records.count > MAX_OFFSET:
            raise JournalError(f"{self._files.what} is full; write to another lane.")
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
            raise JournalError(f"The writer of {self._files.what} is closed; open another one.")
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
        """Append a frame to the last segment, or to a new one.

        After an error the frame is cut off at once, if that can be done, so that no reader plans
        by it.
        """
        try:
            if self._file is None or self._size >= SEGMENT_BYTES or self._is_old():
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
        """Put a segment with one frame; its name may be taken by a request that came twice."""
        header = block.header
        path = self._files.path(header.first)
        try:
            self._files.storage.put(path, block.parts)
            self._segment = header.first
        except FileExistsError:
            start = self._files.storage.read(path)
            there, _ = self._files.decoded(header.first, header.first, start, [])
            if there == header:
                self._segment = header.first
                return  # a client library sent it twice, for the first answer was lost
            if there.writer != self._writer:
                raise self._other_writer() from None
            raise FileExistsError(
                "an earlier block of the same writer, taken for failed, is there"
            ) from None

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _recover(self) -> None:
        """Find the lane's end, and cut off a torn tail; at most two segments are read."""
        index = self._files.index()
        if index.ends_lost:
            self._end = self._files.lost(index.lost[-1]).until
            return
        if not index.segments:
            return
        last = index.segments[-1]
        checked = self._checked(last, is_last=True)
        found = checked.frames
        self._segment, self._size, self._end = last, found.end, found.until
        self._checksum = found.checksum or self._checksum_of(index.before(last), last)
        if checked.torn_bytes:
            _LOG.warning(
                "%d bytes behind byte %d of %s are cut off: an append that was not acknowledged"
                " left them.",
                checked.torn_bytes,
                found.end,
                self._files.shown(self._files.path(last)),
            )
        self._go_on()

    def _checksum_of(self, segment: int | None, until: int) -> int:
        """The checksum of the last frame of a segment before an empty one."""
        if segment is None:
            return 0
        found = self._checked(segment, is_last=False).frames
        return found.checksum if found.until == until else 0

    def _go_on(self) -> None:
        """Append to the last segment from now on, behind the lane's known end."""
        if self._files.storage.appends and self._segment is not None:
            self._file = self._files.storage.go_on(self._files.path(self._segment), self._size)
            self._begun_s = time.monotonic()

    def _checked(self, segment: int, *, is_last: bool) -> Checked:
        """Read a segment whole; raise CorruptionError where acknowledged bytes are damaged."""
        path = self._files.path(segment)
        data = self._files.storage.settled(path)
        can_tear = is_last and self._files.storage.appends
        checked = check_segment(data, self._files.place(segment), is_last=can_tear)
        if checked.defect:
            raise CorruptionError(
                f"{self._files.named(segment, checked.frames.until)} is damaged from byte"
                f" {checked.frames.end} on: {checked.defect}; nothing of it was cut off:"
                " `headrace journal verify` tells all, and `headrace journal repair` declares lost"
                " what cannot be read."
            )
        return checked

    def _cut_own(self) -> None:
        """Cut off what this writer has appended behind the lane's known end."""
        self._let_go()
        index, storage = self._own_index(), self._files.storage
        if self._end in index.segments and self._segment != self._end:
            self._segment, self._size = self._end, 0  # it was begun, and not appended to
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
        """Note the blocks of this writer that came although they failed."""
        for first in [first for first in self._own_index().segments if first >= self._end]:
            data = self._files.storage.read(self._files.path(first))
            header, batch = self._files.decoded(first, first, data, ["id"])
            if header.writer != self._writer or first != self._end:
                raise self._other_writer()
            if (ids := message_ids(batch)) is not None:
                self._found.append((ids, self._files.offsets(first, header.until)))
            self._segment, self._end, self._checksum = first, header.until, header.checksum

    def _own_index(self) -> LaneIndex:
        """List the lane; its last acknowledged segment must be there, and none of another's."""
        index = self._files.index()
        if self._segment is not None and self._segment not in index.segments:
            raise self._gone()
        if self._files.storage.appends and index.segments and index.segments[-1] > self._end:
            raise self._other_writer()
        return index

    def _gone(self) -> JournalError:
        return JournalError(
            f"The end of {self._files.what} is gone: offset {self._end} was reached, and something"
            " has removed its last segment or a part of it; put it back."
        )

    def _other_writer(self) -> LaneTakenError:
        self._displaced = True
        return LaneTakenError(
            f"{self._files.what} has another writer by now, and nothing more is written to it from "
            "here; a lane has one writer: stop one of them, or let each have its own lane."
        )
