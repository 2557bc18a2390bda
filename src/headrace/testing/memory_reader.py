"""Input of a handler without Spark: DataFrame-like objects with the records of a `MemoryLog`."""

import json
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.errors import DataLossError, HeadraceError
from headrace.gate import (
    ARROW_SCHEMA,
    TOPIC_IDS,
    Connector,
    DeadLetter,
    DeadLetterSink,
    ErrorReport,
    OnLoss,
    Place,
    PlannedRange,
    SourceFormat,
    beginnings,
    gone,
    marked_as_read,
    planned_ids,
    read_in_process,
    rows_in,
)
from headrace.testing.memory import MemoryLog
from headrace.testing.memory_source import memory_connector

TESTED_GATE: Final = "tested"
"""Name of the gate in a `StreamHarness`, and the id of its query."""


class _Rows:
    """Object that a handler receives in place of a DataFrame if there is no Spark session.

    It has ``collect()``, ``count()`` and ``isEmpty()``. Each call reads the records again, so an
    error of the log reaches the handler as it would with Spark.
    """

    def __init__(self, read: Callable[[], list[Row]], *, headers: bool) -> None:
        self._read = read
        self._schema = SourceFormat({"includeHeaders": str(headers)}).schema()
        # For a batch without records, the gate reads the query's id from the frame's context.
        context = SimpleNamespace(getLocalProperty=lambda _name: TESTED_GATE)
        self.sparkSession = SimpleNamespace(sparkContext=context)

    def collect(self) -> list[Row]:
        """Return the records, with the columns of the sources.

        Raises:
            PythonException: The log cannot be read. The message has the text that Spark would give.
        """
        try:
            with marked_as_read():
                rows = self._read()
        except Exception as error:  # noqa: BLE001  (Spark turns any error into text)
            message = "".join(traceback.format_exception(error))
            raise PythonException(message=message) from None
        return [Row(**{name: row[name] for name in self._schema.names}) for row in rows]

    def count(self) -> int:
        """Return the number of records."""
        return len(self.collect())

    def isEmpty(self) -> bool:
        """Return whether there are no records."""
        return not self.collect()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return the records as a Spark DataFrame."""
        return spark.createDataFrame(self.collect(), self._schema)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"DataFrame.{name} is not available in a test without a Spark session; pass a session"
            " to the StreamHarness: spark=..."
        )


def _rows(table: pa.Table) -> list[Row]:
    """Return the records as Spark's ``collect`` does, with timestamps as naive local times."""
    rows = []
    for values in table.to_pylist():
        values["timestamp"] = values["timestamp"].astimezone().replace(tzinfo=None)
        headers = values["headers"]
        values["headers"] = headers and [Row(**header) for header in headers]
        rows.append(Row(**values))
    return rows


@dataclass(frozen=True)
class MemoryReader:
    """Reader of a `MemoryLog` for batches that run again, with the code that Spark sources use.

    Attributes:
        log: The log.
        options: The stream's options.
        headers: Whether the handler gets the column ``headers``.
        passes_over_losses: Whether the stream continues after losses.
        bootstrap_servers: The address of the log, in place of Kafka's brokers.
        is_dense: Whether ``kept`` has a record for each offset of its ranges.
        kept: The records that `persisted` has read, and that `run` does not read again. None: `run`
            reads the records from the log.
    """

    log: MemoryLog
    options: Mapping[str, str] = field(default_factory=dict)
    headers: bool = False
    passes_over_losses: bool = False
    bootstrap_servers: str = MemoryLog.servers
    is_dense: bool = False
    kept: pa.Table | None = None

    @cached_property
    def connector(self) -> Connector:
        """Connector that reads the log."""
        return memory_connector(self.log)

    def frame(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return an object with the records in these ranges, for a handler without Spark."""
        return cast(DataFrame, _Rows(lambda: self.log.read(ranges), headers=self.headers))

    def run(self, ranges: Sequence[PlannedRange], use: Callable[[DataFrame], None]) -> None:
        """Call ``use`` with a DataFrame-like object that has the records in these ranges."""

        def read() -> list[Row]:
            if self.kept is None:
                return _rows(self.read_again(ranges))
            return _rows(rows_in(self.kept, [planned.offsets for planned in ranges]))

        use(cast(DataFrame, _Rows(read, headers=self.headers)))

    def read_again(self, ranges: Sequence[PlannedRange]) -> pa.Table:
        """Return the records in these ranges, read with the source options of a repeated batch."""
        offsets = [planned.offsets for planned in ranges]
        options = self.connector.replay_options(self.options, offsets)
        options |= {TOPIC_IDS: json.dumps(planned_ids(ranges)), "includeHeaders": "true"}
        batches = read_in_process(self.connector, options, ARROW_SCHEMA.names)
        return pa.Table.from_batches(batches, ARROW_SCHEMA)

    @contextmanager
    def persisted(self, ranges: Sequence[PlannedRange]) -> Iterator["MemoryReader"]:
        """Yield a reader that has read these ranges once and keeps their records.

        If the ranges cannot be read, yield this reader.
        """
        try:
            kept = self.read_again(ranges)
        except HeadraceError:
            yield self
            return
        yield replace(self, kept=kept, is_dense=len(kept) == sum(r.offsets.count for r in ranges))

    def close(self) -> None:
        """Do nothing: the reader keeps no connection."""

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the parts of these ranges that the log no longer has."""
        return gone(self.log, ranges)

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return the first offset of the log in each partition of these ranges."""
        return beginnings(self.log, [PlannedRange(offsets) for offsets in ranges])

    def dead_letter_topic(self, name: str | None) -> DeadLetterSink | None:
        """Return None, because a test has no brokers for dead letters."""

    def rejected(
        self,
        ranges: Sequence[PlannedRange],
        reasons: Mapping[Place, ErrorReport],
        on_loss: OnLoss | None = None,
    ) -> list[DeadLetter]:
        """Return a dead letter for each record at a place in ``reasons``, with the place's error.

        If a record is no longer in the log, call ``on_loss``, or raise DataLossError if the stream
        does not continue after losses. Places without a record are skipped.
        """
        begins = self.log.earliest({TopicPartition(*place[:2]) for place in reasons})
        for topic, partition, offset in reasons:
            missing = OffsetRange(topic, partition, offset, offset + 1)
            if offset >= begins[missing.topic_partition]:
                continue
            if on_loss is None or not self.passes_over_losses:
                raise DataLossError(f"{self.log.name} has lost a rejected record: {missing}")
            on_loss(missing, "the log begins later")
        letters = [
            self._letter(TopicPartition(topic, partition), offset, error)
            for (topic, partition, offset), error in reasons.items()
        ]
        return [letter for letter in letters if letter is not None]

    def dead_letter(
        self, offset: PlannedRange, error: BaseException | ErrorReport
    ) -> DeadLetter | None:
        """Return the dead letter of the record at one offset; None if the offset has no record."""
        where = offset.offsets.topic_partition
        return self._letter(where, offset.offsets.start, ErrorReport.of(error))

    def _letter(self, where: TopicPartition, at: int, error: ErrorReport) -> DeadLetter | None:
        if (record := self.log.record(where, at)) is None:
            return None
        return DeadLetter(
            topic=where.topic,
            partition=where.partition,
            offset=at,
            key=record.key,
            value=record.value,
            headers=record.headers or None,
            timestamp_ms=record.timestamp_ms or 0,
            timestamp_type=0,
            error=error,
        )
