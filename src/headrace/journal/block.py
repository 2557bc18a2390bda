"""A block: some records of a lane as the payload of a frame, and back. Pure.

The payload is one Arrow IPC stream, whose columns are those of ``records.SCHEMA``; one that has
only nulls is left out. Decoding raises ``CorruptionError``: the payload is checked against the
frame's header before it is believed, and what it takes unpacked before it is unpacked.
"""

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
from headrace.journal.unpacking import check_unpacked, most_unpacked_bytes

Compression = Literal["lz4", "zstd", "none"]
Part: TypeAlias = bytes | pa.Buffer
"""Some of a file's bytes."""

MAX_RECORDS: Final = 2**24
"""Records in a block: as many offsets are declared lost where a block says nothing of itself."""

_SMALL_BYTES: Final = 64 * 1024

_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""End of a stream of Arrow."""

_MOST_MS: Final = (2**63 - 1) // 1000
"""Largest absolute time of a record (ms): Spark's timestamps have microseconds."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block to be written: its header, and the buffers that are its payload, in order."""

    header: FrameHeader
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
    synced: int = 0,
    previous: int = 0,
    compression: Compression = "lz4",
) -> Block:
    """Records as a block; at least one, at most ``MAX_RECORDS``.

    Without compression, their buffers become the payload; Arrow compresses each buffer by itself.
    ``synced`` is the offset up to which the lane is durable; ``previous`` the checksum of the block
    that ends at ``first``; 0 if none does.
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


def decode(
    data: pa.Buffer, name: str, columns: Sequence[str]
) -> tuple[FrameHeader, pa.RecordBatch]:
    """Decode a whole frame: `decode_header` and `decode_payload`."""
    header = decode_header(data.slice(0, min(HEADER_BYTES, data.size)).to_pybytes(), name)
    if data.size != (whole := HEADER_BYTES + header.payload_bytes):
        raise damaged(name, f"it has {data.size} bytes, and its header says {whole}")
    payload = data.slice(HEADER_BYTES, header.payload_bytes)
    return header, decode_payload(header, payload, name, columns)


def decode_payload(
    header: FrameHeader, payload: pa.Buffer, name: str, columns: Sequence[str]
) -> pa.RecordBatch:
    """The records of a block, with some of the columns of ``records.SCHEMA``, in that order.

    The columns of an uncompressed payload are views. Nothing is read until the checksum is right,
    nothing is unpacked that would take more memory than the header allows (`check_unpacked`), and
    nothing is converted until Arrow has validated every offset and every text: anyone who may write
    to the journal could make a checksum right.
    """
    if header.count > MAX_RECORDS:
        raise damaged(name, f"it says {header.count} records, and {MAX_RECORDS} is the most")
    if _crc([payload]) != header.payload_crc:
        raise damaged(name, "its records fail their checksum")
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
        raise damaged(name, f"its records cannot be read: {error}") from error
    if batch.num_rows != header.count:
        raise damaged(name, f"it has {batch.num_rows} records, not the {header.count} it says")
    return _with_columns(batch, columns)


def decode_together(
    data: pa.Buffer, rows: npt.NDArray[np.void], places: Sequence[int], columns: Sequence[str]
) -> pa.RecordBatch | None:
    """Decode small frames in a row as one stream of Arrow, where they have the same schema.

    Each is checked as `decode_payload` checks one. That takes five times as long, so it is left to
    say what is wrong with a frame: None where one is damaged, or their schemas differ.
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
    """Whether the times of frames in a row are those of their headers."""
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
    """These columns of ``records.SCHEMA``, with nulls where a batch has none."""
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


def _check_times(batch: pa.RecordBatch, header: FrameHeader) -> None:
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
