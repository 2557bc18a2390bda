"""A single interface to all supported versions of Spark, which differ in these features.

========================================  ====  ====  ============
                                          4.0   4.1   4.2 and 4.3
========================================  ====  ====  ============
``latestOffset`` receives the start       no    no    yes
``Trigger.AvailableNow`` with limits      no    no    yes
``latestOffset`` in progress events       no    no    yes
a streaming sink receives Arrow batches   no    yes   yes
unix domain sockets for Python workers    no    yes   yes
========================================  ====  ====  ============
"""

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

_LOG: Final = logging.getLogger("headrace.source")

__all__ = [
    "PLANS_FROM_START",
    "SPARK",
    "Py4JError",
    "Py4JJavaError",
    "Py4JNetworkError",
    "StreamPlanning",
    "StreamWriting",
    "VersionedStreamReader",
    "VersionedStreamWriter",
    "active_context",
    "arrow_type",
    "is_remote",
    "known_settings",
    "warn_of_limits",
]

SPARK: Final[tuple[int, int]] = tuple(map(int, pyspark.__version__.split(".")[:2]))  # type: ignore[assignment]
"""Major and minor version of the installed pyspark, such as ``(4, 1)``."""

PLANS_FROM_START: Final = SPARK >= (4, 2)
"""Whether this version of Spark passes two more values to a Python source: the start of the next
batch, and a read limit that shows the kind of trigger."""

_TAKES_TIMEZONE: Final = "timezone" in signature(to_arrow_type).parameters
_SINCE: Final = {"spark.python.unix.domain.socket.enabled": (4, 1)}

_ASKS_ONCE: Final = (
    "With Spark %s, a query with Trigger.AvailableNow or Trigger.Once runs only one batch of a"
    " Python source. With a limit (a gate's, or maxOffsetsPerTrigger), this query ends with unread"
    " records; start it again until it reads no record, use a trigger with an interval, or use"
    " Spark 4.2."
)


try:
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
except ImportError:  # a Spark Connect client without Spark itself never raises these

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Stand-in for the base class of py4j's exceptions, if py4j is not installed."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef,misc]
        """Stand-in for py4j's error about an exception in the JVM, if py4j is not installed."""

        java_exception: Any = None

    class Py4JNetworkError(Py4JError):  # type: ignore[no-redef,misc]
        """Stand-in for py4j's error about an unreachable JVM, if py4j is not installed."""


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect client, which has no JVM and no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def active_context() -> Any:
    """Return the SparkContext of this process; None if this process has no SparkContext."""
    module = sys.modules.get("pyspark.core.context")
    return None if module is None else module.SparkContext._active_spark_context


def known_settings(settings: dict[str, str]) -> dict[str, str]:
    """Return the items of ``settings`` that the installed version of Spark supports."""
    return {name: value for name, value in settings.items() if _SINCE.get(name, SPARK) <= SPARK}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type in which a task must pass a column of type ``kind`` to Spark."""
    return to_arrow_type(kind, timezone="UTC") if _TAKES_TIMEZONE else to_arrow_type(kind)


def warn_of_limits() -> None:
    """Log a warning if this version of Spark runs only one batch with ``Trigger.AvailableNow``."""
    if not PLANS_FROM_START:
        _LOG.warning(_ASKS_ONCE, pyspark.__version__)


class StreamPlanning(ABC):
    """The planning methods of a source. `VersionedStreamReader` maps Spark's interface to them."""

    @abstractmethod
    def first_offset(self) -> dict[str, Any]:
        """Return the offset at which a query with a new checkpoint begins to read."""

    @abstractmethod
    def next_offset(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """Plan a batch that begins at the offset ``start``. Return its end offset.

        The result is ``start`` itself if no batch is to run. With ``everything``, the batch takes
        all available records, regardless of limits.
        """

    @abstractmethod
    def stop_at_newest(self) -> None:
        """Limit this run of the query to the records that exist now (``Trigger.AvailableNow``)."""

    @abstractmethod
    def newest_offset(self) -> dict[str, Any] | None:
        """Return the offset at the end of the log, as of the last plan; None if it is unknown."""

    @abstractmethod
    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks that read the batch from the offset ``start`` to the offset ``end``."""


if TYPE_CHECKING or PLANS_FROM_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    # Spark asks for this limit only once in a query, so it cannot be a rate that changes. The plan
    # applies the real limit. This value only distinguishes other triggers from `Trigger.Once`.
    _LIMITED: Final = ReadMaxRows(2**63 - 1)

    class VersionedStreamReader(
        StreamPlanning, DataSourceStreamReader, SupportsTriggerAvailableNow
    ):
        """The stream reader for Spark 4.2 and later: calls the methods of `StreamPlanning`."""

        def initialOffset(self) -> dict[str, Any]:
            return self.first_offset()

        def getDefaultReadLimit(self) -> ReadLimit:
            return _LIMITED

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            return self.next_offset(start, everything=isinstance(limit, ReadAllAvailable))

        def prepareForTriggerAvailableNow(self) -> None:
            self.stop_at_newest()

        def reportLatestOffset(self) -> dict[str, Any] | None:
            return self.newest_offset()

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
            return self.tasks(start, end)

else:

    class VersionedStreamReader(StreamPlanning, DataSourceStreamReader):
        """The stream reader for Spark 4.0 and 4.1: calls the methods of `StreamPlanning`.

        In these versions, Spark does not pass the start of a batch to ``latestOffset``. So the
        start is the end in Spark's last call of ``partitions``. After a restart, Spark first calls
        ``partitions`` with the end of the last plan as both start and end. If that batch must run,
        Spark then calls ``partitions`` again. With a new checkpoint, Spark calls ``latestOffset``
        before ``initialOffset``. So both methods must use the same start.
        """

        _reached: dict[str, Any] | None = None
        _initial: dict[str, Any] | None = None

        def initialOffset(self) -> dict[str, Any]:
            if self._initial is None:
                self._initial = self.first_offset()
            return self._initial

        def latestOffset(self) -> dict[str, Any]:
            start = self.initialOffset() if self._reached is None else self._reached
            return self.next_offset(start, everything=False)

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
            self._reached = end
            # With equal offsets, Spark only passes the end of the last plan and runs no batch.
            return [] if start == end else self.tasks(start, end)


class StreamWriting(ABC):
    """The writing methods of a sink. `VersionedStreamWriter` maps Spark's interface to them."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that `write_batches` needs."""

    @abstractmethod
    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, and return the message for Spark's commit."""


if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class VersionedStreamWriter(StreamWriting, DataSourceStreamArrowWriter):
        """The stream writer for Spark 4.1 and later, which pass the rows as Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self.write_batches(iterator)

else:
    _ROWS_IN_A_BATCH: Final = 1_000

    class VersionedStreamWriter(StreamWriting, DataSourceStreamWriter):
        """The stream writer for Spark 4.0: builds Arrow batches from the rows that Spark passes."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return self.write_batches(self._batches(iterator))

        def _batches(self, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
            while chunk := [row.asDict(recursive=True) for row in islice(rows, _ROWS_IN_A_BATCH)]:
                columns = {name: pa.array([row[name] for row in chunk]) for name in self.columns}
                yield pa.RecordBatch.from_pydict(columns)
