"""Input of a handler without Spark: frames and batches of a log in memory."""

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
"""Gate of a harness; frames without records return this name for the gate's query."""


class _Rows:
    """Frame that a handler receives without a Spark session.

    It has ``collect()``, ``count()`` and ``isEmpty()``. Each call reads the records, so the handler
    gets an error of the log as it would from Spark.
    """

    def __init__(self, read: Callable[[], list[Row]], *, headers: bool) -> None:
        self._read = read
        self._schema = SourceFormat({"includeHeaders": str(headers)}).schema()
        # The gate asks the frame of a batch without records for its query.
        context = SimpleNamespace(getLocalProperty=lambda _name: TESTED_GATE)
        self.sparkSession = SimpleNamespace(sparkContext=context)

    def collect(self) -> list[Row]:
        """Return the records, with the columns of the sources.

        Raises:
            PythonException: The log cannot be read; with the text that Spark would give.
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
        """Whether there are no records."""
        return not self.collect()

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return the records as a Spark DataFrame."""
        return spark.createDataFrame(self.collect(), self._schema)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"A test without a session has no DataFrame.{name}; for a handler that has Spark"
            " compute, give the StreamHarness a session: spark=..."
        )


def _rows(table: pa.Table) -> list[Row]:
    """Return the rows like Spark's ``collect``: with naive local times."""
    rows = []
    for values in table.to_pylist():
        values["timestamp"] = values["timestamp"].astimezone().replace(tzinfo=None)
        headers = values["headers"]
        values["headers"] = headers and [Row(**header) for header in headers]
        rows.append(Row(**values))
    return rows


@dataclass(frozen=True)
class MemoryReader:
    """Reads batches of a `MemoryLog` again, by the options, the plan and the tasks of a source.

    Attributes:
        log: The log.
        options: The stream's options.
        headers: Whether frames have the column ``headers``.
        passes_over_losses: Whether the stream continues after losses.
        kept: Records already read; their ranges are not read again.
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
        """The connector of the log."""
        return memory_connector(self.log)

    def frame(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the records in these ranges as a frame for a handler without Spark."""
        return cast(DataFrame, _Rows(lambda: self.log.read(ranges), headers=self.headers))

    def run(self, ranges: Sequence[PlannedRange], use: Callable[[DataFrame], None]) -> None:
        """Call ``use`` with a frame of the records in these ranges."""

        def read() -> list[Row]:
            if self.kept is None:
                return _rows(self.read_again(ranges))
            return _rows(rows_in(self.kept, [planned.offsets for planned in ranges]))

        use(cast(DataFrame, _Rows(read, headers=self.headers)))

    def read_again(self, ranges: Sequence[PlannedRange]) -> pa.Table:
        """Read these ranges by the replay options that Spark would get."""
        offsets = [planned.offsets for planned in ranges]
        options = self.connector.replay_options(self.options, offsets)
        options |= {TOPIC_IDS: json.dumps(planned_ids(ranges)), "includeHeaders": "true"}
        batches = read_in_process(self.connector, options, ARROW_SCHEMA.names)
        return pa.Table.from_batches(batches, ARROW_SCHEMA)

    @contextmanager
    def persisted(self, ranges: Sequence[PlannedRange]) -> Iterator["MemoryReader"]:
        """Yield a reader that has read these ranges once; if reading fails, this reader."""
        try:
            kept = self.read_again(ranges)
        except HeadraceError:
            yield self
            return
        yield replace(self, kept=kept, is_dense=len(kept) == sum(r.offsets.count for r in ranges))

    def close(self) -> None:
        """Do nothing."""

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the subranges that the log no longer has."""
        return gone(self.log, ranges)

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return the first offset of the log in each partition of these ranges."""
        return beginnings(self.log, [PlannedRange(offsets) for offsets in ranges])

    def dead_letter_topic(self, name: str | None) -> DeadLetterSink | None:
        """Return None: there are no brokers."""

    def rejected(
        self,
        ranges: Sequence[PlannedRange],
        reasons: Mapping[Place, ErrorReport],
        on_loss: OnLoss | None = None,
    ) -> list[DeadLetter]:
        """Return the dead letters of the records at these places."""
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
        """Return the dead letter of the record at one offset; None in a gap."""
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
