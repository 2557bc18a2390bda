"""``format("headgate-kafka")``: Spark's face of the source, streaming and bounded."""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
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
from pyspark.sql.types import StructType

from headgate.control.ranges import OffsetRange
from headgate.errors import OptionError
from headgate.kafka.columns import ARROW_SCHEMA
from headgate.kafka.options import KafkaOptions, parse_options
from headgate.kafka.packing import pack
from headgate.kafka.planner import StreamPlanner
from headgate.kafka.reader import ReaderConfig, read_ranges
from headgate.kafka.subscription import Cluster

FORMAT: Final = "headgate-kafka"

_SPARK_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}

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

    def schema(self) -> str:
        headers = self.options.get("includeHeaders", "false").lower() == "true"
        names = [name for name in _SPARK_TYPES if headers or name != "headers"]
        return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in names)

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
        assert isinstance(partition, KafkaTask)
        _settle_garbage_collector()
        return read_ranges(self._config, partition.ranges)


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
        self._planner.processed(end)

    def stop(self) -> None:
        if self._planner_made is not None:
            self._planner_made.close()


class KafkaBatchReader(_TaskSide, DataSourceReader):
    """The bounded source: ``startingOffsets`` to ``endingOffsets``, both as they are when it plans."""

    def partitions(self) -> Sequence[KafkaTask]:
        # Spark makes one task of an empty list, and gives it nothing to read.
        return self._tasks(Cluster(self._options).bounded_ranges()) or [KafkaTask(())]


def chosen_columns(schema: StructType) -> tuple[str, ...]:
    """The names of a schema's columns, which must be the source's own and of their types.

    Raises:
        OptionError: a column is not one of the source's.
    """
    for field in schema.fields:
        expected = StructType.fromDDL(
            ", ".join(f"{name} {kind}" for name, kind in _SPARK_TYPES.items())
        )
        known = {f.name: f.dataType for f in expected.fields}
        if known.get(field.name) != field.dataType:
            raise OptionError(
                f"The schema's column {field.name} {field.dataType.simpleString()} is not one that"
                f" {FORMAT} has; it has "
                + ", ".join(f"{name} {kind}" for name, kind in _SPARK_TYPES.items())
                + "."
            )
    return tuple(schema.names)


def _plain(options: CaseInsensitiveDict | dict[str, str]) -> dict[str, str]:
    return dict(options)


_settled = False


def _settle_garbage_collector() -> None:
    """Once a worker process: take what is imported out of the garbage collector's sight.

    After every task Spark's worker collects all garbage, which with what pyspark, pyarrow and pandas
    import takes longer than a small read.
    """
    global _settled  # noqa: PLW0603  (one for each process is the point)
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


_ = ARROW_SCHEMA
