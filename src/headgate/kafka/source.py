"""``format("headgate-kafka")``: Spark's face of the source, streaming and bounded."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headgate.control.ranges import OffsetRange
from headgate.errors import OptionError
from headgate.kafka.lookup import Lookup
from headgate.kafka.options import KafkaOptions, parse_options
from headgate.kafka.packing import pack
from headgate.kafka.planner import StreamPlanner
from headgate.kafka.reader import ReaderConfig, read_ranges
from headgate.kafka.subscription import Cluster, bounded_ranges

FORMAT: Final = "headgate-kafka"

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)

# Any number will do: the plan has the real limit. It tells a trigger that has a limit from `once`,
# which asks for all that is available.
_LIMITED: Final = ReadMaxRows(2**63 - 1)

# Without headgate.register nobody knows how many tasks the cluster runs at once.
_ASSUMED_PARALLELISM: Final = 4


@dataclass(frozen=True, slots=True)
class KafkaTask(InputPartition):
    """What one task reads."""

    ranges: tuple[OffsetRange, ...]


class KafkaSource(DataSource):
    """Kafka, read under a gate; the native connector's options and columns.

    A schema given to the builder chooses columns: what is not in it is not built.
    """

    parallelism: ClassVar[int] = _ASSUMED_PARALLELISM
    """How many tasks the session runs at the same time; `headgate.register` sets it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        return _SCHEMA if headers else StructType(_SCHEMA.fields[:-1])

    def reader(self, schema: StructType) -> "KafkaBatchReader":
        options = parse_options(_plain(self.options), streaming=False)
        return KafkaBatchReader(options, chosen_columns(schema), self.parallelism)

    def streamReader(self, schema: StructType) -> "KafkaStreamReader":
        options = parse_options(_plain(self.options), streaming=True)
        return KafkaStreamReader(options, chosen_columns(schema), self.parallelism)


class _TaskSide:
    """What both readers do in a task; all that is sent there."""

    def __init__(self, options: KafkaOptions, columns: tuple[str, ...], parallelism: int) -> None:
        self._options = options
        self._parallelism = parallelism
        self._config = ReaderConfig(
            client=options.client,
            columns=columns,
            fail_on_data_loss=options.fail_on_data_loss,
            timeout_ms=options.poll_timeout_ms,
        )

    def _tasks(self, ranges: Sequence[OffsetRange]) -> list[KafkaTask]:
        tasks = pack(
            ranges,
            self._parallelism,
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [KafkaTask(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a Spark worker."""
        _settle_garbage_collector()
        return read_ranges(self._config, cast(KafkaTask, partition).ranges)


class KafkaStreamReader(_TaskSide, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming source: planned by `StreamPlanner`, which is made where planning happens."""

    _planner_made: StreamPlanner | None = None

    @property
    def _planner(self) -> StreamPlanner:
        if self._planner_made is None:
            self._planner_made = StreamPlanner(self._options)
        return self._planner_made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_planner_made"}

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return _LIMITED

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._planner.advance(start, everything=isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.stop_at_latest()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[KafkaTask]:
        return self._tasks(self._planner.begin(start, end))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: for a query's last batch it may never come, so ``latestOffset`` takes note."""

    def stop(self) -> None:
        if self._planner_made is not None:
            self._planner_made.close()


class KafkaBatchReader(_TaskSide, DataSourceReader):
    """The bounded source: from ``startingOffsets`` to ``endingOffsets``, found when it plans."""

    def partitions(self) -> Sequence[KafkaTask]:
        options = self._options
        lookup = Lookup(
            options.client, options.fetch_offset_retries, options.fetch_offset_retry_interval_ms
        )
        cluster = Cluster(options.subscription, lookup)
        ranges = bounded_ranges(
            cluster, options.starting, options.ending, options.timestamp_strategy
        )
        # Of an empty list Spark would make one task, and give it nothing to read.
        return self._tasks(ranges) or [KafkaTask(())]


def chosen_columns(schema: StructType) -> tuple[str, ...]:
    """The names of a schema's columns, which must be the source's own and of their types.

    Raises:
        OptionError: a column is not one of the source's.
    """
    types = {field.name: field.dataType for field in _SCHEMA}
    for field in schema:
        if types.get(field.name) != field.dataType:
            raise OptionError(
                f"The schema's column {field.name} {field.dataType.simpleString()} is not one that"
                f" {FORMAT} has; it has "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
                + "."
            )
    return tuple(schema.names)


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    return dict(options)


_settled = False


def _settle_garbage_collector() -> None:
    """Once a worker process: take what is imported out of the garbage collector's sight.

    After every task Spark's worker collects all garbage, which with all that pyspark, pyarrow and
    pandas import takes longer than a small read.
    """
    global _settled  # noqa: PLW0603  (one for each process is the point)
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True
