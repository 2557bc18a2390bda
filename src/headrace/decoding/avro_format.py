"""Avro format: one record per value, with or without a wire format header, read by fastavro."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from decimal import Context, Decimal
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, types as t

from headrace.core.system import needs_extra
from headrace.decoding.avro_check import AvroCheck, MalformedError, other_meaning
from headrace.decoding.avro_columns import FlatAvro
from headrace.decoding.avro_defaults import with_stored_defaults
from headrace.decoding.formats import Columns, Decoded, option_text
from headrace.decoding.registry import (
    NO_ID,
    RegisteredSchema,
    SchemaRegistry,
    client_package,
    header_of,
    payload,
    schema_id,
    unknown_id,
)
from headrace.errors import OptionError

if TYPE_CHECKING:
    from types import ModuleType

_PLAIN: Final[dict[str, t.DataType]] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "fixed": t.BinaryType(),
    "enum": t.StringType(),
}
_LOGICAL: Final[dict[tuple[str, str], t.DataType]] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
    ("string", "uuid"): t.StringType(),
    ("fixed", "uuid"): t.StringType(),
}
"""Spark type of each pair of an Avro type and a logical type. In all other pairs, the logical type
is ignored, as the Avro specification requires."""

_UUID_BYTES: Final = 16
_NESTED: Final = frozenset({"type", "fields", "items", "values"})
_NONE: Final = np.array([], np.int64)
_WIDE: Final = Context(prec=80)
_DECIMAL_BITS: Final = 127
"""Number of bits of the largest number with 38 digits, Spark's limit. Larger numbers are refused
before the conversion, because converting millions of bytes to a decimal takes minutes."""
_SEVERAL: Final = "write one type, or a union of null and one type"


def avro(
    schema: str | Path | None = None,
    *,
    registry: SchemaRegistry | None = None,
    subject: str | None = None,
) -> "AvroFormat":
    """Return a format for `headrace.decode`: one Avro record in each value.

    With a registry, values must be in Confluent's wire format: a byte 0 and the id of the writer's
    schema. Each record is converted from the writer's schema to the reader's schema, by Avro's
    rules of schema resolution. A record is rejected if the registry does not know its schema id.

    Args:
        schema: the reader's schema: Avro's JSON as a text, or the path of a file with it.
        registry: the registry with the schemas of the writers. Default: None; values are records
            without a wire format header, written with ``schema``.
        subject: a subject of the registry, instead of ``schema``. This call requests the newest
            schema of the subject, which becomes the reader's schema.

    Raises:
        OptionError: the schema does not parse, its file cannot be read, it has a type that Spark
            does not have, or the registry has no such subject; or schema and subject are both
            given or both missing.
        RegistryError: the registry cannot be reached.
        SetupError: fastavro or the registry's client is not installed
            (``pip install 'headrace[avro]'``).
    """
    if (schema is None) == (subject is None) or (subject is not None and registry is None):
        raise OptionError(
            "The Avro format has no schema, or both a schema and a subject, or a subject without a"
            " registry; write avro(schema), avro(schema, registry=...) or avro(registry=...,"
            " subject=...)."
        )
    if registry is not None:
        client_package()
    references: tuple[str, ...] = ()
    if subject is not None and registry is not None:
        newest = registry.newest(subject)
        if newest.kind != "AVRO":
            raise OptionError(
                f"The schema registry's subject {subject!r} has a schema of the type {newest.kind};"
                " name a subject with an AVRO schema."
            )
        text, references = newest.text, newest.references
    else:
        text = _text_of(schema)
    form = AvroFormat(text, references, registry)
    form.columns()
    return form


def _text_of(schema: str | Path | None) -> str:
    if isinstance(schema, Path):
        try:
            return schema.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"The Avro schema's file {schema} cannot be read ({error}); name a file with a"
                " schema in JSON (.avsc)."
            ) from error
    return str(schema)


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """Format of Avro records, with the reader's schema; created by `avro`."""

    schema: str
    references: tuple[str, ...] = ()
    registry: SchemaRegistry | None = None

    def __str__(self) -> str:
        return option_text(self)

    def option(self, _spark: SparkSession | None = None) -> dict[str, Any]:
        """Return the reader's schema, its references and the registry, under the key ``avro``."""
        return {
            "avro": {
                "schema": self.schema,
                "references": self.references,
                "registry": None if self.registry is None else asdict(self.registry),
            }
        }

    def columns(self, _spark: SparkSession | None = None) -> t.StructType:
        """Return the fields of the reader's schema as Spark types."""
        _fastavro()
        try:
            parsed = _parsed(self.schema, self.references)
        except Exception as error:  # noqa: BLE001  (fastavro's own, and errors of malformed JSON)
            message = str(error).partition("\n")[0]
            raise OptionError(
                f"The Avro schema {self.schema[:200]!r} does not parse ({type(error).__name__}:"
                f" {message}); give a record's schema in Avro's JSON."
            ) from None
        kind, _ = _spark_type(parsed, _named(parsed), "record", ())
        with_stored_defaults(parsed, _named(parsed))
        if not isinstance(kind, t.StructType) or not kind.fields:
            raise OptionError(
                f"The Avro schema has the type {kind.simpleString()}; give the schema of a record"
                " with fields."
            )
        return kind

    def decoder(
        self, columns: t.StructType, _asked: Collection[str] | None = None
    ) -> "AvroDecoder":
        """Create a decoder that converts records to the reader's schema and builds all columns."""
        return AvroDecoder(self, columns)


class AvroDecoder:
    """Decodes Avro records into structs; it caches the writers' schemas by id."""

    def __init__(self, of: AvroFormat, columns: t.StructType) -> None:
        self._registry = of.registry
        self._plain = _Writer.of(_parsed(of.schema, of.references, plain=True))
        reader = _parsed(of.schema, of.references, plain=True)
        self._reader = with_stored_defaults(reader, _named(reader))
        self._read: Callable[..., Any] = _fastavro().schemaless_reader
        self._written: dict[int | UUID, _Writer | str] = {}
        typed = self._typed = _parsed(of.schema, of.references)
        _, self._convert = _spark_type(typed, _named(typed), "record", ())
        self._columns = Columns(columns, list(map(itemgetter, columns.names)))
        self._flat = FlatAvro.of(typed, columns)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode all values, as `Decoder.decode` describes."""
        if self._flat is None:
            return self._each(values.to_pylist())
        headers = self._header_bytes(values)
        numbers = np.flatnonzero(headers >= 0)
        if not len(numbers):
            return self._each(values.to_pylist())
        flat = self._flat.decode(values, numbers, headers[numbers])
        if flat is None:
            return self._each(values.to_pylist())
        if len(numbers) == len(values) and flat.fits.all():
            return Decoded(flat.structs, {})
        is_flat = np.zeros(len(values), bool)
        is_flat[numbers[flat.fits]] = True
        rest = np.flatnonzero(~is_flat)
        alone = self._each(values.take(pa.array(rest)).to_pylist())
        places = np.empty(len(values), np.int64)
        places[numbers] = np.arange(len(numbers))
        places[rest] = len(numbers) + np.arange(len(rest))
        structs = pa.concat_arrays([flat.structs, alone.values]).take(pa.array(places))
        return Decoded(structs, {int(rest[at]): why for at, why in alone.reasons.items()})

    def _header_bytes(self, values: pa.Array) -> npt.NDArray[np.int64]:
        """Return each value's header size; -1 if its writer's schema is not the reader's schema."""
        sizes = np.where(values.is_valid(), 0 if self._registry is None else -1, -1)
        own = [header_of(key) for key, writer in self._written.items() if writer is self._plain]
        for size in {len(header) for header in own}:
            own_headers = pa.array([header for header in own if len(header) == size], values.type)
            is_known = pc.is_in(pc.binary_slice(values, 0, size), own_headers)
            sizes[np.asarray(is_known, bool)] = size
        return sizes.astype(np.int64)

    def _each(self, values: Sequence[bytes | None]) -> Decoded:
        records: list[Any] = []
        reasons: dict[int, str] = {}
        for number, value in enumerate(values):
            try:
                records.append(None if value is None else self._record(value))
            except _UnfitError as error:
                records.append(None)
                reasons[number] = str(error)
        return self._columns.structs(records, reasons)

    def _record(self, value: bytes) -> Any:
        if self._registry is None:
            writer, data = self._plain, value
        else:
            writer, data = self._writer(self._registry, value), payload(value)
        try:
            end = writer.check(data)
            reader = None if writer is self._plain else self._reader
            record = self._read(BytesIO(data), writer.schema, reader)
            if self._convert is not None:
                record = self._convert(record)
        except MalformedError as error:
            raise _UnfitError(str(error)) from None
        except Exception as error:  # noqa: BLE001  (malformed data raises errors of any type)
            kind = type(error).__name__
            reason = (
                "its writer's schema is incompatible with the reader's schema"
                if kind == "SchemaResolutionError"
                else f"it is not a record of the Avro schema ({kind})"
            )
            raise _UnfitError(reason) from None
        if end < len(data):
            raise _UnfitError("it is longer than a record of the Avro schema")
        return record

    def _writer(self, registry: SchemaRegistry, value: bytes) -> "_Writer":
        number = schema_id(value)
        if number is None:
            raise _UnfitError(NO_ID)
        if number not in self._written:
            registered = registry.schema(number)
            if registered is None:
                # Unknown ids are not cached here, because they may be registered later.
                raise _UnfitError(unknown_id(number))
            self._written[number] = self._writer_of(registered, number)
        writer = self._written[number]
        if isinstance(writer, str):
            raise _UnfitError(writer)
        return writer

    def _writer_of(self, found: RegisteredSchema, number: int | UUID) -> "_Writer | str":
        writer = _writer_schema(found.kind, found.text, found.references, number)
        if isinstance(writer, str):
            return writer
        typed = _parsed(found.text, found.references)
        mismatch = other_meaning(typed, self._typed, _named(typed), _named(self._typed))
        return mismatch or (self._plain if writer.schema == self._plain.schema else writer)


class _UnfitError(Exception):
    """A value does not fit the schema. The message of this error is the reason."""


@dataclass(frozen=True, slots=True)
class _Writer:
    schema: dict[str, Any]
    check: AvroCheck

    @classmethod
    def of(cls, schema: dict[str, Any]) -> Self:
        return cls(schema, AvroCheck(schema, _named(schema)))


def _writer_schema(
    kind: str, text: str, references: Sequence[str], number: int | UUID
) -> _Writer | str:
    if kind != "AVRO":
        return f"the registry's schema {number} is {kind}, not AVRO"
    try:
        schema = _parsed(text, references, plain=True)
        return _Writer.of(schema if isinstance(schema, dict) else {"type": schema})
    except Exception:  # noqa: BLE001  (a registry may have any content under an id)
        return f"the registry's schema {number} does not parse"


def _parsed(text: str, references: Sequence[str], *, plain: bool = False) -> Any:
    """Parse a schema and its references; with ``plain``, ignore their logical types."""
    parse = _fastavro().schema.parse_schema
    change = _without_logical_types if plain else lambda document: document
    named: dict[str, Any] = {}
    for document in references:
        parse(change(json.loads(document)), named_schemas=named)
    return parse(change(json.loads(text)), named_schemas=named)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical_types(member) if name in _NESTED else member
        for name, member in schema.items()
        if name != "logicalType"
    }


def _named(parsed: Any) -> dict[str, Any]:
    schemas: dict[str, Any] = parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}
    return schemas


_Convert = Callable[[Any], Any] | None
"""Function that converts a value from fastavro to a value that Arrow accepts; None if no conversion
is needed."""


_CONVERTS: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("long", "timestamp-millis"): lambda value: value * 1000,
    ("long", "local-timestamp-millis"): lambda value: value * 1000,
    ("fixed", "uuid"): lambda value: str(UUID(bytes=value)),
}


def _spark_type(
    schema: Any, named: dict[str, Any], where: str, within: tuple[str, ...]
) -> tuple[t.DataType, _Convert]:
    """Return the Spark type of a schema's non-null values, and their conversion.

    Raises:
        OptionError: Spark has no type for the schema.
    """
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        raise OptionError(f"The Avro schema's {where} is a union of several types; {_SEVERAL}.")
    if kind == "record":
        return _record_type(schema, named, where, within)
    if kind == "array":
        element, null, convert = _optional(schema["items"], named, f"{where}[]", within)
        return t.ArrayType(element, null), _of_array(convert)
    if kind == "map":
        element, null, convert = _optional(schema["values"], named, f"{where}[]", within)
        return t.MapType(t.StringType(), element, null), _of_map(convert)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        scale = schema.get("scale", 0)
        if schema["precision"] > 38:
            raise OptionError(
                f"The Avro schema's {where} is a decimal of {schema['precision']} digits; Spark has"
                " at most 38 digits."
            )
        return t.DecimalType(schema["precision"], scale), lambda value: _decimal(value, scale)
    both = str(kind), str(logical)
    if both in _LOGICAL and schema.get("size", _UUID_BYTES) == _UUID_BYTES:
        return _LOGICAL[both], _CONVERTS.get(both)
    if kind not in _PLAIN:
        raise OptionError(
            f"The Avro schema's {where} has the type {kind!r}, which Spark does not have; use"
            " another type."
        )
    return _PLAIN[kind], None


def _record_type(
    schema: dict[str, Any], named: dict[str, Any], where: str, within: tuple[str, ...]
) -> tuple[t.DataType, _Convert]:
    name = schema["name"]
    if name in within:
        raise OptionError(
            f"The Avro schema's {where} is a record {name} within a {name}, which Spark's types"
            " cannot represent; remove the field."
        )
    fields: list[t.StructField] = []
    converts: dict[str, Callable[[Any], Any]] = {}
    for field in schema["fields"]:
        kind, null, convert = _optional(
            field["type"], named, f"field {field['name']}", (*within, name)
        )
        fields.append(t.StructField(field["name"], kind, null))
        if convert is not None:
            converts[field["name"]] = convert
    return t.StructType(fields), _of_record(converts)


def _optional(
    schema: Any, named: dict[str, Any], where: str, within: tuple[str, ...]
) -> tuple[t.DataType, bool, _Convert]:
    branches = schema if isinstance(schema, list) else [schema]
    types = [branch for branch in branches if branch != "null"]
    if len(types) != 1:
        raise OptionError(f"The Avro schema's {where} is a union of several types; {_SEVERAL}.")
    kind, convert = _spark_type(types[0], named, where, within)
    null = len(branches) > 1
    if convert is None or not null:
        return kind, null, convert
    return kind, null, lambda value: None if value is None else convert(value)


def _of_record(converts: dict[str, Callable[[Any], Any]]) -> _Convert:
    def convert(record: dict[str, Any]) -> dict[str, Any]:
        # A copy, because a default is one object shared by all records.
        return record | {name: change(record[name]) for name, change in converts.items()}

    return convert if converts else None


def _of_array(convert: _Convert) -> _Convert:
    return None if convert is None else lambda values: [convert(item) for item in values]


def _of_map(convert: _Convert) -> _Convert:
    """Return the conversion of a map to pairs of key and value, which Arrow accepts as a map."""
    if convert is None:
        return lambda value: list(value.items())
    return lambda value: [(key, convert(item)) for key, item in value.items()]


def _decimal(value: bytes, scale: int) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    if number.bit_length() > _DECIMAL_BITS:
        raise MalformedError("a decimal of its Avro record has more than 38 digits")
    return Decimal(number).scaleb(-scale, _WIDE)


def _fastavro() -> "ModuleType":
    with needs_extra("avro", "Decoding Avro", where="on every machine of the cluster"):
        import fastavro  # noqa: PLC0415  (an extra)
        import fastavro.schema  # noqa: PLC0415
    return fastavro
