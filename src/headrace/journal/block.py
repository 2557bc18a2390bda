"""A block: some records of a lane as bytes, and back. Pure.

A header of 128 bytes, little endian, closed by its own CRC-32, then the payload, one Arrow IPC
stream::

    0   magic           8 bytes, b"HRBLOCK" and the version, 1
    8   journal id     16 bytes
    24  writer         16 bytes, a new one for each writer
    40  first offset    8
    48  raw bytes       8   of keys, values and headers
    56  payload length  8
    64  earliest        8   timestamp, ms since the epoch
    72  latest          8   timestamp, ms since the epoch
    80  lane            4
    84  count           4   of records
    88  payload CRC-32  4   zlib's
    92  previous        4   the header CRC-32 of the block before, or 0
    96  zeros          28
    124 header CRC-32   4   of the 124 bytes before

``previous`` makes a chain of a lane's blocks: a block's header CRC-32 tells it, and all before it,
from what another writer has put in its place. It is 0 where no block ends at the first offset: in a
lane's first block, after a loss, and where all before was pruned. A chance match is one in 2**32.

The payload begins at a multiple of 64 bytes, so that Arrow's buffers are aligned in a mapped file.
Its columns are those of ``records.SCHEMA``; one that has only nulls is left out. The header is
checked before anything in it is believed, and its length against the file's before anything is
read.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32
from pyarrow import ipc

from headrace.errors import CorruptionError
from headrace.journal.records import SCHEMA, Records

Compression = Literal["lz4", "zstd", "none"]
Part: TypeAlias = bytes | pa.Buffer
"""Some of a file's bytes."""

MAGIC: Final = b"HRBLOCK\x01"
MAX_RECORDS: Final = 2**24
"""Records in a block: as many offsets are given up where a block can say nothing of itself."""

_FIELDS: Final = struct.Struct("<8s16s16sQQQqqIIII28x")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What a block says of itself; the offsets are ``first`` to before ``until``."""

    journal_id: bytes
    writer: bytes
    lane: int
    first: int
    count: int
    raw_bytes: int
    payload_bytes: int
    earliest_ms: int
    latest_ms: int
    payload_crc: int
    previous: int

    @property
    def until(self) -> int:
        """The offset after the block's last."""
        return self.first + self.count

    @property
    def checksum(self) -> int:
        """What tells the block from others, with all before it in its lane."""
        return crc32(self._fields())

    def encode(self) -> bytes:
        """The 128 bytes."""
        fields = self._fields()
        return fields + _CRC.pack(crc32(fields))

    def _fields(self) -> bytes:
        return _FIELDS.pack(
            MAGIC,
            self.journal_id,
            self.writer,
            self.first,
            self.raw_bytes,
            self.payload_bytes,
            self.earliest_ms,
            self.latest_ms,
            self.lane,
            self.count,
            self.payload_crc,
            self.previous,
        )


@dataclass(frozen=True, slots=True)
class Block:
    """A block to be written: its header, and the buffers that are its payload, in order."""

    header: BlockHeader
    payload: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """Everything in the order of the file."""
        return (self.header.encode(), *self.payload)


class _Gather:
    """A file for Arrow that keeps the buffers it is given, and copies none of them."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.bytes = 0

    def write(self, part: Part) -> int:
        self.parts.append(part)
        self.bytes += len(part)
        return len(part)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        self.closed = True


def encode(
    records: Records,
    *,
    journal_id: bytes,
    writer: bytes,
    lane: int,
    first: int,
    previous: int = 0,
    compression: Compression = "lz4",
) -> Block:
    """Records as a block; at least one, at most ``MAX_RECORDS``.

    Args:
        records: What it holds. Where nothing is compressed, their buffers become the payload.
        journal_id: 16 bytes.
        writer: 16 bytes.
        lane: Which.
        first: The first record's offset.
        previous: The checksum of the block that ends there; 0 where none does.
        compression: Of each buffer by itself, as Arrow does it.
    """
    batch = records.batch
    kept = [n for n, column in enumerate(batch.columns) if column.null_count < len(column)]
    stored = pa.RecordBatch.from_arrays(
        [batch.column(n) for n in kept], schema=pa.schema([SCHEMA.field(n) for n in kept])
    )
    gather = _Gather()
    options = ipc.IpcWriteOptions(
        compression=None if compression == "none" else compression, use_threads=False
    )
    with (
        pa.PythonFile(gather, mode="w") as file,
        ipc.new_stream(file, stored.schema, options=options) as stream,
    ):
        stream.write_batch(stored)
    times = pc.min_max(batch.column("timestamp").cast(pa.int64()))
    header = BlockHeader(
        journal_id=journal_id,
        writer=writer,
        lane=lane,
        first=first,
        count=records.count,
        raw_bytes=records.bytes,
        payload_bytes=gather.bytes,
        earliest_ms=times["min"].as_py(),
        latest_ms=times["max"].as_py(),
        payload_crc=_crc(gather.parts),
        previous=previous,
    )
    return Block(header, tuple(gather.parts))


def decode_header(start: bytes, size: int | None, name: str) -> BlockHeader:
    """The header of a block.

    Args:
        start: What the file begins with; from ``HEADER_BYTES`` on it is not looked at.
        size: The file's, in bytes; None if the header alone is asked about.
        name: What to call it in an error.

    Raises:
        CorruptionError: It is not the header of a whole block.
    """
    if len(start) < HEADER_BYTES:
        there = len(start) if size is None else size
        raise _damaged(name, f"it has {there} bytes, and a block's header alone has {HEADER_BYTES}")
    fields = start[: _FIELDS.size]
    if not fields.startswith(MAGIC[:-1]):
        raise _damaged(name, "it does not begin as a block does")
    if _CRC.unpack_from(start, _FIELDS.size)[0] != crc32(fields):
        raise _damaged(name, "its header fails its checksum")
    magic, journal_id, writer, first, raw, payload, earliest, latest, lane, count, crc, previous = (
        _FIELDS.unpack(fields)
    )
    if magic != MAGIC:
        raise _damaged(name, f"it has version {magic[-1]}, and this Headrace reads version 1")
    if size not in (HEADER_BYTES + payload, None):
        raise _damaged(name, f"it has {size} bytes, and its header says {HEADER_BYTES + payload}")
    return BlockHeader(
        journal_id, writer, lane, first, count, raw, payload, earliest, latest, crc, previous
    )


def decode_payload(
    header: BlockHeader, payload: pa.Buffer, name: str, columns: Sequence[str]
) -> pa.RecordBatch:
    """The records of a block, with some of the columns of ``records.SCHEMA``, in that order.

    Of a payload that is not compressed the columns are views; others are read no further than their
    checksum.

    Raises:
        CorruptionError: The payload is not what the header says.
    """
    if _crc([payload]) != header.payload_crc:
        raise _damaged(name, "its records fail their checksum")
    try:
        schema = ipc.read_schema(payload)
        there = [n for n, field in enumerate(schema) if field.name in columns]
        options = ipc.IpcReadOptions(included_fields=there, use_threads=False)
        with ipc.open_stream(payload, options=options) as stream:
            batch = stream.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise _damaged(name, f"its records cannot be read: {error}") from error
    if batch.num_rows != header.count:
        raise _damaged(name, f"it has {batch.num_rows} records, not the {header.count} it says")
    wanted = [SCHEMA.field(column) for column in columns]
    return pa.RecordBatch.from_arrays(
        [
            batch.column(field.name)
            if field.name in batch.schema.names
            else pa.nulls(header.count, field.type)
            for field in wanted
        ],
        schema=pa.schema(wanted),
    )


def _crc(parts: Iterable[Part]) -> int:
    crc = 0
    for part in parts:
        crc = crc32(cast("bytes", part), crc)
    return crc


def _damaged(name: str, what: str) -> CorruptionError:
    return CorruptionError(f"{name} is damaged: {what}; `headrace journal verify` tells all.")
