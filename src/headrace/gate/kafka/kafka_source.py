"""``format("headrace-kafka")``: a source for streams and for bounded reads, and two sinks.

`KAFKA` is the `Connector` with which a gate checks, plans and repeats reads of Kafka.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
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

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError, OptionError
from headrace.gate.kafka.client.config import producer_config
from headrace.gate.kafka.client.option_values import PREFIX, client_options
from headrace.gate.kafka.consumers import ClientConfig
from headrace.gate.kafka.dead_letter_producer import DeadLetterTopic
from headrace.gate.kafka.kafka_options import FORMAT, KafkaOptions, parse_options
from headrace.gate.kafka.lookup import Lookup
from headrace.gate.kafka.native_reader import range_read
from headrace.gate.kafka.producing import ProducedRecord, produce_all
from headrace.gate.kafka.range_reader import ReaderConfig, read_ranges
from headrace.gate.kafka.topic_log import KafkaLog
from headrace.gate.source.connector import OF_A_GATE, Connector
from headrace.gate.source.log import Log
from headrace.gate.source.losses import OnLoss
from headrace.gate.source.read_bounds import span_by_options
from headrace.gate.source.readers import SourceFormat, SourceTask, pack
from headrace.gate.source.replay import assigned, replay_bounds
from headrace.gate.source.source_options import SourceOptions, unknown_option
from headrace.spark_versions import VersionedStreamWriter

Read = Callable[[Sequence[OffsetRange]], Iterator[pa.RecordBatch]]

_WHY = "its topic was deleted and recreated since the batch was planned"


def read_same_topics(
    client: ClientConfig,
    planned_ids: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    on_loss: OnLoss,
    read: Read,
) -> Iterator[pa.RecordBatch]:
    """Call ``read`` for the ranges whose topic still has the planned id. Yield its batches.

    A topic without a planned id is not checked. ``on_loss`` is called with each range of a topic
    that was recreated since the plan.

    DataLossError is raised if a topic was recreated during the read, because the records may be
    from the old topic or from the new one.
    """
    recreated = _recreated(client, planned_ids, ranges)
    for offsets in ranges:
        if offsets.topic in recreated:
            on_loss(offsets, _WHY)
    existing = [offsets for offsets in ranges if offsets.topic not in recreated]
    yield from read(existing)
    if meanwhile := sorted(_recreated(client, planned_ids, existing)):
        raise DataLossError(
            f"The topic {meanwhile[0]} was deleted and recreated while a batch of it was read, so"
            " the records may be from the old or the new topic; start the query again: it then"
            " reports the lost offsets."
        )


def _recreated(
    client: ClientConfig, planned_ids: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> set[str]:
    """Return the existing topics whose id has changed. The reader itself detects missing topics."""
    names = {offsets.topic for offsets in ranges} & planned_ids.keys()
    if not names:
        return set()
    topics = _lookup(json.dumps(dict(client), sort_keys=True)).topics(names)
    return {
        name
        for name, topic in topics.items()
        if topic.topic_id is not None and topic.topic_id != planned_ids[name]
    }


@lru_cache(maxsize=8)
def _lookup(client: str) -> Lookup:
    """Return a lookup for a configuration (JSON), cached because it costs a connection."""
    return Lookup(json.loads(client), retries=0, retry_interval_ms=0)


TOPIC: Final = "topic"
"""Name of the sink's option that sets one topic for all rows. It overrides the column ``topic``."""

# Options of a sink from Spark itself or a builder, and options that the native sink ignores.
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
    """Writer of a task's rows to Kafka. Its ``topic``, if set, overrides the rows' topics."""

    client: Mapping[str, Any] = field(repr=False)
    topic: str | None
    columns: tuple[str, ...]

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Produce all rows and wait until they are acknowledged. Return their number.

        OptionError is raised for a row without a topic, a header without a key, or a negative
        partition. BrokerError is raised if the brokers refuse a row; other rows may be in their
        topics.
        """
        return produce_all(self.client, (row for batch in batches for row in self._rows(batch)))

    def _rows(self, batch: pa.RecordBatch) -> Iterator[ProducedRecord]:
        columns = {name: batch.column(name).to_pylist() for name in self.columns}
        nothing = [None] * batch.num_rows
        for topic, key, value, headers, partition in zip(
            *(columns.get(name, nothing) for name in _COLUMNS), strict=True
        ):
            to = self.topic or topic
            if to is None:
                raise OptionError(
                    "A row's topic is null; give every row a topic, or set the option topic for"
                    " all."
                )
            if partition is not None and partition < 0:
                raise OptionError(
                    f"A row's partition is {partition}; it must be 0 or more, or null to choose the"
                    " partition by the key."
                )
            yield ProducedRecord(to, _bytes(key), _bytes(value), _pairs(headers), partition)


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writer that Spark uses for ``df.write``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Produce the rows of one task."""
        self._sink.write(iterator)
        return WriterCommitMessage()


class KafkaStreamWriter(VersionedStreamWriter):
    """Writer that Spark uses for ``df.writeStream``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of each row that are written."""
        return self._sink.columns

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Produce the rows of one task."""
        self._sink.write(batches)
        return WriterCommitMessage()


def parse_sink(source: str, options: Mapping[str, str], schema: StructType) -> Sink:
    """Check a sink's options and columns, and return the sink.

    Columns other than topic, key, value, headers and partition are not written. OptionError is
    raised for an unknown option, and for a missing column or a column of a wrong type.
    """
    topic = None
    for name, value in options.items():
        if name.lower() == TOPIC:
            topic = value
        elif not name.lower().startswith(PREFIX) and name.lower() not in _OF_SPARK:
            raise unknown_option(f"writing {source}", name, {TOPIC: TOPIC})
    columns = _checked(source, schema, topic)
    return Sink(producer_config(client_options(options)), topic, columns)


def _checked(source: str, schema: StructType, topic: str | None) -> tuple[str, ...]:
    types = {column.name: column.dataType for column in schema if column.name in _COLUMNS}
    for name, kind in types.items():
        if not any(_same(kind, allowed) for allowed in _COLUMNS[name]):
            allowed = " or ".join(column.simpleString() for column in _COLUMNS[name])
            raise OptionError(
                f"The column {name} is {kind.simpleString()}, and {source} writes {allowed};"
                " cast it."
            )
    if "value" not in types:
        raise OptionError(
            f"There is no column value to write to {source}; select a column value, of type string"
            " or binary."
        )
    if topic is None and "topic" not in types:
        raise OptionError(
            f"{source} has no topic to write to; set the option topic, or give each row a column"
            " topic."
        )
    return tuple(types)


def _same(one: DataType, other: DataType) -> bool:
    """Return whether two types are equal, apart from nullability and the collation of strings."""
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _same(one.elementType, other.elementType)
    if isinstance(one, StructType) and isinstance(other, StructType):
        return one.names == other.names and all(
            _same(a.dataType, b.dataType) for a, b in zip(one, other, strict=True)
        )
    return type(one) is type(other)


def _pairs(headers: list[dict[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    for header in headers or ():
        # The native sink fails too, but without a reason.
        if header is None:
            raise OptionError("A header is null; leave the header out, or give it a key.")
        if header["key"] is None:
            raise OptionError("The key of a header is null; give every header a key.")
    return [(header["key"], header["value"]) for header in headers or () if header is not None]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class KafkaSource(SourceFormat):
    """Spark's data source for Kafka, with the options and columns of the native connector."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reading(self, columns: tuple[str, ...], *, streaming: bool) -> "KafkaReading":
        options = parse_options(dict(self.options), streaming=streaming)
        return KafkaReading(options, columns, self.parallelism, streaming=streaming)

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        """Return the writer for ``df.write``. Raise `OptionError` for the mode overwrite."""
        if overwrite:
            raise OptionError(
                f'The mode is overwrite, and {FORMAT} only appends to topics; write mode("append").'
            )
        return KafkaBatchWriter(parse_sink(FORMAT, self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """Return the writer for ``df.writeStream``. Every mode appends, as in Spark's sink."""
        return KafkaStreamWriter(parse_sink(FORMAT, self.options, schema))


class KafkaReading:
    """Kafka's implementation of `headrace.gate.source.readers.Reading`: reads a task's ranges."""

    name = "Kafka"

    def __init__(
        self, options: KafkaOptions, columns: tuple[str, ...], parallelism: int, *, streaming: bool
    ) -> None:
        self._options = options
        self._streaming = streaming
        self._parallelism = parallelism
        self._columns = columns

    @property
    def options(self) -> SourceOptions:
        return self._options.shared

    def log(self) -> KafkaLog:
        return KafkaLog(self._options)

    def packed(self, ranges: Sequence[OffsetRange], _log: Log) -> list[tuple[OffsetRange, ...]]:
        """Distribute ranges over tasks, as the native connector does.

        In a bounded read, the native connector applies ``maxRecordsPerPartition`` only in two
        cases: if ``minPartitions`` is larger than the number of ranges, or if a range's size, as
        `span_by_options` computes it, is above ``maxRecordsPerPartition``.
        """
        minimum = self.options.min_partitions
        most = self.options.max_records_per_partition
        if most is not None and not self._streaming and (minimum or 0) <= len(ranges):
            bounds = self.options.starting, self.options.ending
            if all(span_by_options(*bounds, r) <= most for r in ranges):
                minimum, most = 1, None
        return pack(
            ranges, self._parallelism, min_partitions=minimum, max_records_per_partition=most
        )

    def read(self, task: SourceTask) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task in a Spark worker."""
        on_loss = task.losses.pass_over
        config = ReaderConfig(
            client=self._options.client,
            columns=self._columns,
            on_loss=on_loss,
            timeout_ms=self._options.poll_timeout_ms,
            aborted=frozenset(name.encode() for name in task.aborted),
            read=range_read(self._options.engine),
        )
        read = partial(read_ranges, config)
        return read_same_topics(self._options.client, task.topic_ids, task.ranges, on_loss, read)


_SERVERS: Final = "kafka.bootstrap.servers"
_SUBSCRIPTIONS: Final = frozenset({"subscribe", "subscribepattern", "assign"})

# Options of a stream that a replay keeps: for the connection to Kafka and for a record's columns.
# The ranges replace the options for the start and the size.
_KEPT_IN_REPLAYS: Final = frozenset(
    {
        "headrace.channel",
        "headrace.engine",
        "includeheaders",
        "groupidprefix",
        "minpartitions",
        "maxrecordsperpartition",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    }
)


def _check(options: Mapping[str, str]) -> None:
    # Spark would find a wrong option or a missing topic only when the query runs, and wrap the
    # error in a traceback.
    KafkaLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _replay_options(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() in _KEPT_IN_REPLAYS or name.lower().startswith(PREFIX)
    }
    return {**kept, "assign": assigned(ranges), **replay_bounds(ranges)}


def _bounded_log(options: Mapping[str, str]) -> KafkaLog:
    return KafkaLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    return {name.lower(): value for name, value in options.items()}[_SERVERS]


def _complete(options: Mapping[str, str], servers: str | None) -> dict[str, str]:
    """Add the brokers to a stream's options if they are missing. Check and return the options."""
    names = {name.lower() for name in options}
    complete = dict(options)
    if _SERVERS not in names and servers is not None:
        complete[_SERVERS] = servers
    subscription = {} if names & _SUBSCRIPTIONS else {"subscribe": "topic"}
    parse_options(OF_A_GATE | subscription | complete, streaming=True)
    return complete


KAFKA: Final = Connector(
    "kafka",
    KafkaSource,
    _check,
    _replay_options,
    _bounded_log,
    _servers,
    _complete,
    DeadLetterTopic,
)
