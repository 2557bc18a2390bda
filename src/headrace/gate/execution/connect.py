"""Gate over Spark Connect: handlers run in a process of the server, because clients have no JVM.

Spark sends the callable of ``foreachBatch`` to the server, where one Python process per query runs
it. From the query's first batch on, this process also records outcomes, runs deferred batches and
learns rates. So the client may disconnect.
"""

import logging
import queue
import threading
import time
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.streaming.query import StreamingQuery

from headrace.core.timing import wall_clock_ms
from headrace.decoding import link_tasks, open_link
from headrace.errors import MachineryError
from headrace.gate.execution.gate_state import ledger_of, state_of
from headrace.gate.execution.handler import GatedHandler
from headrace.gate.execution.listener import GateListener, progress_event
from headrace.gate.execution.spark_session import adopt, known_secrets, link_token
from headrace.gate.execution.stopping import watch_for_stops
from headrace.gate.execution.stream_reader import GatedReading
from headrace.gate.execution.stream_writer import Before, GatedWriting, Handling

_LOG: Final = logging.getLogger("headrace.execution")


class RemoteStreamReader(GatedReading, DataStreamReader):  # type: ignore[misc]
    """Stream reader behind a gate, for a Spark Connect session."""


class RemoteStreamWriter(GatedWriting, DataStreamWriter):  # type: ignore[misc]
    """Stream writer behind a gate, for a Spark Connect session."""


def remote_writer(df: DataFrame, handling: Handling, before: Before) -> RemoteStreamWriter:
    """Return a stream writer that sends the handler to the server when the query starts."""
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
        watch_for_stops(at_signals=False)

    writer = RemoteStreamWriter(stream._plan, spark)

    def send_handler(checkpoint: str | None, query: str) -> str:
        where = before(checkpoint, query)
        session_secrets = known_secrets(spark)
        writer.foreachBatch(
            ServerHandler(handling, session_secrets, link_token(spark), query, where)
        )
        return where

    writer._before, writer._started = send_handler, started
    return writer


class ServerHandler:
    """Callable for ``foreachBatch`` on the server. It creates the gate's handler there.

    Args:
        handling: the arguments of `Gate.write`.
        secrets: the session's secrets, by their placeholders.
        token: token with which the session's tasks authenticate their reports.
        query: name by which the query is found in its session.
        checkpoint: path of the query's checkpoint.
    """

    def __init__(
        self, handling: Handling, secrets: dict[str, str], token: str, query: str, checkpoint: str
    ) -> None:
        self._handling: Final = handling
        self._secrets: Final = secrets
        self._token: Final = token
        self._query: Final = query
        self._checkpoint: Final = checkpoint
        self._gated: GatedHandler | None = None
        self._reports: _Reports | None = None
        self._session: SparkSession | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Batches run in a clone of this session, which knows neither the query nor its sources.
        self._session = SparkSession.getActiveSession()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_gated": None, "_reports": None, "_session": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run the handler for one batch. An exception stops the query."""
        if self._gated is None or self._reports is None:
            self._gated, self._reports = self._begin(self._session or df.sparkSession)
        if self._handling.decodes:
            link_tasks(df.sparkSession)
        start_ms = wall_clock_ms()
        self._gated(df, batch_id)
        # The batch's report comes when the trigger ends; a backfill here may begin at once.
        state = state_of(self._handling.ledger_url, self._handling.gate)
        state.handler_ended(start_ms, wall_clock_ms())
        self._reports.expect(batch_id)

    def _begin(self, spark: SparkSession) -> "tuple[GatedHandler, _Reports]":
        adopt(spark, self._secrets)
        if self._handling.decodes:
            open_link(spark, self._token)  # before a backfill runs a batch again
        gated, started = self._handling.begin(spark, None)
        running = [query for query in spark.streams.active if query.name == self._query]
        if not running:
            raise MachineryError(
                f"The query {self._query!r} is not among those of its session on the Spark Connect"
                " server; start it again."
            )
        started(running[0], self._checkpoint, False)
        url = self._handling.ledger_url
        listener = GateListener(lambda gate, run: ledger_of(gate, run, url))
        return gated, _Reports(running[0], listener)


_REPORT_LOOK_S: Final = 0.02
_REPORT_S: Final = 30.0
"""Maximum wait for Spark's progress report of a batch (s). A failed trigger has no report."""


class _Reports:
    """Thread that reads the progress of batches from Spark, and passes it to the rate laws.

    A Python process of the server receives no query events, so the thread polls after each batch.
    """

    def __init__(self, query: StreamingQuery, listener: GateListener) -> None:
        self._query = query
        self._listener = listener
        self._expected: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="headrace-reports", daemon=True).start()

    def expect(self, batch_id: int) -> None:
        self._expected.put(batch_id)

    def _run(self) -> None:
        while True:
            batch_id = self._expected.get()
            try:
                report = self._report(batch_id)
                if report is not None:
                    self._listener.onQueryProgress(progress_event(report))
            except Exception:  # noqa: BLE001  (the thread has no caller that could report it)
                _LOG.warning(
                    "The progress of batch %d did not reach its gate, so the gate learns nothing"
                    " from it.",
                    batch_id,
                    exc_info=True,
                )

    def _report(self, batch_id: int) -> str | None:
        deadline_s = time.monotonic() + _REPORT_S
        while time.monotonic() < deadline_s and self._expected.empty():
            last = self._query.lastProgress
            if last is not None and last.batchId == batch_id:
                return str(last.json)
            if last is not None and last.batchId > batch_id:
                break
            time.sleep(_REPORT_LOOK_S)
        # A later batch has ended, or is about to: search the server's recent reports.
        matches = (
            progress for progress in self._query.recentProgress if progress.batchId == batch_id
        )
        report = next(matches, None)
        return None if report is None else str(report.json)
