"""A running flow: the queries and agents of its stages in one Spark application."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.core.system import needs_extra
from headrace.errors import HeadraceError, OptionError
from headrace.flow.agent import StageAgent, StageSpec
from headrace.flow.kafka_channel import KafkaChannel
from headrace.flow.ledger_transport import ledger_signals
from headrace.flow.stage import DeclaredFlow, Stage, errors_of, refuse_aliases
from headrace.flow.stage_signals import Signals
from headrace.gate import Batch, ErrorReport, Gate, Ledger, register, shared_ledger
from headrace.spark_versions import Py4JError, is_remote

_LOG: Final = logging.getLogger("headrace.flow")

_POLL_S: Final = 0.5
"""Interval between two checks whether a query has ended (s)."""

MAX_RESTARTS: Final = 3
"""Maximum number of restarts of a stage whose query fails before the first call of its handler."""


def reader_options(flow: DeclaredFlow, stage: Stage) -> dict[str, str]:
    """Return the source options of a stage. By default, the stage starts at the earliest record."""
    channel = flow.graph.links[stage.reads].channel
    return {"startingOffsets": "earliest"} | dict(stage.options) | channel.read_options(flow.ledger)


@dataclass(frozen=True)
class WritingHandler:
    """Handler that calls a stage's handler and writes the returned records to the channels.

    With Spark Connect, this object is sent to the server, and opens the ledger there.
    """

    stage: Stage
    channels: Mapping[str, KafkaChannel]
    ledger_url: str = field(repr=False)

    def __call__(self, df: DataFrame, batch: Batch) -> None:
        """Call the stage's handler with one batch, and write its result to the channels."""
        for name, output in outputs(self.stage, self.stage.handler(df, batch)).items():
            self.channels[name].write(output, batch.key, shared_ledger(self.ledger_url))


def writing_handler(flow: DeclaredFlow, stage: Stage) -> WritingHandler:
    """Return the writing handler of a flow's stage."""
    links = flow.graph.links
    return WritingHandler(stage, {name: links[name].channel for name in stage.writes}, flow.ledger)


def outputs(stage: Stage, returned: Any) -> dict[str, DataFrame]:
    """Return a handler's result as DataFrames by channel; `OptionError` for a wrong result."""
    if returned is None and not stage.writes:
        return {}
    if isinstance(returned, DataFrame) and len(stage.writes) == 1:
        return {stage.writes[0]: returned}
    frames = dict(returned) if isinstance(returned, Mapping) else {}
    if set(frames) != set(stage.writes) or not frames:
        raise OptionError(
            f"{stage}: the handler has returned {_described(returned)}; {_expected(stage)}."
        )
    for name, df in frames.items():
        if not isinstance(df, DataFrame):
            raise OptionError(
                f"{stage}: the handler has returned {_described(df)} for the channel {name!r}; it"
                " must return a DataFrame."
            )
    return frames


def _described(returned: object) -> str:
    if isinstance(returned, Mapping):
        return f"a mapping with the names {sorted(map(str, returned))}"
    return "nothing" if returned is None else f"a value of type {type(returned).__name__}"


def _expected(stage: Stage) -> str:
    if not stage.writes:
        return "it must return None, because the stage writes no channel"
    if len(stage.writes) == 1:
        return f"it must return a DataFrame for the channel {stage.writes[0]!r}"
    return f"it must return a DataFrame for each of the channels {list(stage.writes)}, by name"


class StageQuery:
    """Query of a stage, which is restarted if it fails before its handler is called.

    Typical causes of such a failure are Spark workers that did not start, or a broker that was
    restarting. No batch was processed yet, so a restart is safe. ``called`` is set at the first
    call of the handler.
    """

    def __init__(
        self, stage: str, flow: str, writer: DataStreamWriter, called: threading.Event
    ) -> None:
        self._stage = stage
        self._flow = flow
        self._writer = writer
        self._called = called
        self._restarts_left = MAX_RESTARTS
        self.query: StreamingQuery = writer.start()

    @property
    def may_restart(self) -> bool:
        """Whether the query is restarted if it fails now."""
        return not self._called.is_set() and self._restarts_left > 0

    def failure(self) -> StreamingQueryException | None:
        """If the query has failed, restart it, or return its failure if it may not restart.

        Return None if the query runs, has ended without a failure, or is restarted.
        """
        failure = self.query.exception()
        if failure is None:
            return None
        # Spark reports a query's failure a moment before it releases the query's checkpoint.
        while self.may_restart and not self.query.isActive:
            self._restarts_left -= 1
            _LOG.warning(
                "Stage %r of flow %r failed before its handler was called, and is restarted"
                " (%d of %d): %s",
                self._stage,
                self._flow,
                MAX_RESTARTS - self._restarts_left,
                MAX_RESTARTS,
                _in_one_line(failure),
            )
            try:
                self.query = self._writer.start()
            except (HeadraceError, PySparkException, Py4JError) as error:
                failure.add_note(f"It could not be restarted: {error}")
            else:
                return None
        return None if self.may_restart else failure


class RunningFlow:
    """Stages of a flow that run in this application; returned by `Flow.start`.

    A stage that fails before the first call of its handler is restarted, up to 3 times.
    """

    def __init__(self, stages: Mapping[str, StageQuery], agents: ExitStack) -> None:
        self._stages: Final = dict(stages)
        self._agents = agents
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(
            target=self._restart_failed, name="headrace-flow-start", daemon=True
        ).start()

    @property
    def queries(self) -> dict[str, StreamingQuery]:
        """Current queries of the stages, by stage name."""
        return {name: stage.query for name, stage in self._stages.items()}

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended; return False if ``timeout_s`` passes first.

        Raises:
            StreamingQueryException: The query of a stage has failed, and all other queries were
                stopped. A note of the exception names the stage.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            is_over = not any(query.isActive for query in self.queries.values())
            failed = self._check_queries()
            if failed is not None:
                name, failure = failed
                self.stop()
                failure.add_note(f"It is the query of stage {name!r}.")
                raise failure
            # `_check_queries` may have restarted a query.
            is_over = is_over and not any(query.isActive for query in self.queries.values())
            if is_over or time.monotonic() >= deadline_s:
                return is_over
            self._stopped.wait(min(_POLL_S, deadline_s - time.monotonic()))

    def stop(self) -> None:
        """Stop the queries, and release the stages that they throttle; later calls do nothing.

        An interrupted batch runs again when its stage is started again.
        """
        with self._lock:
            self._stopped.set()
            for query in self.queries.values():
                query.stop()
            self._agents.close()

    def _check_queries(self) -> tuple[str, StreamingQueryException] | None:
        """Restart failed queries; return the first failure of a query that may not restart.

        The result is the stage's name and the failure; None without such a failure.
        """
        with self._lock:
            for name, stage in self._stages.items():
                ended = self._stopped.is_set()
                failure = stage.query.exception() if ended else stage.failure()
                if failure is not None:
                    return name, failure
        return None

    def _restart_failed(self) -> None:
        """Restart failed queries until no query may restart, even without `await_termination`."""
        while any(stage.may_restart for stage in self._stages.values()):
            if self._stopped.wait(_POLL_S):
                return
            self._check_queries()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()


def _in_one_line(failure: StreamingQueryException) -> str:
    """Return the class and the first line of the error that caused a query's failure."""
    report = ErrorReport.of(failure)
    return f"{report.error_class}: {report.message}".partition("\n")[0]


def start(flow: DeclaredFlow, spark: SparkSession, stages: Sequence[Stage]) -> RunningFlow:
    """Check the channels of a declared flow, and start the given stages and their agents."""
    register(spark)
    with ExitStack() as opened:
        for stage in stages:
            with errors_of(stage):
                for name in stage.writes:
                    flow.graph.links[name].channel.identity()
        called = {stage.name: threading.Event() for stage in stages}
        ledger = opened.enter_context(Ledger.open(flow.ledger))
        identities = _identities(flow)
        refuse_aliases(flow, identities)
        for stage in stages:
            _refuse_a_new_name(flow, stage, ledger, identities.get(stage.reads))
            _refuse_another_channel(flow, stage, ledger, identities)
        writers = {stage.name: _writer(flow, spark, stage, called[stage.name]) for stage in stages}
        signals_of = _signals(flow, ledger, opened)
        started: dict[str, StageQuery] = {}
        for stage in stages:
            agent = _agent(flow, stage, ledger, signals_of)
            opened.callback(agent.start().close)
        try:
            for name, writer in writers.items():
                started[name] = StageQuery(name, flow.name, writer, called[name])
        except BaseException:
            for stage_query in started.values():
                stage_query.query.stop()
            raise
        return RunningFlow(started, opened.pop_all())


def _identities(flow: DeclaredFlow) -> dict[str, str]:
    """Return the topic ids of the reachable channels, by channel name.

    Unreachable channels are left out, because other checks report them.
    """
    ids = {}
    for link in flow.graph.links.values():
        with suppress(HeadraceError):
            ids[link.name] = link.channel.identity()
    return ids


def _refuse_a_new_name(
    flow: DeclaredFlow, stage: Stage, ledger: Ledger, identity: str | None
) -> None:
    """Raise OptionError if a stage seems to be renamed, and would read its channel again.

    A stage seems to be renamed if it has never run, and another stage of the flow has read the
    channel but no longer reads it. The option startingOffsets disables this check.
    """
    if identity is None or _says_where_it_begins(stage):
        return
    gates = {gate.name for gate in ledger.gates.all() if gate.name.startswith(f"{flow.name}.")}
    stages = flow.graph.stages
    readers = {flow.gate(name) for name in stages if stages[name].reads == stage.reads}
    if flow.gate(stage.name) in gates:
        return
    for gate in sorted(gates - readers):
        if identity in _read_last(ledger, gate):
            name = gate.removeprefix(f"{flow.name}.")
            channel = flow.graph.links[stage.reads].channel
            now = "reads another channel now" if name in stages else "is no longer declared"
            raise OptionError(
                f"{stage} has never run, so it would read {channel.location} from the beginning."
                f" Stage {name!r} has read this channel, and {now}; if stage {stage.name!r} is"
                f" stage {name!r} under a new name, use the name {name!r} again; otherwise set the"
                " option startingOffsets."
            )


def _refuse_another_channel(
    flow: DeclaredFlow, stage: Stage, ledger: Ledger, identities: dict[str, str]
) -> None:
    """Raise OptionError if a stage's checkpoint has offsets of another channel of the flow.

    Otherwise the source would report a loss of data, and the stage would restart three times.
    """
    identity = identities.get(stage.reads)
    if identity is None or _says_where_it_begins(stage):
        return
    read = _read_last(ledger, flow.gate(stage.name)) - {identity}
    for name, topic_id in sorted(identities.items()):
        if topic_id in read:
            links = flow.graph.links
            raise OptionError(
                f"{stage} has a checkpoint with offsets of {links[name].channel.location}; to read"
                f" {links[stage.reads].channel.location}, give the stage another name."
            )


def _says_where_it_begins(stage: Stage) -> bool:
    return "startingoffsets" in map(str.lower, stage.options)


def _read_last(ledger: Ledger, gate: str) -> set[str | None]:
    """Return the ids of the topics that a gate's newest batch reads."""
    newest = ledger.batches.newest(gate, 1)
    return {
        record.topic_id for batch in newest for record in ledger.batches.ranges(batch.batch_key)
    }


def _signals(flow: DeclaredFlow, ledger: Ledger, opened: ExitStack) -> Callable[[Stage], Signals]:
    """Return a function that opens the signals of a stage, over ZooKeeper or the ledger."""
    graph = flow.graph
    if flow.signals is None:
        return lambda stage: ledger_signals(
            ledger, flow.name, stage.name, graph.downstream(stage.name)
        )
    with needs_extra("zookeeper", "Signalling over ZooKeeper"):
        from headrace.flow.zookeeper_session import ZookeeperSession  # noqa: PLC0415
        from headrace.flow.zookeeper_transport import zookeeper_signals  # noqa: PLC0415

    session = opened.enter_context(ZookeeperSession(flow.signals))
    secret = ledger.signals.secret(flow.name)
    return lambda stage: zookeeper_signals(
        session, flow.name, stage.name, graph.downstream(stage.name), secret=secret
    )


def _agent(
    flow: DeclaredFlow, stage: Stage, ledger: Ledger, signals_of: Callable[[Stage], Signals]
) -> StageAgent:
    graph, gate = flow.graph, flow.gate(stage.name)
    downstream = graph.downstream(stage.name)
    spec = StageSpec(
        flow.name,
        stage.name,
        gate,
        _gate(flow, stage).interval_ms,
        graph.upstream(stage.name),
        downstream,
        stage.pressure,
        {name: graph.stages[name].pressure.lease_ms for name in downstream},
    )
    with ExitStack() as unless_made:
        queue = graph.links[stage.reads].channel.queue(gate, ledger)
        unless_made.callback(queue.close)
        signals = unless_made.enter_context(signals_of(stage))
        agent = StageAgent(
            spec, ledger, signals, queue, publishes_to_ledger=flow.signals is not None
        )
        unless_made.pop_all()
    return agent


def _gate(flow: DeclaredFlow, stage: Stage) -> Gate:
    return Gate(flow.gate(stage.name), interval=stage.interval, ledger=flow.ledger)


def _writer(
    flow: DeclaredFlow, spark: SparkSession, stage: Stage, called: threading.Event
) -> DataStreamWriter:
    """Check a stage's options and handler; return the writer that starts its query."""
    handler = writing_handler(flow, stage)
    if is_remote(spark):
        # The handler runs on the server, so this process cannot see its first call: no restarts.
        called.set()
        return _remote_writer(flow, spark, stage, handler)

    def handle(df: DataFrame, batch: Batch) -> None:
        called.set()
        handler(df, batch)

    gate = _gate(flow, stage)
    with errors_of(stage):
        df = gate.read(spark, "kafka").options(**reader_options(flow, stage)).load()
        if stage.derive is not None:
            df = stage.derive(df)
        writer = gate.write(
            df,
            handle,
            on_failure=stage.on_failure,
            on_outage=stage.on_outage,
            backfill=stage.backfill,
        )
    return writer.option("checkpointLocation", _checkpoint(flow, stage))


def _remote_writer(
    flow: DeclaredFlow, spark: SparkSession, stage: Stage, handler: WritingHandler
) -> DataStreamWriter:
    """Return the writer of a stage's query over Spark Connect; the server applies ``derive``."""
    gate = _gate(flow, stage)
    with errors_of(stage):
        df = gate.read(spark, "kafka").options(**reader_options(flow, stage)).load()
        writer = gate.write(
            df,
            handler,
            on_failure=stage.on_failure,
            on_outage=stage.on_outage,
            backfill=stage.backfill,
            transform=stage.derive,
        )
    return writer.option("checkpointLocation", _checkpoint(flow, stage))


def _checkpoint(flow: DeclaredFlow, stage: Stage) -> str:
    """Return the checkpoint folder of a stage: an absolute path, or a URL."""
    folder = flow.checkpoints.rstrip("/")
    return f"{folder}/{stage.name}" if "://" in folder else str(Path(folder, stage.name).absolute())
