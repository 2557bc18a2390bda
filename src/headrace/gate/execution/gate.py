"""`Gate`: limits how much one query reads from one source per batch.

Spark asks for a source's read limit only once per query start, so a changing rate cannot be a read
limit. Instead, the source applies the rate inside ``latestOffset``. A gate has one query at a time:
the query claims a lease of 30 s in the gate's row.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from headrace.core.options import gate_name, interval_ms
from headrace.decoding import Format
from headrace.errors import OptionError, SourceError
from headrace.gate.backfill.schedule import parse_schedule
from headrace.gate.control.hold import OutageSettings
from headrace.gate.control.interval import AUTO
from headrace.gate.control.limits import OperatorActionKind
from headrace.gate.execution.batch import Handler, check_handler
from headrace.gate.execution.batch_reader import DerivedStream
from headrace.gate.execution.connectors import connector_of
from headrace.gate.execution.gate_state import state_of, use_ledger
from headrace.gate.execution.policy import (
    Last,
    OnFailure,
    OutageWord,
    parse_on_failure,
    with_outages,
)
from headrace.gate.execution.spark_session import is_new_checkpoint, register
from headrace.gate.execution.stream_reader import (
    GatedReading,
    GatedStreamReader,
    GateRead,
    check_batches_can_be_skipped,
    read_of,
    state_of_plan,
)
from headrace.gate.execution.stream_writer import GatedStreamWriter, GatedWriting, Handling
from headrace.gate.ledger.connection import normalize_url, redact_url
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.source.checkpoint import Checkpoint
from headrace.gate.source.comparison import gates_in
from headrace.gate.source.gate_ledger import await_turn
from headrace.gate.source.resumption import GateMemory, refusal
from headrace.gate.source.source_options import (
    NEW_CHECKPOINT,
    NewCheckpoint,
    interval_law,
    outage_settings,
)
from headrace.gate.source.stream_offset import StreamOffset
from headrace.spark_versions import is_remote

if TYPE_CHECKING:
    from headrace.operate import GateSnapshot

_LOG: Final = logging.getLogger("headrace.execution")

_POLL_MS: Final = 50
"""Trigger interval for a gate with an ``auto`` interval (ms). The planner decides when a batch is
due."""

CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
"""Spark setting: the folder in which Spark stores a checkpoint for each query, by query name."""


def pace_options(
    interval: str | timedelta, max_delay: str | timedelta | None, work_ratio: float | None
) -> dict[str, str]:
    """Return the source options for the interval of batches, from `Gate`'s arguments.

    Raises `OptionError` for a malformed value.
    """
    pace = {"headrace.interval": AUTO}
    if not isinstance(interval, str) or interval.strip().lower() != AUTO:
        fixed_ms = interval_ms("The gate's interval", interval)
        pace["headrace.interval"] = f"{fixed_ms} ms"
    if max_delay is not None:
        longest_ms = interval_ms("The gate's max_delay", max_delay)
        pace["headrace.maxDelay"] = f"{longest_ms} ms"
    if work_ratio is not None:
        pace["headrace.workRatio"] = str(work_ratio)
    return pace


class Gate:
    """Gate of one source in one query.

    A gate limits each batch to the records that the job can process in one ``interval``, as learnt
    from earlier batches. It records each batch's offsets in the ledger before the batch runs. A
    query that reads two sources has two gates.

    >>> gate = Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    >>> gate
    Gate('orders', interval='1 second')

    Args:
        name: the gate's name in the ledger: letters, digits, ``_``, ``.`` and ``-``. The ledger
            stores the rate under this name, so a restarted job continues with it.
        interval: the time between the starts of batches, and so the time that a batch should take,
            in Spark's notation (``"1 second"``, ``"500 ms"``), or a `timedelta`; a year at most. If
            it is too short, the fixed cost of a batch takes all of it; if it is too long, records
            wait. ``"auto"`` chooses the shortest interval with enough time for work, from the fixed
            cost of a batch. This interval changes rarely; each change is logged with the reason.
        ledger: SQLAlchemy URL of the database, ``sqlite:///path`` or ``postgresql://...``. A
            relative path is relative to the current working directory.
        max_delay: with ``"auto"``, the longest time from a record's arrival to the end of its
            batch, if the job keeps up; 200 ms or more. Default: 10 seconds. The interval is at most
            half of this time.
        work_ratio: with ``"auto"``, the fraction of a batch's time that should be left for work on
            records after the batch's fixed cost; above 0, below 1. Default: 0.8.

    Raises:
        OptionError: the name, the interval, the delay or the ratio is malformed.
        LedgerError: the URL is not a valid URL of a ledger.
    """

    def __init__(
        self,
        name: str,
        *,
        interval: str | timedelta,
        ledger: str,
        max_delay: str | timedelta | None = None,
        work_ratio: float | None = None,
    ) -> None:
        self.name = gate_name("The gate's name", name)
        self._pace = pace_options(interval, max_delay, work_ratio)
        auto = interval_law(self._pace)
        self._is_auto = auto is not None
        self.interval_ms = (
            interval_ms("The gate's interval", interval) if auto is None else auto.first_ms
        )
        self._interval = interval
        # With its secrets, because the planner is another process.
        self._ledger_url = normalize_url(ledger)

    def __repr__(self) -> str:
        return f"Gate({self.name!r}, interval={self._interval!r})"

    def read(
        self, spark: SparkSession, source: str, *, decode: Format | None = None
    ) -> DataStreamReader:
        """Return a Spark ``DataStreamReader`` for the source, behind this gate.

        ``load()`` performs all checks that are possible before a query starts.

        Args:
            spark: the session.
            source: ``"kafka"`` or ``"journal"``.
            decode: the format of the values: `headrace.json`, `headrace.avro` or
                `headrace.protobuf`. The reading tasks decode the values, which is faster than
                `headrace.decode` in the handler. ``value`` is then a struct of the format's
                columns, or of the columns in a schema given to the builder. Values that do not fit
                the schema are rejected, as by `headrace.decode`. Default: None,
                values stay bytes.

        Raises:
            OptionError: there is no such source, or the format's schema is invalid; from
                ``load()``: an option is wrong.
            LedgerError: from ``load()``: the ledger cannot be opened or written.
            BrokerError: from ``load()``: the brokers cannot be reached.
            SourceError: from ``load()``: a named topic or partition does not exist.
        """
        connector = connector_of(source)
        register(spark)
        kind: type[GatedReading] = GatedStreamReader
        if is_remote(spark):
            from headrace.gate.execution.connect import RemoteStreamReader  # noqa: PLC0415  (needs gRPC)

            kind = RemoteStreamReader
        return kind(
            spark,
            connector,
            gate=self.name,
            ledger_url=self._ledger_url,
            pace=self._pace,
            decode=decode,
        )

    def write(
        self,
        df: DataFrame,
        handler: Handler,
        *,
        on_failure: Last | OnFailure = "stop",
        on_outage: OutageWord = "hold",
        backfill: str = "spare",
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> DataStreamWriter:
        """Return a writer that calls the handler for each batch, and records the outcome.

        The trigger is the gate's interval, and the query has the gate's name. Both can be changed
        on the returned builder.

        Args:
            df: the DataFrame to write; derived from `read`.
            handler: called as ``handler(df, batch)`` on the driver, once for each batch and again
                for a batch that a crash interrupted; ``batch.key`` is the same then.
            on_failure: what to do after an exception in the handler. ``"stop"``: the batch is
                recorded as failed, and the query stops; after a restart, the batch runs first.
                ``"defer"``: the stream continues, and a backfill runs the batch later.
                ``"isolate"``: the batch is halved until each record that cannot be processed is
                alone in its part. These records are stored as dead letters, and all others are
                processed now. `headrace.retry` repeats the call before these actions, and
                `headrace.isolate` sets limits for an isolation.
            on_outage: what to do, before ``on_failure``, if the handler's exception reports that
                its sink is away (unreachable, refusing connections, or full), or is a
                `headrace.SinkAwayError`. ``"hold"``: the batch is run again, with waits, until it
                passes, and meanwhile the gate admits no records. The options ``outage.retry``,
                ``outage.maxRetry`` and ``outage.maxHold`` set the waits. ``"defer"``: apply
                ``on_failure``, for a handler that writes into many sinks. ``"stop"``: the query
                stops.
            backfill: when this application runs deferred batches again, while the query runs:
                ``"spare"``, whenever the stream leaves time; ``"every 10 minutes"``;
                ``"cron 0 3 * * *"``; or ``"manual"``, only by the command ``headrace backfill``. A
                backfill calls the handler in another thread, but never during a call of the stream.
            transform: stateless function of a DataFrame, which derives the rows for the handler
                from ``df``. To run a batch again, Headrace reads the batch's ranges and applies
                this function. Default: None, the handler gets ``df``; if ``df`` is derived, a
                second query runs its batches again. Over Spark Connect a second query is
                impossible, so ``"defer"`` and ``"isolate"`` need a ``transform`` for derived rows.

        Raises:
            OptionError: the handler does not take two arguments, or is an async or a generator
                function; there is no such policy or schedule; ``df`` is no stream, or is not read
                through this gate, or more than once; or the query cannot skip a batch, because it
                has state or several sources. From ``start()``: the checkpoint is missing or another
                gate's.
            LedgerError: the ledger cannot be opened or read.
            GateInUseError: from ``start()``: the gate already has another query. A query whose
                process has ended is replaced at once. If its end is unknown, its lease of 30 s must
                expire first.
        """
        check_handler(handler)
        policy = parse_on_failure(on_failure)
        with_outages(policy, on_outage, OutageSettings())  # before anything is opened
        schedule = parse_schedule(backfill)
        ledger = use_ledger(self.name, self._ledger_url)
        read = read_of(df, self.name, self._ledger_url)
        policy = with_outages(policy, on_outage, outage_settings(read.options))
        if transform is not None and not df.sameSemantics(read.df):
            raise OptionError(
                f"The DataFrame for the gate {self.name!r} is derived, and transform is set;"
                " give the DataFrame that load() returned, and derive everything in transform."
            )
        stream = df if transform is None else transform(df)
        state = state_of_plan(stream)
        derived = self._derived(stream, read, policy, state, has_transform=transform is not None)
        handling = Handling(
            self.name,
            self._ledger_url,
            handler,
            policy,
            schedule,
            self.interval_ms,
            read.name,
            read.connector,
            read.options,
            transform,
            read.df.schema,
            has_state=state is not None,
        )
        before = partial(self._before_start, ledger, df.sparkSession, handling)
        if is_remote(df.sparkSession):
            from headrace.gate.execution.connect import remote_writer  # noqa: PLC0415  (needs gRPC)

            writer: GatedWriting = remote_writer(stream, handling, before)
        else:
            gated, started = handling.begin(df.sparkSession, derived)
            writer = GatedStreamWriter(stream, before, started)
            writer.foreachBatch(gated)
        writer.interval_ms = None if self._is_auto else self.interval_ms
        return writer.trigger(processingTime=self._trigger).queryName(self.name)

    @property
    def _trigger(self) -> str:
        return f"{_POLL_MS if self._is_auto else self.interval_ms} milliseconds"

    def status(self) -> "GateSnapshot":
        """Return this gate's state, with the values of ``headrace status NAME --json``.

        The values come only from the ledger, so no query has to run. No broker is asked, so
        ``lag_now`` and ``retention_left_s`` are None.

        >>> gate = Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
        >>> for need in gate.status().needs:  # doctest: +SKIP
        ...     print(need.sentence, need.command)

        Raises:
            LedgerError: the ledger cannot be read.
            OptionError: the gate is not declared yet: no query of the gate has started.
        """
        # Imported late: `operate` is above this package, and imports it.
        from headrace.operate import snapshots  # noqa: PLC0415

        with Ledger.open(self._ledger_url, create=False) as ledger:
            record = ledger.gates.get(self.name)
            if record is None:
                raise OptionError(
                    f"The gate {self.name!r} is not declared in its ledger yet; start its query"
                    " once."
                )
            return snapshots(ledger, [record])[0]

    def _derived(
        self,
        stream: DataFrame,
        read: GateRead,
        policy: OnFailure,
        state: str | None,
        *,
        has_transform: bool,
    ) -> DerivedStream | None:
        """Return a `DerivedStream` if only a second query can run a batch again; else None."""
        if not policy.skips:
            return None
        check_batches_can_be_skipped(state, self.name, policy.last)
        if has_transform or stream.sameSemantics(read.df):
            return None
        if is_remote(stream.sparkSession):
            raise OptionError(
                f"on_failure is {policy.last!r}, but the gate {self.name!r} writes a derived"
                " DataFrame, whose batches cannot be run again over Spark Connect; give gate.write"
                " the DataFrame that load() returned, and pass the derivation as"
                " transform=lambda df: df.select(...)."
            )
        return DerivedStream(stream)

    def _before_start(
        self,
        ledger: Ledger,
        spark: SparkSession,
        handling: Handling,
        checkpoint: str | None,
        query: str,
    ) -> str:
        if checkpoint is None and (folder := spark.conf.get(CHECKPOINTS, None)):
            checkpoint = f"{folder.rstrip('/')}/{query}"  # Spark's own rule
        if not checkpoint:
            raise OptionError(
                f"The query of the gate {self.name!r} has no checkpointLocation, and Spark would"
                " keep its offsets in a temporary folder, which no restart finds again; set"
                f' .option("checkpointLocation", "/path") on the writer, or {CHECKPOINTS} for the'
                " session."
            )
        # A checkpoint that cannot be read here is new, or only the planner can read it.
        with suppress(SourceError):
            contents = Checkpoint.read(checkpoint)
            if self.name not in (gates := gates_in(contents)) and gates:
                StreamOffset({}, gates[0]).refuse_another_gate(self.name)
        self._before_a_new_checkpoint(ledger, spark, handling, checkpoint)
        self._await_turn(ledger)
        return checkpoint

    def _before_a_new_checkpoint(
        self, ledger: Ledger, spark: SparkSession, handling: Handling, checkpoint: str
    ) -> None:
        """Record a restart that the options request. Refuse a new checkpoint that loses state."""
        options = {name.lower(): value.lower() for name, value in handling.options.items()}
        wanted = options.get(NEW_CHECKPOINT.lower())
        restarts = wanted == NewCheckpoint.RESTART
        # A new checkpoint loses the state of a query, so an operator must choose its meaning.
        refuses = handling.has_state and wanted is None
        if not (refuses or restarts) or not ledger.history.checkpoints(self.name):
            return
        if not is_new_checkpoint(spark, checkpoint):
            return
        if restarts:
            # Recorded before the query starts its backfill: otherwise the backfill would run the
            # open batches, and the stream would read them again.
            ledger.operator_limits.restart(self.name, "headrace", f"the option {NEW_CHECKPOINT}")
            return
        actions = ledger.operator_limits.for_the_start(self.name)
        if not any(action.kind is OperatorActionKind.RESTART for action in actions):
            raise OptionError(refusal(GateMemory(redact_url(self._ledger_url), self.name, "")))

    def _await_turn(self, ledger: Ledger) -> None:
        state = state_of(ledger.url, self.name)
        state.refuse_a_second_query()
        await_turn(self.name, lambda _gone: ledger.gates.query(self.name), time.sleep)
        ledger.operator_limits.withdraw_stop(self.name)
        state.starts_anew()
