"""Size of a payload once it is unpacked, checked before it is. Pure.

Arrow compresses each buffer of a payload by itself, and writes before it how many bytes it unpacks
to. Its reader allocates as many, whatever else the block says, and unpacks no more than that. So a
payload takes what these numbers say together, which `check_unpacked` reads from the buffers'
places in the message, a table of FlatBuffers, and compares with what the block's header allows::

    allowed = min(raw_bytes + 2 KiB * count + 64 MiB, max(256 MiB, 1000 * payload_bytes))

``raw_bytes`` counts neither ids nor headers without a name and a value; for these are the 2 KiB of
each record (an id has 200 characters) and the 64 MiB. The second part is for a header that claims
too much, too. `encode` writes records that would take more without compression, so that every block
which it has written is read.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

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

# Arrow's Message.fbs: places of fields in its tables, and the kind of a message with records.
_MESSAGE_KIND: Final = 1
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_BYTES: Final = 3
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
_RECORDS: Final = 3


def most_unpacked_bytes(raw_bytes: int, count: int, payload_bytes: int) -> int:
    """Return what records may take in memory, by the formula of this module."""
    by_records = raw_bytes + _RECORD_BYTES * count + _SLACK_BYTES
    return min(by_records, max(_ALWAYS_BYTES, _MOST_TIMES * payload_bytes))


def check_unpacked(payload: pa.Buffer, raw_bytes: int, count: int) -> int:
    """Raise ArrowInvalid where a payload would take more memory than its header allows.

    The payload must be a schema and one batch of records. Nothing is unpacked. Returns the size of
    the schema's message.
    """
    try:
        sizes, schema_bytes = unpacked_sizes(payload)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid("its buffers are not where it says") from error
    unpacked_bytes, allowed = sum(sizes), most_unpacked_bytes(raw_bytes, count, payload.size)
    if unpacked_bytes > allowed:
        raise pa.ArrowInvalid(
            f"its {payload.size} bytes would take {unpacked_bytes} unpacked, and {count} records of"
            f" {raw_bytes} bytes take {allowed} at most"
        )
    return schema_bytes


def unpacked_sizes(payload: pa.Buffer) -> tuple[Sequence[int], int]:
    """Return what each compressed buffer of a payload unpacks to (bytes), and the schema's size.

    The size is that of the message with the schema, which comes first. ArrowInvalid, IndexError and
    struct.error say that a payload is not of that form.
    """
    data = memoryview(payload)
    schema_bytes = _message_bytes(data, 0)
    body = schema_bytes + _message_bytes(data, schema_bytes)
    unpack = _I64.unpack_from
    sizes = [unpack(data, body + at)[0] for at in _compressed(bytes(data[:body]), schema_bytes)]
    if sizes and min(sizes) < _UNCOMPRESSED:
        raise IndexError(min(sizes))
    return [size for size in sizes if size != _UNCOMPRESSED], schema_bytes


@lru_cache(maxsize=1024)  # of blocks of one record many have the same messages
def _compressed(messages: bytes, schema_bytes: int) -> Sequence[int]:
    """Return where the compressed buffers begin in the body behind the messages of a payload."""
    data = memoryview(messages)
    schema = _target(data, _PREFIX.size)
    length = _field(data, schema, _MESSAGE_BODY_BYTES)
    if length and _I64.unpack_from(data, length)[0]:
        raise pa.ArrowInvalid("its schema has a body")
    message = _target(data, schema_bytes + _PREFIX.size)
    if (kind := data[_field(data, message, _MESSAGE_KIND)]) != _RECORDS:
        # Of these a dictionary would be unpacked before the records.
        raise pa.ArrowInvalid(f"it has a message of kind {kind} where its records must be")
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
    """Return how many bytes the message has that begins at a place, without its body."""
    continuation, size = _PREFIX.unpack_from(data, at)
    if continuation != _CONTINUATION:
        raise pa.ArrowInvalid("its messages are not in the form of Arrow 0.15 and later")
    return _PREFIX.size + int(size)


def _field(data: memoryview, table: int, place: int) -> int:
    """Return where a table's field is; 0 where the table has none."""
    fields = table - _TABLE.unpack_from(data, table)[0]
    if fields < 0:
        raise IndexError(fields)
    at = 4 + 2 * place
    if at >= _U16.unpack_from(data, fields)[0]:
        return 0
    offset: int = _U16.unpack_from(data, fields + at)[0]
    return table + offset if offset else 0


def _target(data: memoryview, at: int) -> int:
    """Return where the table or vector is to which the reference there leads."""
    return at + int(_U32.unpack_from(data, at)[0])
