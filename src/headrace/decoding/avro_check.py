"""Check of Avro records before fastavro reads them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final


def other_meaning(
    writer: Any, reader: Any, writers: Mapping[str, Any], readers: Mapping[str, Any]
) -> str | None:
    """Return why reading with the schema ``reader`` would change values; None if it would not.

    Values change, for example, if the writer and the reader have different logical types for an
    integer.

    Args:
        writer: The writer's schema, parsed by fastavro.
        reader: The reader's schema, parsed by fastavro.
        writers: The named types of the writer's schema, by name.
        readers: The named types of the reader's schema, by name.
    """
    return next(_differences(writer, reader, (writers, readers), "record", frozenset()), None)


def _differences(
    writer: Any,
    reader: Any,
    named: tuple[Mapping[str, Any], Mapping[str, Any]],
    where: str,
    within: frozenset[tuple[str, str]],
) -> Iterator[str]:
    for written in _branches(writer, named[0]):
        for read in _branches(reader, named[1]):
            kind = _kind(written)
            if kind != _kind(read):
                continue
            if kind == "record":
                both = written["name"], read["name"]
                if both not in within:
                    yield from _of_records(written, read, named, within | {both})
            elif kind == "array":
                yield from _differences(written["items"], read["items"], named, where, within)
            elif kind == "map":
                yield from _differences(written["values"], read["values"], named, where, within)
            elif (was := _logical(written)) and (now := _logical(read)) and was != now:
                yield (
                    f"its {where} was written as {was}, but the reader's schema has {now}, which"
                    " would change the value"
                )


def _of_records(
    writer: dict[str, Any],
    reader: dict[str, Any],
    named: tuple[Mapping[str, Any], Mapping[str, Any]],
    within: frozenset[tuple[str, str]],
) -> Iterator[str]:
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        names = (field["name"], *field.get("aliases", ()))
        source = next((written[name] for name in names if name in written), None)
        if source is not None:
            where = f"field {field['name']}"
            yield from _differences(source["type"], field["type"], named, where, within)


def _branches(schema: Any, named: Mapping[str, Any]) -> list[Any]:
    branches = schema if isinstance(schema, list) else [schema]
    return [named.get(branch, branch) if isinstance(branch, str) else branch for branch in branches]


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _logical(schema: Any) -> str | None:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical != "decimal":
        return logical
    return f"decimal with {schema.get('scale', 0)} digits after the point"


MAX_LEVELS: Final = 100
"""Maximum nesting level of a recursive record, as in Protocol Buffers. With several thousand
levels, fastavro would overflow the stack of the process."""

MAX_EMPTY_ITEMS: Final = 10_000
"""Maximum number of zero-byte items in the arrays of a value. A few bytes can declare an unlimited
number of these items."""

_INT: Final = range(-(2**31), 2**31)

_Skip = Callable[[bytes, int], int]
"""Function that takes the offset of a value and returns the offset of the value's end. It reads at
least one byte."""


class MalformedError(ValueError):
    """A value is not a valid record of its schema. The message of this error is the reason."""


class AvroCheck:
    """Checks the bytes of records of one schema; not thread-safe.

    fastavro has no limits on nesting and array sizes, and accepts the index -1 in a union or an
    enum.

    Args:
        schema: the writer's schema, parsed by fastavro.
        named: the named types of ``schema``, by name.
    """

    def __init__(self, schema: Any, named: dict[str, Any]) -> None:
        self._named: Final = named
        self._records: Final[dict[str, Any]] = {}
        self._level = 0
        self._empty_items = 0
        self._skip: Final = _function(self._compile(schema))

    def __call__(self, data: bytes) -> int:
        """Check the record at the beginning of ``data``; return the offset of its end.

        Raises:
            MalformedError: the record is invalid, or exceeds a limit.
            EOFError: the data ends within the record.
        """
        self._level = self._empty_items = 0
        try:
            end = self._skip(data, 0)
        except IndexError:
            raise EOFError from None
        if end > len(data):
            raise EOFError
        return end

    def _compile(self, schema: Any) -> int | _Skip:
        """Return a type's size if it is fixed (bytes), else a function that skips one value."""
        if isinstance(schema, list):
            return _union([self._compile(branch) for branch in schema])
        kind = schema["type"] if isinstance(schema, dict) else schema
        compiled: int | _Skip
        match kind:
            case "record" | "error":
                compiled = self._record(schema["name"], schema["fields"])
            case "array":
                compiled = self._blocks(self._compile(schema["items"]))
            case "map":
                compiled = self._blocks(_sequence([_sized, self._compile(schema["values"])]))
            case "fixed":
                compiled = schema["size"]
            case "enum":
                compiled = _enum(len(schema["symbols"]))
            case str() if kind in _PLAIN:
                compiled = _PLAIN[kind]
            case str() if kind in self._records:
                recorded = self._records[kind]
                compiled = self._nested(kind) if recorded is None else recorded
            case _:
                compiled = self._compile(self._named[kind] if isinstance(kind, str) else kind)
        return compiled

    def _record(self, name: str, fields: Sequence[Any]) -> int | _Skip:
        self._records[name] = None
        compiled = _sequence([self._compile(field["type"]) for field in fields])
        self._records[name] = compiled
        return compiled

    def _nested(self, name: str) -> _Skip:
        """Return a function that skips a record within a record of the same type.

        The outer record is not compiled yet, so each call looks its function up.
        """

        def skip(data: bytes, at: int) -> int:
            self._level += 1
            if self._level > MAX_LEVELS:
                raise MalformedError(f"it is nested more than {MAX_LEVELS} levels deep")
            end: int = self._records[name](data, at)
            self._level -= 1
            return end

        return skip

    def _blocks(self, item: int | _Skip) -> _Skip:
        def skip(data: bytes, at: int) -> int:
            while True:
                count, at = _number(data, at)
                if count == 0:
                    return at
                end = None
                if count < 0:  # the block's size in bytes follows; fastavro skips by it
                    size, at = _number(data, at)
                    count, end = -count, at + size
                if item == 0:
                    self._empty_items += count
                    if self._empty_items > MAX_EMPTY_ITEMS:
                        raise MalformedError(
                            f"it has more than {MAX_EMPTY_ITEMS:,} items of zero bytes"
                        )
                elif isinstance(item, int):
                    at += count * item
                else:
                    for _ in range(count):
                        at = item(data, at)
                if end is not None and at != end:
                    raise MalformedError(
                        "a block of its Avro record does not have the size in its header"
                    )

        return skip


def _function(compiled: int | _Skip) -> _Skip:
    return (lambda _data, at: at + compiled) if isinstance(compiled, int) else compiled


def _sequence(parts: Sequence[int | _Skip]) -> int | _Skip:
    """Return the total size of consecutive values, or a function that skips all of them."""
    merged: list[int | _Skip] = []
    for size_or_skip in parts:
        if isinstance(size_or_skip, int) and merged and isinstance(merged[-1], int):
            merged[-1] += size_or_skip
        elif size_or_skip != 0:
            merged.append(size_or_skip)
    if not merged:
        return 0
    if len(merged) == 1:
        return merged[0]
    skips = [_function(size_or_skip) for size_or_skip in merged]

    def skip(data: bytes, at: int) -> int:
        for step in skips:
            at = step(data, at)
        return at

    return skip


def _union(branches: Sequence[int | _Skip]) -> _Skip:
    skips = [_function(branch) for branch in branches]

    def skip(data: bytes, at: int) -> int:
        branch, at = _number(data, at)
        if not 0 <= branch < len(skips):
            raise MalformedError("a union of its Avro record has an invalid branch index")
        return skips[branch](data, at)

    return skip


def _enum(count: int) -> _Skip:
    def skip(data: bytes, at: int) -> int:
        symbol, at = _number(data, at)
        if not 0 <= symbol < count:
            raise MalformedError("an enum of its Avro record has an invalid symbol index")
        return at

    return skip


def _sized(data: bytes, at: int) -> int:
    size, at = _number(data, at)
    if size < 0:
        raise MalformedError("a length in its Avro record is negative")
    return at + size


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise MalformedError("a boolean of its Avro record is neither 0 nor 1")
    return at + 1


def _int(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    number, at = _number(data, at)
    if number not in _INT:
        raise MalformedError("an int of its Avro record has more than 32 bits")
    return at


def _long(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 0x80 else _number(data, at)[1]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits; return it and the offset of its end."""
    byte = data[at]
    value, shift = byte & 0x7F, 0
    while byte >= 0x80:
        at += 1
        shift += 7
        byte = data[at]
        if shift == 63 and byte > 1:
            raise MalformedError("a number of its Avro record has more than 64 bits")
        value |= (byte & 0x7F) << shift
    return (value >> 1) ^ -(value & 1), at + 1


_PLAIN: Final[dict[str, int | _Skip]] = {
    "null": 0,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": 4,
    "double": 8,
    "bytes": _sized,
    "string": _sized,
}
