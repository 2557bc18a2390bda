"""``format("headgate-kafka")``: Spark's face of the source, streaming and bounded."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from headgate.control.ranges import OffsetRange
from headgate.kafka.log import KafkaLog
from headgate.kafka.options import FORMAT, KafkaOptions, parse_options
from headgate.kafka.reader import ReaderConfig, read_ranges
from headgate.source.losses import OnLoss
from headgate.source.options import SourceOptions
from headgate.source.packing import pack
from headgate.source.readers import SourceFormat, chosen_columns


class KafkaSource(SourceFormat):
    """Kafka, read under a gate; the native connector's options and columns."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reading(self, schema: StructType, *, streaming: bool) -> "KafkaReading":
        """See `SourceFormat.reading`."""
        options = parse_options(dict(self.options), streaming=streaming)
        return KafkaReading(options, chosen_columns(FORMAT, schema), self.parallelism)


class KafkaReading:
    """How Kafka is read; see `headgate.source.readers.Reading`."""

    name = "Kafka"

    def __init__(self, options: KafkaOptions, columns: tuple[str, ...], parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism
        self._columns = columns

    @property
    def options(self) -> SourceOptions:
        """Those that every source has."""
        return self._options.shared

    def log(self) -> KafkaLog:
        """What is read, to plan by."""
        return KafkaLog(self._options)

    def packed(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """What each task reads of these ranges."""
        return pack(
            ranges,
            self._parallelism,
            min_partitions=self.options.min_partitions,
            max_records_per_partition=self.options.max_records_per_partition,
        )

    def read(
        self, ranges: Sequence[OffsetRange], left_out: Sequence[str], on_loss: OnLoss
    ) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a Spark worker."""
        config = ReaderConfig(
            client=self._options.client,
            columns=self._columns,
            on_loss=on_loss,
            timeout_ms=self._options.poll_timeout_ms,
            left_out=frozenset(name.encode() for name in left_out),
        )
        return read_ranges(config, ranges)
