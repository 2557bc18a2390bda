"""``format("headrace-kafka")`` as a sink: rows become records, as with the native connector.

Each row is one record. A task that runs again produces its records again, so every row is in its
topic at least once. In a partition, rows of one task are in their order.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from headrace.errors import OptionError
from headrace.kafka.client.config import producer_config
from headrace.kafka.client.option_values import PREFIX, client_options
from headrace.kafka.producing import ProducedRecord, produce_all
from headrace.source.source_options import unknown_option
from headrace.spark_versions import VersionedStreamWriter

TOPIC: Final = "topic"
"""The option that names the topic of all rows, whatever their column says."""

# What Spark itself, or a builder, says to a sink; and what the native one takes without effect.
_OF_SPARK: Final = frozenset(
    {"checkpointlocation", "path", "queryname", "outputmode", "includeheaders"}
)
_BYTES: Final[tuple[DataType, ...]] = (BinaryType(), StringType())
_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_COLUMNS: Final[Mapping[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": _BYTES,
    "value": _BYTES,
    "headers": (_HEADERS,),
    "partition": (IntegerType(),),
}


@dataclass(frozen=True, slots=True)
class Sink:
    """Produces the rows of a task; a topic of its own overrides that of the rows."""

    client: Mapping[str, Any] = field(repr=False)
    topic: str | None
    columns: tuple[str, ...]

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Produce all rows; they are acknowledged when it returns how many there were.

        Raises:
            OptionError: a row lacks a topic, a header its key, or a partition is below 0.
            BrokerError: the brokers did not take one; others may be in their topics.
        """
        return produce_all(self.client, (row for batch in batches for row in self._rows(batch)))

    def _rows(self, batch: pa.RecordBatch) -> Iterator[ProducedRecord]:
        found = {name: batch.column(name).to_pylist() for name in self.columns}
        nothing = [None] * batch.num_rows
        for topic, key, value, headers, partition in zip(
            *(found.get(name, nothing) for name in _COLUMNS), strict=True
        ):
            to = self.topic or topic
            if to is None:
                raise OptionError(
                    "A row's topic is null; give every row one, or set the option topic for all."
                )
            if partition is not None and partition < 0:
                raise OptionError(
                    f"A row's partition is {partition}; it must be 0 or more, or null, which leaves"
                    " it to the key."
                )
            yield ProducedRecord(to, _bytes(key), _bytes(value), _pairs(headers), partition)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Spark's face of the sink, for ``df.write``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Produce the rows of one task."""
        self._sink.write(iterator)
        return WriterCommitMessage()


class KafkaStreamWriter(VersionedStreamWriter):
    """Spark's face of the sink, for ``df.writeStream``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def columns(self) -> tuple[str, ...]:
        """What is written of each row."""
        return self._sink.columns

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Produce the rows of one task."""
        self._sink.write(batches)
        return WriterCommitMessage()


def parse_sink(source: str, options: Mapping[str, str], schema: StructType) -> Sink:
    """Check the options and the columns of what is written; other columns are not written."""
    topic = None
    for name, value in options.items():
        if name.lower() == TOPIC:
            topic = value
        elif not name.lower().startswith(PREFIX) and name.lower() not in _OF_SPARK:
            raise unknown_option(f"writing {source}", name, {TOPIC: TOPIC})
    columns = _checked(source, schema, topic)
    return Sink(producer_config(client_options(options)), topic, columns)


def _checked(source: str, schema: StructType, topic: str | None) -> tuple[str, ...]:
    types = {each.name: each.dataType for each in schema if each.name in _COLUMNS}
    for name, found in types.items():
        if not any(_same(found, allowed) for allowed in _COLUMNS[name]):
            allowed = " or ".join(each.simpleString() for each in _COLUMNS[name])
            raise OptionError(
                f"The column {name} is {found.simpleString()}, and {source} writes {allowed};"
                " cast it."
            )
    if "value" not in types:
        raise OptionError(
            f"There is no column value to be written to {source}; select one, string or binary."
        )
    if topic is None and "topic" not in types:
        raise OptionError(
            f"Nothing says to which topic {source} writes; set the option topic, or give each row"
            " a column topic."
        )
    return tuple(types)


def _same(one: DataType, other: DataType) -> bool:
    """Whether two types differ by nullability at most, or by a string's collation."""
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _same(one.elementType, other.elementType)
    if isinstance(one, StructType) and isinstance(other, StructType):
        return one.names == other.names and all(
            _same(a.dataType, b.dataType) for a, b in zip(one, other, strict=True)
        )
    return type(one) is type(other)


def _pairs(headers: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    for each in headers or ():
        # The native sink fails then, too, without saying why.
        if each is None:
            raise OptionError("A header is null; leave it out, or give it a key.")
        if each["key"] is None:
            raise OptionError("The key of a header is null; give every header one.")
    return [(each["key"], each["value"]) for each in headers or () if each is not None]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
