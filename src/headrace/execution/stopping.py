"""Queries are ended for an operator, once their batch is done, and at SIGTERM: by whom, and why.

Their planner sees the stop and plans no batch more; only the process that has the query can end it.
"""

import logging
import os
import signal
import threading
import time
from collections import defaultdict
from types import FrameType
from typing import Final

from headrace.core.timing import cancel_when
from headrace.errors import HeadraceError
from headrace.execution.gate_state import StreamState, all_states, shared_ledger
from headrace.ledger import Ledger, Status

_LOG: Final = logging.getLogger("headrace.execution")

LOOK_S: Final = 2.0
"""Interval at which a process asks the ledgers of its queries whether one is to end (s)."""

_AT_SIGTERM: Final = "SIGTERM"

_starting: Final = threading.Lock()
_is_watching = False


def watch_for_stops(*, at_sigterm: bool) -> None:
    """End the queries of this process that are followed, from now on, when they are to end.

    ``at_sigterm`` has SIGTERM end them too, unless the program has a handler of its own for it, or
    this is not its main thread; a second SIGTERM ends the program at once.
    """
    global _is_watching  # noqa: PLW0603  (one thread for the process)
    with _starting:
        if not _is_watching:
            threading.Thread(target=_watch, name="headrace-stops", daemon=True).start()
            _is_watching = True
    is_main = threading.current_thread() is threading.main_thread()
    if at_sigterm and is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Not here: the main thread may be in a call to Spark, and its connection takes no other.
    threading.Thread(target=_end_all, name="headrace-sigterm", daemon=True).start()


def _end_all() -> None:
    running = [state for state in all_states().values() if state.is_active()]
    if not running:
        os.kill(os.getpid(), signal.SIGTERM)
    for state in running:
        threading.Thread(target=_end, args=(state, _AT_SIGTERM), daemon=True).start()


def _watch() -> None:
    idle: set[str] = set()
    while True:
        time.sleep(LOOK_S)
        gates: dict[str, dict[str, StreamState]] = defaultdict(dict)
        for (url, gate), state in all_states().items():
            if state.is_active():
                gates[url][gate] = state
        for url, states in gates.items():
            try:
                idle = _end_those_asked(shared_ledger(url), states, idle)
            except HeadraceError:
                _LOG.debug("Whether a query is to end is not known now.", exc_info=True)


def _end_those_asked(
    ledger: Ledger, states: dict[str, StreamState], idle_before: set[str]
) -> set[str]:
    """End the queries that are to end and run no batch; those that plan none are idle twice."""
    idle = set()
    with cancel_when(lambda: not any(map(StreamState.is_active, states.values())), "no query runs"):
        for gate in ledger.operator_limits.to_stop(list(states)):
            stop = ledger.operator_limits.of(gate).stop
            running = ledger.operator_limits.open_batches(gate).get(Status.IN_PROGRESS, 0)
            # What waits for its sink is run again at the next start, under its own key.
            may_end = not running or ledger.sink_outages.get(gate) is not None
            if stop is None or not may_end:
                continue
            idle.add(gate)
            if stop.seen_ms is not None or gate in idle_before:
                _end(states[gate], stop.author)
    return idle


def _end(state: StreamState, by: str) -> None:
    state.stopped_by = by
    query = state.query
    if query is not None:
        _LOG.warning("The query %r is stopped by %s.", query.name or str(query.id), by)
        query.stop()
