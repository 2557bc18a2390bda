"""Readers that read the ranges of a batch again, for its handler or for a dead letter.

A failed batch is read again by a bounded read. An isolation reads the batch once and persists the
rows; each part is a subset of these rows. If the batch is small, the driver holds a copy of the
rows, so that no part needs a Spark job over the whole batch.
"""

import json
import logging
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.decoding import decode
from headrace.errors import SourceError
from headrace.gate.execution.rejections import Place, RecordReader, letters_in
from headrace.gate.execution.spark_session import hide_secrets
from headrace.gate.execution.stream_reader import SOURCE_EVOLUTION, name_of_source
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.records import DeadLetter, PlannedRange
from headrace.gate.source.connector import (
    OF_A_GATE,
    Connector,
    DeadLetterSink,
    close_ranges,
    read_directly,
)
from headrace.gate.source.losses import OnLoss
from headrace.gate.source.replay import replay_end
from headrace.gate.source.source_options import TOPIC_IDS, decoded_values
from headrace.gate.source.stream_offset import planned_ids

Use = Callable[[DataFrame], None]
"""Function that processes the DataFrame of a batch. The function's exceptions pass through the
reader."""

_LOG: Final = logging.getLogger("headrace.execution")

_LOOK_S: Final = 0.5
"""Interval at which a reader checks whether its query has ended during a batch (s)."""

_MAX_ROWS: Final = 10_000
"""During an isolation, the driver holds a copy of a batch of at most this many records."""

_MAX_BYTES: Final = 16 * 2**20
"""The driver holds a copy of a batch whose keys and values have at most this size (bytes)."""


class DerivedStream:
    """Second query of a stream. It runs the stream's derivation again, on requested ranges only.

    Spark cannot replace the source of a plan, so only a streaming query can derive a stream's rows
    again. Before the query starts, this class writes a checkpoint that contains the offsets of its
    first batch, so Spark runs this batch as if after a crash. Each batch answers one request. Its
    end offset contains the path of the file in which the query finds the next request. One query
    serves a whole isolation, because starting a query takes longer than most parts.

    Args:
        stream: the DataFrame given to `Gate.write`; stateless, and with one source.
    """

    def __init__(self, stream: DataFrame) -> None:
        self._stream = stream
        self._folder: Path | None = None
        self._query: StreamingQuery | None = None
        self._asked = 0
        self._use: Use | None = None
        self._raised: Exception | None = None
        self._done = threading.Event()
        self._turn = threading.Lock()

    def run(self, ranges: Sequence[PlannedRange], use: Use) -> None:
        """Run the stream's derivation on the records of these ranges. Pass the result to ``use``.

        Only one call may run at a time. Raises the exception of ``use``, or the error that ended
        the query.
        """
        with self._turn:
            self._use, self._raised = use, None
            self._done.clear()
            if self._query is None or not self._query.isActive:
                self._end()
                self._query = self._begin(ranges)
            else:
                self._ask(ranges)
            self._wait(self._query)
            if self._raised is not None:
                raise self._raised

    def close(self) -> None:
        """End the query. The next `run` starts another query."""
        with self._turn:
            self._end()

    def _begin(self, ranges: Sequence[PlannedRange]) -> StreamingQuery:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-reader-"))
        self._asked = 0
        checkpoint = self._folder / "checkpoint"
        source = name_of_source(self._stream)
        _plan_first_batch(checkpoint, json.dumps(replay_end(ranges, self._following())), source)
        writer = self._stream.writeStream.foreachBatch(self._run_batch)
        writer = writer.option("checkpointLocation", checkpoint.as_uri())
        return writer.trigger(processingTime="0 seconds").queryName(self._folder.name).start()

    def _ask(self, ranges: Sequence[PlannedRange]) -> None:
        request = self._following()
        self._asked += 1
        written = request.with_suffix(".unfinished")
        written.write_text(json.dumps(replay_end(ranges, self._following())), encoding="utf-8")
        written.rename(request)

    def _following(self) -> Path:
        assert self._folder is not None  # noqa: S101  (set while there is a query)
        return self._folder / f"{self._asked + 1}.json"

    def _run_batch(self, df: DataFrame, _batch_id: int) -> None:
        if self._use is None or self._done.is_set():
            return
        try:
            self._use(df)
        except Exception as error:  # noqa: BLE001  (raised again in the caller's thread)
            self._raised = error
        self._done.set()

    def _wait(self, query: StreamingQuery) -> None:
        while not self._done.wait(_LOOK_S):
            if not query.isActive:
                raise query.exception() or InterruptedError("The query that reads again was ended.")

    def _end(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _plan_first_batch(checkpoint: Path, end: str, source: str | None) -> None:
    """Write the files of a Spark checkpoint in which the first batch is planned up to ``end``.

    ``source`` is the source's name if Spark's source evolution is on: Spark then stores each offset
    with the name, and refuses a checkpoint without names.
    """
    times: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": 0}
    version, named_end = "v1", end
    if source is not None:
        times |= {"conf": {SOURCE_EVOLUTION: "true"}, "sourceMetadataInfo": {}}
        version, named_end = "v2", f"{source}:{end}"
    lines = [version, json.dumps(times), named_end]
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
    (checkpoint / "offsets" / "0").write_text("\n".join(lines), encoding="utf-8")


class BatchReader(RecordReader, Protocol):
    """Interface of a reader that reads the batches of a gate again."""

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the stream's reader."""

    @property
    def bootstrap_servers(self) -> str:
        """Address of the source."""

    @property
    def passes_over_losses(self) -> bool:
        """Whether the stream skips lost offsets (failOnDataLoss)."""

    @property
    def is_dense(self) -> bool:
        """Whether the log has a record at every offset."""

    def run(self, ranges: Sequence[PlannedRange], use: Use) -> None:
        """Read exactly these ranges, derive the stream's rows, and pass the rows to ``use``.

        Records of a topic that was recreated since the plan are not read.

        Raises:
            Exception: the exception of ``use``, or of Spark if a record has left the source.
        """

    def persisted(self, ranges: Sequence[PlannedRange]) -> AbstractContextManager["BatchReader"]:
        """Read these ranges once. For the ``with`` block, yield a reader of parts of the ranges.

        If the ranges cannot be persisted, the yielded reader reads each part again.
        """

    def close(self) -> None:
        """End the queries of this reader. The next `run` starts them again."""

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the chunks of these ranges that the source no longer has.

        Raises:
            BrokerError: the brokers cannot be reached.
        """

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return the log's first offset in each existing partition of these ranges.

        Raises:
            BrokerError: the brokers cannot be reached.
        """

    def dead_letter(
        self, offset: PlannedRange, error: BaseException | ErrorReport
    ) -> DeadLetter | None:
        """Read the record at one offset. Return it as a dead letter with this error.

        Returns:
            The dead letter; None for an offset without a record, such as a transaction's marker.
        """


@dataclass(frozen=True)
class SparkBatchReader:
    """Reader of a gate's batches with Spark, with the options of the stream's reader.

    Attributes:
        derived: Query that runs the stream's derivation again; None if none is needed.
        transform: The stream's derivation, as a function of the source's DataFrame.
        columns: The stream's columns. Default: all columns of the source.
        kept: During an isolation, the persisted rows of the batch; otherwise None.
        rows: A copy of ``kept`` in this process if it is small, so that a part needs no job over
            all rows; otherwise None.
        is_dense: Whether the log has a record at every offset.
    """

    spark: SparkSession
    connector: Connector
    options: Mapping[str, str]
    derived: DerivedStream | None = None
    transform: Callable[[DataFrame], DataFrame] | None = None
    columns: StructType | None = None
    kept: DataFrame | None = None
    rows: pa.Table | None = None
    is_dense: bool = False

    @property
    def bootstrap_servers(self) -> str:
        """Address of the source."""
        return self.connector.servers(self.options)

    @property
    def passes_over_losses(self) -> bool:
        """Whether the stream skips lost offsets (``failOnDataLoss=false``)."""
        options = {name.lower(): value for name, value in self.options.items()}
        return options.get("failondataloss", "").strip().lower() == "false"

    def run(self, ranges: Sequence[PlannedRange], use: Use) -> None:
        """Read the ranges, apply the stream's derivation, and pass the result to ``use``."""
        if self.kept is not None:
            use(self._derive(self._kept_part(self.kept, [planned.offsets for planned in ranges])))
        elif self.derived is None:
            use(self._derive(self._read(ranges)))
        else:
            self.derived.run(ranges, use)

    @contextmanager
    def persisted(self, ranges: Sequence[PlannedRange]) -> Iterator["SparkBatchReader"]:
        """Persist the rows of the ranges, in memory or on disk, until the ``with`` ends.

        If a second query runs the derivation, nothing is persisted: only that query can derive the
        rows of a part.
        """
        kept = None if self.derived is not None else self._read(ranges)
        if kept is None:
            yield self
            return
        kept.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            size = _size_of(kept)
            if size is None:
                yield self
                return
            is_dense = size[0] == sum(planned.offsets.count for planned in ranges)
            if self.connector.is_dense and not is_dense:
                raise _left_out(self.connector.name, size[0], ranges)
            rows = _small_rows(kept, *size)
            yield replace(self, kept=kept, rows=rows, is_dense=is_dense)
        finally:
            kept.unpersist()

    def _kept_part(self, kept: DataFrame, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return a DataFrame of the records in these ranges, without a job if possible."""
        if self.rows is None:
            return _part_of(kept, ranges)
        return self.spark.createDataFrame(rows_in(self.rows, ranges), kept.schema)

    def _derive(self, df: DataFrame) -> DataFrame:
        values = decoded_values(OF_A_GATE | dict(self.options))
        typed = df if values is None else decode(df, values.form)
        same = typed if self.columns in {None, typed.schema} else typed.to(self.columns)
        return same if self.transform is None else self.transform(same)

    def close(self) -> None:
        """End the query that runs the derivation, if there is one."""
        if self.derived is not None:
            self.derived.close()

    def gone(self, ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """Return the chunks of these ranges that the source no longer has."""
        return self.connector.gone(self.options, ranges)

    def earliest(self, ranges: Sequence[OffsetRange]) -> Mapping[TopicPartition, int]:
        """Return the log's first offset in each existing partition of these ranges."""
        return self.connector.beginnings(self.options, ranges)

    def dead_letter(
        self, offset: PlannedRange, error: BaseException | ErrorReport
    ) -> DeadLetter | None:
        """Read the record at one offset in this process. Return a dead letter, or None."""
        at = offset.offsets
        reasons = {(at.topic, at.partition, at.start): ErrorReport.of(error)}
        return next(iter(self.rejected([offset], reasons)), None)

    def rejected(
        self,
        ranges: Sequence[PlannedRange],
        reasons: Mapping[Place, ErrorReport],
        on_loss: OnLoss | None = None,
    ) -> list[DeadLetter]:
        """Read the records at the places in ``reasons``, directly in this process."""
        report_loss = on_loss if self.passes_over_losses else None
        wanted = close_ranges(OffsetRange(*place, place[2] + 1) for place in reasons)
        ids = planned_ids(ranges)
        return [
            letter
            for batch in read_directly(self.connector, self.options, wanted, ids, report_loss)
            for letter in letters_in(batch, reasons)
        ]

    def dead_letter_topic(self, name: str | None) -> DeadLetterSink | None:
        """Return the topic for copies of dead letters; None, with a warning, if no topic exists."""
        if name is None:
            return None
        if self.connector.dead_letter_topic is None:
            _LOG.warning(
                "Dead letters are not copied to the topic %r: a %s has no topics.",
                name,
                self.connector.name,
            )
            return None
        return self.connector.dead_letter_topic(self.options, name)

    def _read(self, ranges: Sequence[PlannedRange], **options: str) -> DataFrame:
        offsets = [planned.offsets for planned in ranges]
        chosen = self.connector.replay_options(self.options, offsets) | options
        chosen[TOPIC_IDS] = json.dumps(planned_ids(ranges))
        shown = hide_secrets(self.spark, chosen)
        return self.spark.read.format(self.connector.format).options(**shown).load()


def _part_of(df: DataFrame, ranges: Sequence[OffsetRange]) -> DataFrame:
    conditions = [
        (F.col("topic") == r.topic)
        & (F.col("partition") == r.partition)
        & (F.col("offset") >= r.start)
        & (F.col("offset") < r.until)
        for r in ranges
    ]
    return df.where(reduce(or_, conditions))


def rows_in(rows: pa.Table, ranges: Sequence[OffsetRange]) -> pa.Table:
    """Return the rows of a table whose offsets are in these ranges."""
    return rows.filter(reduce(pc.or_, (_are_in(rows, offsets) for offsets in ranges)))


def _left_out(source: str, records: int, ranges: Sequence[PlannedRange]) -> SourceError:
    return SourceError(
        f"A read of {', '.join(str(planned.offsets) for planned in ranges)} from a {source} gave"
        f" {records} records, and there is one at each of the offsets; nothing of it is processed."
        " Please report this."
    )


def _are_in(rows: pa.Table, range_: OffsetRange) -> pa.ChunkedArray:
    offset = rows.column("offset")
    of_partition = pc.and_(
        pc.equal(rows.column("topic"), range_.topic),
        pc.equal(rows.column("partition"), range_.partition),
    )
    within = pc.and_(pc.greater_equal(offset, range_.start), pc.less(offset, range_.until))
    return pc.and_(of_partition, within)


def _size_of(df: DataFrame) -> tuple[int, int] | None:
    """Persist a batch. Return its number of records and bytes; None if it cannot be read.

    None is no error: a half of the batch may be readable even if the batch is not.
    """
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    try:
        records, of_records = df.agg(F.count("*"), F.sum(size)).collect()[0]
    except Exception as error:  # noqa: BLE001  (Spark raises many classes for a failed read)
        _LOG.info(
            "The records of an isolated batch cannot be cached, so each of its parts reads the"
            " source again: %s",
            error,
        )
        return None
    return records, of_records or 0


def _small_rows(df: DataFrame, records: int, of_records: int) -> pa.Table | None:
    """Return persisted rows as an Arrow table; None if they are too large for this process."""
    if not 0 < records <= _MAX_ROWS or of_records > _MAX_BYTES:
        return None
    try:
        return df.toArrow()
    except Exception as error:  # noqa: BLE001  (the batch is run from Spark's storage)
        _LOG.info("The rows of an isolated batch cannot be kept in this process: %s", error)
        return None
