"""``headrace.decode``: decodes record values into typed columns, in Spark's tasks.

Values that do not fit are reported to the handler's process. The tasks that read the values also
decode them. So no raw bytes travel to the JVM, to a Python worker and back to the JVM.
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

from headrace.core.native import Engine
from headrace.decoding.formats import Decoder, Format, nullable
from headrace.decoding.json_format import JsonFormat
from headrace.decoding.native_json import with_native_json
from headrace.decoding.registry import NO_ID, VALUE_SCHEMA_ID, schema_id, unknown_id
from headrace.errors import DecodeError, OptionError
from headrace.spark_versions import Py4JError, active_context, is_remote
from headrace.task_link import LinkAddress, TaskLink

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Report = tuple[str, str, int, int, str]
"""Report of a value that cannot be decoded: the id of the handler's run, the record's topic,
partition and offset, and the reason."""

MAX_REPORTED: Final = 100_000
"""Maximum number of reports that are kept for one run of a handler. A batch with more reports
fails."""

_RUN: Final = "headrace.run"


class Reports:
    """Reports of values that cannot be decoded, for each run of a handler."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        self._by_run: dict[str, dict[tuple[str, int, int], str]] = {}

    def open(self, run: str) -> None:
        """Begin to keep the reports to a run. Reports before this call are dropped."""
        with self._changing:
            self._by_run[run] = {}

    def add(self, reports: Iterable[Report]) -> None:
        """Store the first report of each record; ignore reports to runs that are not open."""
        with self._changing:
            for run, topic, partition, offset, reason in reports:
                kept = self._by_run.get(run)
                if kept is not None and len(kept) <= MAX_REPORTED:
                    kept.setdefault((topic, partition, offset), reason)

    @property
    def only(self) -> str | None:
        """The id of the only open run; None if no run or several runs are open."""
        with self._changing:
            return next(iter(self._by_run)) if len(self._by_run) == 1 else None

    def take(self, run: str) -> dict[tuple[str, int, int], str]:
        """Return and remove the reports to a run, by topic, partition and offset."""
        with self._changing:
            taken = self._by_run.get(run, {})
            if taken:
                self._by_run[run] = {}
            return taken

    def close(self, run: str) -> None:
        """Delete the reports to a run, and ignore later reports to this run."""
        with self._changing:
            self._by_run.pop(run, None)


REPORTS: Final = Reports()
"""Reports that this process has received."""


class ReportsParam(AccumulatorParam[Any]):
    """Accumulator of reports: a task fills a list, and Spark adds the list to `Reports`."""

    def zero(self, value: Any) -> list[Report]:
        """Return the initial value in a task: an empty list."""
        return []

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        """Append reports to a task's list, or add a task's list to the driver's `Reports`."""
        if isinstance(value1, Reports):
            value1.add(value2)
        else:
            value1.extend(value2)
        return value1


_making: Final = threading.Lock()
_made: "list[tuple[SparkContext, Accumulator[Any]]]" = []


def accumulator_of(context: "SparkContext") -> "Accumulator[Any]":
    """Return the report accumulator of a Spark context; all its streams and batches share it."""
    with _making:
        for owner, accumulator in _made:
            if owner is context:
                return accumulator
        created: Accumulator[Any] = context.accumulator(REPORTS, ReportsParam())
        _made[:] = [(context, created)]
        return created


@contextmanager
def reported_to(run: str) -> Iterator[None]:
    """Within the block, make this thread's Spark jobs report to a run of the handler."""
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
    """Return a random id for a run of a handler."""
    return uuid.uuid4().hex


def run_of_task() -> str | None:
    """Return the run to which the current task must report; None outside of a handler's job."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_RUN)


class Reporter(Protocol):
    """Channel for reports from tasks to the handler's process; serialized to the tasks."""

    def run(self) -> str | None:
        """Return the run to which the current task must report; None outside of a handler's job."""
        ...

    def add(self, reports: list[Report]) -> None:
        """Send reports; the handler's process has them when the Spark action returns."""
        ...


@dataclass(frozen=True)
class AccumulatedReporter:
    """Channel for reports through a Spark accumulator."""

    accumulator: "Accumulator[Any]"

    def run(self) -> str | None:
        """Return the run in the job properties of the task."""
        return run_of_task()

    def add(self, reports: list[Report]) -> None:
        """Add reports to the accumulator; Spark delivers them only if the task succeeds."""
        self.accumulator.add(reports)


@dataclass(frozen=True)
class LinkedReporter:
    """Channel for reports over a socket, for Spark Connect; no reports are sent without address."""

    of_run: str | None
    address: LinkAddress | None

    def run(self) -> str | None:
        """Return the run that was open when `decode` was called.

        The result is "" if no run was open, and None if there is no address for reports.
        """
        return self.of_run

    def add(self, reports: list[Report]) -> None:
        """Send reports. They count even if the task fails: its retry sends the same reports.

        Raises:
            DecodeError: no handler of a gate runs in the receiving process.
        """
        if self.address is not None and not self.address.ask(reports):
            raise _no_handler(reports[0])


_LINK: Final = "spark.headrace.reports"
"""Job property with the host and port to which tasks send reports. The property has no secret,
because Spark writes all job properties to its event log."""


@dataclass(frozen=True)
class SessionReporter:
    """Channel for reports over Spark Connect, for tasks that do not know the handler's run.

    The tasks read the address from a job property of the session. The receiving process assigns the
    reports to its open run. The session's token is serialized with the source.
    """

    token: str = field(repr=False)

    def run(self) -> str | None:
        """Return "", which stands for the receiving process's open run; None without an address."""
        return None if self._address() is None else ""

    def add(self, reports: list[Report]) -> None:
        """Send reports to the address in the job properties, as `LinkedReporter.add` does."""
        LinkedReporter(None, self._address()).add(reports)

    def _address(self) -> LinkAddress | None:
        task = TaskContext.get()
        text = None if task is None else task.getLocalProperty(_LINK)
        if text is None:
            return None
        host, port = json.loads(text)
        return LinkAddress(str(host), int(port), self.token)


def link_tasks(spark: "SparkSession") -> None:
    """Make the tasks of a Spark Connect session report to this process by `SessionReporter`."""
    address = open_link(spark)
    spark.conf.set(_LINK, json.dumps([address.host, address.port]))


_linked: list[TaskLink] = []


def open_link(spark: "SparkSession", token: str | None = None) -> LinkAddress:
    """Return the address to which Spark Connect tasks send reports; the first call opens the port.

    Args:
        spark: the session whose tasks send reports.
        token: the token that tasks must send. Default: a new random token.
    """
    with _making:
        if not _linked:
            _linked.append(TaskLink(spark, _keep, token))
    return _linked[0].address


def reporter_of(spark: "SparkSession") -> Reporter:
    """Return the channel for reports from a session's tasks to this process."""
    if not is_remote(spark):
        return AccumulatedReporter(accumulator_of(spark.sparkContext))
    run = REPORTS.only
    if run is None and not _linked:
        return LinkedReporter(None, None)
    # "" if no run is open: the DataFrame is computed later, in the handler of a repeated batch.
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
"""Names of the columns that identify a record."""

MAX_IN_TASK: Final = 10_000
"""Maximum number of values that one task may report. If a task would report more, the job fails and
writes nothing to the sink."""


def decode(df: DataFrame, format: Format) -> DataFrame:  # noqa: A002  (Spark's own word)
    """Decode the column ``value`` of a DataFrame, and reject rows whose values do not fit.

    The column ``value`` becomes a struct with the format's columns; other columns stay unchanged. A
    null value, such as a tombstone, stays null. A row whose value cannot be decoded is removed, and
    its record is rejected as by `Batch.reject`. The reason contains nothing of the value's content.
    Rejected records become dead letters when the batch succeeds.

    >>> def handler(df, batch):
    ...     orders = headrace.decode(df, headrace.json("id BIGINT NOT NULL, amount DOUBLE"))
    ...     orders.select("offset", "value.*").write.mode("append").saveAsTable("orders")

    Call `decode` in the handler of a gate, in the thread that starts the Spark jobs. A value that
    Spark does not compute is not decoded, and so is not rejected.

    Args:
        df: a DataFrame with the columns value, topic, partition and offset of a source.
        format: the format of the values: `headrace.json`, `headrace.avro` or `headrace.protobuf`.

    Raises:
        OptionError: a column is missing or has another type; the schema does not parse, or has a
            type that Spark does not have.
        RegistryError: the schema registry cannot be reached. If a job raises it, the batch is
            deferred or the query stops, as with an unreachable source.
        DecodeError: raised by a job: a value does not fit, and no handler is running that could
            reject its record.
    """
    _check_columns(df)
    if df.isStreaming and is_remote(df.sparkSession):
        raise OptionError(
            "headrace.decode cannot decode a stream over Spark Connect, because its tasks do not"
            " know their batch; call headrace.decode in the handler, on the handler's DataFrame."
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
                f" {', '.join(_NEEDED)} of the source unchanged."
            )


class DecodeTask:
    """Decodes the Arrow record batches of one Spark task.

    Args:
        of: the format of the values.
        columns: the columns of the format.
        reports: the channel for reports of values that do not fit. None if only `decoded` is
            called.
        asked: names of the columns to return. Default: all.
        engine: the engine that decodes JSON.
    """

    def __init__(
        self,
        of: Format,
        columns: StructType,
        reports: Reporter | None,
        asked: tuple[str, ...] | None = None,
        engine: Engine = Engine.NATIVE,
    ) -> None:
        self._format = of
        self._columns = columns.json()
        self._reports = reports
        self._asked = asked
        self._engine = engine

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the decoded record batches, without the rows whose values do not fit."""
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
        """Decode the values of a record batch; return the batch, and the reasons of unfit rows.

        The reasons are by row number. The value of an unfit row is null.
        """
        at = batch.schema.get_field_index(_VALUE)
        decoder = _decoder(self._format, self._columns, self._asked, self._engine)
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
    """Return whether record headers may contain schema ids: True for a format with a registry."""
    return getattr(of, "registry", None) is not None


def _with_ids(values: pa.Array, headers: pa.Array) -> pa.Array:
    """Prepend the schema id from a record's headers to the value, as in the wire format."""
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
"""Prefix for the value of a record whose header has an invalid schema id. No value in the wire
format begins with this byte."""


def _without_headers(reason: str) -> str:
    if reason != NO_ID and not reason.startswith(unknown_id("")):
        return reason
    return (
        f"{reason}; if its header {VALUE_SCHEMA_ID} has the id, set the source's option"
        " includeHeaders to true, and keep the column headers in the rows to decode"
    )


def _no_handler(report: Report) -> DecodeError:
    _, topic, partition, offset, reason = report
    return DecodeError(
        f"{topic}-{partition} at {offset} cannot be decoded, because {reason}, and no handler of a"
        " gate runs in this job's thread to reject the record; write decoded rows with gate.write,"
        " and start threads of the handler with pyspark.InheritableThread."
    )


def _reports(
    run: str | None, found: list[tuple[str, int, int, str]], reported: int
) -> list[Report]:
    """Add the run to each report in ``found``. ``reported`` is the task's number of reports so far.

    Raises:
        DecodeError: the job has no run, or the task has more than `MAX_IN_TASK` reports.
    """
    if run is None:
        raise _no_handler(("", *found[0]))
    if reported > MAX_IN_TASK:
        topic, partition, _, reason = found[0]
        raise DecodeError(
            f"One task read more than {MAX_IN_TASK:,} values of {topic}-{partition} that cannot be"
            f" decoded, the first because {reason}; check that the producers write the format that"
            " is decoded."
        )
    return [(run, *place) for place in found]


@lru_cache(maxsize=16)
def _decoder(of: Format, columns: str, asked: tuple[str, ...] | None, engine: Engine) -> Decoder:
    """Return a decoder of the format; each worker process caches decoders."""
    schema = StructType.fromJson(json.loads(columns))
    decoder = of.decoder(schema, asked)
    if isinstance(of, JsonFormat) and engine is Engine.NATIVE:
        return with_native_json(schema, asked, decoder)
    return decoder


def _project(values: pa.StructArray, asked: tuple[str, ...] | None) -> pa.StructArray:
    """Return the structs with only the fields in ``asked``, in the order of ``asked``."""
    if asked is None or asked == tuple(field.name for field in values.type):
        return values
    numbers = [values.type.get_field_index(name) for name in asked]
    return pa.StructArray.from_arrays(
        [values.field(number) for number in numbers],
        fields=[values.type.field(number) for number in numbers],
        mask=None if values.null_count == 0 else values.is_null(),
    )


def places_of(batch: pa.RecordBatch, reasons: dict[int, str]) -> list[tuple[str, int, int, str]]:
    """Return the topic, the partition, the offset and the reason of each unfit row."""
    columns = [batch.column(name) for name in PLACE]
    return [
        (*(column[number].as_py() for column in columns), why) for number, why in reasons.items()
    ]


def fitting(batch: pa.RecordBatch, reasons: dict[int, str]) -> pa.BooleanArray:
    """Return a mask that is True for the rows that are not in ``reasons``."""
    good = np.ones(batch.num_rows, bool)
    good[list(reasons)] = False
    return pa.array(good)
