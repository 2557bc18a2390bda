"""A gate: stands before one source of one query and decides how much the query reads."""

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
"""Interval of the trigger if the gate's is ``auto`` (ms): the planner knows when a batch is due."""

CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
"""The session's setting of a folder in which Spark keeps a checkpoint for each query, by name."""


def pace_options(
    interval: str | timedelta, max_delay: str | timedelta | None, work_ratio: float | None
) -> dict[str, str]:
    """The options of a source that say how often its batches start.

    Raises:
        OptionError: one is not of its form.
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
    """The gate of one source in one query.

    It admits per batch what the job can process in one ``interval``, learnt from the batches
    before, and writes down every batch's offsets before the batch runs. A query that reads two
    sources has two gates.

    >>> gate = Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
    >>> gate
    Gate('orders', interval='1 second')

    Args:
        name: letters, digits, ``_``, ``.`` and ``-``; names the gate in the ledger. Its rate
            belongs to the name: a job that is started again under it goes on with the rate it had.
        interval: how often a batch starts and so how long it should take, as Spark writes it
            (``"1 second"``, ``"500 ms"``), or a `timedelta`; a year at most. Too short, and the
            fixed cost of a batch eats it; too long, and records wait. ``"auto"``: the shortest in
            which enough of the time is work, from what a batch costs before its first record;
            changed rarely, and logged with the reason.
        ledger: SQLAlchemy's URL of the database, ``sqlite:///path`` or ``postgresql://...``. A
            relative path begins at the working directory of now.
        max_delay: with ``"auto"``, how long a record waits at most until its batch has ended, where
            the job keeps up; 200 ms or more. Default: 10 seconds. The interval is at most half.
        work_ratio: with ``"auto"``, the part of the time that should be work; above 0, below 1.
            Default: 0.8.

    Raises:
        OptionError: the name, the interval, the delay or the ratio is not of that form.
        LedgerError: the URL is not a ledger's.
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
        # With its secrets, for the planner is another process.
        self._ledger_url = normalize_url(ledger)

    def __repr__(self) -> str:
        return f"Gate({self.name!r}, interval={self._interval!r})"

    def read(
        self, spark: SparkSession, source: str, *, decode: Format | None = None
    ) -> DataStreamReader:
        """A reader on the source behind this gate: an ordinary builder.

        Its ``load()`` checks all that can be checked before a query starts.

        Args:
            spark: the session.
            source: ``"kafka"`` or ``"journal"``.
            decode: what values are: `headrace.json`, `headrace.avro` or `headrace.protobuf`. The
                tasks that read decode them, which is faster than `headrace.decode` in the handler:
                ``value`` is a struct of the format's columns, or of those that a schema given to
                the builder asks for, and what does not fit is rejected as there. Default: they stay
                bytes.

        Raises:
            OptionError: there is no such source, or the format's schema is not one; from
                ``load()``: an option is wrong.
            LedgerError: from ``load()``: the ledger cannot be opened or written.
            BrokerError: from ``load()``: the brokers cannot be reached.
            SourceError: from ``load()``: a topic or partition that is named does not exist.
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
        """A writer that gives each batch to the handler and its outcome to the ledger.

        The trigger is the gate's interval, and the query is named after the gate; both can be set
        again on the builder.

        Args:
            df: what to write; derived from `read`.
            handler: called as ``handler(df, batch)`` on the driver, once for each batch and again
                for a batch that a crash interrupted; ``batch.key`` is the same then.
            on_failure: what an exception in the handler does. ``"stop"``: the batch is recorded as
                failed, and the query stops; it runs first when the query is started again.
                ``"defer"``: the stream goes on, and a backfill runs the batch later.
                ``"isolate"``: the batch is halved until the records that cannot be processed stand
                alone; they are kept as dead letters, and everything else is processed now.
                `headrace.retry` calls the handler again first, and `headrace.isolate` sets how much
                isolation may take.
            on_outage: what happens before, where the handler says that its sink is away (it cannot
                be reached, refuses connections, or is full), or raises `headrace.SinkAwayError`.
                ``"hold"``: the batch waits, and is run again until it goes through; the gate admits
                nothing more. The options ``outage.retry``, ``outage.maxRetry`` and
                ``outage.maxHold`` say how. ``"defer"``: what ``on_failure`` says, for a handler
                that writes into many sinks. ``"stop"``: the query stops.
            backfill: when what was deferred is run again, by this application while the query runs:
                ``"spare"``, whenever the stream leaves time; ``"every 10 minutes"``;
                ``"cron 0 3 * * *"``; or ``"manual"``, with the command ``headrace backfill``. The
                handler is called by another thread then, but never twice at a time.

            transform: what the stream derives from what is read, as a function of a DataFrame
                without state; the handler is given its result. A batch is run again by applying it
                to a bounded read of the batch's ranges. Default: ``df`` is written as it is, and
                what was derived from it is run again by a second query. Over Spark Connect, where
                that is impossible, ``"defer"`` and ``"isolate"`` need it.

        Raises:
            OptionError: the handler does not take two arguments, or is an async or a generator
                function, whose call does not run it; there is no such policy or schedule; or it is
                no stream, or not read through this gate, or more than once; or it cannot go on
                without a batch, for it is computed with state, or from more than one source. From
                ``start()``: the query has no checkpoint, or another gate's.
            LedgerError: the ledger cannot be opened or read.
            GateInUseError: from ``start()``: another query stands behind the gate, which has one at
                a time. One whose process has ended is replaced at once, one of which that is not
                known when its lease of 30 s has run out.
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
                f"What the gate {self.name!r} is to write is derived from what it reads before"
                " transform is applied; give what load() returned, and let transform derive all."
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
        """Return this gate's state: the facts of ``headrace status NAME --json``, typed.

        They come from the ledger alone, so a query need not run, and no broker is asked:
        ``lag_now`` and ``retention_left_s`` are None.

        >>> gate = Gate("orders", interval="1 second", ledger="sqlite:///headrace.db")
        >>> for need in gate.status().needs:  # doctest: +SKIP
        ...     print(need.sentence, need.command)

        Raises:
            LedgerError: the ledger cannot be read.
            OptionError: the gate is not declared yet: no query has started behind it.
        """
        # Above this package: what operators see is worked out from all that is below it.
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
        """Return the reader of this stream, if reading a batch again takes a query of its own."""
        if not policy.skips:
            return None
        check_batches_can_be_skipped(state, self.name, policy.last)
        if has_transform or stream.sameSemantics(read.df):
            return None
        if is_remote(stream.sparkSession):
            raise OptionError(
                f"on_failure is {policy.last!r}, but what the gate {self.name!r} writes is derived"
                " from what it reads, and over Spark Connect such a batch cannot be run again; give"
                " gate.write what load() returned, and what is derived of it as a function:"
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
            checkpoint = f"{folder.rstrip('/')}/{query}"  # as Spark makes it
        if not checkpoint:
            raise OptionError(
                f"The query of the gate {self.name!r} has no checkpointLocation, and Spark would"
                " keep its offsets in a temporary folder, which no restart finds again; set"
                f' .option("checkpointLocation", "/path") on the writer, or {CHECKPOINTS} for the'
                " session."
            )
        # One that cannot be read here is a new one, or the planner's to read.
        with suppress(SourceError):
            found = Checkpoint.read(checkpoint)
            if self.name not in (gates := gates_in(found)) and gates:
                StreamOffset({}, gates[0]).refuse_another_gate(self.name)
        self._before_a_new_checkpoint(ledger, spark, handling, checkpoint)
        self._await_turn(ledger)
        return checkpoint

    def _before_a_new_checkpoint(
        self, ledger: Ledger, spark: SparkSession, handling: Handling, checkpoint: str
    ) -> None:
        """Refuse a new checkpoint that nobody has explained; hold backfills where it restarts."""
        options = {name.lower(): value.lower() for name, value in handling.options.items()}
        wanted = options.get(NEW_CHECKPOINT.lower())
        restarts = wanted == NewCheckpoint.RESTART
        # A query with state needs it: somebody has to say what a new checkpoint means.
        refuses = handling.has_state and wanted is None
        if not (refuses or restarts) or not ledger.history.checkpoints(self.name):
            return
        if not is_new_checkpoint(spark, checkpoint):
            return
        if restarts:
            # Before the query, and so its backfill, has begun: what is open would be run by the
            # backfill, and read again by the stream.
            ledger.operator_limits.restart(self.name, "headrace", f"the option {NEW_CHECKPOINT}")
            return
        asked = ledger.operator_limits.for_the_start(self.name)
        if not any(each.kind is OperatorActionKind.RESTART for each in asked):
            raise OptionError(refusal(GateMemory(redact_url(self._ledger_url), self.name, "")))

    def _await_turn(self, ledger: Ledger) -> None:
        state = state_of(ledger.url, self.name)
        state.refuse_a_second_query()
        await_turn(self.name, lambda _gone: ledger.gates.query(self.name), time.sleep)
        ledger.operator_limits.withdraw_stop(self.name)
        state.starts_anew()
