"""``headrace.decode``: tasks decode values into typed columns and report values that do not fit.

Tasks decode the values that they read, so raw bytes do not travel from Python to the JVM, back to a
Python worker, and as columns to the JVM again.
"""

import json
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from headrace.decoding.formats import Decoder, Format, nullable
from headrace.decoding.registry import NO_ID, VALUE_SCHEMA_ID, schema_id, unknown_id
from headrace.errors import DecodeError, OptionError
from headrace.spark_versions import Py4JError, active_context, is_remote
from headrace.task_link import LinkAddress, TaskLink

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Report = tuple[str, str, int, int, str]
"""A record's run, topic, partition and offset, and the reason why it cannot be decoded."""

MAX_REPORTED: Final = 100_000
"""Most records kept for a run; a batch with more of them has failed."""

_RUN: Final = "headrace.run"


class Reports:
    """Reports of tasks, by the run of the batch that waits for them."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._by_run: dict[str, dict[tuple[str, int, int], str]] = {}

    def open(self, run: str) -> None:
        """Keep reports to a run from now on."""
        with self._changing:
            self._by_run[run] = {}

    def add(self, reports: Iterable[Report]) -> None:
        """Keep each record's first report; ignore reports to a closed run."""
        with self._changing:
            for run, topic, partition, offset, reason in reports:
                kept = self._by_run.get(run)
                if kept is not None and len(kept) <= MAX_REPORTED:
                    kept.setdefault((topic, partition, offset), reason)

    @property
    def only(self) -> str | None:
        """The open run; None without an open run, or with several."""
        with self._changing:
            return next(iter(self._by_run)) if len(self._by_run) == 1 else None

    def take(self, run: str) -> dict[tuple[str, int, int], str]:
        """Return the reports since the last call, by topic, partition and offset."""
        with self._changing:
            taken = self._by_run.get(run, {})
            if taken:
                self._by_run[run] = {}
            return taken

    def close(self, run: str) -> None:
        """Drop a run and its reports."""
        with self._changing:
            self._by_run.pop(run, None)


REPORTS: Final = Reports()
"""Reports received by this process."""


class ReportsParam(AccumulatorParam[Any]):
    """Merges reports for Spark: a task collects a list, the driver adds the list to `Reports`."""

    def zero(self, value: Any) -> list[Report]:
        """Return the initial value of a task: no reports."""
        return []

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        """Add reports to a task's list, or a task's list to the driver's `Reports`."""
        if isinstance(value1, Reports):
            value1.add(value2)
        else:
            value1.extend(value2)
        return value1


_making: Final = threading.Lock()
_made: "list[tuple[SparkContext, Accumulator[Any]]]" = []


def accumulator_of(context: "SparkContext") -> "Accumulator[Any]":
    """Return the accumulator of a Spark context, shared by all its streams and batches."""
    with _making:
        for owner, accumulator in _made:
            if owner is context:
                return accumulator
        created: Accumulator[Any] = context.accumulator(REPORTS, ReportsParam())
        _made[:] = [(context, created)]
        return created


@contextmanager
def reported_to(run: str) -> Iterator[None]:
    """Make the jobs of this thread report to a run within the block; see `Reports.take`."""
    REPORTS.open(run)
    context = active_context()
    before = None if context is None else context.getLocalProperty(_RUN)
    try:
        if context is not None:
            context.setLocalProperty(_RUN, run)
        yield
    finally:
        if context is not None:
            with suppress(Py4JError, OSError):  # the JVM may have ended
                context.setLocalProperty(_RUN, before)
        REPORTS.close(run)


def new_run() -> str:
    """Return a new id for a run of a handler."""
    return uuid.uuid4().hex


def run_of_task() -> str | None:
    """Return the run of this worker's task; None outside of a handler."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_RUN)


class Reporter(Protocol):
    """Channel for a task's reports, serialized to the tasks."""

    def run(self) -> str | None:
        """Return the run of this task; None outside of a handler."""
        ...

    def add(self, reports: list[Report]) -> None:
        """Send reports; the handler's process has them when the action returns."""
        ...


@dataclass(frozen=True)
class AccumulatedReporter:
    """Reporter through a Spark accumulator."""

    accumulator: "Accumulator[Any]"

    def run(self) -> str | None:
        """Return the run inherited from the job's thread."""
        return run_of_task()

    def add(self, reports: list[Report]) -> None:
        """Send reports, which Spark merges when the task has succeeded."""
        self.accumulator.add(reports)


@dataclass(frozen=True)
class LinkedReporter:
    """Reporter to the handler's process over Spark Connect; without an address nothing is sent."""

    of_run: str | None
    address: LinkAddress | None

    def run(self) -> str | None:
        """Return the run that was open when `decode` was called."""
        return self.of_run

    def add(self, reports: list[Report]) -> None:
        """Send reports, which are kept even if the task fails later: its retry reports the same.

        Raises:
            DecodeError: no handler runs in that process.
        """
        if self.address is not None and not self.address.ask(reports):
            raise _no_handler(reports[0])


_LINK: Final = "spark.headrace.reports"
"""Job property with the address for tasks' reports. It contains no secret, because Spark writes job
properties to its event log, whatever their names."""


@dataclass(frozen=True)
class SessionReporter:
    """Reporter to the handler's process over Spark Connect, for tasks that do not know their batch.

    The session's job property has the address, and the run is the one open in that process. The
    token belongs to the session, and is serialized with the source.
    """

    token: str = field(repr=False)

    def run(self) -> str | None:
        """Return an empty name if the session has an address; otherwise None."""
        return None if self._address() is None else ""

    def add(self, reports: list[Report]) -> None:
        """Send reports, as `LinkedReporter.add` does."""
        LinkedReporter(None, self._address()).add(reports)

    def _address(self) -> LinkAddress | None:
        task = TaskContext.get()
        text = None if task is None else task.getLocalProperty(_LINK)
        if text is None:
            return None
        host, port = json.loads(text)
        return LinkAddress(str(host), int(port), self.token)


def link_tasks(spark: "SparkSession") -> None:
    """Make tasks of a Spark Connect session report to this process; see `SessionReporter`."""
    address = open_link(spark)
    spark.conf.set(_LINK, json.dumps([address.host, address.port]))


_linked: list[TaskLink] = []


def open_link(spark: "SparkSession", token: str | None = None) -> LinkAddress:
    """Open the port for reports of Spark Connect tasks at the first call, and return its address.

    Args:
        spark: the session of the tasks.
        token: the token that tasks send. Default: a new one.
    """
    with _making:
        if not _linked:
            _linked.append(TaskLink(spark, _keep, token))
    return _linked[0].address


def reporter_of(spark: "SparkSession") -> Reporter:
    """Return the reporter from a session's tasks to this process."""
    if not is_remote(spark):
        return AccumulatedReporter(accumulator_of(spark.sparkContext))
    run = REPORTS.only
    if run is None and not _linked:
        return LinkedReporter(None, None)
    # Without an open run: the frame is decoded later, in a handler of a repeated batch.
    return LinkedReporter(run or "", open_link(spark))


def _keep(reports: list[list[Any]]) -> bool:
    of = REPORTS.only
    if of is None and not all(run for run, *_ in reports):
        return False
    REPORTS.add((str(r or of), str(t), int(p), int(o), str(why)) for r, t, p, o, why in reports)
    return True


_VALUE: Final = "value"
_NEEDED: Final = {
    _VALUE: BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}
HEADERS: Final = "headers"

PLACE: Final = ("topic", "partition", "offset")
"""Columns that identify a record."""

MAX_IN_TASK: Final = 10_000
"""Most records that may not fit in one task. Beyond that the job fails before any sink write."""


def decode(df: DataFrame, format: Format) -> DataFrame:  # noqa: A002  (Spark's own word)
    """Return the same rows with their values decoded, and reject rows whose values do not fit.

    The column ``value`` becomes a struct of the format's columns; other columns stay unchanged. A
    null value, such as a tombstone, stays null. A value that cannot be decoded is rejected from the
    batch like with `Batch.reject`, with a reason without any content of the value. Rejected records
    become dead letters, durable with the batch's success.

    >>> def handler(df, batch):
    ...     orders = headrace.decode(df, headrace.json("id BIGINT NOT NULL, amount DOUBLE"))
    ...     orders.select("offset", "value.*").write.mode("append").saveAsTable("orders")

    Call it in the handler of a gate, in the thread that starts the jobs. Values that Spark never
    computes are not decoded, and therefore not rejected.

    Args:
        df: a frame with the columns value, topic, partition and offset, as sources return them.
        format: the format of the values: `headrace.json`, `headrace.avro` or `headrace.protobuf`.

    Raises:
        OptionError: a column is missing; the schema does not parse, or has a type that Spark does
            not have.
        RegistryError: the schema registry cannot be reached. Raised from a job, the batch is
            deferred or the query stops, as with an unreachable source.
        DecodeError: from a job: a value does not fit, and no handler can reject it.
    """
    _check_columns(df)
    if df.isStreaming and is_remote(df.sparkSession):
        raise OptionError(
            "headrace.decode is given a stream over Spark Connect, whose tasks do not know which"
            " batch they belong to; decode in the handler, what it is given."
        )
    columns = format.columns(df.sparkSession)
    fields = [
        StructField(_VALUE, nullable(columns)) if field.name == _VALUE else field
        for field in df.schema.fields
    ]
    task = DecodeTask(format, columns, reporter_of(df.sparkSession))
    return df.mapInArrow(task, StructType(fields))


def _check_columns(df: DataFrame) -> None:
    for name, kind in _NEEDED.items():
        types = [field.dataType for field in df.schema.fields if field.name == name]
        if types != [kind]:
            has = f"of {types[0].simpleString()}" if types else "missing"
            raise OptionError(
                f"The column {name} of the rows to decode is {has}; keep the columns"
                f" {', '.join(_NEEDED)} as the source gives them."
            )


class DecodeTask:
    """Function that each task calls with its record batches.

    Args:
        of: the format.
        columns: the format's columns.
        reports: receives values that do not fit. None if the task is never called itself.
        asked: names of the format's columns to return. Default: all.
    """

    def __init__(
        self,
        of: Format,
        columns: StructType,
        reports: Reporter | None,
        asked: tuple[str, ...] | None = None,
    ) -> None:
        self._format = of
        self._columns = columns.json()
        self._reports = reports
        self._asked = asked

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decoded record batches, without rows that do not fit."""
        assert self._reports is not None  # noqa: S101
        run, reported = self._reports.run(), 0
        for raw in batches:
            batch, reasons = self.decoded(raw)
            if not reasons:
                yield batch
                continue
            reported += len(reasons)
            self._reports.add(_reports(run, places_of(batch, reasons), reported))
            yield batch.filter(fitting(batch, reasons))

    def decoded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return the rows decoded, and the reason for each row that does not fit, by row number."""
        at = batch.schema.get_field_index(_VALUE)
        decoder = _decoder(self._format, self._columns, self._asked)
        values = batch.column(at)
        if reads_headers(self._format) and HEADERS in batch.schema.names:
            values = _with_ids(values, batch.column(HEADERS))
        result = decoder.decode(values)
        reasons = result.reasons
        if reads_headers(self._format) and HEADERS not in batch.schema.names:
            reasons = {number: _without_headers(why) for number, why in reasons.items()}
        arrays = batch.columns
        arrays[at] = _project(result.values, self._asked)
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names), reasons


def reads_headers(of: Format) -> bool:
    """Whether a record's headers may say which schema its value was written with."""
    return getattr(of, "registry", None) is not None


def _with_ids(values: pa.Array, headers: pa.Array) -> pa.Array:
    """Prefix values with the schema id from their record's header, as other producers do."""
    pairs = headers.flatten()
    is_id = pc.equal(pc.struct_field(pairs, "key"), VALUE_SCHEMA_ID)
    if not pc.any(is_id).as_py():
        return values
    rows = pc.list_parent_indices(headers).filter(is_id).to_pylist()
    ids = pc.struct_field(pairs, "value").filter(is_id).to_pylist()
    prefixes = [b""] * len(values)
    for row, header in zip(rows, ids, strict=True):
        prefixes[row] = header if header and schema_id(header) is not None else _NO_HEADER
    return pc.binary_join_element_wise(
        pa.array(prefixes, values.type), values, pa.scalar(b"", values.type)
    )


_NO_HEADER: Final = b"\xff"
"""Prefix with which no value of the wire format begins."""


def _without_headers(reason: str) -> str:
    if reason != NO_ID and not reason.startswith(unknown_id("")):
        return reason
    return (
        f"{reason}; where its header {VALUE_SCHEMA_ID} names it, set the source's option"
        " includeHeaders to true, and keep the column headers of the rows to decode"
    )


def _no_handler(report: Report) -> DecodeError:
    _, topic, partition, offset, reason = report
    return DecodeError(
        f"{topic}-{partition} at {offset} cannot be decoded, for {reason}, and no handler of a gate"
        " runs in this job's thread to reject it; write what is decoded with gate.write, and start"
        " threads of its handler with pyspark.InheritableThread."
    )


def _reports(
    run: str | None, found: list[tuple[str, int, int, str]], reported: int
) -> list[Report]:
    """Return the reports that a task sends to its run; ``reported`` counts those already sent.

    Raises:
        DecodeError: there is no run, or the task has too many reports.
    """
    if run is None:
        raise _no_handler(("", *found[0]))
    if reported > MAX_IN_TASK:
        topic, partition, _, reason = found[0]
        raise DecodeError(
            f"More than {MAX_IN_TASK:,} of the values that one task reads of"
            f" {topic}-{partition} cannot be decoded, the first because {reason}; see that the"
            " format is the producers'."
        )
    return [(run, *place) for place in found]


@lru_cache(maxsize=16)
def _decoder(of: Format, columns: str, asked: tuple[str, ...] | None) -> Decoder:
    """Return the decoder of a format, cached in each worker."""
    return of.decoder(StructType.fromJson(json.loads(columns)), asked)


def _project(values: pa.StructArray, asked: tuple[str, ...] | None) -> pa.StructArray:
    """Return the structs with the named fields only, in that order."""
    if asked is None or asked == tuple(field.name for field in values.type):
        return values
    numbers = [values.type.get_field_index(name) for name in asked]
    return pa.StructArray.from_arrays(
        [values.field(number) for number in numbers],
        fields=[values.type.field(number) for number in numbers],
        mask=None if values.null_count == 0 else values.is_null(),
    )


def places_of(batch: pa.RecordBatch, reasons: dict[int, str]) -> list[tuple[str, int, int, str]]:
    """Return topic, partition, offset and reason of each row that does not fit."""
    columns = [batch.column(name) for name in PLACE]
    return [
        (*(column[number].as_py() for column in columns), why) for number, why in reasons.items()
    ]


def fitting(batch: pa.RecordBatch, reasons: dict[int, str]) -> pa.BooleanArray:
    """Return a mask of the rows that fit."""
    good = np.ones(batch.num_rows, bool)
    good[list(reasons)] = False
    return pa.array(good)
