"""Spark's data source API for every source: its columns, and its readers for streams and batches.

``latestOffset`` applies the gate's rate to each batch. A changing rate cannot be a read limit of
Spark, because Spark calls ``getDefaultReadLimit`` only once per query start. The read limit only
shows whether the trigger reads all records (``once``).
"""

import gc
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
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

from headrace.core.log_lines import show_lines
from headrace.core.ranges import OffsetRange
from headrace.errors import READ, OptionError
from headrace.gate.source.log import Log, declared_lost
from headrace.gate.source.losses import Losses
from headrace.gate.source.read_bounds import bounded_ranges
from headrace.gate.source.replay import check_all_planned, exactly
from headrace.gate.source.source_options import SourceOptions, decoded_values, revealed
from headrace.gate.source.stream_offset import ChecksumsBefore
from headrace.spark_versions import VersionedStreamReader

if TYPE_CHECKING:
    from headrace.decoding import Reporter
    from headrace.gate.source.decoded_values import DecodedValues, ValueTask
    from headrace.gate.source.planner import StreamPlanner

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

_ASSUMED_PARALLELISM: Final = 4
"""Assumed number of tasks that Spark runs at the same time, until `headrace.register` sets it."""


class Reading(Protocol):
    """Reader for one kind of source. Spark sends it to the tasks."""

    @property
    def name(self) -> str:
        """Name of the log in messages, such as Kafka."""

    @property
    def options(self) -> SourceOptions:
        """Values of the options that every source has."""

    def log(self) -> Log:
        """Open the log, to plan reads."""

    def packed(self, ranges: Sequence[OffsetRange], log: Log) -> Sequence[tuple[OffsetRange, ...]]:
        """Distribute ranges over tasks. ``log`` is the log with which the ranges were planned."""

    def read(self, task: "SourceTask") -> Iterator[pa.RecordBatch]:
        """Yield the records of one task in a Spark worker, without records of aborted attempts.

        The method calls the task's policy for losses with missing offsets of the task's ranges.
        """


@dataclass(frozen=True, slots=True)
class SourceTask(InputPartition):
    """Ranges that one Spark task reads.

    Attributes:
        aborted: Names of aborted stage attempts, whose records the task skips.
        losses: Policy for offsets that are gone when the task reads.
        after: Checksums of the records before the batch's start; see `CheckedLog.checksums`.
    """

    ranges: Sequence[OffsetRange]
    aborted: tuple[str, ...]
    losses: Losses
    topic_ids: Mapping[str, str]
    after: ChecksumsBefore


@contextmanager
def marked_as_read() -> Iterator[None]:
    """Add the note `READ` to exceptions in the ``with`` block: the source caused them."""
    try:
        yield
    except Exception as error:
        error.add_note(READ)
        raise


class _TaskSide:
    """Base of the stream reader and the batch reader: the code that runs in the tasks."""

    def __init__(self, reading: Reading, values: "ValueTask | None" = None) -> None:
        self._reading = reading
        self._values = values

    def _tasks(self, whole: SourceTask, log: Log) -> list[SourceTask]:
        tasks = self._reading.packed(whole.ranges, log)
        check_all_planned(whole.ranges, tasks)
        return [replace(whole, ranges=ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task in a Spark worker."""
        _settle_garbage_collector()
        batches = self._read(cast(SourceTask, partition))
        yield from batches if self._values is None else self._values.decoded(batches)

    def _read(self, task: SourceTask) -> Iterator[pa.RecordBatch]:
        with marked_as_read():
            yield from self._reading.read(task)


class SourceFormat(DataSource):
    """Spark's data source for one kind of source, with the columns of the native Kafka connector.

    A schema that the user sets selects columns; other columns are not read.
    """

    parallelism: ClassVar[int] = _ASSUMED_PARALLELISM
    """Number of tasks that the session runs at the same time; `headrace.register` sets it."""
    driver: ClassVar[str | None] = None
    """Name of the driver's process; `headrace.register` sets it."""
    reports: "ClassVar[Reporter | None]" = None
    """Receiver of reports on values that tasks reject; `headrace.register` sets it."""

    secrets: ClassVar[Mapping[str, str]] = {}
    """Secrets of the session, by the placeholders in Spark's options; see
    `source_options.revealed`."""

    def __init__(self, options: dict[str, str]) -> None:
        meant = options.copy()  # Spark's own kind of dict, with case-insensitive names.
        meant.update(revealed(options, self.secrets))
        super().__init__(meant)

    def schema(self) -> StructType:
        headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        stored = _SCHEMA if headers else StructType(_SCHEMA.fields[:-1])
        values = decoded_values(self.options)
        return stored if values is None else values.schema(stored)

    @classmethod
    def check(cls, schema: StructType, options: Mapping[str, str]) -> "DecodedValues | None":
        """Check the selected columns of a source. Return the decoding of its values, or None.

        OptionError is raised for a column that the source does not have, and for a wrong option.
        """
        values = decoded_values(options)
        _check_columns(cls.name(), schema, _SCHEMA if values is None else values.schema(_SCHEMA))
        return values

    def reader(self, schema: StructType) -> "SourceBatchReader":
        values, columns = self._chosen(schema)
        return SourceBatchReader(self.reading(columns, streaming=False), values)

    def streamReader(self, schema: StructType) -> "SourceStreamReader":
        try:
            values, columns = self._chosen(schema)
            return SourceStreamReader(self.reading(columns, streaming=True), self.driver, values)
        except OptionError as error:
            # Spark's process would hide an exception raised here behind an error of its own.
            return _RefusedStream(error)

    def _chosen(self, schema: StructType) -> "tuple[ValueTask | None, tuple[str, ...]]":
        """Return the decoder, which is None if no column is decoded, and the columns to read."""
        values = self.check(schema, self.options)
        task = None if values is None else values.task(schema, self.reports)
        return task, tuple(schema.names) if task is None else task.stored

    def reading(self, columns: tuple[str, ...], *, streaming: bool) -> Reading:
        """Return a reader of these columns. It has the options of this source."""
        raise NotImplementedError


class SourceStreamReader(_TaskSide, VersionedStreamReader):
    """Reader of a stream. It creates its `StreamPlanner` in Spark's planner process."""

    _planner_made: "StreamPlanner | None" = None

    def __init__(
        self, reading: Reading, driver: str | None, values: "ValueTask | None" = None
    ) -> None:
        super().__init__(reading, values)
        self._driver = driver

    @property
    def _planner(self) -> "StreamPlanner":
        if self._planner_made is None:
            # Import here: a task needs no planner, and importing the ledger takes longer than a
            # small task.
            from headrace.gate.source.planner import StreamPlanner  # noqa: PLC0415

            show_lines()
            self._planner_made = StreamPlanner(
                self._reading.log(), self._reading.options, driver=self._driver
            )
        return self._planner_made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_planner_made"}

    def first_offset(self) -> dict[str, Any]:
        with marked_as_read():
            return self._planner.initial()

    def next_offset(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        with marked_as_read():
            return self._planner.advance(start, everything=everything)

    def stop_at_newest(self) -> None:
        self._planner.stop_at_latest()

    def newest_offset(self) -> dict[str, Any] | None:
        return self._planner.latest()

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[SourceTask]:
        with marked_as_read():
            begun = self._planner.begin(start, end)
            losses = Losses(self._reading.name, begun.fail_on_loss, begun.account)
            return self._tasks(
                SourceTask(begun.ranges, begun.aborted, losses, begun.topic_ids, begun.after),
                self._planner.log,
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the planner records processed offsets when it plans the next batch.

        Spark may never call this for a query's last batch.
        """

    def stop(self) -> None:
        if self._planner_made is not None:
            self._planner_made.close()


class _RefusedStream(SourceStreamReader):
    """Reader of a stream with wrong options. It raises the error when Spark plans a batch."""

    def __init__(self, why: OptionError) -> None:
        self._why = why

    @property
    def _planner(self) -> "StreamPlanner":
        raise self._why


class SourceBatchReader(_TaskSide, DataSourceReader):
    """Reader of a bounded read. Planning resolves its starting and ending offsets."""

    def partitions(self) -> Sequence[SourceTask]:
        with marked_as_read():
            return self._planned()

    def _planned(self) -> Sequence[SourceTask]:
        options = self._reading.options
        log = self._reading.log()
        bounds = bounded_ranges(log, options.starting, options.ending, options.timestamp_strategy)
        ranges = exactly(options.ranges, bounds)
        losses = Losses(self._reading.name, options.fail_on_data_loss)
        losses.refuse(declared_lost(log, ranges), "they were declared lost")
        ids = {name: topic.topic_id for name, topic in log.topics().items()}
        topic_ids = {name: topic_id for name, topic_id in ids.items() if topic_id is not None}
        topic_ids |= options.topic_ids
        # For an empty list, Spark would make one task without a partition to read.
        nothing = SourceTask((), (), losses, {}, {})
        whole = SourceTask(ranges, log.aborted(ranges), losses, topic_ids, {})
        return self._tasks(whole, log) or [nothing]


def _check_columns(source: str, schema: StructType, of: StructType) -> None:
    """Check that a source has the columns of a schema, with the same types.

    A decoded value may have a subset of its fields. Raise OptionError for any other difference.
    """
    _check_fields("column ", schema)
    types = {field.name: field.dataType for field in of}
    for field in schema:
        if isinstance(field.dataType, StructType):
            _check_fields(f"field {field.name}.", field.dataType)
        stored_type = types.get(field.name)
        if stored_type != field.dataType and not _is_part(field.dataType, stored_type):
            raise OptionError(
                f"The schema's column {field.name} {field.dataType.simpleString()} is not one that"
                f" {source} has; it has "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
                + "."
            )


def _check_fields(label: str, fields: StructType) -> None:
    """Raise `OptionError` for a duplicate name, or for NOT NULL, which tasks cannot guarantee."""
    for field in fields:
        if fields.names.count(field.name) > 1:
            raise OptionError(f"The schema has the {label}{field.name} twice; name it once.")
        if not field.nullable:
            raise OptionError(
                f"The schema's {label}{field.name} is NOT NULL, but the source's columns may be"
                " null; leave NOT NULL out here, and set it in the schema of the format."
            )


def _is_part(kind: Any, of: Any) -> bool:
    if not (isinstance(kind, StructType) and isinstance(of, StructType) and kind.fields):
        return False
    types = {field.name: field.dataType.simpleString() for field in of}
    return all(types.get(field.name) == field.dataType.simpleString() for field in kind)


_settled = False


def _settle_garbage_collector() -> None:
    """Exclude imported objects from garbage collection, once per worker process.

    Spark's worker runs the garbage collector after every task. With all imported objects, that
    takes longer than a small read.
    """
    global _settled  # noqa: PLW0603  (state of the worker process)
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


# A task reads this many records in about twice its own fixed cost. With fewer records, one more
# task would gain less by parallel reading than it loses in starting.
RECORDS_WORTH_A_TASK: Final = 50_000


def pack(
    ranges: Sequence[OffsetRange],
    parallelism: int,
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Distribute a batch's ranges over tasks. Return the ranges of each task, largest task first.

    A task has a fixed cost (about 20 ms with a warm Python worker), so small ranges share a task. A
    large range is split only if the user sets a number of tasks or a maximum size.

    Args:
        ranges: Ranges of the batch; empty ranges are left out.
        parallelism: Number of tasks that the cluster runs at the same time. Up to this many tasks
            are made, even for few records.
        min_partitions: Value of ``minPartitions``: make about this many tasks of about equal size.
            As in the native connector, rounding can make a few more or fewer.
        max_records_per_partition: Value of ``maxRecordsPerPartition``: no task has more records.
    """
    chunks = [r for r in ranges if r.count > 0]
    if max_records_per_partition is not None:
        chunks = [
            chunk for r in chunks for chunk in r.chunks(-(-r.count // max_records_per_partition))
        ]
    if min_partitions is not None and min_partitions > len(chunks):
        chunks = _split(chunks, min_partitions)
    if not chunks:
        return []
    if min_partitions is not None or max_records_per_partition is not None:
        return [(offsets,) for offsets in sorted(chunks, key=_by_size)]
    total = sum(offsets.count for offsets in chunks)
    worth = -(-total // RECORDS_WORTH_A_TASK)
    return _share_out(chunks, min(len(chunks), max(parallelism, worth)))


def _by_size(chunk: OffsetRange) -> tuple[int, OffsetRange]:
    return -chunk.count, chunk


def _share_out(chunks: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Assign each range, the largest first, to the task with the fewest records so far."""
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    loads = [(0, task) for task in range(tasks)]
    for chunk in sorted(chunks, key=_by_size):
        load, task = heapq.heappop(loads)
        shares[task].append(chunk)
        heapq.heappush(loads, (load + chunk.count, task))
    heaviest_first = sorted(loads, key=lambda load: (-load[0], load[1]))
    return [tuple(sorted(shares[task])) for _, task in heaviest_first]


def _split(chunks: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """Split ranges into about ``tasks`` chunks of about equal size, by the native connector's rule.

    A range whose rounded share is one task stays whole, and so do all ranges of its partition. The
    other ranges are split for the remaining tasks, by their number of records.
    """
    total = sum(offsets.count for offsets in chunks)
    small = [offsets for offsets in chunks if _share(offsets.count, total, tasks) == 1]
    whole = {offsets.topic_partition for offsets in small}
    rest = total - sum(offsets.count for offsets in small)
    places = max(tasks - len(small), 1)
    return [
        chunk
        for offsets in chunks
        for chunk in offsets.chunks(
            1 if offsets.topic_partition in whole else _share(offsets.count, rest, places)
        )
    ]


def _share(count: int, total: int, tasks: int) -> int:
    """Return ``count / total`` of the tasks, with a half rounded up; at least 1."""
    return max(math.floor(count / total * tasks + 0.5), 1)
