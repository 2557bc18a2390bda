"""Records of a journal as Arrow columns, without a Python object for each record."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.timing import wall_clock_ms
from headrace.errors import OptionError
from headrace.gate import HEADERS

Headers = Sequence[tuple[str, bytes | None]]

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("headers", HEADERS),
        ("id", pa.string()),
    ]
)
"""All columns of a record. ``id`` is the message id that the sender chose, or null."""

_NAMES: Final = tuple(SCHEMA.names)
_TIME: Final = SCHEMA.field("timestamp").type

_FEW: Final = 16
"""Columns of nulls up to this length are cached."""

_MAX_BYTES: Final = 2**31 - 1
"""Maximum total size of the values in one Arrow column (bytes), because Arrow's offsets have 32
bits."""


def message_ids(batch: pa.RecordBatch) -> list[str | None] | None:
    """Return the message id of each record; None if no record has an id."""
    column = batch.column("id")
    return None if column.null_count == len(column) else column.to_pylist()


class Records:
    """Immutable sequence of records that wraps one Arrow record batch.

    Args:
        batch: Records in the schema ``SCHEMA``. The buffers are shared, not copied.
    """

    __slots__ = ("_bytes", "batch")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._bytes: int | None = None

    @classmethod
    def of(
        cls,
        values: Sequence[bytes | None],
        *,
        timestamp_ms: int | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        ids: Sequence[str | None] | None = None,
    ) -> "Records":
        """Return one record for each value; a value of None is a null, as in Kafka.

        All records get the same timestamp, in milliseconds since the epoch. Default: the time of
        the call. ``keys``, ``headers`` and ``ids`` must be as long as ``values``. An argument of
        which every value would be None may be None itself.

        Raises:
            OptionError: The columns differ in length, or a column has more than 2 GiB.
        """
        rows = None if headers is None else [_pairs(row) for row in headers]
        raw = {"key": keys, "value": values, "headers": rows, "id": ids}
        count = len(values)
        columns = {
            name: _array(column, count, name) for name, column in raw.items() if column is not None
        }
        time_ms = wall_clock_ms() if timestamp_ms is None else timestamp_ms
        return cls.of_columns(count, timestamp_ms=time_ms, **columns)

    @classmethod
    def of_buffers(cls, values: Sequence[bytes], *, timestamp_ms: int) -> "Records":
        """Return one record for each value; a value is bytes or another object with a buffer.

        A single value is shared, not copied. Several values are copied into one buffer.

        Raises:
            OptionError: The values have more than 2 GiB in total.
        """
        count = len(values)
        sizes = np.fromiter(map(len, values), np.int64, count)
        if sizes.sum() > _MAX_BYTES:
            raise _too_large()
        ends = np.zeros(count + 1, np.int32)
        np.cumsum(sizes, out=ends[1:])
        data: bytes | bytearray
        if count == 1:
            data = values[0]
        else:
            data = bytearray()
            for value in values:  # `join` would hold a view of every value at the same time
                data += value
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
        column = pa.Array.from_buffers(pa.binary(), count, buffers)
        return cls.of_columns(count, timestamp_ms=timestamp_ms, value=column)

    @classmethod
    def of_columns(cls, count: int, *, timestamp_ms: int, **columns: pa.Array) -> "Records":
        """Return ``count`` records from columns of ``SCHEMA``; absent columns are null.

        All records get the timestamp ``timestamp_ms`` (ms since the epoch).
        """
        times = pa.py_buffer(np.full(count, timestamp_ms, np.int64))
        columns["timestamp"] = pa.Array.from_buffers(_TIME, count, [None, times])
        arrays = [columns[name] if name in columns else _nulls(name, count) for name in _NAMES]
        return cls(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    @classmethod
    def of_lines(cls, data: bytes, *, timestamp_ms: int) -> "Records":
        r"""Return one record for each line, without its line end (``\n`` or ``\r\n``).

        The line end of the last line is optional. An empty line becomes a record with an empty
        value. No Python object is created for a line, so about 1 GB is split per second.

        Raises:
            OptionError: The data has 2 GiB or more.
        """
        if len(data) > _MAX_BYTES:
            raise OptionError(
                f"The lines have {len(data)} bytes, more than the maximum of {_MAX_BYTES} bytes; "
                "pass them in smaller chunks."
            )
        # Searching for a single byte is ten times as fast as searching for two.
        if b"\r" in data and b"\r\n" in data:
            data = data.replace(b"\r\n", b"\n")
        if data and not data.endswith(b"\n"):
            data += b"\n"
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        count = len(ends)
        # The text below has no line ends: before the end of line i, i line ends are removed.
        offsets = np.zeros(count + 1, np.int32)
        np.subtract(ends, np.arange(count), out=offsets[1:], casting="unsafe")
        text = pa.py_buffer(data.replace(b"\n", b""))
        values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), text])
        return cls.of_columns(count, timestamp_ms=timestamp_ms, value=values)

    @classmethod
    def concat(cls, parts: Iterable["Records"]) -> "Records":
        """Return the records of all ``parts`` in order.

        Raises:
            OptionError: A column has more than 2 GiB in total.
        """
        batches = [part.batch for part in parts]
        if len(batches) == 1:
            return cls(batches[0])
        if not batches:
            return cls.of_columns(0, timestamp_ms=0)
        try:
            return cls(pa.concat_batches(batches))
        except pa.ArrowInvalid as error:
            raise _too_large() from error

    @property
    def count(self) -> int:
        """Number of records."""
        return int(self.batch.num_rows)

    @property
    def bytes(self) -> int:
        """Total size of keys, values and headers (bytes), without framing."""
        if self._bytes is None:
            headers = self.batch.column("headers")
            sizes = [_bytes_of(self.batch.column(name)) for name in ("key", "value")]
            if headers.null_count < len(headers):
                pairs = headers.flatten()
                sizes += [_bytes_of(pairs.field(name)) for name in ("key", "value")]
            self._bytes = sum(sizes)
        return self._bytes

    @property
    def ids(self) -> tuple[int, int]:
        """Number of records with an id, and the total size of the ids (bytes)."""
        column = self.batch.column("id")
        return len(column) - column.null_count, _bytes_of(column)

    def with_ids(self, ids: "Sequence[str | None] | pa.StringArray") -> "Records":
        """Return the same records with these ids, one for each record."""
        place = SCHEMA.get_field_index("id")
        column = ids if isinstance(ids, pa.StringArray) else _array(ids, self.count, "id")
        return Records(self.batch.set_column(place, SCHEMA.field("id"), column))

    def slice(self, start: int, until: int) -> "Records":
        """Return a view of the records from index ``start`` to index ``until - 1``."""
        return Records(self.batch.slice(start, until - start))

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records) and bool(self.batch.equals(other.batch))

    __hash__ = None  # type: ignore[assignment]  # as of any columns

    def __repr__(self) -> str:
        return f"Records(count={self.count}, bytes={self.bytes})"


def _nulls(name: str, count: int) -> pa.Array:
    """Return a column of nulls. Short columns are cached: Arrow arrays are immutable."""
    return _few_nulls(name, count) if count <= _FEW else pa.nulls(count, SCHEMA.field(name).type)


@cache
def _few_nulls(name: str, count: int) -> pa.Array:
    return pa.nulls(count, SCHEMA.field(name).type)


def _array(values: Sequence[Any], count: int, name: str) -> pa.Array:
    if len(values) != count:
        raise OptionError(
            f"The column {name} has {len(values)} values for {count} records; it must have one "
            "value per record, or be omitted."
        )
    try:
        array = pa.array(values, SCHEMA.field(name).type)
    except pa.ArrowCapacityError as error:
        raise _too_large() from error
    if isinstance(array, pa.ChunkedArray):  # Arrow splits a column that exceeds one array
        raise _too_large()
    return array


def _pairs(headers: Headers | None) -> list[dict[str, Any]] | None:
    """Return a record's headers as Arrow structs; None if it has no headers, as in Kafka."""
    return [{"key": key, "value": value} for key, value in headers] if headers else None


def _bytes_of(column: pa.Array) -> int:
    nulls, count = column.null_count, len(column)
    if nulls == count:
        return 0
    if nulls:  # a null may still have bytes in the buffer
        return int(pc.sum(pc.binary_length(column)).as_py() or 0)
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return int(offsets[column.offset + count] - offsets[column.offset])


def _too_large() -> OptionError:
    return OptionError("A column of the records has more than 2 GiB; use smaller chunks.")
