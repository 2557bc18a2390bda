"""Whether the numbers of an Avro record are of 64 bits, which fastavro does not ask."""

import re
from typing import Any, Final

_SUSPICIOUS: Final = re.compile(rb"[\x80-\xff]{9}[^\x00\x01]", re.DOTALL)
"""Whatever has a number of more than 10 bytes or 64 bits has this; so may text and bytes."""

_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS: Final = frozenset({"int", "long", "enum"})
_SIZED: Final = frozenset({"bytes", "string"})


class OverlongError(ValueError):
    """A number of the record has more than 64 bits."""


def check_numbers(data: bytes, schema: Any, named: dict[str, Any]) -> None:
    """Look at the numbers of a record that fastavro has read.

    Args:
        data: the record.
        schema: what it was written with, as fastavro has parsed it.
        named: the schemas that it names.

    Raises:
        OverlongError: one has more than 64 bits.
    """
    if _SUSPICIOUS.search(data):
        _passed(data, 0, schema, named)


def _passed(data: bytes, at: int, schema: Any, named: dict[str, Any]) -> int:
    """Where a value of the schema ends."""
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    if isinstance(schema, list):
        branch, at = _number(data, at)
        return _passed(data, at, schema[branch], named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in {"record", "error"}:
        for field in schema["fields"]:
            at = _passed(data, at, field["type"], named)
        return at
    if kind in {"array", "map"}:
        return _blocks(data, at, schema, named)
    if kind in _NUMBERS or kind in _SIZED:
        number, at = _number(data, at)
        return at + number if kind in _SIZED else at
    if isinstance(kind, str):
        return at + (schema["size"] if kind == "fixed" else _SIZES[kind])
    return _passed(data, at, kind, named)


def _blocks(data: bytes, at: int, schema: Any, named: dict[str, Any]) -> int:
    while True:
        count, at = _number(data, at)
        if count == 0:
            return at
        if count < 0:
            _, at = _number(data, at)
        for _ in range(abs(count)):
            if schema["type"] == "map":
                at = _passed(data, at, "string", named)
            at = _passed(data, at, schema["items" if "items" in schema else "values"], named)


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift == 70 and byte > 1:
            raise OverlongError
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
