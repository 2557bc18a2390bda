"""JSON decoded by the native engine, if ``headrace-native`` is installed and the schema is flat.

The native engine decodes only values that surely fit; `JsonDecoder` decodes all others, and gives
the reasons. So both engines return the same columns and the same reasons.
"""

import logging
from collections.abc import Collection
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from headrace.core.native import native_engine
from headrace.decoding.formats import Decoded, Decoder

_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_TYPES: Final = frozenset({*_NUMBERS, "string", "boolean", "date", "timestamp"})
"""Spark's simple names of the types that the native engine decodes."""

_LOG: Final = logging.getLogger("headrace.decoding")


def with_native_json(
    columns: t.StructType, asked: Collection[str] | None, python: Decoder
) -> Decoder:
    """Return a decoder that uses the native engine, or ``python`` if the engine cannot be used.

    Args:
        columns: the schema.
        asked: names of the needed columns. Default: all.
        python: the Python decoder of the same columns.
    """
    engine = native_engine()
    if engine is None:
        return python
    kinds = [field.dataType.simpleString() for field in columns.fields]
    for field, kind in zip(columns.fields, kinds, strict=True):
        if kind not in _TYPES:
            _log_type(field.name, kind)
            return python
    fields = [
        (field.name, kind, field.nullable, asked is None or field.name in asked)
        for field, kind in zip(columns.fields, kinds, strict=True)
    ]
    return _NativeJson(engine.JsonColumns(fields), python)


@cache  # and so one line in the log of a process, which may create a decoder for each task
def _log_type(field: str, kind: str) -> None:
    _LOG.info("JSON is decoded in Python: the native engine has no %s (field %s).", kind, field)


class _NativeJson:
    def __init__(self, native: Any, python: Decoder) -> None:
        self._native = native
        self._python = python

    def decode(self, values: pa.Array) -> Decoded:
        """Decode all values, as `Decoder.decode` describes."""
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
