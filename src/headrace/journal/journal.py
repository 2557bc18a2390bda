"""A journal: opening and creating it, reading its lanes, and removing old segments."""

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.core.timing import wall_clock_ms
from headrace.errors import CorruptionError, JournalError, NoJournalError, OptionError
from headrace.gate import ARROW_SCHEMA
from headrace.journal.block import Compression
from headrace.journal.lane import Identity, Lane, LaneIndex, LaneLook, Lost
from headrace.journal.lane_writer import LaneWriter
from headrace.journal.layout import (
    IDENTITY,
    SEGMENT,
    checked_journal_name,
    checked_lane,
    file_name,
    lane_of,
)
from headrace.journal.reading import OnLoss, check_columns, read_back, read_lane
from headrace.journal.records import SCHEMA, Records
from headrace.journal.storage import Storage, as_journal_error
from headrace.journal.storage.local import LocalStorage

FORMAT: Final = 2
_OF_BLOCKS: Final = 1
"""Format number of older journals, which have one file per block and can no longer be read."""

_HDFS: Final = ("webhdfs", "swebhdfs")
_OBJECTS: Final = ("s3", "gs", "az")
_ID_BYTES: Final = 16
_MOST_IDENTITY_BYTES: Final = 4096


class BlockRef(NamedTuple):
    """Description of a block, without its records.

    Its offsets begin at ``first`` and end before ``until``. ``stored_bytes`` is the block's size in
    the storage. ``created_ms`` is the timestamp of the block's newest record (ms since the epoch).
    """

    first: int
    until: int
    stored_bytes: int
    created_ms: int


class SegmentRef(NamedTuple):
    """Description of a segment, without its records.

    Its offsets begin at ``first`` and end before ``until``. ``stored_bytes`` is the file's size.
    ``blocks`` is the number of blocks in the file. ``written_ms`` is the time of the last write (ms
    since the epoch).
    """

    first: int
    until: int
    stored_bytes: int
    blocks: int
    written_ms: int


class Journal:
    """Handle of a journal: reads records and opens lane writers. Returned by `Journal.open`.

    The handle keeps no open files and no state: each method reads the storage again. Offsets and
    blocks that a method returns are durable. Every method raises ``JournalError`` if the journal
    cannot be read or a lane's last block is damaged.
    """

    def __init__(self, storage: Storage, identity: Identity) -> None:
        self.storage = storage
        self.identity = identity

    @classmethod
    def open(cls, url: str, *, create: bool = False) -> "Journal":
        """Open the journal in a directory, under an object store's prefix or in HDFS.

        Args:
            url: A path, ``file:///path``, ``s3://bucket/prefix`` (also ``gs://`` and ``az://``) or
                ``webhdfs://host:port/path`` (``swebhdfs`` with TLS). The last component of the path
                is the journal's name. Keys and endpoint of an object store come from the
                environment, such as ``AWS_ENDPOINT_URL``. The user of HDFS comes from
                ``HADOOP_USER_NAME``.
            create: Whether to create the journal if it does not exist.

        Raises:
            OptionError: The journal's name or the URL's scheme is not allowed.
            JournalError: The journal does not exist, or cannot be read or created.
        """
        name, storage = _storage_at(url)
        return cls.in_storage(storage, name, create=create)

    @classmethod
    def in_storage(cls, storage: Storage, name: str, *, create: bool = False) -> "Journal":
        """Open the journal ``name`` in a storage; parameters and errors as in `open`."""
        with as_journal_error(f"The journal {storage.url} cannot be opened"):
            if create:
                storage.create()  # also makes durable a root that another process just created
            try:
                journal_id = _identity(storage)
                if create:
                    storage.synced_size(IDENTITY)
            except (FileNotFoundError, _TornIdentityError):
                lanes = [folder for folder in storage.folders() if lane_of(folder) is not None]
                if lanes:
                    journal_id = _identity_beside(storage, lanes[0])
                elif create:
                    journal_id = _made(storage)
                else:
                    raise NoJournalError(
                        f"There is no journal {storage.url}; start a receiver, which creates it."
                    ) from None
        return cls(storage, Identity(name, journal_id))

    @property
    def name(self) -> str:
        """Name of the journal: the last component of its path. Column ``topic`` has this name."""
        return self.identity.name

    @property
    def is_in_directory(self) -> bool:
        """Whether the journal is in a directory, where a read costs no request to a store."""
        return isinstance(self.storage, LocalStorage)

    @property
    def id(self) -> str:
        """Id of 32 hexadecimal digits; a recreated journal of the same name has another id."""
        return self.identity.id.hex()

    def lanes(self) -> list[int]:
        """Return the numbers of the journal's lanes, ascending."""
        with as_journal_error(f"The journal {self.storage.url} cannot be read"):
            folders = self.storage.folders()
        return sorted(lane for folder in folders if (lane := lane_of(folder)) is not None)

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return each lane's first offset and the offset after its last record.

        The call lists the files of each lane, and reads the headers of each lane's last segment.
        """
        return {lane: self.lane_bounds(lane) for lane in self.lanes()}

    def lane_bounds(self, lane: int) -> tuple[int, int]:
        """Return a lane's first offset and the offset after its last record."""
        look = self.look(lane)
        return look.index.start, look.end.until

    def look(self, lane: int) -> LaneLook:
        """Return a snapshot of a lane: its file names and its end."""
        with self.lane_files(lane) as files:
            return files.look()

    def firsts(self, lane: int) -> list[int]:
        """Return the first offsets of a lane's segments and losses, ascending; opens no file."""
        with self.lane_files(lane) as files:
            return files.index().firsts

    def segments(self, lane: int) -> list[SegmentRef]:
        """Return a lane's segments in order of offsets; reads headers, not records."""
        with self.lane_files(lane) as files:
            entries = {entry.name: entry for entry in self.storage.entries(files.folder)}
            segments = []
            index = LaneIndex.of(entries)
            for first in index.segments:
                entry, frames = entries[file_name(first, SEGMENT)], files.frames_of(index, first)
                if not len(frames) and first != index.segments[-1]:
                    continue  # pruned since the listing
                segments.append(
                    SegmentRef(first, frames.until, entry.size, len(frames), entry.created_ms)
                )
        return segments

    def blocks(self, lane: int) -> list[BlockRef]:
        """Return a lane's blocks in order of offsets, without lost blocks.

        Only headers are read. So this method does not detect damaged records; `read` and `verify`
        do.
        """
        blocks = []
        with self.lane_files(lane) as files:
            index = files.index()
            for segment in index.segments:
                frames = files.frames_of(index, segment)
                for number, latest_ms in enumerate(frames.rows["latest_ms"].tolist()):
                    first, until = frames.range_of(number)
                    size = frames.end_of(number) - int(frames.places[number])
                    blocks.append(BlockRef(first, until, size, latest_ms))
        return blocks

    def allocated_bytes(self) -> int:
        """Return the storage space that the files of all lanes occupy (bytes).

        On a disk, a file occupies whole blocks of the file system: a file of a few bytes occupies 4
        KiB. A call makes one `stat` for each file.
        """
        with as_journal_error(f"The journal {self.storage.url} cannot be read"):
            return sum(
                entry.allocated
                for lane in self.lanes()
                for entry in self.storage.entries(str(lane))
            )

    def lost(self, lane: int) -> list[Lost]:
        """Return the ranges of a lane that were declared lost, ascending."""
        with self.lane_files(lane) as files:
            return files.losses(files.index())

    def read(
        self,
        offsets: OffsetRange,
        columns: Sequence[str] = tuple(ARROW_SCHEMA.names),
        *,
        on_loss: OnLoss | None = None,
        after: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Read a range of offsets as Arrow batches in the columns and types of Kafka's source.

        Records come in order of offsets. The arguments are checked at the call. Blocks are read and
        fully checked while the caller iterates over the batches. Keys, values and headers of a
        large, uncompressed block are views, not copies.

        Args:
            offsets: The offsets to read.
            columns: Columns of ``ARROW_SCHEMA``, in any order; other columns are not read.
            on_loss: A function that is called with lost or pruned offsets and the reason, before
                they are skipped; it may raise. Default: offsets that were declared lost are
                skipped, and pruned offsets raise an error.
            after: The checksum that the block before ``offsets`` had at an earlier read; 0 if
                unknown.

        Raises:
            OptionError: A column does not exist, or the offsets belong to another journal.
            DataLossError: Offsets were pruned and ``on_loss`` is None, or the block before the
                offsets has another checksum than ``after``.
            CorruptionError: A block is damaged or missing.
            JournalError: The lane ends before the last of ``offsets``, or the storage fails.
        """
        check_columns(columns)
        if offsets.topic != self.name:
            raise OptionError(
                f"The offsets {offsets} do not belong to the journal {self.storage.url}, whose "
                f"name is {self.name}; open the journal to which they belong."
            )
        checked_lane(offsets.partition)
        return self._batches(offsets, tuple(columns), on_loss, after)

    def _batches(
        self, offsets: OffsetRange, columns: Sequence[str], on_loss: OnLoss | None, after: int
    ) -> Iterator[pa.RecordBatch]:
        with self.lane_files(offsets.partition) as files:
            yield from read_lane(files, offsets, columns, on_loss, after=after)

    def read_back(self, lane: int) -> Iterator[tuple[int, Records]]:
        """Yield a lane's records in chunks, newest chunk first, each with its first offset.

        The records have all columns of ``records.SCHEMA``.

        Raises:
            JournalError: A block is damaged, or the storage fails. Chunks yielded before the error
                are valid.
        """
        with self.lane_files(lane) as files:
            for first, batch in read_back(files):
                yield first, Records(batch)

    def records(self, lane: int, first: int) -> Records:
        """Return the records of the block that begins at ``first``, with all columns of ``SCHEMA``.

        Raises:
            JournalError: No block begins at ``first``, the block is damaged, or the storage fails.
        """
        with self.lane_files(lane) as files:
            index = files.index()
            segment = index.segment_of(first)
            if segment is not None:
                frames = files.frames_of(index, segment)
                number = frames.holding(first)
                if number is not None and frames.range_of(number)[0] == first:
                    _, _, batch = files.read_run(segment, frames, number, number + 1, SCHEMA.names)
                    return Records(batch)
        raise JournalError(
            f"No block of lane {lane} of the journal {self.storage.url} begins at offset "
            f"{first}; use the first offset of a block that `Journal.blocks` returns."
        )

    def writer(
        self, lane: int, *, compression: Compression = "lz4", segment_bytes: int | None = None
    ) -> LaneWriter:
        """Claim a lane and return its writer; arguments and errors as in `LaneWriter`."""
        return LaneWriter(
            self.storage,
            self.identity,
            lane,
            compression=compression,
            segment_bytes=segment_bytes,
        )

    def remove_before(self, lane: int, offset: int) -> int:
        """Remove all segments that end at or before ``offset``; return the lane's new first offset.

        Files that declare losses are removed in the same way. The last file stays, because it
        records the lane's end. Files are removed oldest first, so a crash leaves a contiguous lane.
        Several processes may call this at once.
        """
        with self.lane_files(lane) as files:
            pieces = files.index().pieces
            following = [first for first, _ in pieces[1:]]
            below = [
                (first, kind)
                for (first, kind), end in zip(pieces, following, strict=False)
                if end <= offset
            ]
            self.storage.remove(files.folder, [file_name(first, kind) for first, kind in below])
            return pieces[len(below)][0] if pieces else 0

    @contextmanager
    def lane_files(self, lane: int) -> Iterator[Lane]:
        """Yield a `Lane`; convert an OSError in the ``with`` block to a JournalError."""
        files = Lane(self.storage, self.identity, checked_lane(lane))
        with as_journal_error(f"Lane {lane} of the journal {self.storage.url} cannot be read"):
            yield files


class _TornIdentityError(CorruptionError):
    """The file ``journal.json`` is not JSON: it is damaged, or another process is writing it."""


def _storage_at(url: str) -> tuple[str, Storage]:
    """Return the name and the storage of the journal at a URL."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme not in ("file", *_OBJECTS, *_HDFS):
        raise OptionError(
            f"{scheme}:// URLs are not supported for a journal; write a path, file:///path, "
            "s3://bucket/prefix (also gs:// and az://) or webhdfs://host:port/path."
        )
    path = rest if separator else url
    if separator and scheme in _HDFS:
        return _hdfs_at(scheme, path.rstrip("/"))
    name = checked_journal_name(path.rstrip("/").rpartition("/")[2])
    if separator and scheme in _OBJECTS:
        from headrace.journal.storage.object_store import ObjectStorage  # noqa: PLC0415  (needs an extra)

        return name, ObjectStorage(scheme, path.rstrip("/"))
    if separator and not path.startswith("/"):
        raise OptionError(f"The URL {url} has no absolute path; write file:///path.")
    return name, LocalStorage(Path(path))


def _hdfs_at(scheme: str, place: str) -> tuple[str, Storage]:
    from headrace.journal.storage.webhdfs import WebHdfsStorage  # noqa: PLC0415  (needs the extra "hdfs")

    storage = WebHdfsStorage(scheme, place)
    return checked_journal_name(storage.url.rpartition("/")[2]), storage


def _identity(storage: Storage) -> bytes:
    """Read the id of a journal (16 bytes) from its file ``journal.json``.

    Raise FileNotFoundError if the file is missing. Raise CorruptionError if the file is damaged or
    has a format that this version cannot read.
    """
    text = storage.read(IDENTITY, 0, _MOST_IDENTITY_BYTES).to_pybytes()
    reason = (
        f"{storage.url}/{IDENTITY} is damaged: it has no id of the journal; restore it as JSON "
        "with format, id and created_ms (bytes 8 to 24 of each segment are the id)."
    )
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _TornIdentityError(reason) from error
    try:
        version, journal_id = values["format"], bytes.fromhex(values["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(reason) from error
    if version == _OF_BLOCKS:
        raise CorruptionError(
            f"The journal {storage.url} has format 1, with one file per block, which only Headrace"
            " before 0.1.0 reads; process the journal with that version, and create a new journal"
            " for new records."
        )
    if version != FORMAT or len(journal_id) != _ID_BYTES:
        raise CorruptionError(
            f"{storage.url}/{IDENTITY} has format {version!r} and an id of {len(journal_id)} "
            f"bytes, but this Headrace reads format {FORMAT} with {_ID_BYTES} bytes; use a newer"
            " Headrace."
        )
    return journal_id


def _made(storage: Storage) -> bytes:
    """Create a journal's file ``journal.json``, and return the new journal's id.

    If another process creates the journal at the same time, return the id from that process. As the
    journal has no lanes yet, an existing file that is not JSON comes from a creation that crashed,
    and is replaced.
    """
    values = {"format": FORMAT, "id": uuid.uuid4().hex, "created_ms": wall_clock_ms()}
    with storage.making():
        try:
            return _identity(storage)
        except _TornIdentityError:
            storage.remove("", [IDENTITY])
        except FileNotFoundError:
            pass
        with suppress(FileExistsError):
            storage.put(IDENTITY, [json.dumps(values).encode()])
        return _identity(storage)


def _identity_beside(storage: Storage, lane: str) -> bytes:
    """Read the id of a journal in which ``lane`` already exists.

    Raise CorruptionError if ``journal.json`` is missing.
    """
    try:
        return _identity(storage)
    except FileNotFoundError:
        raise CorruptionError(
            f"{storage.url}/{IDENTITY} is missing, although lane {lane} exists; restore it as JSON "
            "with format, id and created_ms (bytes 8 to 24 of each segment are the id)."
        ) from None
