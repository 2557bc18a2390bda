"""One interface for all supported versions of Spark, which differ in these features.

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
"""Major and minor version of the installed pyspark."""

PLANS_FROM_START: Final = SPARK >= (4, 2)
"""Whether Spark passes a Python source the start of its next batch and the kind of trigger."""

_TAKES_TIMEZONE: Final = "timezone" in signature(to_arrow_type).parameters
_SINCE: Final = {"spark.python.unix.domain.socket.enabled": (4, 1)}

_ASKS_ONCE: Final = (
    "Spark %s asks a Python source once where Trigger.AvailableNow and Trigger.Once end: a query"
    " with one of them runs one batch, and with a limit (a gate's, or maxOffsetsPerTrigger) it ends"
    " with a backlog left; start it again until nothing is left, use a trigger with an interval, or"
    " Spark 4.2."
)


try:
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
except ImportError:  # a Spark Connect client without Spark itself never raises these

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Base class of py4j's exceptions."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef,misc]
        """py4j's exception for an exception in the JVM."""

        java_exception: Any = None

    class Py4JNetworkError(Py4JError):  # type: ignore[no-redef,misc]
        """py4j's exception for a JVM that does not respond."""


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect client, without a JVM and a SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def active_context() -> Any:
    """Return this process's SparkContext; None without one."""
    module = sys.modules.get("pyspark.core.context")
    return None if module is None else module.SparkContext._active_spark_context


def known_settings(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings that the installed version of Spark knows."""
    return {name: value for name, value in settings.items() if _SINCE.get(name, SPARK) <= SPARK}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that a task must return for a column of a Spark type."""
    return to_arrow_type(kind, timezone="UTC") if _TAKES_TIMEZONE else to_arrow_type(kind)


def warn_of_limits() -> None:
    """Log the features that the installed version of Spark lacks, in one warning."""
    if not PLANS_FROM_START:
        _LOG.warning(_ASKS_ONCE, pyspark.__version__)


class StreamPlanning(ABC):
    """Planning of a source's batches, independent of Spark's version."""

    @abstractmethod
    def first_offset(self) -> dict[str, Any]:
        """Return the start offset of a new checkpoint."""

    @abstractmethod
    def next_offset(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """Return the end of the batch that begins at ``start``; ``start`` itself for no batch.

        With ``everything``, the trigger takes all available records, regardless of limits.
        """

    @abstractmethod
    def stop_at_newest(self) -> None:
        """Limit this run to the records that exist now, for ``Trigger.AvailableNow``."""

    @abstractmethod
    def newest_offset(self) -> dict[str, Any] | None:
        """Return the log's end as of the last plan."""

    @abstractmethod
    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch between two offsets."""


if TYPE_CHECKING or PLANS_FROM_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    # Spark asks for this limit once per query, so a changing rate cannot be a read limit: the plan
    # applies the real limit. This value only distinguishes a trigger with a limit from `once`.
    _LIMITED: Final = ReadMaxRows(2**63 - 1)

    class VersionedStreamReader(
        StreamPlanning, DataSourceStreamReader, SupportsTriggerAvailableNow
    ):
        """Spark's reader interface of Spark 4.2 and later."""

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
        """Spark's reader interface of Spark 4.0 and 4.1, where ``latestOffset`` receives no start.

        The start is the end of the last ``partitions`` call. After a restart, Spark first calls
        ``partitions`` with the last planned end as start and end, then again if the batch must run.
        With a new checkpoint, Spark calls ``latestOffset`` before ``initialOffset``, which must
        return the start of that plan.
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
            # Equal offsets are no batch: Spark only passes the end of the last plan.
            return [] if start == end else self.tasks(start, end)


class StreamWriting(ABC):
    """Writing of a streaming sink, independent of how Spark's version passes rows."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the columns to write."""

    @abstractmethod
    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""


if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class VersionedStreamWriter(StreamWriting, DataSourceStreamArrowWriter):
        """Spark's writer interface of Spark 4.1 and later, which passes Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self.write_batches(iterator)

else:
    _ROWS_IN_A_BATCH: Final = 1_000

    class VersionedStreamWriter(StreamWriting, DataSourceStreamWriter):
        """Spark's writer interface of Spark 4.0, which passes single rows."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return self.write_batches(self._batches(iterator))

        def _batches(self, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
            while chunk := [row.asDict(recursive=True) for row in islice(rows, _ROWS_IN_A_BATCH)]:
                columns = {name: pa.array([row[name] for row in chunk]) for name in self.columns}
                yield pa.RecordBatch.from_pydict(columns)
