"""Writers of gated streams: what is refused, and what happens when the query starts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.errors import OptionError
from headrace.execution.handling import Started

Before = Callable[[str | None, str], str]
"""Called before a query starts, with its option ``checkpointLocation`` if it is set, and its name;
returns where its checkpoint is."""

_WITHOUT_BATCHES: Final = frozenset({"realTime", "continuous"})


class GatedWriting(DataStreamWriter if TYPE_CHECKING else object):  # type: ignore[misc]
    """Addition to Spark's writer, whose methods come after: hooks around the query's start.

    `start` raises the exceptions of ``before``.
    """

    _before: Before
    _started: Started
    _name: str = ""
    _checkpoint: str | None = None
    _is_bounded: bool = False

    def queryName(self, queryName: str) -> Self:  # noqa: N803  (Spark's own name)
        """Name the query, as Spark does."""
        self._name = queryName
        super().queryName(queryName)
        return self

    def option(self, key: str, value: Any) -> Self:
        """Set an option, as Spark does."""
        if key.lower() == "checkpointlocation":
            self._checkpoint = str(value)
        super().option(key, value)
        return self

    def options(self, **options: Any) -> Self:
        """Set options, as Spark does."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def trigger(self, **chosen: Any) -> Self:
        """Choose when batches start, as Spark does.

        Raises:
            OptionError: the trigger is one with which Spark plans no batches before it runs them.
        """
        for mode in _WITHOUT_BATCHES & chosen.keys():
            if chosen[mode] is not None:
                raise OptionError(
                    f"The trigger is {mode}={chosen[mode]!r}, but in Spark's real-time mode and in"
                    " its continuous mode offsets are written after their records were processed,"
                    " so no ledger can record a batch before it runs; use processingTime or"
                    " availableNow."
                )
        super().trigger(**chosen)
        self._is_bounded = bool(chosen.get("availableNow") or chosen.get("once"))
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002  (Spark's own names)
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StreamingQuery:
        """Start the query, and what goes beside it.

        Raises:
            OptionError: the query has no checkpoint, or another gate's.
            GateInUseError: another query stands behind the gate.
        """
        self.options(**options)
        if queryName:
            self.queryName(queryName)
        checkpoint = self._before(self._checkpoint, self._name)
        query: StreamingQuery = super().start(path, format, outputMode, partitionBy)
        self._started(query, checkpoint, self._is_bounded)
        return query


class GatedStreamWriter(GatedWriting, DataStreamWriter):
    """The writer of a session with a JVM of its own."""

    def __init__(
        self,
        df: DataFrame,
        before: Before,
        started: Started,
    ) -> None:
        super().__init__(df)
        self._before = before
        self._started = started
