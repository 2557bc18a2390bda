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
    92  previous        4   the checksum of the block before, or 0
    96  stands for      4   of a pack: the checksum of its last block; otherwise 0
    100 zeros          24
    124 header CRC-32   4   of the 124 bytes before

``previous`` makes a chain of a lane's blocks: a block's checksum, its header's CRC-32,
distinguishes it, with all before it, from another writer's replacement. ``previous`` is 0 where no
block ends at the first offset: in a lane's first block, after a loss, and where all before was
pruned. A chance match is one in 2**32.

A pack is one block with the records of several in a row, in whose place it stands: the first one's
``previous``, the last one's checksum. After its payload it has 12 bytes for each of them, the
offset after its last (8) and its checksum (4), and a CRC-32 of these that begins with its payload's
CRC. So a position that was issued within it is compared with the checksum that it was issued with.

The payload begins at a multiple of 64 bytes, so that Arrow's buffers are aligned in a mapped file.
Its columns are those of ``records.SCHEMA``; one that has only nulls is left out. Decoding raises
``CorruptionError``: the header is checked before anything in it is believed, its length against the
file's before anything is read, and what the payload takes unpacked before it is unpacked.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32
from pyarrow import ipc

from headrace.errors import CorruptionError
from headrace.journal.records import SCHEMA, Records
from headrace.journal.unpacking import check_unpacked, most_unpacked_bytes

Compression = Literal["lz4", "zstd", "none"]
Part: TypeAlias = bytes | pa.Buffer
"""Some of a file's bytes."""

MAGIC: Final = b"HRBLOCK\x01"
MAX_RECORDS: Final = 2**24
"""Records in a block: as many offsets are declared lost where a block says nothing of itself."""

_SMALL_BYTES: Final = 64 * 1024

_MOST_MS: Final = (2**63 - 1) // 1000
"""Largest absolute time of a record (ms): Spark's timestamps have microseconds."""

_FIELDS: Final = struct.Struct("<8s16s16sQQQqqIIIII24x")
_CRC: Final = struct.Struct("<I")
_ENDS: Final = np.dtype([("until", "<u8"), ("checksum", "<u4")])
HEADER_BYTES: Final = _FIELDS.size + _CRC.size


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """Header of a block, in the order of the file."""

    journal_id: bytes
    writer: bytes
    first: int
    raw_bytes: int
    payload_bytes: int
    earliest_ms: int
    latest_ms: int
    lane: int
    count: int
    payload_crc: int
    previous: int
    stands_for: int = 0

    @property
    def until(self) -> int:
        """The offset after the block's last."""
        return self.first + self.count

    @property
    def checksum(self) -> int:
        """Checksum that distinguishes this block, with all before it in its lane, from others."""
        return self.stands_for or crc32(self._fields())

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
            self.stands_for,
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
    """A file for Arrow that keeps the buffers it gets, without copying them."""

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

    Without compression, their buffers become the payload; Arrow compresses each buffer by itself.
    ``previous`` is the checksum of the block that ends at ``first``; 0 if none does.
    """
    batch = records.batch
    kept = [n for n, column in enumerate(batch.columns) if column.null_count < len(column)]
    stored = pa.RecordBatch.from_arrays(
        [batch.column(n) for n in kept], schema=pa.schema([SCHEMA.field(n) for n in kept])
    )
    payload = _payload(stored, compression)
    raw_bytes, payload_bytes = records.bytes, sum(len(part) for part in payload)
    if compression != "none" and (
        stored.nbytes + _SMALL_BYTES > most_unpacked_bytes(raw_bytes, records.count, payload_bytes)
    ):
        payload = _payload(stored, "none")  # it would be refused when it is read
        payload_bytes = sum(len(part) for part in payload)
    earliest_ms, latest_ms = _time_bounds(batch.column("timestamp"))
    header = BlockHeader(
        journal_id=journal_id,
        writer=writer,
        lane=lane,
        first=first,
        count=records.count,
        raw_bytes=raw_bytes,
        payload_bytes=payload_bytes,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
        payload_crc=_crc(payload),
        previous=previous,
    )
    return Block(header, payload)


def encode_pack(
    records: Records, headers: Sequence[BlockHeader], compression: Compression
) -> Block:
    """A pack of blocks in a row: their headers, at least one, and their records together."""
    first, last = headers[0], headers[-1]
    block = encode(
        records,
        journal_id=first.journal_id,
        writer=first.writer,
        lane=first.lane,
        first=first.first,
        previous=first.previous,
        compression=compression,
    )
    ends = np.array([(header.until, header.checksum) for header in headers], _ENDS).tobytes()
    crc = _CRC.pack(crc32(ends, block.header.payload_crc))
    header = replace(block.header, stands_for=last.checksum)
    return Block(header, (*block.payload, ends, crc))


def decode_ends(data: pa.Buffer, header: BlockHeader, name: str) -> npt.NDArray[np.void]:
    """The ``until`` and ``checksum`` of each block in a pack, ascending; the header is decoded."""
    whole = HEADER_BYTES + header.payload_bytes
    table = data.slice(whole).to_pybytes() if data.size > whole else b""
    ends, crc = table[: -_CRC.size], table[-_CRC.size :]
    if not ends or len(ends) % _ENDS.itemsize:
        raise _damaged(name, f"it has {data.size} bytes, and its blocks would end behind {whole}")
    if _CRC.unpack(crc)[0] != crc32(ends, header.payload_crc):
        raise _damaged(name, "what says where its blocks end fails its checksum")
    return np.frombuffer(ends, _ENDS)


def _payload(batch: pa.RecordBatch, compression: Compression) -> tuple[Part, ...]:
    options = ipc.IpcWriteOptions(
        compression=None if compression == "none" else compression, use_threads=False
    )
    is_copied = compression != "none" and batch.nbytes <= _SMALL_BYTES
    return (_copied if is_copied else _gathered)(batch, options)


def _copied(batch: pa.RecordBatch, options: ipc.IpcWriteOptions) -> tuple[Part, ...]:
    """A batch as one buffer: of a small one that is faster than to gather buffers."""
    file = pa.BufferOutputStream()
    with ipc.new_stream(file, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    return (file.getvalue(),)


def _gathered(batch: pa.RecordBatch, options: ipc.IpcWriteOptions) -> tuple[Part, ...]:
    gather = _Gather()
    with (
        pa.PythonFile(gather, mode="w") as file,
        ipc.new_stream(file, batch.schema, options=options) as stream,
    ):
        stream.write_batch(batch)
    return tuple(gather.parts)


def _time_bounds(times: pa.Array) -> tuple[int, int]:
    """The earliest and the latest of times without nulls, one or more (ms)."""
    ms = np.frombuffer(times.buffers()[1], np.int64)[times.offset : times.offset + len(times)]
    return int(ms.min()), int(ms.max())


def decode_header(start: bytes, size: int | None, name: str) -> BlockHeader:
    """Decode a block's header from the beginning of its file; an error calls that ``name``.

    The size is the file's, in bytes; None if the header alone is asked about, or of a pack.
    """
    if len(start) < HEADER_BYTES:
        there = len(start) if size is None else size
        raise _damaged(name, f"it has {there} bytes, and a block's header alone has {HEADER_BYTES}")
    fields = start[: _FIELDS.size]
    if not fields.startswith(MAGIC[:-1]):
        raise _damaged(name, "it does not begin as a block does")
    if _CRC.unpack_from(start, _FIELDS.size)[0] != crc32(fields):
        raise _damaged(name, "its header fails its checksum")
    version = fields[len(MAGIC) - 1]
    if version != MAGIC[-1]:
        raise _damaged(name, f"it has version {version}, and this Headrace reads version 1")
    header = BlockHeader(*_FIELDS.unpack(fields)[1:])
    whole = HEADER_BYTES + header.payload_bytes
    if size not in (whole, None):
        raise _damaged(name, f"it has {size} bytes, and its header says {whole}")
    return header


def decode(
    data: pa.Buffer, name: str, columns: Sequence[str], *, is_pack: bool = False
) -> tuple[BlockHeader, pa.RecordBatch]:
    """A whole block, or a whole pack: `decode_header` and `decode_payload`."""
    start = data.slice(0, min(HEADER_BYTES, data.size)).to_pybytes()
    header = decode_header(start, None if is_pack else data.size, name)
    if is_pack:
        decode_ends(data, header, name)
    payload = data.slice(HEADER_BYTES, header.payload_bytes)
    return header, decode_payload(header, payload, name, columns)


def decode_payload(
    header: BlockHeader, payload: pa.Buffer, name: str, columns: Sequence[str]
) -> pa.RecordBatch:
    """The records of a block, with some of the columns of ``records.SCHEMA``, in that order.

    The columns of an uncompressed payload are views. Nothing is read until the checksum is right,
    nothing is unpacked that would take more memory than the header allows (`check_unpacked`), and
    nothing is converted until Arrow has validated every offset and every text: anyone who may write
    to the journal could make a checksum right.
    """
    if header.count > MAX_RECORDS:
        raise _damaged(name, f"it says {header.count} records, and {MAX_RECORDS} is the most")
    if _crc([payload]) != header.payload_crc:
        raise _damaged(name, "its records fail their checksum")
    try:
        schema_bytes = check_unpacked(payload, header.raw_bytes, header.count)
        there = _places(payload.slice(0, schema_bytes).to_pybytes(), tuple(columns))
        options = ipc.IpcReadOptions(included_fields=there, use_threads=False)
        with ipc.open_stream(payload, options=options) as stream:
            batch = stream.read_next_batch()
        _check_types(batch.schema)
        batch.validate(full=True)  # a right checksum says nothing of who has made it
        _check_times(batch, header)
    except (pa.ArrowException, StopIteration, OSError, ValueError, KeyError, TypeError) as error:
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


@lru_cache(maxsize=64)  # the blocks of a lane have few schemas
def _places(schema: bytes, columns: tuple[str, ...]) -> list[int]:
    """Return the places of some columns in a schema's message."""
    fields = ipc.read_schema(pa.py_buffer(schema))
    return [n for n, field in enumerate(fields) if field.name in columns]


def _check_types(schema: pa.Schema) -> None:
    """Raise ArrowInvalid where a column has another type than it should, or is there twice."""
    for field in schema:
        if (
            field.type != SCHEMA.field(field.name).type
            or len(schema.get_all_field_indices(field.name)) > 1
        ):
            raise pa.ArrowInvalid(
                f"the column {field.name!r} is not of its type, or is there twice"
            )


def _check_times(batch: pa.RecordBatch, header: BlockHeader) -> None:
    """Raise ArrowInvalid where the times are not those of the header, or too large to convert."""
    if "timestamp" not in batch.schema.names:
        return
    times = batch.column("timestamp")
    if times.null_count or not len(times):
        raise pa.ArrowInvalid(f"{times.null_count} of its {len(times)} times are missing")
    found, says = _time_bounds(times), (header.earliest_ms, header.latest_ms)
    if found != says or max(map(abs, says)) > _MOST_MS:
        raise pa.ArrowInvalid(f"its times are {found} (ms), and its header says {says}")


def _crc(parts: Iterable[Part]) -> int:
    crc = 0
    for part in parts:
        crc = crc32(cast("bytes", part), crc)
    return crc


def _damaged(name: str, what: str) -> CorruptionError:
    return CorruptionError(f"{name} is damaged: {what}; `headrace journal verify` tells all.")
