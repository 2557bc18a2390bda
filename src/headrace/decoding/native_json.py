"""JSON decoded by the native engine, if it is installed and the schema is flat.

The native engine only decodes values that surely fit. The Python decoder decodes all others, and
gives the reasons. So both engines return the same columns and the same reasons.
"""

import logging
from collections.abc import Collection
from functools import cache
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from headrace import __version__
from headrace.decoding.formats import Decoded, Decoder

_TYPES: Final = frozenset(
    {
        "string",
        "boolean",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "float",
        "double",
        "date",
        "timestamp",
    }
)

_LOG: Final = logging.getLogger("headrace.decoding")


class _JsonColumns(Protocol):
    """The native decoder of one schema."""

    def decode(self, values: pa.Array) -> tuple[pa.StructArray, list[int]]: ...


@cache
def _engine() -> type | None:
    """Return the native decoder's class; None if the engine is missing or of another version."""
    try:
        import headrace_native  # noqa: PLC0415  (an extra)
    except ImportError:
        return None
    version: str = headrace_native.__version__
    if version != __version__:
        _LOG.warning(
            "JSON is decoded in Python: headrace-native is %s, and Headrace is %s; install the same"
            " version of both.",
            version,
            __version__,
        )
        return None
    return headrace_native.JsonColumns  # type: ignore[no-any-return]


def with_native_json(
    columns: t.StructType, asked: Collection[str] | None, python: Decoder
) -> Decoder:
    """Return the native decoder of a flat schema, or else the Python decoder.

    Args:
        columns: the schema.
        asked: names of the needed columns. Default: all.
        python: the Python decoder of the same columns.
    """
    engine = _engine()
    kinds = [field.dataType.simpleString() for field in columns.fields]
    if engine is None or not _TYPES.issuperset(kinds):
        return python
    fields = [
        (field.name, kind, field.nullable, asked is None or field.name in asked)
        for field, kind in zip(columns.fields, kinds, strict=True)
    ]
    return _NativeJson(engine(fields), python)


class _NativeJson:
    def __init__(self, native: _JsonColumns, python: Decoder) -> None:
        self._native = native
        self._python = python

    def decode(self, values: pa.Array) -> Decoded:
        """Decode all values; see `Decoder.decode`."""
        if not pa.types.is_binary(values.type):
            return self._python.decode(values)
        structs, unsure = self._native.decode(values)
        if not unsure:
            return Decoded(structs, {})
        again = self._python.decode(values.take(pa.array(unsure)))
        rows = np.arange(len(values))
        rows[unsure] = len(values) + np.arange(len(unsure))
        both = pa.concat_arrays([structs, again.values])
        reasons = {unsure[row]: reason for row, reason in again.reasons.items()}
        return Decoded(both.take(pa.array(rows)), reasons)
