"""Fast decoding of flat Avro records to Arrow, column by column with NumPy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.decoding.formats import FIRST_DAY, FIRST_US, LAST_DAY, LAST_US, nullable
from headrace.spark_versions import arrow_type

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]

_PADDING: Final = bytes(16)
"""Bytes that are appended after the last value, so that reading its last number stays within the
data."""

_MOST_BYTES: Final = 2**31 - 2**20
"""Maximum total size of the values in one call of `FlatAvro.decode` (bytes), because Arrow's
offsets have 32 bits."""

_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")
_INT: Final = (-(2**31), 2**31 - 1)
_BOUNDS: Final[dict[tuple[str, str | None], tuple[int, int]]] = {
    ("int", None): _INT,
    ("int", "date"): (FIRST_DAY, LAST_DAY),
    ("long", None): (-(2**63), 2**63 - 1),
    ("long", "timestamp-micros"): (FIRST_US, LAST_US),
    ("long", "local-timestamp-micros"): (FIRST_US, LAST_US),
    **{("long", logical): (FIRST_US // 1000, LAST_US // 1000) for logical in _MILLIS},
}
"""Smallest and largest allowed number, by Avro type and logical type."""

_TEXTS: Final = frozenset({("string", None), ("string", "uuid"), ("bytes", None)})
_FLOATS: Final = frozenset({"float", "double"})


@dataclass(frozen=True, slots=True)
class Flat:
    """Result of decoding flat records together.

    Attributes:
        structs: a struct for each requested value, in order; invalid where ``fits`` is false.
        fits: for each struct, whether it is certainly a complete and valid record.
    """

    structs: pa.StructArray
    fits: _Mask


class FlatAvro:
    """Decodes records whose fields are plain types, or unions of null and a plain type.

    A value that fastavro would refuse is never accepted. Some valid values are left undecoded;
    fastavro must decode these values.
    """

    def __init__(self, reads: "list[_Read]", nulls: list[int | None], kinds: pa.StructType) -> None:
        self._reads: Final = reads
        self._nulls: Final = nulls
        self._type: Final = kinds

    @classmethod
    def of(cls, schema: Any, columns: StructType) -> Self | None:
        """Create a decoder for a parsed schema; return None if the schema is not flat.

        ``schema`` is parsed with its logical types.
        """
        reads: list[_Read] = []
        nulls: list[int | None] = []
        kinds = arrow_type(nullable(columns))
        for field, kind in zip(schema["fields"], kinds, strict=True):
            is_union = isinstance(field["type"], list)
            branches = field["type"] if is_union else [field["type"]]
            types = [branch for branch in branches if branch != "null"]
            read = _read_of(types[0], kind.type) if len(types) == 1 else None
            if read is None or len(branches) != 1 + is_union:
                return None
            reads.append(read)
            nulls.append(branches.index("null") if is_union else None)
        return cls(reads, nulls, kinds)

    def decode(self, values: pa.Array, numbers: _Ints, header_bytes: _Ints) -> Flat | None:
        """Decode the values with these indexes; return None if fastavro must decode them.

        Args:
            values: binary values, with 32-bit offsets.
            numbers: ascending indexes of the values to decode; these values are not null.
            header_bytes: for each of these values, the size of its header (bytes).
        """
        _, offsets_buffer, data_buffer = values.buffers()
        if data_buffer is None or data_buffer.size > _MOST_BYTES:
            return None
        offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset :].astype(np.int64)
        first, last = offsets[0], offsets[len(values)]
        data = np.frombuffer(
            data_buffer.slice(first, last - first).to_pybytes() + _PADDING, np.uint8
        )
        starts = offsets[numbers] - first + header_bytes
        cursor = _Cursor(data, starts, offsets[numbers + 1] - first)
        try:
            arrays = [
                _column(cursor, read, null)
                for read, null in zip(self._reads, self._nulls, strict=True)
            ]
        except pa.ArrowInvalid:  # a text that is not UTF-8, or too large
            return None
        fields = [self._type.field(number) for number in range(len(arrays))]
        structs = pa.StructArray.from_arrays(arrays, fields=fields)
        return Flat(structs, cursor.at == cursor.ends)


class _Cursor:
    """Reading position in each record; a position beyond the record's end means "does not fit"."""

    def __init__(self, data: _Bytes, at: _Ints, ends: _Ints) -> None:
        self.data: Final = data
        self.ends: Final = ends
        self.at = np.minimum(at, ends + 1)

    def refuse(self, rows: _Ints, unfit: _Mask) -> None:
        if unfit.any():
            refused = rows[unfit]
            self.at[refused] = self.ends[refused] + 1

    def step(self, rows: _Ints, sizes: _Ints | int) -> _Ints:
        began = self.at[rows]
        ends = self.ends[rows]
        self.at[rows] = np.where(sizes > ends - began, ends + 1, began + sizes)
        return began

    def numbers(self, rows: _Ints) -> _Ints:
        at = self.at[rows]
        read = self.data[at]
        magnitude = (read & 0x7F).astype(np.uint64)
        at += 1
        more = np.flatnonzero(read >= 0x80)
        unfit: list[_Ints] = []
        for shift in range(7, 70, 7):
            if not len(more):
                break
            # A position beyond all data is also beyond its record's end, so any byte will do here.
            read = self.data[np.minimum(at[more], len(self.data) - 1)]
            if shift == 63:
                unfit.append(more[read > 1])
            magnitude[more] |= (read & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[more] += 1
            more = more[read >= 0x80]
        self.at[rows] = np.minimum(at, self.ends[rows] + 1)
        for refused in unfit:
            self.at[rows[refused]] = self.ends[rows[refused]] + 1
        zigzag = (magnitude >> np.uint64(1)) ^ (~(magnitude & np.uint64(1)) + np.uint64(1))
        return zigzag.view(np.int64)


_Read = Callable[[_Cursor, _Ints], pa.Array]
"""Function that takes a cursor and indexes of records, and reads the next value of each record."""


def _column(cursor: _Cursor, read: _Read, null: int | None) -> pa.Array:
    every = np.arange(len(cursor.at))
    if null is None:
        return read(cursor, every)
    branches = cursor.numbers(every)
    cursor.refuse(every, (branches < 0) | (branches > 1))
    is_there = branches == 1 - null
    if is_there.all():
        return read(cursor, every)
    present = np.flatnonzero(is_there)
    places = np.cumsum(is_there) - 1
    return read(cursor, present).take(pa.array(places, mask=~is_there))


def _read_of(schema: Any, kind: pa.DataType) -> _Read | None:
    name, logical = schema, None
    if isinstance(schema, Mapping):
        name, logical = schema["type"], schema.get("logicalType")
    if not isinstance(name, str):
        return None
    bounds = _BOUNDS.get((name, logical))
    if bounds is not None:
        times = 1000 if logical in _MILLIS else 1
        return lambda cursor, rows: _integers(cursor, rows, kind, bounds, times)
    if (name, logical) in _TEXTS:
        return lambda cursor, rows: _texts(cursor, rows, kind)
    if logical is None and name in _FLOATS:
        return lambda cursor, rows: _floats(cursor, rows, kind)
    return _booleans if (name, logical) == ("boolean", None) else None


def _integers(
    cursor: _Cursor, rows: _Ints, kind: pa.DataType, bounds: tuple[int, int], times: int
) -> pa.Array:
    values = cursor.numbers(rows)
    unfit = (values < bounds[0]) | (values > bounds[1])
    if unfit.any():
        cursor.refuse(rows, unfit)
        values = np.where(unfit, 0, values)
    if times != 1:
        values = values * times
    stored = values.astype(np.int32) if kind.bit_width == 32 else values
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(stored)])


def _booleans(cursor: _Cursor, rows: _Ints) -> pa.Array:
    read = cursor.data[cursor.step(rows, 1)]
    cursor.refuse(rows, read > 1)
    return pa.array(read == 1)


def _floats(cursor: _Cursor, rows: _Ints, kind: pa.DataType) -> pa.Array:
    size = kind.bit_width // 8
    places = cursor.step(rows, size)[:, None] + np.arange(size)
    read = cursor.data[np.minimum(places, len(cursor.data) - 1)]
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(read)])


def _texts(cursor: _Cursor, rows: _Ints, kind: pa.DataType) -> pa.Array:
    """Read texts or bytes.

    The items of the Arrow array ``every`` are by turns a value and the bytes up to the next value.
    Arrow then copies only the values.
    """
    if not len(rows):
        return pa.array([], kind)
    sizes = cursor.numbers(rows)
    cursor.refuse(rows, sizes < 0)
    began = cursor.step(rows, np.maximum(sizes, 0))
    ended = cursor.at[rows]
    fits = ended <= cursor.ends[rows]
    pieces = np.empty(2 * len(rows), np.int32)
    pieces[::2] = np.where(fits, began, cursor.ends[rows])
    pieces[1::2] = np.where(fits, ended, cursor.ends[rows])
    buffers = [None, pa.py_buffer(pieces), pa.py_buffer(cursor.data)]
    count = 2 * len(rows) - 1
    every = pa.Array.from_buffers(pa.binary(), count, buffers)
    return every.take(pa.array(np.arange(0, count, 2))).cast(kind)
