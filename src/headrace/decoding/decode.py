"""``headrace.decode``: a stream's values into typed columns, in the tasks, from Arrow to Arrow."""

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from headrace.decoding.columns import nullable
from headrace.decoding.formats import Decoder, Format
from headrace.decoding.reports import Reporter, reporter_of
from headrace.errors import DecodeError, OptionError
from headrace.spark_versions import is_remote

_VALUE: Final = "value"
_NEEDED: Final = {
    _VALUE: BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}
_PLACE: Final = ("topic", "partition", "offset")

MAX_IN_TASK: Final = 10_000
"""Records that may not fit in one task. Beyond that its job fails, before a sink has anything."""


def decode(df: DataFrame, format: Format) -> DataFrame:  # noqa: A002  (Spark's own word)
    """The same rows with their values decoded, but those that do not fit, which are rejected.

    The column ``value`` becomes a struct of the format's columns; all others stay as they are. A
    null value, such as a tombstone, stays null. A value that cannot be decoded is rejected from the
    batch as `Batch.reject` does it, with a reason that has nothing of the value: as dead letters,
    durable with the batch's success.

    >>> def handler(df, batch):
    ...     orders = headrace.decode(df, headrace.json("id BIGINT NOT NULL, amount DOUBLE"))
    ...     orders.select("offset", "value.*").write.mode("append").saveAsTable("orders")

    Call it in the handler of a gate, whose thread also starts the jobs. Values that are never
    computed are not decoded, and so not rejected either.

    Args:
        df: has the columns value, topic, partition and offset, as the sources give them.
        format: what the values are; `headrace.json`, `headrace.avro` or `headrace.protobuf`.

    Raises:
        OptionError: a column is missing; the schema does not parse, or has a type that Spark does
            not have.
        RegistryError: the schema registry cannot be reached. From a job: the same, and the batch is
            deferred, or the query stops, as with a source that is away.
        DecodeError: from a job: something does not fit, and there is no handler to reject it.
    """
    _check_columns(df)
    if df.isStreaming and is_remote(df.sparkSession):
        raise OptionError(
            "headrace.decode is given a stream over Spark Connect, whose tasks do not know which"
            " batch they belong to; decode in the handler, what it is given."
        )
    columns = format.columns(df.sparkSession)
    fields = [
        StructField(_VALUE, nullable(columns)) if field.name == _VALUE else field
        for field in df.schema.fields
    ]
    task = DecodeTask(format, columns, reporter_of(df.sparkSession))
    return df.mapInArrow(task, StructType(fields))


def _check_columns(df: DataFrame) -> None:
    for name, kind in _NEEDED.items():
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if found != [kind]:
            has = f"of {found[0].simpleString()}" if found else "missing"
            raise OptionError(
                f"The column {name} of the rows to decode is {has}; keep the columns"
                f" {', '.join(_NEEDED)} as the source gives them."
            )


class DecodeTask:
    """Function of each task; it is called with a task's record batches."""

    def __init__(
        self,
        of: Format,
        columns: StructType,
        reports: Reporter,
    ) -> None:
        self._format = of
        self._columns = columns
        self._reports = reports

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same record batches, decoded, without the rows that do not fit."""
        decoder = _decoder(self._format, self._columns.json())
        run, reported = self._reports.run(), 0
        for batch in batches:
            at = batch.schema.get_field_index(_VALUE)
            decoded = decoder.decode(batch.column(at))
            names, arrays = batch.schema.names, batch.columns
            arrays[at] = decoded.values
            result = pa.RecordBatch.from_arrays(arrays, names=names)
            if decoded.reasons:
                places = [batch.column(name) for name in _PLACE]
                reported += len(decoded.reasons)
                self._report(run, places, decoded.reasons, reported)
                good = [number not in decoded.reasons for number in range(batch.num_rows)]
                result = result.filter(pa.array(good))
            yield result

    def _report(
        self, run: str | None, places: list[pa.Array], reasons: dict[int, str], reported: int
    ) -> None:
        found = [
            (*(column[number].as_py() for column in places), reasons[number]) for number in reasons
        ]
        if run is None:
            topic, partition, offset, reason = found[0]
            raise DecodeError(
                f"{topic}-{partition} at {offset} cannot be decoded, for {reason}, and no handler"
                " of a gate runs in this job's thread to reject it; decode within the handler, and"
                " start threads of its own with pyspark.InheritableThread."
            )
        if reported > MAX_IN_TASK:
            topic, partition, _, reason = found[0]
            raise DecodeError(
                f"More than {MAX_IN_TASK:,} of the values that one task reads of"
                f" {topic}-{partition} cannot be decoded, such as one for {reason}; see that the"
                " format is the producers'."
            )
        self._reports.add([(run, *each) for each in found])


@lru_cache(maxsize=16)
def _decoder(of: Format, columns: str) -> Decoder:
    """Return the decoder of a format, made once in a worker."""
    return of.decoder(StructType.fromJson(json.loads(columns)))
