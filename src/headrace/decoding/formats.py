"""Formats for `decode`: their columns, their decoders, and reasons for unfit values."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from headrace.errors import OptionError
from headrace.spark_versions import arrow_type


@dataclass(frozen=True, slots=True)
class Decoded:
    """Decoded values of one call of a decoder.

    Attributes:
        values: a struct for each value; null if the value is null or does not fit.
        reasons: the reason for each value that does not fit, by the value's index.
    """

    values: pa.StructArray
    reasons: dict[int, str]


class Decoder(Protocol):
    """Decodes the values of a format in a Spark task."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode binary values; the reasons contain nothing of the values' content.

        Raises:
            RegistryError: the schema registry cannot be reached.
        """


@runtime_checkable
class Format(Protocol):
    """A format with its schema; hashable, and serialized to Spark's tasks.

    ``str(format)`` is the text for a source's option ``decode``.
    """

    def __hash__(self) -> int:
        """Return a hash, by which each worker finds its cached decoder of the format."""

    def columns(self, spark: SparkSession | None) -> StructType:
        """Return the schema of the structs that the decoder returns.

        Raises:
            OptionError: the schema does not parse, or has a type that Spark does not have; or it is
                a DDL text, and there is no Spark session to parse it.
        """

    def decoder(self, columns: StructType, asked: Collection[str] | None = None) -> Decoder:
        """Create the decoder for a task; each worker process creates one for each format.

        Args:
            columns: the columns that `columns` returned.
            asked: names of the needed columns; the decoder may leave out other columns. Default:
                all.
        """

    def option(self, spark: SparkSession | None) -> dict[str, Any]:
        """Return the format as JSON, from which `decode_option.format_of` recreates it.

        The JSON includes the secrets of a registry. The method raises the same errors as `columns`.
        """


def option_text(form: Format, spark: SparkSession | None = None) -> str:
    """Return a format's text for a source's option ``decode``, which Spark's plans show.

    Args:
        form: the format.
        spark: the session that parses a DDL schema. Default: the active session.

    Raises:
        OptionError: there is no session to parse the schema, or the format has a registry with a
            secret.
    """
    settings = form.option(spark or SparkSession.getActiveSession())
    if (url := registry_with_secret(settings)) is not None:
        raise OptionError(
            f"The schema registry {url} has a secret, which Spark would show in the source's option"
            " decode; pass the format to gate.read(spark, source, decode=...), which hides the"
            " secret."
        )
    return json.dumps(settings)


def registry_with_secret(option: dict[str, Any]) -> str | None:
    """Return the registry's URL from the JSON of `Format.option` if it has a secret, else None."""
    (settings,) = option.values()
    registry = settings.get("registry") or {}
    return registry["url"] if registry.get("password") or registry.get("token") else None


_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""Exceptions that Arrow raises if a column's type cannot hold a value."""

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""First and last timestamp that Python's datetime can represent: in the years 1 and 9999 (µs since
1970)."""

FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""First and last date that Python's datetime can represent: in the years 1 and 9999 (days since
1970)."""


def nullable(columns: StructType) -> StructType:
    """Return the columns, all nullable, as Spark requires of a Python function's result."""
    return StructType([StructField(column.name, column.dataType) for column in columns.fields])


class Columns:
    """Builds Arrow structs from decoded records, column by column.

    This takes half the time of building tuples.

    Args:
        schema: the fields of the structs.
        takes: for each field, a function that returns the field's value from a record.
        asked: names of the fields to build. Default: all.
    """

    def __init__(
        self,
        schema: StructType,
        takes: Sequence[Callable[[Any], Any]],
        asked: Collection[str] | None = None,
    ) -> None:
        built = [asked is None or field.name in asked for field in schema.fields]
        self._takes: Final = list(compress(takes, built))
        self._fields: Final = list(compress(schema.fields, built))
        # A task must return this type to Spark.
        self._type: Final[pa.StructType] = arrow_type(nullable(StructType(self._fields)))

    def structs(self, records: Sequence[Any], reasons: dict[int, str]) -> Decoded:
        """Build a struct for each record. The struct of None or of an unfit record is null.

        The result has all reasons in ``reasons``, and a reason for each record that does not fit.
        """
        while True:
            is_present = [record is not None for record in records]
            whole = records if all(is_present) else list(compress(records, is_present))
            try:
                columns = [list(map(take, whole)) for take in self._takes]
                arrays = [
                    pa.array(column, kind.type)
                    for column, kind in zip(columns, self._type, strict=True)
                ]
                if not all(map(_holds, arrays)):
                    raise OverflowError("a time is outside of the years 1 to 9999")
                return Decoded(self._spread(arrays, is_present), reasons)
            except _UNFIT:
                unfit = self._unfit(whole, list(compress(range(len(records)), is_present)))
                if not unfit:
                    raise
                reasons = {**reasons, **unfit}
                records = [
                    None if at in unfit else record_or_none
                    for at, record_or_none in enumerate(records)
                ]

    def _spread(self, arrays: Sequence[pa.Array], there: Sequence[bool]) -> pa.StructArray:
        """Build structs from columns, and insert a null struct wherever ``there`` is False."""
        fields = [self._type.field(number) for number in range(len(arrays))]
        structs = pa.StructArray.from_arrays(arrays, fields=fields)
        if all(there):
            return structs
        places = _places(there)
        return structs.take(pa.array(places, pa.int64()))

    def _unfit(self, records: Sequence[Any], numbers: Sequence[int]) -> dict[int, str]:
        """Return the reason of each record that lacks a value or has a value of a wrong type."""
        reasons: dict[int, str] = {}
        for field, kind, take in zip(self._fields, self._type, self._takes, strict=True):
            for number, record in zip(numbers, records, strict=True):
                try:
                    fits = _holds(pa.array([take(record)], kind.type))
                except _UNFIT:
                    fits = False
                if not fits:
                    word = field.dataType.simpleString()
                    reasons.setdefault(number, f"its field {field.name} does not fit {word}")
        return reasons


def _holds(array: pa.Array) -> bool:
    """Return whether all times in an array are in the years 1 to 9999, as in Python's datetime."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _within(array.cast(pa.timestamp("us")).cast(pa.int64()), FIRST_US, LAST_US)
    if pa.types.is_date(kind):
        return _within(array.cast(pa.int32()), FIRST_DAY, LAST_DAY)
    if pa.types.is_struct(kind):
        return all(map(_holds, array.flatten()))
    if pa.types.is_map(kind):
        return _holds(array.items)
    return not pa.types.is_list(kind) or _holds(array.flatten())


def _within(array: pa.Array, first: int, last: int) -> bool:
    bounds = pc.min_max(array)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least >= first and most <= last)


def _places(there: Sequence[bool]) -> list[int | None]:
    count = 0
    places: list[int | None] = []
    for is_there in there:
        places.append(count if is_there else None)
        count += is_there
    return places
