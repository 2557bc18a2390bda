"""Spark's face of every source: its columns, and readers that plan as the gate says."""

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
"""Without headrace.register, the number of tasks that the cluster runs at once is unknown."""


class Reading(Protocol):
    """Reader of one kind of source; it is sent to the tasks."""

    @property
    def name(self) -> str:
        """Name of the log in messages, such as Kafka."""

    @property
    def options(self) -> SourceOptions:
        """Options that every source has."""

    def log(self) -> Log:
        """Return the log, to plan by."""

    def packed(self, ranges: Sequence[OffsetRange], log: Log) -> Sequence[tuple[OffsetRange, ...]]:
        """Split these ranges, planned by a log that `log` has returned, into those of each task."""

    def read(self, task: "SourceTask") -> Iterator[pa.RecordBatch]:
        """The records of one task, in a Spark worker; without the records of aborted attempts.

        Every record of the ranges is read, or the policy for losses is called with its offset.
        """


@dataclass(frozen=True, slots=True)
class SourceTask(InputPartition):
    """Work of one task.

    Attributes:
        aborted: the attempts of stages whose records are skipped.
        losses: policy for offsets that are gone by now.
        after: checksums of the records before the offsets at which the batch begins; see
            `Log.checksums`.
    """

    ranges: Sequence[OffsetRange]
    aborted: tuple[str, ...]
    losses: Losses
    topic_ids: Mapping[str, str]
    after: ChecksumsBefore


@contextmanager
def marked_as_read() -> Iterator[None]:
    """Mark exceptions raised within as raised while the source was read."""
    try:
        yield
    except Exception as error:
        error.add_note(READ)
        raise


class _TaskSide:
    """Common task side of both readers; all of it is sent to the tasks."""

    def __init__(self, reading: Reading, values: "ValueTask | None" = None) -> None:
        self._reading = reading
        self._values = values

    def _tasks(self, whole: SourceTask, log: Log) -> list[SourceTask]:
        tasks = self._reading.packed(whole.ranges, log)
        check_all_planned(whole.ranges, tasks)
        return [replace(whole, ranges=ranges) for ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a Spark worker."""
        _settle_garbage_collector()
        batches = self._read(cast(SourceTask, partition))
        yield from batches if self._values is None else self._values.decoded(batches)

    def _read(self, task: SourceTask) -> Iterator[pa.RecordBatch]:
        with marked_as_read():
            yield from self._reading.read(task)


class SourceFormat(DataSource):
    """Spark's face of one kind of source: the native Kafka connector's columns, and two readers.

    A schema given to the builder chooses columns: others are not built.
    """

    parallelism: ClassVar[int] = _ASSUMED_PARALLELISM
    """Number of tasks that the session runs at the same time; `headrace.register` sets it."""
    driver: ClassVar[str | None] = None
    """Names the process of the session's program; `headrace.register` sets it."""
    reports: "ClassVar[Reporter | None]" = None
    """Receives what is rejected in the session's tasks; `headrace.register` sets it."""

    secrets: ClassVar[Mapping[str, str]] = {}
    """The session's secrets, by their placeholders in Spark; see `source_options.revealed`."""

    def __init__(self, options: dict[str, str]) -> None:
        meant = options.copy()  # of Spark's own kind, for which names are the same in any case
        meant.update(revealed(options, self.secrets))
        super().__init__(meant)

    def schema(self) -> StructType:
        headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
        stored = _SCHEMA if headers else StructType(_SCHEMA.fields[:-1])
        values = decoded_values(self.options)
        return stored if values is None else values.schema(stored)

    @classmethod
    def check(cls, schema: StructType, options: Mapping[str, str]) -> "DecodedValues | None":
        """Check columns that were chosen, of a source with these options; how it decodes values.

        Raises:
            OptionError: one is not the source's.
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
            # Spark's process hides what is raised here behind an error of its own.
            return _RefusedStream(error)

    def _chosen(self, schema: StructType) -> "tuple[ValueTask | None, tuple[str, ...]]":
        """The decoding for these columns, and the names of those to be read."""
        values = self.check(schema, self.options)
        task = None if values is None else values.task(schema, self.reports)
        return task, tuple(schema.names) if task is None else task.stored

    def reading(self, columns: tuple[str, ...], *, streaming: bool) -> Reading:
        """Return the reader of these columns, with the options of the source."""
        raise NotImplementedError


class SourceStreamReader(_TaskSide, VersionedStreamReader):
    """The streaming source: planned by a `StreamPlanner`, which is made where planning happens."""

    _planner_made: "StreamPlanner | None" = None

    def __init__(
        self, reading: Reading, driver: str | None, values: "ValueTask | None" = None
    ) -> None:
        super().__init__(reading, values)
        self._driver = driver

    @property
    def _planner(self) -> "StreamPlanner":
        if self._planner_made is None:
            # Here, for a task needs none, and the ledger's import takes longer than a small task.
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
        """Nothing: for a query's last batch it may never come, so ``latestOffset`` takes note."""

    def stop(self) -> None:
        if self._planner_made is not None:
            self._planner_made.close()


class _RefusedStream(SourceStreamReader):
    """A stream whose options are wrong: it says so when it is planned."""

    def __init__(self, why: OptionError) -> None:
        self._why = why

    @property
    def _planner(self) -> "StreamPlanner":
        raise self._why


class SourceBatchReader(_TaskSide, DataSourceReader):
    """The bounded source: from ``startingOffsets`` to ``endingOffsets``, found when it plans."""

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
        known = {name: topic_id for name, topic_id in ids.items() if topic_id is not None}
        known |= options.topic_ids
        # From an empty list Spark would make one task, and give it nothing to read.
        nothing = SourceTask((), (), losses, {}, {})
        whole = SourceTask(ranges, log.aborted(ranges), losses, known, {})
        return self._tasks(whole, log) or [nothing]


def _check_columns(source: str, schema: StructType, of: StructType) -> None:
    """Check that a schema's columns are the source's own and of their types.

    Of typed values it may have some of the fields.

    Raises:
        OptionError: one is not.
    """
    _check_fields("column ", schema)
    types = {field.name: field.dataType for field in of}
    for field in schema:
        if isinstance(field.dataType, StructType):
            _check_fields(f"field {field.name}.", field.dataType)
        known = types.get(field.name)
        if known != field.dataType and not _is_part(field.dataType, known):
            raise OptionError(
                f"The schema's column {field.name} {field.dataType.simpleString()} is not one that"
                f" {source} has; it has "
                + ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
                + "."
            )


def _check_fields(label: str, fields: StructType) -> None:
    """Check for what no task could give: a name that is there twice, and NOT NULL."""
    for field in fields:
        if fields.names.count(field.name) > 1:
            raise OptionError(f"The schema has the {label}{field.name} twice; name it once.")
        if not field.nullable:
            raise OptionError(
                f"The schema's {label}{field.name} is NOT NULL, and the source's columns may be"
                " null; leave NOT NULL out, and have the format ask for it."
            )


def _is_part(kind: Any, of: Any) -> bool:
    if not (isinstance(kind, StructType) and isinstance(of, StructType) and kind.fields):
        return False
    types = {field.name: field.dataType.simpleString() for field in of}
    return all(types.get(field.name) == field.dataType.simpleString() for field in kind)


_settled = False


def _settle_garbage_collector() -> None:
    """Once a worker process, exclude imported objects from garbage collection.

    Spark's worker collects all garbage after every task, which takes longer than a small read.
    """
    global _settled  # noqa: PLW0603  (one for each process is the point)
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


# A task reads this many records in about twice its own fixed cost. Below it, one more task would
# gain less by parallel reading than it loses in starting.
RECORDS_WORTH_A_TASK: Final = 50_000


def pack(
    ranges: Sequence[OffsetRange],
    parallelism: int,
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, the largest task first.

    A task costs a fixed time (some 20 ms in Spark with a warm Python worker), so small ranges share
    one; a large range may be split, where the user asks for more tasks than there are partitions.

    Args:
        ranges: Ranges of the batch; empty ranges are left out.
        parallelism: Number of tasks that the cluster runs at the same time; up to that many are
            made, even of few records.
        min_partitions: ``minPartitions``: make about this many tasks, about equal, by the native
            connector's rule: rounding can make it a few more or less.
        max_records_per_partition: ``maxRecordsPerPartition``: no task has more records.
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
        return [(each,) for each in sorted(chunks, key=_by_size)]
    total = sum(each.count for each in chunks)
    worth = -(-total // RECORDS_WORTH_A_TASK)
    return _share_out(chunks, min(len(chunks), max(parallelism, worth)))


def _by_size(chunk: OffsetRange) -> tuple[int, OffsetRange]:
    return -chunk.count, chunk


def _share_out(chunks: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Each range, the largest first, to the task that has least so far."""
    shares: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    loads = [(0, task) for task in range(tasks)]
    for each in sorted(chunks, key=_by_size):
        load, task = heapq.heappop(loads)
        shares[task].append(each)
        heapq.heappush(loads, (load + each.count, task))
    heaviest_first = sorted(loads, key=lambda load: (-load[0], load[1]))
    return [tuple(sorted(shares[task])) for _, task in heaviest_first]


def _split(chunks: Sequence[OffsetRange], tasks: int) -> list[OffsetRange]:
    """About ``tasks`` parts of about equal size, as many as the native connector makes.

    A range gets its rounded share of the tasks. A range that would not be split leaves its place,
    and the others share the places that remain. Other ranges in the partition of such a range stay
    whole, too.
    """
    total = sum(each.count for each in chunks)
    small = [each for each in chunks if _share(each.count, total, tasks) == 1]
    whole = {each.topic_partition for each in small}
    rest = total - sum(each.count for each in small)
    places = max(tasks - len(small), 1)
    return [
        chunk
        for each in chunks
        for chunk in each.chunks(
            1 if each.topic_partition in whole else _share(each.count, rest, places)
        )
    ]


def _share(count: int, total: int, tasks: int) -> int:
    """The rounded share of the tasks, a half being rounded up; one at least."""
    return max(math.floor(count / total * tasks + 0.5), 1)
