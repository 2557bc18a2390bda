"""Spark's stream writer behind a gate, and the handlers of its query's batches and backfills."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from headrace.core.options import duration_ms
from headrace.core.system import new_owner
from headrace.core.timing import cancel_when, wall_clock_ms
from headrace.decoding import OPTION
from headrace.errors import OptionError
from headrace.gate.backfill.monitor import Monitor
from headrace.gate.backfill.schedule import InProcessBudget, LiveStream, Schedule
from headrace.gate.backfill.scheduler import BackfillScheduler, OwnerSettings
from headrace.gate.execution.batch import Handler
from headrace.gate.execution.batch_reader import BatchReader, DerivedStream, SparkBatchReader
from headrace.gate.execution.call import RunContext
from headrace.gate.execution.gate_state import has_ended, state_of, use_ledger
from headrace.gate.execution.handler import GatedHandler
from headrace.gate.execution.policy import OnFailure
from headrace.gate.execution.world import BatchRunner
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.connector import Connector
from headrace.gate.source.source_options import fails_on_misfit

_LOG: Final = logging.getLogger("headrace.execution")


@dataclass(frozen=True)
class StreamBackfill:
    """Backfill of a stream's deferred batches, in the same application, while the handler is free.

    The batches are leased for ``owner``.
    """

    gate: str
    ledger: Ledger
    runner: BatchRunner
    reader: BatchReader
    owner: str
    interval_ms: int
    schedule: Schedule

    def follow(self, query: StreamingQuery) -> None:
        """Run the backfill in separate threads until the query ends."""
        scheduler = BackfillScheduler(
            self.ledger,
            self.runner.run,
            self.reader,
            OwnerSettings(self.owner),
            limits=self.runner.limits,
            budget=InProcessBudget(self._live, wall_clock_ms),
            clock=wall_clock_ms,
            stopped=lambda: has_ended(query),
        )
        for name, target in (
            ("headrace-backfill", lambda: self._run(scheduler, query)),
            ("headrace-backfill-end", lambda: _close_after(query, scheduler)),
        ):
            threading.Thread(target=target, name=f"{name}-{self.gate}", daemon=True).start()

    def _run(self, scheduler: BackfillScheduler, query: StreamingQuery) -> None:
        state = state_of(self.ledger.url, self.gate)
        state.on_batch_end(scheduler.wake)
        try:
            # The stream's own batch may wait for the handler, and is not stopped before its end.
            with cancel_when(lambda: has_ended(query), "the query was stopped"):
                scheduler.run(Monitor(self.ledger, self.gate), self.schedule)
        except Exception:  # noqa: BLE001  (the thread has no caller that could report it)
            _LOG.exception("The backfill of gate %r has ended; the stream goes on.", self.gate)
        finally:
            state.on_batch_end(None)

    def _live(self) -> LiveStream:
        gate = self.ledger.gates.get(self.gate)
        rate_per_s = None if gate is None else gate.rate_per_s
        interval_ms = self.interval_ms if gate is None else gate.interval_ms
        return state_of(self.ledger.url, self.gate).live(rate_per_s, interval_ms)


def _close_after(query: StreamingQuery, scheduler: BackfillScheduler) -> None:
    try:
        query.awaitTermination()
    except StreamingQueryException:
        pass  # Spark reports the query's own failure.
    finally:
        scheduler.close()


def _control_wait_s(interval_ms: int) -> float:
    """Return how long a backfill waits for the stream's next batch (s); at most a minute."""
    return min(2 * interval_ms / 1000 + 5, 60)


Started = Callable[[StreamingQuery, str | None, bool], None]
"""Function called after a query's start, with the query, its option ``checkpointLocation`` or None,
and whether the query reads all available records and ends."""


@dataclass(frozen=True)
class Handling:
    """Arguments of `Gate.write`, from which a gate's handler is created.

    Over Spark Connect they are sent to the server's process that runs the handler.

    Attributes:
        read: id of the `Gate.read` call whose stream the handler processes.
        options: options of the stream's source, with secrets.
        transform: the stream's derivation from the source.
        columns: the columns of the source's DataFrame.
        has_state: whether the stream's batches depend on each other.
    """

    gate: str
    ledger_url: str = field(repr=False)
    handler: Handler
    policy: OnFailure
    schedule: Schedule
    interval_ms: int
    read: str
    connector: Connector
    options: Mapping[str, str] = field(repr=False)
    transform: Callable[[DataFrame], DataFrame] | None = None
    columns: StructType | None = None
    has_state: bool = False

    @property
    def decodes(self) -> bool:
        """Whether the stream's source decodes values (option ``decode``)."""
        return OPTION in map(str.lower, self.options)

    def begin(
        self, spark: SparkSession, derived: DerivedStream | None
    ) -> tuple[GatedHandler, Started]:
        """Return a new handler for ``foreachBatch``, and the callback for the query's start."""
        ledger = use_ledger(self.gate, self.ledger_url)
        records = SparkBatchReader(
            spark, self.connector, self.options, derived, self.transform, self.columns
        )
        reader = records if self.policy.skips else None
        context = RunContext(
            ledger=ledger,
            handler=self.handler,
            policy=self.policy,
            reader=reader,
            records=records,
            checks_fit=fails_on_misfit(self.options),
        )
        gated = GatedHandler(self.gate, context, read=self.read, has_state=self.has_state)

        def started(
            query: StreamingQuery,
            checkpoint: str | None,
            is_bounded: bool,
        ) -> None:
            gated.follow(query, checkpoint, is_bounded=is_bounded)
            if reader is not None:
                owner = new_owner()
                runner = gated.runner(owner, control_wait_s=_control_wait_s(self.interval_ms))
                StreamBackfill(
                    self.gate,
                    ledger,
                    runner,
                    reader,
                    owner=owner,
                    interval_ms=self.interval_ms,
                    schedule=self.schedule,
                ).follow(query)

        return gated, started


Before = Callable[[str | None, str], str]
"""Function called before a query's start, with its option ``checkpointLocation`` or None, and its
name. The function returns the path of the checkpoint."""


def trigger_notice(interval_ms: int, processing_time: object) -> str | None:
    """Return a sentence for the log if Spark's trigger is longer than a gate's interval; else None.

    None is also returned for a trigger time that only Spark can parse.
    """
    try:
        trigger_ms = duration_ms("processingTime", str(processing_time))
    except OptionError:
        return None
    if trigger_ms <= interval_ms:
        return None
    return (
        f"The trigger starts a batch every {trigger_ms / 1000:g} s, and the gate's interval is"
        f" {interval_ms / 1000:g} s, so a batch has at most the records of {interval_ms / 1000:g} s"
        f" and the query pauses after it; give the gate an interval of {trigger_ms / 1000:g} s, or"
        " leave the trigger out."
    )


_WITHOUT_BATCHES: Final = frozenset({"realTime", "continuous"})


class GatedWriting(DataStreamWriter if TYPE_CHECKING else object):  # type: ignore[misc]
    """Mixin for Spark's stream writer that calls functions before and after the query's start.

    `start` raises the exceptions of the function called before the start.
    """

    _before: Before
    _started: Started
    _name: str = ""
    _checkpoint: str | None = None
    _is_bounded: bool = False
    interval_ms: int | None = None
    """Interval of the gate (ms); None for an ``auto`` interval."""
    _processing_time: object = None

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
        """Set the trigger of batches, as Spark does.

        Raises:
            OptionError: the trigger is continuous or real-time, so Spark does not plan batches in
                advance.
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
        self._processing_time = chosen.get("processingTime")
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
        """Start the query, and the backfill of its deferred batches.

        Raises:
            OptionError: the query has no checkpoint, or the checkpoint belongs to another gate.
            GateInUseError: the gate already has another query.
        """
        self.options(**options)
        if queryName:
            self.queryName(queryName)
        checkpoint = self._before(self._checkpoint, self._name)
        if self.interval_ms is not None and self._processing_time is not None:
            notice = trigger_notice(self.interval_ms, self._processing_time)
            if notice is not None:
                _LOG.warning("Query %r: %s", self._name, notice)
        query: StreamingQuery = super().start(path, format, outputMode, partitionBy)
        self._started(query, checkpoint, self._is_bounded)
        return query


class GatedStreamWriter(GatedWriting, DataStreamWriter):
    """Stream writer behind a gate, for a session with its own JVM (not Spark Connect)."""

    def __init__(
        self,
        df: DataFrame,
        before: Before,
        started: Started,
    ) -> None:
        super().__init__(df)
        self._before = before
        self._started = started
