"""Stop queries after their current batch: for an operator, or at a signal such as SIGTERM.

After an operator's stop, the planner plans no further batch, but only the driver can end the query.
Each stop has an author and a reason.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from types import FrameType
from typing import Any, Final

from pyspark.errors import PySparkException

from headrace.core.timing import cancel_when
from headrace.errors import HandlerExitError, HeadraceError
from headrace.gate.control.limits import OperatorAction
from headrace.gate.execution.gate_state import StreamState, all_states, has_ended, shared_ledger
from headrace.gate.execution.verdicts import text_of
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.transitions import Status
from headrace.spark_versions import Py4JError, Py4JJavaError

_LOG: Final = logging.getLogger("headrace.execution")

LOOK_S: Final = 2.0
"""Interval at which the driver checks in the ledgers whether one of its queries must end (s)."""

_starting: Final = threading.Lock()
_is_watching = False


def watch_for_stops(*, at_signals: bool) -> None:
    """Start a thread that ends this process's gated queries when an operator requests it.

    With ``at_signals``, SIGTERM ends the queries too, and so does Ctrl-C outside of an interactive
    session. ``at_signals`` has no effect outside of the main thread, or on a signal that the
    program handles itself. After a first signal, the queries end, and the program continues with
    the code that follows them; a second signal ends the program at once.
    """
    global _is_watching  # noqa: PLW0603  (one thread for the process)
    with _starting:
        if not _is_watching:
            threading.Thread(target=_watch, name="headrace-stops", daemon=True).start()
            _is_watching = True
    if at_signals and threading.current_thread() is threading.main_thread():
        _end_all_at(signal.SIGTERM)
        if not hasattr(sys, "ps1") and "IPython" not in sys.modules:
            _end_all_at(signal.SIGINT)


def _end_all_at(number: signal.Signals) -> None:
    """Let a signal end all queries, unless the program handles this signal itself.

    The first signal restores the previous signal handler, so a second signal runs that handler.
    """
    before: Any = signal.getsignal(number)
    module = getattr(before, "__module__", None)
    if before is not signal.SIG_DFL and module not in {"_signal", "pyspark.core.context"}:
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before)
        # In a thread: the main thread's connection to Spark may be busy with another call.
        threading.Thread(target=_end_all, args=(number,), daemon=True).start()

    signal.signal(number, end)


def _end_all(number: signal.Signals) -> None:
    running = [state for state in all_states().values() if state.is_active()]
    if not running:
        os.kill(os.getpid(), number)
    for state in running:
        _end(state, number.name)


def _watch() -> None:
    idle: set[StreamState] = set()
    while True:
        time.sleep(LOOK_S)
        try:
            idle = look(all_states(), idle)
        except Exception:  # noqa: BLE001  (the thread has no caller that could report it)
            _LOG.exception("Whether a query of this process is to end is not known now.")


def look(
    followed: Mapping[tuple[str, str], StreamState], idle_before: Set[StreamState]
) -> set[StreamState]:
    """End the queries that must end and run no batch now.

    A query ends once its planner has seen the stop. A query that plans nothing, for example because
    of a long interval, ends when two consecutive calls find it idle.

    Args:
        followed: States of the gates, by ledger URL and gate name.
        idle_before: Result of the previous call.

    Returns:
        The queries that must end and run no batch.
    """
    gates: dict[str, dict[str, StreamState]] = defaultdict(dict)
    for (url, gate), state in followed.items():
        if state.stopped_by is None and state.is_active():
            gates[url][gate] = state
    idle: set[StreamState] = set()
    for url, states in gates.items():
        try:
            for state, stop in _idle(shared_ledger(url), states):
                idle.add(state)
                if stop.seen_ms is not None or state in idle_before:
                    _end(state, stop.author)
        except HeadraceError:
            _LOG.debug(
                "The ledger did not say whether an operator has stopped the query.", exc_info=True
            )
    return idle


def _idle(
    ledger: Ledger, states: Mapping[str, StreamState]
) -> Iterator[tuple[StreamState, OperatorAction]]:
    with cancel_when(lambda: not any(map(StreamState.is_active, states.values())), "no query runs"):
        for gate in ledger.operator_limits.to_stop(list(states)):
            stop = ledger.operator_limits.of(gate).stop
            running = ledger.operator_limits.open_batches(gate).get(Status.IN_PROGRESS, 0)
            # A batch that waits for its sink is run again at the next start, under its own key.
            is_idle = not running or ledger.sink_outages.get(gate) is not None
            if stop is not None and is_idle:
                yield states[gate], stop


def _end(state: StreamState, by: str) -> None:
    """Stop a query in a separate thread, so that a slow stop delays no other query."""
    state.stopped_by = by
    threading.Thread(target=_stop, args=(state, by), name="headrace-stop", daemon=True).start()


def _stop(state: StreamState, by: str) -> None:
    query = state.query
    if query is None:
        return
    name = state.gate
    with contextlib.suppress(Py4JError, PySparkException, OSError):
        name = query.name or str(query.id)
    _LOG.warning("The query %r is stopped by %s.", name, by)
    try:
        query.stop()
    except (Py4JError, PySparkException, OSError) as error:
        if has_ended(query):
            # A signal to the whole group has ended its Spark first.
            _LOG.debug("The query behind gate %r has ended together with Spark.", state.gate)
            return
        line = text_of(error).strip().partition("\n")[0]
        _LOG.warning("The query %r could not be stopped: %s", name, line)
        state.stopped_by = None  # it is tried again


_INTERRUPTED: Final = "java.lang.InterruptedException"
_STOPPED_QUERY: Final = (
    "The query is stopped; py4j.protocol.Py4JJavaError: An error occurred while calling its"
    f" handler: {_INTERRUPTED}"
)


@contextlib.contextmanager
def shorten_interrupts(stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Replace a batch's exception by a short one if its query is being stopped.

    Spark searches the text of an exception for an interrupt. The regular expression of this search
    overflows the stack on the many lines of Py4J's text. While ``stopped`` returns True, every
    exception counts as an interrupt.
    """
    try:
        yield
    except Exception as error:
        interrupted = isinstance(error, Py4JJavaError) and str(error.java_exception).startswith(
            _INTERRUPTED
        )
        if interrupted or stopped():
            raise InterruptedError(_STOPPED_QUERY) from None
        raise


@contextlib.contextmanager
def exits_as_errors(batch: str) -> Iterator[None]:
    """Convert SystemExit, KeyboardInterrupt and the like to `HandlerExitError`, with the cause.

    Otherwise the thread of Py4J that calls a handler would end without a reply, and Spark would
    wait forever. Any other thread would end silently.

    Raises:
        HandlerExitError: an exception outside ``Exception`` was raised in the ``with`` block.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise HandlerExitError(
            f"The handler of batch {batch} raised"
            f" {type(error).__name__}{f': {error}' if str(error) else ''}, which ends its query;"
            " raise an Exception for a failure that the policy on_failure should handle."
        ) from error
