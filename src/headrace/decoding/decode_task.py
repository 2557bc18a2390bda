"""``headrace.decode``: values into typed columns in the tasks, which report what is not decoded."""

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
"""The run, topic, partition and offset of a record, and why it cannot be decoded."""

MAX_REPORTED: Final = 100_000
"""Records of a run that are kept; a batch with more of them has failed."""

_RUN: Final = "headrace.run"


class Reports:
    """Reports of tasks, by the runs of batches that wait for them."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._by_run: dict[str, dict[tuple[str, int, int], str]] = {}

    def open(self, run: str) -> None:
        """Keep what is reported to a run from now on."""
        with self._changing:
            self._by_run[run] = {}

    def add(self, reports: Iterable[Report]) -> None:
        """Keep these once, however often a record is decoded; nothing of a run that is over."""
        with self._changing:
            for run, topic, partition, offset, reason in reports:
                kept = self._by_run.get(run)
                if kept is not None and len(kept) <= MAX_REPORTED:
                    kept.setdefault((topic, partition, offset), reason)

    @property
    def only(self) -> str | None:
        """The run that is open; None where none is, or several are."""
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
        """Forget a run."""
        with self._changing:
            self._by_run.pop(run, None)


REPORTS: Final = Reports()
"""Reports to this process."""


class ReportsParam(AccumulatorParam[Any]):
    """Merge for Spark: a task collects a list, the driver keeps it in `Reports`."""

    def zero(self, value: Any) -> list[Report]:
        """Return the first value of a task."""
        return []

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        """Add what a task has, or has reported."""
        if isinstance(value1, Reports):
            value1.add(value2)
        else:
            value1.extend(value2)
        return value1


_making: Final = threading.Lock()
_made: "list[tuple[SparkContext, Accumulator[Any]]]" = []


def accumulator_of(context: "SparkContext") -> "Accumulator[Any]":
    """The one accumulator of a Spark context, for every stream and batch in it."""
    with _making:
        for known, accumulator in _made:
            if known is context:
                return accumulator
        made: Accumulator[Any] = context.accumulator(REPORTS, ReportsParam())
        _made[:] = [(context, made)]
        return made


@contextmanager
def reported_to(run: str) -> Iterator[None]:
    """Have the jobs of this thread, within, report to a run; see `Reports.take`."""
    REPORTS.open(run)
    context = active_context()
    before = None if context is None else context.getLocalProperty(_RUN)
    try:
        if context is not None:
            context.setLocalProperty(_RUN, run)
        yield
    finally:
        if context is not None:
            with suppress(Py4JError, OSError):  # a JVM that has ended
                context.setLocalProperty(_RUN, before)
        REPORTS.close(run)


def new_run() -> str:
    """Name a run of a handler."""
    return uuid.uuid4().hex


def run_of_task() -> str | None:
    """The run that the task of this worker belongs to; None outside of a handler."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_RUN)


class Reporter(Protocol):
    """Channel for a task's reports; it is sent to the tasks."""

    def run(self) -> str | None:
        """The run that this task belongs to; None outside of a handler."""
        ...

    def add(self, reports: list[Report]) -> None:
        """Report these; they are known to the handler's process when the action returns."""
        ...


@dataclass(frozen=True)
class AccumulatedReporter:
    """By an accumulator of Spark's."""

    accumulator: "Accumulator[Any]"

    def run(self) -> str | None:
        """As the job's thread has inherited it."""
        return run_of_task()

    def add(self, reports: list[Report]) -> None:
        """Merged when the task has succeeded."""
        self.accumulator.add(reports)


@dataclass(frozen=True)
class LinkedReporter:
    """To the handler's process, over Spark Connect; without one, there is nobody to report to."""

    of_run: str | None
    address: LinkAddress | None

    def run(self) -> str | None:
        """The one that was open when the values were to be decoded."""
        return self.of_run

    def add(self, reports: list[Report]) -> None:
        """Kept there when this returns, though the task may fail later: it decodes alike again.

        Raises:
            DecodeError: no handler runs there.
        """
        if self.address is not None and not self.address.ask(reports):
            raise _no_handler(reports[0])


_LINK: Final = "spark.headrace.reports"
"""The property of jobs that says where their tasks report to. It has no secret: Spark writes the
properties of jobs to its event log, whatever their names."""


@dataclass(frozen=True)
class SessionReporter:
    """To the handler's process over Spark Connect, for tasks that do not know their batch.

    Its session tells them the address; the run is the one that is open there. The token is the
    session's, and comes with the source.
    """

    token: str = field(repr=False)

    def run(self) -> str | None:
        """Return no name, if the session has an address."""
        return None if self._address() is None else ""

    def add(self, reports: list[Report]) -> None:
        """As `LinkedReporter.add`."""
        LinkedReporter(None, self._address()).add(reports)

    def _address(self) -> LinkAddress | None:
        task = TaskContext.get()
        text = None if task is None else task.getLocalProperty(_LINK)
        if text is None:
            return None
        host, port = json.loads(text)
        return LinkAddress(str(host), int(port), self.token)


def link_tasks(spark: "SparkSession") -> None:
    """Have tasks of a session of Spark Connect's report to this process; see `SessionReporter`."""
    address = open_link(spark)
    spark.conf.set(_LINK, json.dumps([address.host, address.port]))


_linked: list[TaskLink] = []


def open_link(spark: "SparkSession", token: str | None = None) -> LinkAddress:
    """Open the port to which tasks of Spark Connect report, once; its address.

    Args:
        spark: the session of the tasks.
        token: what tasks show. Default: a new one.
    """
    with _making:
        if not _linked:
            _linked.append(TaskLink(spark, _keep, token))
    return _linked[0].address


def reporter_of(spark: "SparkSession") -> Reporter:
    """Return the channel from a session's tasks to this process."""
    if not is_remote(spark):
        return AccumulatedReporter(accumulator_of(spark.sparkContext))
    run = REPORTS.only
    if run is None and not _linked:
        return LinkedReporter(None, None)
    # What is run again is decoded in a handler that is called later.
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
"""The columns that say where a record is."""

MAX_IN_TASK: Final = 10_000
"""Records that may not fit in one task. Beyond that its job fails, before a sink has anything."""


def decode(df: DataFrame, format: Format) -> DataFrame:  # noqa: A002  (Spark's own word)
    """The same rows with their values decoded, but those that do not fit, which are rejected.

    The column ``value`` becomes a struct of the format's columns; all others stay as they are. A
    null value, such as a tombstone, stays null. A value that cannot be decoded is rejected from the
    batch as `Batch.reject` does it, with a reason that has nothing of the value: as dead letters,
    durable with the batch's success.

    >>> def handler(df, batch):
    ...     orders = headrace.decode(df, headrace.json("id BIGINT NOT NULL, amount DOUBLE"))
    ...     orders.select("offset", "value.*").write.mode("append").saveAsTable("orders")

    Call it in the handler of a gate, whose thread also starts the jobs. Values that are never
    computed are not decoded, and so not rejected either.

    Args:
        df: has the columns value, topic, partition and offset, as the sources give them.
        format: what the values are; `headrace.json`, `headrace.avro` or `headrace.protobuf`.

    Raises:
        OptionError: a column is missing; the schema does not parse, or has a type that Spark does
            not have.
        RegistryError: the schema registry cannot be reached. From a job: the same, and the batch is
            deferred, or the query stops, as with a source that is away.
        DecodeError: from a job: something does not fit, and there is no handler to reject it.
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
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if found != [kind]:
            has = f"of {found[0].simpleString()}" if found else "missing"
            raise OptionError(
                f"The column {name} of the rows to decode is {has}; keep the columns"
                f" {', '.join(_NEEDED)} as the source gives them."
            )


class DecodeTask:
    """Function of each task; it is called with a task's record batches.

    Args:
        of: the format.
        columns: its columns.
        reports: receives what does not fit, when it is called. None where it is not.
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
        """The same record batches, decoded, without the rows that do not fit."""
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
        """Return the same rows, decoded, and why some do not fit, by their number."""
        at = batch.schema.get_field_index(_VALUE)
        decoder = _decoder(self._format, self._columns, self._asked)
        values = batch.column(at)
        if reads_headers(self._format) and HEADERS in batch.schema.names:
            values = _with_ids(values, batch.column(HEADERS))
        found = decoder.decode(values)
        reasons = found.reasons
        if reads_headers(self._format) and HEADERS not in batch.schema.names:
            reasons = {number: _without_headers(why) for number, why in reasons.items()}
        arrays = batch.columns
        arrays[at] = _project(found.values, self._asked)
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names), reasons


def reads_headers(of: Format) -> bool:
    """Whether a record's headers may say which schema its value was written with."""
    return getattr(of, "registry", None) is not None


def _with_ids(values: pa.Array, headers: pa.Array) -> pa.Array:
    """Put the schema's id in a record's header before its value, as other producers write it."""
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
"""Begins no value of the wire format."""


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
    """Reports of a task to a run, of which it has reported so many with these.

    Raises:
        DecodeError: there is no run, or they are too many.
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
    return [(run, *each) for each in found]


@lru_cache(maxsize=16)
def _decoder(of: Format, columns: str, asked: tuple[str, ...] | None) -> Decoder:
    """Return the decoder of a format, made once in a worker."""
    return of.decoder(StructType.fromJson(json.loads(columns)), asked)


def _project(values: pa.StructArray, asked: tuple[str, ...] | None) -> pa.StructArray:
    """The structs with those of their fields that are asked for, in that order."""
    if asked is None or asked == tuple(each.name for each in values.type):
        return values
    numbers = [values.type.get_field_index(name) for name in asked]
    return pa.StructArray.from_arrays(
        [values.field(number) for number in numbers],
        fields=[values.type.field(number) for number in numbers],
        mask=None if values.null_count == 0 else values.is_null(),
    )


def places_of(batch: pa.RecordBatch, reasons: dict[int, str]) -> list[tuple[str, int, int, str]]:
    """Topic, partition and offset of each row that does not fit, and why."""
    columns = [batch.column(name) for name in PLACE]
    return [(*(each[number].as_py() for each in columns), why) for number, why in reasons.items()]


def fitting(batch: pa.RecordBatch, reasons: dict[int, str]) -> pa.BooleanArray:
    """Which rows fit."""
    good = np.ones(batch.num_rows, bool)
    good[list(reasons)] = False
    return pa.array(good)
