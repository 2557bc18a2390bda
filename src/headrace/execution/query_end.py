"""How a gate's query ended, written into its ledger: finished, stopped or failed.

Spark's termination event says it to the listener. A program that ends with its query is gone before
that event comes, so what was not said by then is said when Python exits.
"""

import atexit
import contextlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from headrace.core.stop import cancel_when
from headrace.errors import HeadraceError
from headrace.execution.gate_state import StreamState, all_states, shared_ledger
from headrace.ledger import ErrorReport, QueryEnd
from headrace.processes import this_process
from headrace.spark_versions import Py4JError

_LOG: Final = logging.getLogger("headrace.execution")


def record_end(ledger_url: str, gate: str, run: str, error: ErrorReport | None) -> None:
    """Say how a run of a query has ended, unless another one stands behind the gate by now."""
    with _ending(ledger_url, gate, run) as state:
        if state is not None:
            _record(ledger_url, gate, error, has_taken_all=state.is_bounded)


def _record(ledger_url: str, gate: str, error: ErrorReport | None, *, has_taken_all: bool) -> None:
    how = QueryEnd.FINISHED if has_taken_all else QueryEnd.STOPPED
    why = None if error is None else error.line
    # Spark's own end, or the program's, waits for this.
    with cancel_when(lambda: True, "the query ended"):
        gates = shared_ledger(ledger_url).gates
        gates.end(gate, this_process(), how if error is None else QueryEnd.FAILED, why)


@contextmanager
def _ending(ledger_url: str, gate: str, run: str) -> Iterator[StreamState | None]:
    """The state of a gate whose query had this run, once; what is raised within is logged."""
    with all_states()[ledger_url, gate].ending(run) as state:
        try:
            yield state
        except HeadraceError as raised:
            _LOG.warning("The end of the query behind gate %r was not recorded: %s", gate, raised)


_EVENTS_S: Final = 2.0
"""How long a program that ends waits for the events of queries that have ended. Spark logs a trace
for each event that it can deliver no more."""


@atexit.register
def _record_ends() -> None:
    """Say how those queries ended whose events have not come."""
    deadline_s = time.monotonic() + _EVENTS_S
    for (ledger_url, gate), state in all_states().items():
        query = state.query
        # Over Spark Connect a query goes on without its program.
        if not isinstance(query, StreamingQuery):
            continue
        # Where its Spark was stopped, which delivers the events, nobody answers any more.
        with contextlib.suppress(Py4JError):
            is_active, error = query.isActive, _error(query)
            while not is_active and not state.has_said_its_end and time.monotonic() < deadline_s:
                time.sleep(0.01)
            with _ending(ledger_url, gate, str(query.runId)) as own:
                if own is not None:
                    taken = own.is_bounded and not is_active
                    _record(ledger_url, gate, error, has_taken_all=taken)


def _error(query: StreamingQuery) -> ErrorReport | None:
    raised: StreamingQueryException | None = query.exception()
    return None if raised is None else ErrorReport.of(raised)
