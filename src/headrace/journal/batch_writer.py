"""Writing batches in two phases: tasks stage blocks; then all are in the lane, or none is."""

import logging
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Self

import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import JournalError, OptionError
from headrace.journal.block import HEADER_BYTES, MAX_RECORDS, decode_header, encode
from headrace.journal.journal import Journal
from headrace.journal.lane_files import LaneFiles
from headrace.journal.lane_mark import LaneMark
from headrace.journal.manifests import Manifest, StagedBlock, complete, manifests, path_of
from headrace.journal.names import (
    MAX_OFFSET,
    STAGED,
    checked_lane,
    key_of,
    manifest_name,
    staged_folder,
)
from headrace.journal.records import SCHEMA, Records
from headrace.journal.storage import as_journal_error
from headrace.journal.storage.local import LocalStorage

_BLOCK_BYTES: Final = 32 * 2**20
"""A block has no more, unless Spark passes more at once; a reader keeps one in memory."""


def new_attempt() -> str:
    """Return an id that distinguishes the blocks of one attempt from those of any other."""
    return secrets.token_hex(8)


def stage(
    journal: Journal,
    lane: int,
    attempt: str,
    task: int,
    batches: Iterable[pa.RecordBatch],
    *,
    timestamp_ms: int,
) -> Iterator[str]:
    """Write a task's records as blocks; answers their names in order, each durable by then.

    The journal is in a directory, and the caller has the lane and has made its folder of staged
    blocks. No other task of the attempt, nor any other run of this one, has its number. The batches
    have the columns key, value (binary) and headers; all records get this time.

    Raises:
        JournalError: The storage fails.
    """
    for number, records in enumerate(_blocks(batches, timestamp_ms)):
        block = encode(
            records,
            journal_id=journal.identity.id,
            writer=bytes.fromhex(attempt).rjust(16, b"\0"),
            lane=lane,
            first=0,
        )
        name = f"{attempt}.{task}.{number}.{STAGED}"
        with as_journal_error(
            f"Records for lane {lane} of the journal {journal.storage.url} cannot be staged"
        ):
            journal.storage.put(f"{staged_folder(lane)}/{name}", block.parts)
        yield name


def _blocks(batches: Iterable[pa.RecordBatch], timestamp_ms: int) -> Iterator[Records]:
    """The records in batches that are neither too small nor too large for a block."""
    collected: list[Records] = []
    count = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, MAX_RECORDS):
            records = _records(batch.slice(start, MAX_RECORDS), timestamp_ms)
            count, size = count + records.count, size + records.batch.nbytes
            if collected and (size > _BLOCK_BYTES or count > MAX_RECORDS):
                yield Records.concat(collected)
                collected, count, size = [], records.count, records.batch.nbytes
            collected.append(records)
    if collected:
        yield Records.concat(collected)


def _records(batch: pa.RecordBatch, timestamp_ms: int) -> Records:
    columns = {
        name: batch.column(name).cast(SCHEMA.field(name).type)
        for name in ("key", "value", "headers")
    }
    return Records.of_columns(batch.num_rows, timestamp_ms=timestamp_ms, **columns)


_LOG: Final = logging.getLogger("headrace.journal")


class BatchWriter:
    """Writes batches into a lane, each once, whatever crashes. Not for several threads at once.

    While it is open no other writer can have the lane, which is made where it is not there. Opening
    it finishes decided batches after a crash, and removes staged blocks that were not decided. ::

        with BatchWriter(journal, lane) as writer:
            if key not in writer.written:
                names = ...                     # what tasks have staged, all of it, in order
                writer.commit(key, names)

    Every method raises ``JournalError`` where the lane cannot be read or written.

    Raises:
        OptionError: The journal is not in a directory, or there is no such lane.
        LaneTakenError: Another writer has the lane.
    """

    def __init__(self, journal: Journal, lane: int) -> None:
        storage = journal.storage
        if not isinstance(storage, LocalStorage):
            raise OptionError(
                f"The journal {storage.url} is not in a directory of a mounted file system, where a"
                " batch cannot be written as a whole, since nothing there keeps a second writer out"
                " meanwhile; use a journal in a directory, or a Kafka channel."
            )
        self._files = LaneFiles(storage, journal.identity, checked_lane(lane))
        self._folder = staged_folder(lane)
        self._mark = LaneMark(self._files)
        with as_journal_error(f"Lane {lane} of the journal {storage.url} cannot be opened"):
            storage.create_folder(self._files.folder)
            storage.create_folder(self._folder)
            with storage.lock(self._files.folder) as lock:
                complete(self._files)
                self._mark.settle()
                self._written = manifests(self._files)
                self._sweep()
                self._lock = lock.pop_all()

    @property
    def written(self) -> tuple[str, ...]:
        """The keys of the batches that are known to be in the lane, the oldest first."""
        return tuple(self._written)

    def forget(self, keys: Collection[str]) -> None:
        """Forget that batches are in the lane, because nobody will run them again."""
        with as_journal_error(f"Batches written to {self._files.what} cannot be forgotten"):
            self._files.storage.remove(self._folder, [manifest_name(key) for key in keys])
        for key in keys:
            self._written.pop(key, None)

    def commit(self, key: str, names: Sequence[str]) -> OffsetRange:
        """Bring the staged blocks of a batch into the lane; when it returns, no crash undoes that.

        If it raises, the batch is written or it is not, and the next writer of the lane knows. If
        the storage fails after the decision, that is logged, and readers see the rest once the lane
        is opened to be written again.

        Args:
            key: The batch's; not one of ``written``.
            names: The blocks' files; at least one.

        Raises:
            OptionError: The key is none of a batch.
            JournalError: The storage fails, or the lane is full.
        """
        with as_journal_error(f"Batch {key} cannot be written to {self._files.what}"):
            manifest = self._planned(key, names)
            self._decide(manifest)
        self._written[key] = manifest
        try:
            done = f"Batch {key} is written to {self._files.what}"
            with as_journal_error(f"{done}, but not yet to be read there"):
                complete(self._files)
                self._mark.note()
        except JournalError as error:
            _LOG.warning("%s", error)
        return self._files.offsets(manifest.first, manifest.until)

    def close(self) -> None:
        """Let another writer have the lane."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _planned(self, key: str, names: Sequence[str]) -> Manifest:
        """The staged blocks with their offsets."""
        at, previous, _ = self._files.end(self._files.index())
        blocks = []
        for name in names:
            path = path_of(self._files, name)
            start, size = self._files.storage.read_start(path, HEADER_BYTES)
            staged = decode_header(start, size, self._files.shown(path))
            header = replace(staged, first=at, previous=previous)
            blocks.append(StagedBlock(name, header))
            at, previous = header.until, header.checksum
        if at > MAX_OFFSET:
            raise JournalError(f"{self._files.what} is full; write to another lane.")
        return Manifest(key, tuple(blocks))

    def _decide(self, manifest: Manifest) -> None:
        name = manifest_name(manifest.key)
        try:
            self._files.storage.put(path_of(self._files, name), [manifest.encode()])
        except OSError:
            # The manifest may exist, with only the answer lost; a listed file is durable.
            if name not in self._files.storage.names(self._folder):
                raise

    def _sweep(self) -> None:
        """Remove staged blocks that are decided by now, or never will be."""
        names = self._files.storage.names(self._folder)
        left = [name for name in names if key_of(name) is None]
        self._files.storage.remove(self._folder, left)
