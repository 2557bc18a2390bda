"""Formats for `decode`: columns, decoding of values, and reasons of values that do not fit."""

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
    """Decoded values.

    Attributes:
        values: a struct for each value; null for null values and values that do not fit.
        reasons: the reason for each value that does not fit, by the index of the value.
    """

    values: pa.StructArray
    reasons: dict[int, str]


class Decoder(Protocol):
    """Decodes values, in a task."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode binary values; the reason of a value has none of its content.

        Raises:
            RegistryError: the schema registry cannot be reached.
        """


@runtime_checkable
class Format(Protocol):
    """A format with its schema, hashable and serialized to the tasks.

    Its text is the value of a source's option ``decode``.
    """

    def __hash__(self) -> int:
        """Return a hash: workers cache a decoder for each format."""

    def columns(self, spark: SparkSession | None) -> StructType:
        """Return the schema of decoded values.

        Raises:
            OptionError: the schema does not parse, or has a type that Spark does not have; or it is
                a DDL text of Spark, and there is no session to parse it.
        """

    def decoder(self, columns: StructType, asked: Collection[str] | None = None) -> Decoder:
        """Return the decoder for a task; made once in each worker process.

        Args:
            columns: the result of `columns`.
            asked: names of the needed columns; others need not be built. Default: all.
        """

    def option(self, spark: SparkSession | None) -> dict[str, Any]:
        """Return JSON that `decode_option.format_of` converts back; raises as `columns`.

        The result includes a registry's secrets.
        """


def option_text(form: Format, spark: SparkSession | None = None) -> str:
    """Return the text of a source's option ``decode``, which Spark shows in its plans.

    Args:
        form: the format.
        spark: the session that parses the schema. Default: the active one.

    Raises:
        OptionError: there is no session to parse the schema, or the registry has a secret.
    """
    settings = form.option(spark or SparkSession.getActiveSession())
    if (url := registry_with_secret(settings)) is not None:
        raise OptionError(
            f"The schema registry {url} of the format to decode has a secret, which Spark would"
            " show among a source's options; read through a gate with gate.read(spark, source,"
            " decode=...), which keeps it."
        )
    return json.dumps(settings)


def registry_with_secret(option: dict[str, Any]) -> str | None:
    """Return the registry's URL in a result of `Format.option`, if the registry has a secret."""
    (settings,) = option.values()
    registry = settings.get("registry") or {}
    return registry["url"] if registry.get("password") or registry.get("token") else None


_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""Errors that Arrow raises for a value that its type cannot hold."""

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""First and last timestamp of the years 1 to 9999 (µs since 1970)."""

FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""First and last day of the years 1 to 9999 (days since 1970)."""


def nullable(columns: StructType) -> StructType:
    """Return the columns as nullable, as Spark requires of results from Python."""
    return StructType([StructField(column.name, column.dataType) for column in columns.fields])


class Columns:
    """Builds structs from records.

    Args:
        schema: the columns of the struct.
        takes: a function for each column that returns its value of a record. Building column by
            column takes half the time of building tuples.
        asked: names of the columns to build. Default: all.
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
        """Return a struct for each record, null for None, and further reasons of unfit values."""
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
        """Return structs of these columns, with nulls at the places without values."""
        fields = [self._type.field(number) for number in range(len(arrays))]
        structs = pa.StructArray.from_arrays(arrays, fields=fields)
        if all(there):
            return structs
        places = _places(there)
        return structs.take(pa.array(places, pa.int64()))

    def _unfit(self, records: Sequence[Any], numbers: Sequence[int]) -> dict[int, str]:
        """Return reasons of records with a value that is missing or does not fit its column."""
        reasons: dict[int, str] = {}
        for field, kind, take in zip(self._fields, self._type, self._takes, strict=True):
            for number, record in zip(numbers, records, strict=True):
                try:
                    fits = _holds(pa.array([take(record)], kind.type))
                except _UNFIT:
                    fits = False
                if not fits:
                    word = field.dataType.simpleString()
                    reasons.setdefault(number, f"its field {field.name} cannot be held by {word}")
        return reasons


def _holds(array: pa.Array) -> bool:
    """Whether all times are within the years of Python's datetime, which collecting requires."""
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
