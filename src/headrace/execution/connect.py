"""A gate over Spark Connect: the client has no JVM, and handlers run in a process of the server.

Spark sends the callable of ``foreachBatch`` to the server, where one Python process for each query
runs it. The batches' outcomes are recorded there, too, and deferred batches backfilled, from the
query's first batch on. The client has the listener, and both meet in the ledger.
"""

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.streaming.query import StreamingQuery

from headrace.control import BatchProgress
from headrace.core.timing import wall_clock_ms
from headrace.errors import MachineryError
from headrace.execution.gate_state import state_of
from headrace.execution.handler import GatedHandler
from headrace.execution.handling import Handling
from headrace.execution.spark_session import adopt, known_secrets
from headrace.execution.stopping import watch_for_stops
from headrace.execution.stream_reader import GatedReading
from headrace.execution.stream_writer import Before, GatedWriting


class RemoteStreamReader(GatedReading, DataStreamReader):  # type: ignore[misc]
    """The reader of a Spark Connect session."""


class RemoteStreamWriter(GatedWriting, DataStreamWriter):  # type: ignore[misc]
    """The writer of a Spark Connect session."""


def remote_writer(df: DataFrame, handling: Handling, before: Before) -> RemoteStreamWriter:
    """A writer whose handler runs on the server; it is sent when the query starts."""
    spark: Any = df.sparkSession
    stream: Any = df
    state = state_of(handling.ledger_url, handling.gate)

    def started(
        query: StreamingQuery,
        _checkpoint: str | None,
        is_bounded: bool,
    ) -> None:
        state.is_remote = True
        state.follow(query, is_bounded=is_bounded)
        watch_for_stops(at_sigterm=False)

    writer = RemoteStreamWriter(stream._plan, spark)

    def send_handler(checkpoint: str | None, query: str) -> str:
        where = before(checkpoint, query)
        writer.foreachBatch(ServerHandler(handling, known_secrets(spark), query, where))
        return where

    writer._before, writer._started = send_handler, started
    return writer


class ServerHandler:
    """Callable for ``foreachBatch`` on the server: makes the gate's handler there, and calls it.

    Args:
        handling: what `Gate.write` was told.
        secrets: those of the session, by what stands in their place.
        query: the query's name, by which it is found among its session's.
        checkpoint: the query's.
    """

    def __init__(
        self, handling: Handling, secrets: dict[str, str], query: str, checkpoint: str
    ) -> None:
        self._handling: Final = handling
        self._secrets: Final = secrets
        self._query: Final = query
        self._checkpoint: Final = checkpoint
        self._gated: GatedHandler | None = None
        self._session: SparkSession | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Batches run in a clone of this session, which knows neither the query nor its sources.
        self._session = SparkSession.getActiveSession()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_gated": None, "_session": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run one batch; what it raises stops the query."""
        if self._gated is None:
            self._gated = self._begin(self._session or df.sparkSession)
        start_ms = wall_clock_ms()
        self._gated(df, batch_id)
        # The batch's report goes to the client; the backfill here only wants to know the times.
        state = state_of(self._handling.ledger_url, self._handling.gate)
        state.batch_ended("", BatchProgress(start_ms, wall_clock_ms() - start_ms, 0, 0))

    def _begin(self, spark: SparkSession) -> GatedHandler:
        adopt(spark, self._secrets)
        gated, started = self._handling.begin(spark, None)
        running = [each for each in spark.streams.active if each.name == self._query]
        if not running:
            raise MachineryError(
                f"The query {self._query!r} is not among those of its session on the Spark Connect"
                " server; start it again."
            )
        started(running[0], self._checkpoint, False)
        return gated
