"""A flow while it runs: the queries of its stages in one application, and their agents."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.errors import HeadraceError
from headrace.execution import Batch, Gate, register
from headrace.execution.gate_state import shared_ledger
from headrace.flow.agent import StageAgent, StagePlace
from headrace.flow.checks import told_of
from headrace.flow.declaration import Declaration
from headrace.flow.handling import handler_of, options_of
from headrace.flow.signals import Signals
from headrace.flow.signals_ledger import ledger_signals
from headrace.flow.stage import Stage
from headrace.ledger import ErrorReport, Ledger

_LOG: Final = logging.getLogger("headrace.flow")

_POLL_S: Final = 0.5
"""How often to see whether a query has ended."""

STARTS_AGAIN: Final = 3
"""How often a stage is started again that fails before its handler was called."""


class StageQuery:
    """The query of a stage, which is started again where it fails before its handler is called.

    What fails so early is seldom the job's fault: workers that did not come up, a broker that was
    restarted. Nothing was done with a batch yet, so the same one is run again.

    Args:
        stage: The stage's name.
        flow: The flow's.
        writer: Starts the query.
        called: Set when the handler is called for the first time.
    """

    def __init__(
        self, stage: str, flow: str, writer: DataStreamWriter, called: threading.Event
    ) -> None:
        self._stage = stage
        self._flow = flow
        self._writer = writer
        self._called = called
        self._starts_left = STARTS_AGAIN
        self.query: StreamingQuery = writer.start()

    @property
    def may_start_again(self) -> bool:
        """Whether it would be started again if it failed now."""
        return not self._called.is_set() and self._starts_left > 0

    def failure(self) -> StreamingQueryException | None:
        """Why it has failed for good; None while it runs, and where it was started again."""
        failure = self.query.exception()
        if failure is None:
            return None
        # Spark says why a query failed a moment before it lets another one have its checkpoint.
        while self.may_start_again and not self.query.isActive:
            self._starts_left -= 1
            _LOG.warning(
                "Stage %r of flow %r failed before its handler was called, and is started again"
                " (%d of %d): %s",
                self._stage,
                self._flow,
                STARTS_AGAIN - self._starts_left,
                STARTS_AGAIN,
                _in_one_line(failure),
            )
            try:
                self.query = self._writer.start()
            except (HeadraceError, PySparkException, Py4JError) as error:
                failure.add_note(f"It could not be started again: {error}")
            else:
                return None
        return None if self.may_start_again else failure


class RunningFlow:
    """Stages of a flow that run in this application; made by `Flow.start`.

    A stage whose query fails before its handler was called is started again, `STARTS_AGAIN` times.

    Args:
        stages: The stages' queries, by name.
        agents: What ends with them.
    """

    def __init__(self, stages: Mapping[str, StageQuery], agents: ExitStack) -> None:
        self._stages: Final = dict(stages)
        self._agents = agents
        self._stopped = threading.Event()
        self._changing = threading.Lock()
        threading.Thread(target=self._attend, name="headrace-flow-start", daemon=True).start()

    @property
    def queries(self) -> dict[str, StreamingQuery]:
        """The stages' queries of now, by name."""
        return {name: stage.query for name, stage in self._stages.items()}

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until every query has ended, or one has failed; then the others are stopped.

        Args:
            timeout_s: How long at most; None for as long as it takes.

        Returns:
            Whether they have ended.

        Raises:
            StreamingQueryException: A stage has failed; a note names it.
        """
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            is_over = not any(query.isActive for query in self.queries.values())
            failed = self._look()
            if failed is not None:
                name, failure = failed
                self.stop()
                failure.add_note(f"It is the query of stage {name!r}.")
                raise failure
            # A query that was started again since is not over.
            is_over = is_over and not any(query.isActive for query in self.queries.values())
            if is_over or time.monotonic() >= deadline_s:
                return is_over
            self._stopped.wait(min(_POLL_S, deadline_s - time.monotonic()))

    def stop(self) -> None:
        """Stop the queries, and press nobody any longer; again is harmless.

        A batch that this cuts off is run again when its stage is started again.
        """
        with self._changing:
            self._stopped.set()
            for query in self.queries.values():
                query.stop()
            self._agents.close()

    def _look(self) -> tuple[str, StreamingQueryException] | None:
        """Start again what may be; the first stage that has failed for good, and why."""
        with self._changing:
            for name, stage in self._stages.items():
                ended = self._stopped.is_set()
                failure = stage.query.exception() if ended else stage.failure()
                if failure is not None:
                    return name, failure
        return None

    def _attend(self) -> None:
        """Start again what may be, also where nobody waits for the flow's end."""
        while any(stage.may_start_again for stage in self._stages.values()):
            if self._stopped.wait(_POLL_S):
                return
            self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()


def _in_one_line(failure: StreamingQueryException) -> str:
    """The exception at the root of a query's failure."""
    report = ErrorReport.of(failure)
    return f"{report.error_class}: {report.message}".partition("\n")[0]


def start(flow: Declaration, spark: SparkSession, stages: Sequence[Stage]) -> RunningFlow:
    """Start stages of a flow that was checked; see `Flow.start`.

    Raises:
        HeadraceError: As `Flow.start`; nothing runs then.
    """
    register(spark)
    with ExitStack() as opened:
        for stage in stages:
            with told_of(stage):
                for name in stage.writes:
                    flow.graph.links[name].channel.reach()
        called = {stage.name: threading.Event() for stage in stages}
        writers = {stage.name: _writer(flow, spark, stage, called[stage.name]) for stage in stages}
        ledger = opened.enter_context(Ledger.open(flow.ledger))
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


def _signals(flow: Declaration, ledger: Ledger, opened: ExitStack) -> Callable[[Stage], Signals]:
    """What makes a stage's part in the signals."""
    graph = flow.graph
    if flow.signals is None:
        return lambda stage: ledger_signals(
            ledger, flow.name, stage.name, graph.downstream(stage.name)
        )
    from headrace.flow.signals_zookeeper import zookeeper_signals  # noqa: PLC0415  (an extra)
    from headrace.flow.zookeeper import ZookeeperSession  # noqa: PLC0415

    session = opened.enter_context(ZookeeperSession(flow.signals))
    return lambda stage: zookeeper_signals(
        session, flow.name, stage.name, graph.downstream(stage.name)
    )


def _agent(
    flow: Declaration, stage: Stage, ledger: Ledger, signals_of: Callable[[Stage], Signals]
) -> StageAgent:
    graph, gate = flow.graph, flow.gate(stage.name)
    place = StagePlace(
        flow.name,
        stage.name,
        gate,
        _gate(flow, stage).interval_ms,
        graph.upstream(stage.name),
        graph.downstream(stage.name),
        stage.pressure,
        {name: graph.stages[name].pressure.lease_ms for name in graph.downstream(stage.name)},
    )
    shows_in_ledger = flow.signals is not None
    with ExitStack() as unless_made:
        queue = graph.links[stage.reads].channel.queue(gate, ledger)
        unless_made.callback(queue.close)
        signals = signals_of(stage)
        unless_made.callback(signals.close)
        agent = StageAgent(place, ledger, signals, queue, shows_in_ledger=shows_in_ledger)
        unless_made.pop_all()
    return agent


def _gate(flow: Declaration, stage: Stage) -> Gate:
    return Gate(flow.gate(stage.name), interval=stage.interval, ledger=flow.ledger)


def _writer(
    flow: Declaration, spark: SparkSession, stage: Stage, called: threading.Event
) -> DataStreamWriter:
    """The query of a stage, with all that can be checked of it checked."""
    handler = handler_of(flow, stage, shared_ledger(flow.ledger))

    def handle(df: DataFrame, batch: Batch) -> None:
        called.set()
        handler(df, batch)

    gate = _gate(flow, stage)
    channel = flow.graph.links[stage.reads].channel
    with told_of(stage):
        reader = gate.read(spark, channel.source).options(**options_of(flow, stage))
        df = reader.load()
        if stage.derive is not None:
            df = stage.derive(df)
        writer = gate.write(
            df,
            handle,
            on_failure=stage.on_failure,
            backfill=stage.backfill,
        )
    return writer.option("checkpointLocation", _checkpoint(flow, stage))


def _checkpoint(flow: Declaration, stage: Stage) -> str:
    """A folder; a URL of another file system stays as it is."""
    folder = flow.checkpoints.rstrip("/")
    return f"{folder}/{stage.name}" if "://" in folder else str(Path(folder, stage.name).absolute())
