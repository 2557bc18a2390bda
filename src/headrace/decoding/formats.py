"""Format for `decode`: its columns, how values become them, and what does not fit."""

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
    """Values that were decoded.

    Attributes:
        values: a struct for each value, null where that is null or does not fit.
        reasons: why values do not fit, by their number.
    """

    values: pa.StructArray
    reasons: dict[int, str]


class Decoder(Protocol):
    """Decodes values, in a task."""

    def decode(self, values: pa.Array) -> Decoded:
        """All of these values, which are binary; a value's reason has nothing of its content.

        Raises:
            RegistryError: the schema registry cannot be reached.
        """


@runtime_checkable
class Format(Protocol):
    """A format with its schema; a value, which is sent to the tasks.

    Its text is what the option ``decode`` of a source takes.
    """

    def __hash__(self) -> int:
        """A worker keeps the decoder of each format."""

    def columns(self, spark: SparkSession | None) -> StructType:
        """Return the schema that values are decoded into.

        Raises:
            OptionError: the schema does not parse, or has a type that Spark does not have; or it is
                Spark's text, and there is no session to parse it.
        """

    def decoder(self, columns: StructType, asked: Collection[str] | None = None) -> Decoder:
        """Return the decoder for a task; made once in each worker process.

        Args:
            columns: what `columns` has returned.
            asked: names of those that are needed; others need not be built. Default: all.
        """

    def option(self, spark: SparkSession | None) -> dict[str, Any]:
        """Return what `decode_option.format_of` makes this format of, as JSON; raises as `columns`.

        A registry's secrets are in it.
        """


def option_text(form: Format, spark: SparkSession | None = None) -> str:
    """The text of a source's option ``decode`` for this format, which Spark shows in its plans.

    Args:
        form: the format.
        spark: the session that parses its schema. Default: the active one.

    Raises:
        OptionError: there is no session to parse it, or the registry has a secret.
    """
    found = form.option(spark or SparkSession.getActiveSession())
    if (url := registry_with_secret(found)) is not None:
        raise OptionError(
            f"The schema registry {url} of the format to decode has a secret, which Spark would"
            " show among a source's options; read through a gate with gate.read(spark, source,"
            " decode=...), which keeps it."
        )
    return json.dumps(found)


def registry_with_secret(option: dict[str, Any]) -> str | None:
    """The URL of the registry in what `Format.option` returns, if it has a secret."""
    (settings,) = option.values()
    registry = settings.get("registry") or {}
    return registry["url"] if registry.get("password") or registry.get("token") else None


_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)
"""Errors that Arrow raises at a value that its type cannot hold."""

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999 (µs since 1970)."""

FIRST_DAY: Final = -719_162
LAST_DAY: Final = 2_932_896
"""The same in days."""


def nullable(columns: StructType) -> StructType:
    """The same columns, each of which may be null, as Spark asks of what comes from Python."""
    return StructType([StructField(each.name, each.dataType) for each in columns.fields])


class Columns:
    """Makes structs of records.

    Args:
        schema: the columns of the struct.
        takes: what takes the value of each of these columns from a record; column by column that
            costs half of what tuples of all would.
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
        # The type that Spark expects a task to return.
        self._type: Final[pa.StructType] = arrow_type(nullable(StructType(self._fields)))

    def structs(self, records: Sequence[Any], reasons: dict[int, str]) -> Decoded:
        """A struct for each record, null where it is None; more reasons, of what cannot be held."""
        while True:
            there = [record is not None for record in records]
            whole = records if all(there) else list(compress(records, there))
            try:
                columns = [list(map(take, whole)) for take in self._takes]
                arrays = [
                    pa.array(column, kind.type)
                    for column, kind in zip(columns, self._type, strict=True)
                ]
                if not all(map(_holds, arrays)):
                    raise OverflowError("a time is outside of the years 1 to 9999")
                return Decoded(self._spread(arrays, there), reasons)
            except _UNFIT:
                unfit = self._unfit(whole, list(compress(range(len(records)), there)))
                if not unfit:
                    raise
                reasons = {**reasons, **unfit}
                records = [None if at in unfit else each for at, each in enumerate(records)]

    def _spread(self, arrays: Sequence[pa.Array], there: Sequence[bool]) -> pa.StructArray:
        """Structs of these columns, with nulls where there are no values."""
        fields = [self._type.field(number) for number in range(len(arrays))]
        structs = pa.StructArray.from_arrays(arrays, fields=fields)
        if all(there):
            return structs
        places = _places(there)
        return structs.take(pa.array(places, pa.int64()))

    def _unfit(self, records: Sequence[Any], numbers: Sequence[int]) -> dict[int, str]:
        """Which records have a value that its column cannot hold, or that cannot be taken."""
        found: dict[int, str] = {}
        for field, kind, take in zip(self._fields, self._type, self._takes, strict=True):
            for number, record in zip(numbers, records, strict=True):
                try:
                    fits = _holds(pa.array([take(record)], kind.type))
                except _UNFIT:
                    fits = False
                if not fits:
                    word = field.dataType.simpleString()
                    found.setdefault(number, f"its field {field.name} cannot be held by {word}")
        return found


def _holds(array: pa.Array) -> bool:
    """Whether all its times are of years that Python has, as whoever collects them needs."""
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
