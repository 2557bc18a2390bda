"""What a stage's output must look like: the columns of Spark's Kafka sink."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from headrace.errors import OptionError

_TEXT: Final = (BinaryType(), StringType())
_HEADERS: Final = "array<struct<key:string,value:binary>>"


def as_output(df: DataFrame, where: str) -> DataFrame:
    """The columns ``key`` and ``value``, both binary, and ``headers``; what is missing is null.

    Args:
        df: With the column ``value`` (binary or string), and where wanted ``key`` (the same) and
            ``headers`` (as Spark's Kafka sink takes them).
        where: What it is written to, for the error.

    Raises:
        OptionError: It has another column, one of another type, or no value.
    """
    types = {field.name: field.dataType for field in df.schema.fields}
    if len(types) < len(df.columns):
        raise _wrong(where, "it names a column twice")
    for name, kind in types.items():
        if not _allowed(name, kind):
            raise _wrong(where, f"its column {name!r} is {kind.simpleString()}")
    if "value" not in types:
        raise _wrong(where, "it has no column 'value'")
    return df.select(
        _bytes(types, "key"),
        _bytes(types, "value"),
        _headers(types),
    )


def _allowed(name: str, kind: DataType) -> bool:
    if name in ("key", "value"):
        return kind in _TEXT
    if name != "headers" or not isinstance(kind, ArrayType):
        return False
    pair = kind.elementType
    if not isinstance(pair, StructType):
        return False
    return [(each.name, each.dataType) for each in pair.fields] == [
        ("key", StringType()),
        ("value", BinaryType()),
    ]


def _bytes(types: dict[str, DataType], name: str) -> Column:
    column = sql.col(name) if name in types else sql.lit(None)
    return column.cast("binary").alias(name)


def _headers(types: dict[str, DataType]) -> Column:
    if "headers" not in types:
        return sql.lit(None).cast(_HEADERS).alias("headers")
    # A record without headers has null, as Kafka's source answers it.
    given = sql.col("headers")
    return sql.when(sql.size(given) > 0, given).cast(_HEADERS).alias("headers")


def _wrong(where: str, what: str) -> OptionError:
    return OptionError(
        f"What is to be written to {where} is not what a channel takes: {what}; it takes value"
        f" (binary or string) and, if wanted, key (the same) and headers ({_HEADERS}): select"
        " these."
    )
