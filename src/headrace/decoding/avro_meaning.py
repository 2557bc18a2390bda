"""Whether a value means the same to Avro's reader as to its writer.

Avro resolves schemas by what is stored, whatever its logical type: a decimal of three digits behind
the point that is read with two, or microseconds that are read as milliseconds, are another value
without an error. Where both schemas name a logical type, they have to name the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def other_meaning(
    writer: Any, reader: Any, writers: Mapping[str, Any], readers: Mapping[str, Any]
) -> str | None:
    """Why what this writer has written would be read as another value; None where it is not.

    Args:
        writer: The schema that values were written with, as fastavro parses it.
        reader: The one that they are read into.
        writers: The schemas that the writer's may name.
        readers: Those that the reader's may.
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
                    f"its {where} was written as {was}, and the reader's schema has {now}, which"
                    " would be another value"
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
        found = next((written[name] for name in names if name in written), None)
        if found is not None:
            where = f"field {field['name']}"
            yield from _differences(found["type"], field["type"], named, where, within)


def _branches(schema: Any, named: Mapping[str, Any]) -> list[Any]:
    """What a value of the schema may be, with the schemas that it names."""
    branches = schema if isinstance(schema, list) else [schema]
    return [named.get(each, each) if isinstance(each, str) else each for each in branches]


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _logical(schema: Any) -> str | None:
    """The logical type in words; None without one."""
    found = schema.get("logicalType") if isinstance(schema, dict) else None
    if found != "decimal":
        return found
    return f"decimal with {schema.get('scale', 0)} digits behind the point"
