"""A flow while it runs: the queries of its stages in one application, and their agents."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.flow.agent import StageAgent, StagePlace
from headgate.flow.checks import told_of
from headgate.flow.declaration import Declaration
from headgate.flow.handling import handler_of, options_of
from headgate.flow.signals import Signals
from headgate.flow.signals_ledger import ledger_signals
from headgate.flow.stage import Stage
from headgate.gate import Gate, register
from headgate.gate.ledgers import shared_ledger
from headgate.ledger import Ledger

_POLL_S: Final = 0.5
"""How often to see whether a query has ended."""


class RunningFlow:
    """Stages of a flow that run in this application; made by `Flow.start`.

    Args:
        queries: The stages' queries, by name.
        agents: What ends with them.
    """

    def __init__(self, queries: Mapping[str, StreamingQuery], agents: ExitStack) -> None:
        self.queries: Final = dict(queries)
        self._agents = agents
        self._stopped = threading.Event()
        self._stopping = threading.Lock()

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
            for name, query in self.queries.items():
                failure = query.exception()
                if failure is not None:
                    self.stop()
                    failure.add_note(f"It is the query of stage {name!r}.")
                    raise failure
            if is_over or time.monotonic() >= deadline_s:
                return is_over
            self._stopped.wait(min(_POLL_S, deadline_s - time.monotonic()))

    def stop(self) -> None:
        """Stop the queries, and press nobody any longer; again is harmless.

        A batch that this cuts off is run again when its stage is started again.
        """
        with self._stopping:
            for query in self.queries.values():
                query.stop()
            self._stopped.set()
            self._agents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.stop()


def start(flow: Declaration, spark: SparkSession, stages: Sequence[Stage]) -> RunningFlow:
    """Start stages of a flow that was checked; see `Flow.start`.

    Raises:
        HeadgateError: As `Flow.start`; nothing runs then.
    """
    register(spark)
    with ExitStack() as opened:
        for stage in stages:
            with told_of(stage):
                for name in stage.writes:
                    flow.graph.links[name].channel.reach()
        writers = {stage.name: _writer(flow, spark, stage) for stage in stages}
        ledger = opened.enter_context(Ledger.open(flow.ledger))
        signals_of = _signals(flow, ledger, opened)
        queries: dict[str, StreamingQuery] = {}
        for stage in stages:
            agent = _agent(flow, stage, ledger, signals_of)
            opened.callback(agent.start().close)
        try:
            for name, writer in writers.items():
                queries[name] = writer.start()
        except BaseException:
            for query in queries.values():
                query.stop()
            raise
        return RunningFlow(queries, opened.pop_all())


def _signals(flow: Declaration, ledger: Ledger, opened: ExitStack) -> Callable[[Stage], Signals]:
    """What makes a stage's part in the signals."""
    graph = flow.graph
    if flow.signals is None:
        return lambda stage: ledger_signals(
            ledger, flow.name, stage.name, graph.downstream(stage.name)
        )
    from headgate.flow.signals_zookeeper import zookeeper_signals  # noqa: PLC0415  (an extra)
    from headgate.flow.zookeeper import ZookeeperSession  # noqa: PLC0415

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


def _writer(flow: Declaration, spark: SparkSession, stage: Stage) -> DataStreamWriter:
    """The query of a stage, with all that can be checked of it checked."""
    gate, ledger = _gate(flow, stage), shared_ledger(flow.ledger)
    channel = flow.graph.links[stage.reads].channel
    with told_of(stage):
        reader = gate.read(spark, channel.source).options(**options_of(flow, stage))
        df = reader.load()
        if stage.derive is not None:
            df = stage.derive(df)
        writer = gate.write(
            df,
            handler_of(flow, stage, ledger),
            on_failure=stage.on_failure,
            backfill=stage.backfill,
        )
    return writer.option("checkpointLocation", _checkpoint(flow, stage))


def _checkpoint(flow: Declaration, stage: Stage) -> str:
    """A folder; a URL of another file system stays as it is."""
    folder = flow.checkpoints.rstrip("/")
    return f"{folder}/{stage.name}" if "://" in folder else str(Path(folder, stage.name).absolute())
