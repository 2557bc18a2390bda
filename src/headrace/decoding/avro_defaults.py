"""Conversion of field defaults in an Avro schema from JSON to Python values.

fastavro returns a default's JSON unchanged. For bytes, the JSON is a text (fastavro#869). For a
record, the JSON may lack fields that have their own defaults.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from headrace.errors import OptionError

_NO_VALUE: Final = object()


def with_stored_defaults(schema: Any, named: Mapping[str, Any]) -> Any:
    """Convert the default of each field of a parsed schema in place; return the schema.

    Args:
        schema: the schema of the reader, parsed by fastavro.
        named: the named types of ``schema``, by name.

    Raises:
        OptionError: a default is not a value of its field's type. Avro for Java refuses such a
            default too, with two exceptions: it stores ``?`` for a character above U+00FF, and it
            pads fixed values with zeros.
    """
    fields = {
        id(field): field
        for root in (schema, *named.values())
        for field in _fields(root)
        if "default" in field
    }
    # Convert all defaults first, and then replace them, because a record's default includes the
    # defaults of its fields.
    values = [
        _stored(field["type"], named, field["default"], field["name"]) for field in fields.values()
    ]
    for field, value in zip(fields.values(), values, strict=True):
        field["default"] = value
    return schema


def _fields(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of all records that a schema defines, including nested records."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _fields(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            yield field
            yield from _fields(field["type"])
        for key in ("type", "items", "values"):
            yield from _fields(schema.get(key))


def _stored(schema: Any, named: Mapping[str, Any], default: Any, where: str) -> Any:
    """Convert a default from JSON to the Python value that fastavro would read from a record.

    Raises:
        OptionError: the default is not a value of the type.
    """
    if isinstance(schema, list):
        is_null = default is None and "null" in schema
        schema = "null" if is_null else next(branch for branch in schema if branch != "null")
    if isinstance(schema, str):
        schema = named.get(schema, schema)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind, default:
        case (("record" | "error"), dict()):
            value: Any = _record(schema["fields"], named, default, where)
        case "array", list():
            value = [_stored(schema["items"], named, item, f"{where}[]") for item in default]
        case "map", dict():
            value = {
                key: _stored(schema["values"], named, item, f"{where}[]")
                for key, item in default.items()
            }
        case _:
            value = _scalar(kind, schema, default)
    if value is _NO_VALUE:
        raise OptionError(
            f"The Avro schema's field {where} has a default that is not a value of its type,"
            f" {kind}; give a default of this type."
        )
    return value


def _record(
    fields: Sequence[Any], named: Mapping[str, Any], default: Mapping[str, Any], where: str
) -> dict[str, Any]:
    values = {}
    for field in fields:
        name = field["name"]
        if name not in default and "default" not in field:
            raise OptionError(
                f"The Avro schema's field {where}.{name} has no default, and the default of its"
                " record has no value for it; give the field a default, or add a value to the"
                " record's default."
            )
        inner = default[name] if name in default else field["default"]
        values[name] = _stored(field["type"], named, inner, f"{where}.{name}")
    return values


def _scalar(kind: Any, schema: Any, default: Any) -> Any:
    """Convert the default of a type that is not nested; return `_NO_VALUE` if it does not fit."""
    try:
        match kind, default:
            case "bytes", str():
                return default.encode("latin-1")
            case "fixed", str() if len(default) == schema["size"]:
                return default.encode("latin-1")
            case (("float" | "double"), int() | float() | str()) if not isinstance(default, bool):
                return float(default)  # texts too, because JSON has no NaN
    except (ValueError, OverflowError):
        return _NO_VALUE
    is_enum = kind == "enum" and default in schema["symbols"]
    return default if is_enum or (kind in _HOLDS and _HOLDS[kind](default)) else _NO_VALUE


def _is_whole(bits: int) -> Callable[[Any], bool]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def holds(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return holds


_HOLDS: Final[dict[Any, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": _is_whole(32),
    "long": _is_whole(64),
    "string": lambda value: isinstance(value, str),
}
"""For each Avro type, a function that returns whether a JSON value is a value of the type."""
