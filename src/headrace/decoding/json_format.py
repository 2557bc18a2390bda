"""JSON format: each value is a JSON object with fields of Spark types, decoded by msgspec."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, types as t

from headrace.core.system import needs_extra
from headrace.decoding.formats import Columns, Decoded, option_text
from headrace.errors import OptionError

if TYPE_CHECKING:
    from types import ModuleType


_TOKEN: Final = re.compile(
    r"`(?:[^`]|``)*`"  # a name
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # a comment
    r"|\([^()]*\)"  # a type's precision, or its length
    r"|\w+|[^\s\w]",
    re.DOTALL,
)


def types_in(schema: str) -> Iterator[tuple[str, str]]:
    """Yield a pair for each type in a DDL schema: the name of its field, and the type's name.

    ::

    >>> list(types_in("id BIGINT NOT NULL, tags ARRAY<STRING>"))
    [('id', 'BIGINT'), ('tags', 'ARRAY'), ('tags', 'STRING')]

    For an invalid schema, some types may be missing.
    """
    has_names = [True]
    """For each open level of ``<>``: whether each type in it comes after a name."""
    field, wanted, last = "", "name", ""
    for token in _TOKEN.findall(schema):
        match token, wanted:
            case "<", _:
                has_names.append(last.upper() == "STRUCT")
                wanted = "name" if has_names[-1] else "type"
            case ">", _:
                has_names = has_names[:-1] or [True]
                wanted = ""
            case ",", _:
                wanted = "name" if has_names[-1] else "type"
            case ":", _:
                pass
            case _, "name":
                field, wanted = token.strip("`"), "type"
            case _, "type":
                yield field, token
                wanted = ""
        last = token


_PLAIN: Final[dict[type[t.DataType], Any]] = {
    t.StringType: str,
    t.BooleanType: bool,
    t.ByteType: int,
    t.ShortType: int,
    t.IntegerType: int,
    t.LongType: int,
    t.DoubleType: float,
    t.DateType: date,
    t.TimestampType: datetime,
}

_NAMES: Final = re.compile(
    "STRING|BOOLEAN|TINYINT|BYTE|SMALLINT|SHORT|INT|INTEGER|BIGINT|LONG|FLOAT"
    "|REAL|DOUBLE|DEC|DECIMAL|NUMERIC|DATE|TIMESTAMP(_LTZ)?|ARRAY|STRUCT|MAP",
    re.IGNORECASE,
)
"""Names of the types that a DDL schema for JSON may have."""

_LARGEST_FLOAT: Final = 3.4028235677973362e38
"""Largest finite number of Spark's type FLOAT."""

_MOST_DIGITS: Final = 38
"""Spark's maximum number of digits before the point of a decimal, and also after the point. Without
this limit, Arrow accepts a zero with more than 76 digits, and aborts the process at an exponent of
10^9."""

_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""Pattern of a JSON number in a text; Python's Decimal would also accept ``1_0``."""


class _ExactDecimal(Decimal):
    """Decimal number that `_exact_decimal` has checked by the rules of JSON."""


def json(schema: str | t.StructType | Path) -> "JsonFormat":
    """Return a format for `headrace.decode`: one JSON object in each value.

    The content of a field must be of the field's type. Only nullable fields may be missing. Fields
    that are not in the schema are ignored. Whole numbers must not have a decimal point. Dates and
    times are RFC 3339 texts (``"2026-01-31"``, ``"2026-01-31T12:00:00Z"``); a time without a zone
    is in UTC. Times are rounded to microseconds. Decimals are numbers or texts. If an object
    repeats a field, the last value counts.

    Args:
        schema: a DDL text (``"id BIGINT NOT NULL, name STRING"``), a `StructType`, or the path of a
            file with a DDL text or with the JSON of a `StructType`.

    Raises:
        OptionError: ``schema`` is none of these; the file cannot be read; a field has no type, or a
            type without JSON values; or, from `headrace.decode`, the schema does not parse.
        SetupError: msgspec is not installed (``pip install 'headrace[json]'``).
    """
    _msgspec()
    if isinstance(schema, Path):
        text = _text_of(schema)
    elif isinstance(schema, t.StructType):
        text = schema.json()
    elif isinstance(schema, str):
        text = schema
    else:
        raise OptionError(
            f"The JSON schema is a {type(schema).__name__}; give text, a StructType or a Path."
        )
    form = JsonFormat(text.strip())
    form.check()
    return form


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"The JSON schema's file {file} cannot be read ({error}); name a file with fields of"
            " Spark types, such as: id BIGINT NOT NULL, name STRING"
        ) from error


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Format of JSON objects, with a DDL text or the JSON of a `StructType` as its schema."""

    schema: str

    def check(self) -> None:
        """Check the schema as far as possible without a Spark session.

        Raises:
            OptionError: a field has no type, or a type without JSON values.
        """
        if self.schema.startswith("{"):
            _checked(self._parsed(None))
            return
        types = list(types_in(self.schema))
        if not types:
            raise self._error("no field has a type")
        for field, name in types:
            if not _NAMES.fullmatch(name):
                raise _not_of_json(field, name)

    def __str__(self) -> str:
        return option_text(self)

    def columns(self, spark: SparkSession | None) -> t.StructType:
        """Parse the schema; return its fields as a `StructType`."""
        return _checked(self._parsed(spark))

    def option(self, spark: SparkSession | None) -> dict[str, Any]:
        """Return the schema as JSON of a `StructType`, under the key ``json``."""
        return {"json": self.columns(spark).jsonValue()}

    def _parsed(self, spark: SparkSession | None) -> t.StructType:
        is_json = self.schema.startswith("{")
        if spark is None and not is_json:
            raise OptionError(
                f"The JSON schema {self.schema[:200]!r} needs a Spark session to parse it, and"
                " no session is active; create the session first, or pass a StructType."
            )
        try:
            if spark is not None and not is_json:
                return spark.createDataFrame([], self.schema).schema
            import json as json_text  # noqa: PLC0415  (of the same name as what users call)

            return t.StructType.fromJson(json_text.loads(self.schema))
        except (PySparkException, ValueError, KeyError, TypeError) as error:
            raise self._error(_first_line(error)) from None

    def _error(self, why: str) -> OptionError:
        return OptionError(
            f"The JSON schema {self.schema[:200]!r} does not parse ({why}); write fields with"
            " Spark's types, such as: id BIGINT NOT NULL, name STRING"
        )

    def decoder(self, columns: t.StructType, asked: Collection[str] | None = None) -> "JsonDecoder":
        """Create a decoder for the columns in ``asked``."""
        return JsonDecoder(columns, asked)


class JsonDecoder:
    """Decodes JSON objects into structs with msgspec."""

    def __init__(self, columns: t.StructType, asked: Collection[str] | None = None) -> None:
        msgspec = _msgspec()
        # A column name need not be a Python identifier, but an attribute name must be.
        attributes = [f"f{number}" for number in range(len(columns.fields))]
        fields = [
            _attribute(attribute, field)
            for attribute, field in zip(attributes, columns.fields, strict=True)
        ]
        names = dict(zip(attributes, columns.names, strict=True))
        struct = msgspec.defstruct("Record", _required_first(fields), rename=names, gc=False)
        decoder = msgspec.json.Decoder(struct, dec_hook=_exact_decimal, float_hook=Decimal)
        self._decode: Callable[[Any], Any] = decoder.decode
        self._errors = (msgspec.MsgspecError, RecursionError, ValueError, ArithmeticError)
        self._columns = Columns(columns, list(map(attrgetter, attributes)), asked)

    def decode(self, values: pa.Array) -> Decoded:
        """Decode all values, as `Decoder.decode` describes."""
        texts = _views(values)
        records: list[Any] = []
        reasons: dict[int, str] = {}
        left = iter(texts)
        while len(records) < len(texts):
            try:
                records.extend(map(self._decode, left))
            except (*self._errors, TypeError) as error:  # earlier records are in the list
                record = None
                if (value := texts[len(records)]) is not None:
                    try:
                        record = self._again(bytes(value), error)
                    except (*self._errors, TypeError) as last:
                        reasons[len(records)] = _reason(last, bytes(value))
                records.append(record)
        return self._columns.structs(records, reasons)

    def _again(self, value: bytes, error: Exception) -> Any:
        """Decode an unfit value again without the earlier values of repeated keys.

        The last value of a repeated key counts, but msgspec also checks the types of earlier
        values.

        Raises:
            Exception: the value does not fit. The exception is ``error`` if no key is repeated.
        """
        try:
            text = _with_last_keys(value)
        except (*self._errors, TypeError):
            text = None
        if text is None:
            raise error
        return self._decode(text)


def _with_last_keys(value: bytes) -> bytes | None:
    """Return a JSON text with only the last value of each key; None if no key is repeated.

    Raises:
        ValueError: the text is not JSON.
        RecursionError: the text is nested too deeply.
    """
    import json as json_text  # noqa: PLC0415  (of the same name as what users call)

    twice = False

    def kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        fields = dict(pairs)
        twice = twice or len(fields) < len(pairs)
        return fields

    def refused(constant: str) -> None:
        raise ValueError(constant)

    raw = _msgspec().Raw  # keeps numbers as they are written
    parsed = json_text.loads(
        value.decode(),
        object_pairs_hook=kept,
        parse_int=raw,
        parse_float=raw,
        parse_constant=refused,
    )
    return bytes(_msgspec().json.encode(parsed)) if twice else None


def _views(values: pa.Array) -> list[Any]:
    """Return views of the values in Arrow's memory; if a value is null, return slower copies."""
    if values.null_count or not len(values) or not pa.types.is_binary(values.type):
        return list(values.to_pylist())
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("i")[values.offset : values.offset + len(values) + 1].tolist()
    whole = memoryview(b"" if data is None else data)
    return [whole[start:end] for start, end in pairwise(ends)]


def _checked(columns: t.StructType) -> t.StructType:
    if not columns.fields:
        raise OptionError("The JSON schema has no fields; name at least one, with its type.")
    _check_names(columns, "")
    for field in columns.fields:
        _python_type(field.dataType, field.name)
    return columns


def _check_names(columns: t.StructType, where: str) -> None:
    for name in columns.names:
        if columns.names.count(name) > 1:
            raise OptionError(f"The JSON schema has the field {where}{name} twice; name it once.")


def _not_of_json(field: str, kind: str) -> OptionError:
    return OptionError(
        f"The JSON schema's field {field} has the type {kind}, which has no JSON values; use"
        " STRING, BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, DATE,"
        " TIMESTAMP_LTZ, ARRAY, STRUCT or MAP with STRING as its keys."
    )


def _attribute(name: str, field: t.StructField) -> tuple[Any, ...]:
    kind = _python_type(field.dataType, field.name)
    return (name, kind | None, None) if field.nullable else (name, kind)


def _required_first(fields: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort required fields before fields with a default, as msgspec's structs require."""
    return sorted(fields, key=len)


def _python_type(kind: t.DataType, where: str) -> Any:
    """Return the Python type into which msgspec decodes values of a Spark type.

    Raises:
        OptionError: JSON has no values of this type.
    """
    if isinstance(kind, t.ArrayType):
        element = _python_type(kind.elementType, f"{where}[]")
        return list[element | None] if kind.containsNull else list[element]  # type: ignore[valid-type]
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        value = _python_type(kind.valueType, f"{where}[]")
        return dict[str, value | None] if kind.valueContainsNull else dict[str, value]  # type: ignore[valid-type]
    if isinstance(kind, t.StructType):
        return _nested(kind, where)
    if isinstance(kind, t.FloatType):
        return Annotated[float, _msgspec().Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)]
    if isinstance(kind, t.DecimalType):
        return _ExactDecimal
    if type(kind) not in _PLAIN:
        raise _not_of_json(where, kind.simpleString())
    return _PLAIN[type(kind)]


def _nested(kind: t.StructType, where: str) -> Any:
    """Return a `TypedDict` for a nested object; Arrow accepts its dicts as structs."""
    from typing import NotRequired  # noqa: PLC0415

    _check_names(kind, f"{where}.")
    fields: dict[str, Any] = {}
    for field in kind.fields:
        inner = _python_type(field.dataType, f"{where}.{field.name}")
        fields[field.name] = NotRequired[inner | None] if field.nullable else inner
    return TypedDict("Nested", fields)  # type: ignore[operator]


def _exact_decimal(_kind: type, value: object) -> _ExactDecimal:
    is_number = isinstance(value, Decimal | int) and not isinstance(value, bool)
    if not (is_number or (isinstance(value, str) and _NUMBER.fullmatch(value))):
        raise ValueError("Expected a decimal number")
    number = _ExactDecimal(value)  # type: ignore[arg-type]
    places = -number.as_tuple().exponent  # type: ignore[operator]
    if number.adjusted() >= _MOST_DIGITS or places > _MOST_DIGITS:
        raise ValueError("Number out of range")
    return number


def _reason(error: Exception, value: bytes) -> str:
    """Return the reason why a value does not fit, without any content of the value."""
    if not value.strip():
        return "it is empty"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, ArithmeticError):
        return "it does not fit the JSON schema: Number out of range"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    detail = _first_line(error)
    if detail.endswith("truncated") and _is_complete(value):
        # msgspec also reports "truncated" for \\ud800 without the second half of the pair.
        detail = "a text has half of a surrogate pair"
    return f"it does not fit the JSON schema: {detail}"


def _is_complete(value: bytes) -> bool:
    import json as json_text  # noqa: PLC0415  (of the same name as what users call)

    try:
        json_text.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _msgspec() -> "ModuleType":
    with needs_extra("json", "Decoding JSON", where="on every machine of the cluster"):
        import msgspec  # noqa: PLC0415  (an extra)
    return msgspec
