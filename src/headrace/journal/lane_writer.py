"""The writer of a lane: one block for each append, acknowledged when no crash can lose it."""

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Self

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError, LaneTakenError, OptionError
from headrace.journal.block import MAX_RECORDS, Block, BlockHeader, Compression, encode
from headrace.journal.lane_files import Identity, LaneEnd, LaneFiles
from headrace.journal.lane_mark import LaneMark
from headrace.journal.names import MAX_OFFSET, checked_lane, is_temporary
from headrace.journal.packs import Packer, finish_packing
from headrace.journal.records import Records, message_ids
from headrace.journal.storage import Prepared, Storage, as_journal_error
from headrace.journal.storage.local import LocalStorage

_WRITER_BYTES: Final = 16

_MOST_IN_FLIGHT: Final = 3
"""Blocks that are being written or named while the next one is encoded."""

_WRITING: Final = 2
"""Blocks that are being written: while the disk syncs one, the next one is copied to it."""


class LaneWriter:
    """Appends to one lane, whose offsets are dense from 0 on. Not for several threads at once.

    While it is open, no other writer can have the lane: in a directory a lock prevents that, which
    is released when the process ends; elsewhere, a writer that finds the next name taken by another
    stops for good. A lane from 0 to 99999 is made where it is not there.

    Raises:
        OptionError: There is no such lane.
        JournalError: Another writes it, its last block is damaged or gone, or it cannot be read.
    """

    def __init__(
        self, storage: Storage, identity: Identity, lane: int, *, compression: Compression = "lz4"
    ) -> None:
        self._files = LaneFiles(storage, identity, checked_lane(lane))
        self._mark = LaneMark(self._files)
        self._compression: Compression = compression
        self._writer = secrets.token_bytes(_WRITER_BYTES)
        self._displaced = False
        self._closed = False
        self._failed = False
        self._in_flight: deque[Future[OffsetRange]] = deque()
        self._in_flight_end = (0, 0)
        self._found: list[tuple[Sequence[str | None], OffsetRange]] = []
        is_packed = isinstance(storage, LocalStorage)
        self._packer = Packer(self._files, compression) if is_packed else None
        folder = self._files.folder
        with as_journal_error(f"Lane {lane} of the journal {storage.url} cannot be opened"):
            storage.create_folder(folder)
            with storage.lock(folder) as lock:
                if is_packed:
                    finish_packing(self._files)
                self._end, self._checksum, _ = self._recovered()
                self._lock = lock.pop_all()
        self._write = ThreadPoolExecutor(_WRITING, thread_name_prefix=f"headrace-lane-{lane}-write")
        self._name = ThreadPoolExecutor(1, thread_name_prefix=f"headrace-lane-{lane}-name")

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

        After an error nothing is acknowledged. The records may be in the lane nevertheless, whole,
        where only the answer to the last step was lost: sent again they are there twice, unless the
        caller asks ``settle`` first. The next append may be tried at once: it looks up first where
        the lane ends.

        Raises:
            OptionError: There is no record, or there are more than 16777216.
            LaneTakenError: The lane is another writer's by now, and never this one's again.
            JournalError: They are not durable.
        """
        if self._in_flight and not self._in_flight[-1].done():
            return self.submit(records).result()
        block = self._encoded(records)
        path = self._files.path(block.header.first)
        prepare = partial(self._files.storage.prepare, path, block.parts)
        offsets = self._named(prepare, block)
        if self._packer is not None:
            self._packer.add(block, records)
        return offsets

    def submit(self, records: Records) -> "Future[OffsetRange]":
        """Submit records as one block, and do not wait for it to be durable.

        While one block is encoded, two others are written and synced, and one is given its name, so
        blocks in a row take no longer than the slowest of these steps. They become durable in
        order. At most four are in memory: it waits while there are.

        Returns:
            The answer or error of ``append``, once it is known. If a block fails, those submitted
            behind it fail as well.

        Raises:
            OptionError: There is no record, or there are more than 16777216.
            LaneTakenError: The lane is another writer's by now.
            JournalError: It is full.
        """
        block = self._encoded(records)
        while len(self._in_flight) == _MOST_IN_FLIGHT:
            self._in_flight.popleft().exception()
        written = self._write.submit(
            self._files.storage.prepare, self._files.path(block.header.first), block.parts
        )
        named = self._name.submit(self._named_behind, written, block)
        self._in_flight.append(named)
        self._in_flight_end = block.header.until, block.header.checksum
        return named

    def _encoded(self, records: Records) -> Block:
        """Records as the lane's next block."""
        if not 1 <= records.count <= MAX_RECORDS:
            raise OptionError(
                f"A block of {records.count} records cannot be written; 1 to {MAX_RECORDS} are "
                "allowed: append in parts."
            )
        first, previous = self._next()
        if first + records.count > MAX_OFFSET:
            raise JournalError(f"{self._files.what} is full; write to another lane.")
        return encode(
            records,
            journal_id=self._files.identity.id,
            writer=self._writer,
            lane=self.lane,
            first=first,
            previous=previous,
            compression=self._compression,
        )

    def settle(self) -> list[tuple[Sequence[str | None], OffsetRange]]:
        """Find out which blocks are in the lane although their appends have failed.

        A storage may still perform a request that timed out: such a block can come for as long as
        no other has its offset. The next append fails then, and `settle` returns it after that.

        Returns:
            The message ids and the offsets of each that has any, in order; each is returned once.

        Raises:
            JournalError: That cannot be known now, or the lane is another writer's by now.
        """
        while self._in_flight:
            self._in_flight.popleft().exception()
        self._next()
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Let another writer have the lane, when the last block is durable or has failed."""
        self._closed = True
        self._write.shutdown()
        self._name.shutdown()
        self._mark.close()
        if self._packer is not None:
            self._packer.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _next(self) -> tuple[int, int]:
        """The next block's first offset, and the checksum of the block before it."""
        if self._closed:
            raise JournalError(f"The writer of {self._files.what} is closed; open another one.")
        if self._in_flight and not self._in_flight[-1].done():
            return self._in_flight_end  # if one of these fails, the next does too
        if self._displaced:
            raise self._other_writer()
        if self._failed:
            with as_journal_error(
                f"The end of {self._files.what} cannot be found after an append that failed"
            ):
                self._end, self._checksum, _ = self._recovered_own()
            self._failed = False
        return self._end, self._checksum

    def _recovered(self) -> LaneEnd:
        """Remove what was being written; return the end of the last whole block."""
        files = self._files
        names = files.storage.names(files.folder)
        files.storage.remove(files.folder, [name for name in names if is_temporary(name)])
        return self._mark.settle()

    def _recovered_own(self) -> LaneEnd:
        """The same, if all blocks since are this writer's own; note them."""
        recovered, at = self._recovered(), self._end
        end = recovered.until
        found = []
        while at < end:
            header, batch = self._files.block(at, ["id"])
            if header.writer != self._writer:
                raise self._other_writer()
            if (ids := message_ids(batch)) is not None:
                found.append((ids, self._files.offsets(at, header.until)))
            at = header.until
        if at > end:
            raise JournalError(
                f"{self._files.what} ends at offset {end}, but {at} was acknowledged; something "
                "has removed its blocks: put them back."
            )
        self._found += found
        return recovered

    def _named_behind(self, written: "Future[Prepared]", block: Block) -> OffsetRange:
        """Give a block its name after the blocks submitted before, in a thread of their own."""
        if self._failed:
            if written.exception() is None:
                written.result().discard()
            raise JournalError(
                f"{self._undurable(block)}: the block before it was not; append both again."
            )
        return self._named(written.result, block)

    def _named(self, written: Callable[[], Prepared], block: Block) -> OffsetRange:
        """Have a block written, and give it its name, durably."""
        header = block.header
        self._failed = True
        with as_journal_error(self._undurable(block)):
            try:
                self._mark.commit(written(), header.until)
            except FileExistsError:
                self._taken(header)
        self._end, self._checksum, self._failed = header.until, header.checksum, False
        return self._files.offsets(header.first, header.until)

    def _undurable(self, block: Block) -> str:
        return (
            f"{block.header.count} records could not be made durable as offset"
            f" {block.header.first} of {self._files.what}"
        )

    def _taken(self, header: BlockHeader) -> None:
        """Look at the block whose name was taken already."""
        there = self._files.header(header.first)
        if there == header:
            return  # a client library sent it twice, for the first answer was lost
        if there.writer != self._writer:
            raise self._other_writer()
        raise FileExistsError("an earlier block of the same writer, taken for failed, is there")

    def _other_writer(self) -> LaneTakenError:
        self._displaced = True
        return LaneTakenError(
            f"{self._files.what} has another writer by now, and nothing more is written to it from "
            "here; a lane has one writer: stop one of them, or let each have its own lane."
        )
