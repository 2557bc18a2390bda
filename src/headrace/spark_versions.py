"""Differences between the supported versions of Spark; other modules see one interface.

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
"""The version of the pyspark that is installed: its first two numbers."""

PLANS_FROM_START: Final = SPARK >= (4, 2)
"""Whether Spark tells a Python source where its next batch starts, and which trigger it has."""

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
except ImportError:  # a Spark Connect client without Spark itself, where nobody raises them

    class Py4JError(Exception):  # type: ignore[no-redef]
        """Base class of py4j's exceptions."""

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef,misc]
        """py4j's exception for an exception in the JVM."""

        java_exception: Any = None

    class Py4JNetworkError(Py4JError):  # type: ignore[no-redef,misc]
        """py4j's exception for a JVM that does not answer."""


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is a Spark Connect client's: without a JVM and a SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def active_context() -> Any:
    """The SparkContext of this process, if it has one."""
    module = sys.modules.get("pyspark.core.context")
    return None if module is None else module.SparkContext._active_spark_context


def known_settings(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings that the installed version of Spark has."""
    return {name: value for name, value in settings.items() if _SINCE.get(name, SPARK) <= SPARK}


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type that Spark asks for where a task returns such a column."""
    return to_arrow_type(kind, timezone="UTC") if _TAKES_TIMEZONE else to_arrow_type(kind)


def warn_of_limits() -> None:
    """Log the features that the installed version of Spark lacks, in one warning."""
    if not PLANS_FROM_START:
        _LOG.warning(_ASKS_ONCE, pyspark.__version__)


class StreamPlanning(ABC):
    """Planning of a source's batches, whichever way Spark asks."""

    @abstractmethod
    def first_offset(self) -> dict[str, Any]:
        """Return the start of a fresh checkpoint."""

    @abstractmethod
    def next_offset(self, start: dict[str, Any], *, everything: bool) -> dict[str, Any]:
        """The end of the batch that starts there; ``start`` itself where there is none to run.

        ``everything`` says that the trigger takes all there is whatever the limits.
        """

    @abstractmethod
    def stop_at_newest(self) -> None:
        """For ``Trigger.AvailableNow``: this run reads only the records that exist now."""

    @abstractmethod
    def newest_offset(self) -> dict[str, Any] | None:
        """Return the log's end at the last plan."""

    @abstractmethod
    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch between two offsets."""


if TYPE_CHECKING or PLANS_FROM_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    # Any number will do: the plan has the real limit. It tells a trigger that has a limit from
    # `once`, which asks for all that is available.
    _LIMITED: Final = ReadMaxRows(2**63 - 1)

    class VersionedStreamReader(
        StreamPlanning, DataSourceStreamReader, SupportsTriggerAvailableNow
    ):
        """Spark's questions, as Spark 4.2 and later put them."""

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
        """Spark's questions, as Spark 4.0 and 4.1 put them: ``latestOffset`` is told no start.

        It is the end that ``partitions`` was last given. After a restart Spark gives the end of the
        last planned batch there before it asks anything else (as the start too; it runs that batch
        again, if it has to, in a second call). With a fresh checkpoint, Spark asks for the latest
        offset first and for the initial one after it, which must be the one that was planned from.
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
            # No batch is without an end of its own: Spark only says how far the last plan went.
            return [] if start == end else self.tasks(start, end)


class StreamWriting(ABC):
    """Writing of a streaming sink, whichever way Spark passes the rows."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Columns of each row that are written."""

    @abstractmethod
    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""


if TYPE_CHECKING or SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class VersionedStreamWriter(StreamWriting, DataSourceStreamArrowWriter):
        """Rows as Spark 4.1 and later give them to a streaming sink."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self.write_batches(iterator)

else:
    _ROWS_IN_A_BATCH: Final = 1_000

    class VersionedStreamWriter(StreamWriting, DataSourceStreamWriter):
        """Rows as Spark 4.0 gives them to a streaming sink: one by one."""

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return self.write_batches(self._batches(iterator))

        def _batches(self, rows: Iterator[Any]) -> Iterator[pa.RecordBatch]:
            while chunk := [row.asDict(recursive=True) for row in islice(rows, _ROWS_IN_A_BATCH)]:
                columns = {name: pa.array([row[name] for row in chunk]) for name in self.columns}
                yield pa.RecordBatch.from_pydict(columns)
