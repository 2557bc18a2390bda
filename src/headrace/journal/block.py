"""Encoding and decoding of blocks; no I/O.

A block has consecutive records of a lane, and is stored as the payload of a frame.

The payload is one Arrow IPC stream with the columns of ``records.SCHEMA``. Columns with only nulls
are not stored. Decoding compares the payload with the frame's header, and checks the unpacked size
before it unpacks the payload. If a check fails, decoding raises ``CorruptionError``.

Arrow compresses each buffer separately, and stores the unpacked size before the compressed bytes.
Arrow's reader allocates memory of this size without a check, so a forged size could exhaust the
memory. `check_unpacked` finds the buffers in the stream's FlatBuffers messages, adds their unpacked
sizes, and compares the sum with this limit::

    allowed = min(raw_bytes + 2 KiB * count + 64 MiB, max(256 MiB, 1000 * payload_bytes))

``raw_bytes`` is the size of keys, values and headers, without message ids and without empty
headers. The 2 KiB per record (an id has at most 200 characters) and the 64 MiB cover ids and empty
headers. The second argument of ``min`` limits a block whose header states a false ``raw_bytes`` or
``count``. Records that exceed the limit are stored without compression, so every block that
`encode` writes can be read.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal.isal_zlib import crc32
from pyarrow import ipc

from headrace.journal.frame import HEADER_BYTES, FrameHeader, damaged, decode_header
from headrace.journal.records import SCHEMA, Records

Compression = Literal["lz4", "zstd", "none"]
Part: TypeAlias = bytes | pa.Buffer
"""Contiguous bytes of a file. A file is written as a sequence of parts."""

MAX_RECORDS: Final = 2**24
"""Maximum number of records in a block."""

_SMALL_BYTES: Final = 64 * 1024
"""A batch of at most this uncompressed size (bytes) is encoded into a single buffer."""

_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""End-of-stream marker of an Arrow IPC stream."""

_MOST_MS: Final = (2**63 - 1) // 1000
"""Latest allowed timestamp of a record (ms since the epoch). The earliest is the same number with a
minus sign. Spark stores timestamps as microseconds in 64 bits."""

# Terms of the formula in the module's docstring.
_MIB: Final = 2**20
_RECORD_BYTES: Final = 2048
_SLACK_BYTES: Final = 64 * _MIB
_ALWAYS_BYTES: Final = 256 * _MIB
_MOST_TIMES: Final = 1000

_PREFIX: Final = struct.Struct("<II")
_CONTINUATION: Final = 0xFFFFFFFF
_TABLE: Final = struct.Struct("<i")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_I64: Final = struct.Struct("<q")
_UNCOMPRESSED: Final = -1
"""Number that Arrow stores before an uncompressed buffer, in place of the unpacked size."""

# Arrow's Message.fbs: field numbers in its tables, and the kind of a message with records.
_MESSAGE_KIND: Final = 1
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_BYTES: Final = 3
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
_RECORDS: Final = 3


@dataclass(frozen=True, slots=True)
class Block:
    """Encoded block: the frame header, and the payload's buffers in the order of the file."""

    header: FrameHeader
    payload: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """Encoded header, then the payload's buffers."""
        return (self.header.encode(), *self.payload)


class _Gather:
    """File object that collects the buffers written by Arrow, without copying them."""

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
        """Do nothing; Arrow requires this method."""

    def close(self) -> None:
        self.closed = True


def encode(
    records: Records,
    *,
    journal_id: bytes,
    writer: bytes,
    lane: int,
    first: int,
    synced: int = 0,
    previous: int = 0,
    compression: Compression = "lz4",
) -> Block:
    """Encode 1 to ``MAX_RECORDS`` records as a block whose first offset is ``first``.

    Without compression, the payload shares the records' buffers. ``synced`` is the offset up to
    which the lane is durable. ``previous`` is the checksum of the block that ends at ``first``, or
    0 if no block ends there.
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
        payload = _payload(stored, "none")  # readers would refuse the compressed payload
        payload_bytes = sum(len(part) for part in payload)
    earliest_ms, latest_ms = _time_bounds(batch.column("timestamp"))
    header = FrameHeader(
        journal_id=journal_id,
        writer=writer,
        lane=lane,
        first=first,
        synced=synced,
        count=records.count,
        raw_bytes=raw_bytes,
        payload_bytes=payload_bytes,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
        payload_crc=_crc(payload),
        previous=previous,
    )
    return Block(header, payload)


def _payload(batch: pa.RecordBatch, compression: Compression) -> tuple[Part, ...]:
    options = ipc.IpcWriteOptions(
        compression=None if compression == "none" else compression, use_threads=False
    )
    is_copied = compression != "none" and batch.nbytes <= _SMALL_BYTES
    return (_copied if is_copied else _gathered)(batch, options)


def _copied(batch: pa.RecordBatch, options: ipc.IpcWriteOptions) -> tuple[Part, ...]:
    """Encode a small batch into one buffer; for small batches, this is faster than `_gathered`."""
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
    """Return the earliest and latest timestamp (ms) of a non-empty column without nulls."""
    ms = np.frombuffer(times.buffers()[1], np.int64)[times.offset : times.offset + len(times)]
    return int(ms.min()), int(ms.max())


def decode(
    data: pa.Buffer, name: str, columns: Sequence[str]
) -> tuple[FrameHeader, pa.RecordBatch]:
    """Decode a whole frame; return its header, and these ``columns`` of its records.

    Raise CorruptionError, with the frame's ``name``, if the frame is damaged.
    """
    header = decode_header(data.slice(0, min(HEADER_BYTES, data.size)).to_pybytes(), name)
    if data.size != (whole := HEADER_BYTES + header.payload_bytes):
        raise damaged(name, f"it has {data.size} bytes, but its header says {whole}")
    payload = data.slice(HEADER_BYTES, header.payload_bytes)
    return header, decode_payload(header, payload, name, columns)


def decode_payload(
    header: FrameHeader, payload: pa.Buffer, name: str, columns: Sequence[str]
) -> pa.RecordBatch:
    """Decode a block's records; return these ``columns`` of ``records.SCHEMA``, in this order.

    Check the checksum, the unpacked size (`check_unpacked`), and all offsets and texts (by Arrow's
    validation). Arrow's validation is necessary because anyone who may write to the journal can
    forge a checksum. If a check fails, raise CorruptionError with the frame's ``name``. Columns of
    an uncompressed payload are views, not copies.
    """
    if header.count > MAX_RECORDS:
        raise damaged(name, f"its header says {header.count} records, more than {MAX_RECORDS}")
    if _crc([payload]) != header.payload_crc:
        raise damaged(name, "its records fail their checksum")
    try:
        schema_bytes = check_unpacked(payload, header.raw_bytes, header.count)
        places = _places(payload.slice(0, schema_bytes).to_pybytes(), tuple(columns))
        options = ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with ipc.open_stream(payload, options=options) as stream:
            batch = stream.read_next_batch()
        _check_types(batch.schema)
        batch.validate(full=True)  # a valid checksum can be forged
        _check_times(batch, header)
    except (pa.ArrowException, StopIteration, OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(name, f"its records cannot be read: {error}") from error
    if batch.num_rows != header.count:
        raise damaged(name, f"it has {batch.num_rows} records, but its header says {header.count}")
    return _with_columns(batch, columns)


def decode_together(
    data: pa.Buffer, rows: npt.NDArray[np.void], places: Sequence[int], columns: Sequence[str]
) -> pa.RecordBatch | None:
    """Decode the records of consecutive small frames with equal schemas as one Arrow stream.

    This is five times as fast as calling `decode_payload` for each frame, and makes the same
    checks. Return None if a frame is damaged or the schemas differ. In this case, call
    `decode_payload` for each frame: its error names the damaged frame.
    """
    view, schema = memoryview(data).cast("B"), b""  # Arrow gives signed bytes
    messages: list[bytes | memoryview] = [b""]
    sizes, raw_bytes, counts, crcs = (
        rows[name].tolist() for name in ("payload_bytes", "raw_bytes", "count", "payload_crc")
    )
    try:
        for place, size, raw, count, crc in zip(
            places, sizes, raw_bytes, counts, crcs, strict=True
        ):
            begin = place + HEADER_BYTES
            payload = view[begin : begin + size]
            if crc32(payload) != crc or payload[-len(_END) :].tobytes() != _END:
                return None
            schema_bytes = check_unpacked(data.slice(begin, size), raw, count)
            schema = schema or bytes(payload[:schema_bytes])
            if payload[:schema_bytes] != schema:
                return None
            messages.append(payload[schema_bytes : -len(_END)])
        messages[0] = schema
        options = ipc.IpcReadOptions(
            included_fields=_places(schema, tuple(columns)), use_threads=False
        )
        with ipc.open_stream(b"".join([*messages, _END]), options=options) as stream:
            batches = list(stream)
        _check_types(stream.schema)
        if [batch.num_rows for batch in batches] != counts:
            return None
        batch = pa.concat_batches(batches)
        batch.validate(full=True)
        if not _are_times(batch, rows):
            return None
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None
    return _with_columns(batch, columns)


def _are_times(batch: pa.RecordBatch, rows: npt.NDArray[np.void]) -> bool:
    """Whether each frame's earliest and latest timestamp match the frame's header.

    ``batch`` has the records of all frames, and ``rows`` the headers, in the same order.
    """
    if "timestamp" not in batch.schema.names:
        return True
    times = batch.column("timestamp")
    if times.null_count:
        return False
    ms = np.frombuffer(times.buffers()[1], np.int64)[times.offset : times.offset + len(times)]
    starts = np.concatenate([[0], np.cumsum(rows["count"].astype(np.int64))[:-1]])
    earliest, latest = np.minimum.reduceat(ms, starts), np.maximum.reduceat(ms, starts)
    is_theirs = (earliest == rows["earliest_ms"]) & (latest == rows["latest_ms"])
    return bool(is_theirs.all() and max(-int(ms.min()), int(ms.max())) <= _MOST_MS)


def _with_columns(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with exactly ``columns``, in this order; columns not in ``batch`` are null."""
    wanted = [SCHEMA.field(column) for column in columns]
    return pa.RecordBatch.from_arrays(
        [
            batch.column(field.name)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in wanted
        ],
        schema=pa.schema(wanted),
    )


@lru_cache(maxsize=64)  # the blocks of a lane have few schemas
def _places(schema: bytes, columns: tuple[str, ...]) -> list[int]:
    """Return the indexes of ``columns`` in an encoded Arrow schema."""
    fields = ipc.read_schema(pa.py_buffer(schema))
    return [n for n, field in enumerate(fields) if field.name in columns]


def _check_types(schema: pa.Schema) -> None:
    """Raise ArrowInvalid if a column's type differs from ``SCHEMA``, or a column is repeated."""
    for field in schema:
        if (
            field.type != SCHEMA.field(field.name).type
            or len(schema.get_all_field_indices(field.name)) > 1
        ):
            raise pa.ArrowInvalid(f"the column {field.name!r} has the wrong type, or occurs twice")


def _check_times(batch: pa.RecordBatch, header: FrameHeader) -> None:
    """Raise ArrowInvalid if timestamps are missing, contradict the header, or exceed `_MOST_MS`."""
    if "timestamp" not in batch.schema.names:
        return
    times = batch.column("timestamp")
    if times.null_count or not len(times):
        raise pa.ArrowInvalid(f"{times.null_count} of its {len(times)} timestamps are missing")
    bounds, says = _time_bounds(times), (header.earliest_ms, header.latest_ms)
    if bounds != says or max(map(abs, says)) > _MOST_MS:
        raise pa.ArrowInvalid(
            f"its earliest and latest timestamp are {bounds} (ms), but its header says {says}"
        )


def _crc(parts: Iterable[Part]) -> int:
    crc = 0
    for part in parts:
        crc = crc32(cast("bytes", part), crc)
    return crc


def most_unpacked_bytes(raw_bytes: int, count: int, payload_bytes: int) -> int:
    """Return the maximum unpacked size of a block (bytes), by the formula of this module."""
    by_records = raw_bytes + _RECORD_BYTES * count + _SLACK_BYTES
    return min(by_records, max(_ALWAYS_BYTES, _MOST_TIMES * payload_bytes))


def check_unpacked(payload: pa.Buffer, raw_bytes: int, count: int) -> int:
    """Check a payload's unpacked size without unpacking; return the schema message's size (bytes).

    Raise ArrowInvalid if the unpacked size exceeds `most_unpacked_bytes`, or if the payload is not
    a schema message followed by one record batch.
    """
    try:
        sizes, schema_bytes = unpacked_sizes(payload)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid("its messages give invalid positions of buffers") from error
    unpacked_bytes, allowed = sum(sizes), most_unpacked_bytes(raw_bytes, count, payload.size)
    if unpacked_bytes > allowed:
        raise pa.ArrowInvalid(
            f"its {payload.size} bytes would unpack to {unpacked_bytes} bytes, more than the"
            f" {allowed} bytes that are allowed for {count} records of {raw_bytes} bytes"
        )
    return schema_bytes


def unpacked_sizes(payload: pa.Buffer) -> tuple[Sequence[int], int]:
    """Return each compressed buffer's unpacked size, and the schema message's size (bytes).

    Raise ArrowInvalid, IndexError or struct.error if the payload is not a schema message followed
    by one record batch.
    """
    data = memoryview(payload)
    schema_bytes = _message_bytes(data, 0)
    body = schema_bytes + _message_bytes(data, schema_bytes)
    unpack = _I64.unpack_from
    sizes = [unpack(data, body + at)[0] for at in _compressed(bytes(data[:body]), schema_bytes)]
    if sizes and min(sizes) < _UNCOMPRESSED:
        raise IndexError(min(sizes))
    return [size for size in sizes if size != _UNCOMPRESSED], schema_bytes


@lru_cache(maxsize=1024)  # many blocks of one record have the same messages
def _compressed(messages: bytes, schema_bytes: int) -> Sequence[int]:
    """Return the position of each non-empty buffer in the body of a record batch.

    Return an empty sequence if the record batch is not compressed. ``messages`` has the schema
    message and the record batch's message, without the body.
    """
    data = memoryview(messages)
    schema = _target(data, _PREFIX.size)
    length = _field(data, schema, _MESSAGE_BODY_BYTES)
    if length and _I64.unpack_from(data, length)[0]:
        raise pa.ArrowInvalid("its schema message has a body")
    message = _target(data, schema_bytes + _PREFIX.size)
    if (kind := data[_field(data, message, _MESSAGE_KIND)]) != _RECORDS:
        # Arrow would unpack a dictionary before the records, unchecked.
        raise pa.ArrowInvalid(f"it has an Arrow message of type {kind} in place of its records")
    batch = _target(data, _field(data, message, _MESSAGE_HEADER))
    buffers = _field(data, batch, _BATCH_BUFFERS)
    if not buffers or not _field(data, batch, _BATCH_COMPRESSION):
        return ()
    start = _target(data, buffers)
    places = struct.unpack_from(f"<{2 * _U32.unpack_from(data, start)[0]}q", data, start + 4)
    if places and min(places) < 0:
        raise IndexError(min(places))
    return [at for at, size in zip(places[::2], places[1::2], strict=True) if size]


def _message_bytes(data: memoryview, at: int) -> int:
    """Return the size (bytes) of the Arrow message at position ``at``, without its body."""
    continuation, size = _PREFIX.unpack_from(data, at)
    if continuation != _CONTINUATION:
        raise pa.ArrowInvalid("its messages are not in the format of Arrow 0.15 and later")
    return _PREFIX.size + int(size)


def _field(data: memoryview, table: int, place: int) -> int:
    """Return the position of a field in a FlatBuffers table; 0 if the table lacks the field.

    ``table`` is the table's position, and ``place`` is the field's number.
    """
    fields = table - _TABLE.unpack_from(data, table)[0]
    if fields < 0:
        raise IndexError(fields)
    at = 4 + 2 * place
    if at >= _U16.unpack_from(data, fields)[0]:
        return 0
    offset: int = _U16.unpack_from(data, fields + at)[0]
    return table + offset if offset else 0


def _target(data: memoryview, at: int) -> int:
    """Follow the FlatBuffers offset at position ``at``; return the position to which it points."""
    return at + int(_U32.unpack_from(data, at)[0])
