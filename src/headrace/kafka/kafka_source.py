"""``format("headrace-kafka")``: Spark's source, streaming and bounded, and its sinks."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.kafka.kafka_options import FORMAT, KafkaOptions, parse_options
from headrace.kafka.range_reader import ReaderConfig, read_ranges
from headrace.kafka.same_topics import read_same_topics
from headrace.kafka.sink import KafkaBatchWriter, KafkaStreamWriter, parse_sink
from headrace.kafka.topic_log import KafkaLog
from headrace.source.packing import pack
from headrace.source.read_bounds import span_by_options
from headrace.source.readers import SourceFormat, SourceTask, chosen_columns
from headrace.source.source_options import SourceOptions


class KafkaSource(SourceFormat):
    """Kafka, read under a gate; the native connector's options and columns."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reading(self, schema: StructType, *, streaming: bool) -> "KafkaReading":
        options = parse_options(dict(self.options), streaming=streaming)
        columns = chosen_columns(FORMAT, schema)
        return KafkaReading(options, columns, self.parallelism, streaming=streaming)

    def writer(self, schema: StructType, overwrite: bool) -> KafkaBatchWriter:
        """The sink of ``df.write``."""
        if overwrite:
            raise OptionError(
                f'The mode is overwrite, and {FORMAT} only appends to topics; write mode("append").'
            )
        return KafkaBatchWriter(parse_sink(FORMAT, self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:
        """The sink of ``df.writeStream``; as with the native one, each mode appends."""
        return KafkaStreamWriter(parse_sink(FORMAT, self.options, schema))


class KafkaReading:
    """How the tasks of one source read Kafka: its `headrace.source.readers.Reading`."""

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

    def packed(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """What each task reads; with both options as many tasks as the native connector makes.

        That one applies ``maxRecordsPerPartition`` to a bounded read only if the options alone say
        that a range is too long, or if ``minPartitions`` has it look closer.
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
        """The records of one task, in a Spark worker."""
        on_loss = task.losses.pass_over
        config = ReaderConfig(
            client=self._options.client,
            columns=self._columns,
            on_loss=on_loss,
            timeout_ms=self._options.poll_timeout_ms,
            aborted=frozenset(name.encode() for name in task.aborted),
        )
        read = partial(read_ranges, config)
        return read_same_topics(self._options.client, task.topic_ids, task.ranges, on_loss, read)
