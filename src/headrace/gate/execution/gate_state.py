"""State of the gates in this process: the open ledgers, and each gate's stream.

The driver records how a query ended, because Spark kills the planner's process too early. The
listener records the end at Spark's termination event. If the program ends together with its query,
the event comes too late, so Python's exit hook records the end. A gate counts as dead if its
process is gone and no end is recorded.
"""

import atexit
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Self
from uuid import UUID

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from headrace.core.system import this_program
from headrace.core.timing import cancel_when
from headrace.errors import GateInUseError, HeadraceError
from headrace.gate.backfill.schedule import LiveStream
from headrace.gate.control.law import BatchProgress
from headrace.gate.ledger.connection import OF_A_QUERY, Timeouts
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.records import QueryEnd
from headrace.spark_versions import Py4JError, Py4JNetworkError, active_context

_LOG: Final = logging.getLogger("headrace.execution")


def has_ended(query: StreamingQuery) -> bool:
    """Return whether a query has ended, by itself or with its JVM.

    A signal to the whole process group ends the JVM first. Py4J then raises an ``OSError``.
    """
    try:
        return not query.isActive
    except (Py4JNetworkError, OSError):
        return True


class Turn:
    """Access of one caller to the lock around a handler's calls. It measures the caller's waits.

    ``lock`` is shared by all callers of the handler. ``clock`` returns a monotonic time (s).
    """

    def __init__(self, lock: threading.Lock, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = lock
        self._clock = clock
        self._waited_s = 0.0

    def __enter__(self) -> bool:
        """Acquire the lock. Return whether it was free at once."""
        if self._lock.acquire(blocking=False):
            return True
        began_s = self._clock()
        self._lock.acquire()
        self._waited_s += self._clock() - began_s
        return False

    def __exit__(self, *_raised: object) -> None:
        self._lock.release()

    def take_waited_ms(self) -> int:
        """Return the time that the caller has waited since the last call of this method (ms)."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return round(waited_s * 1000)


class StreamState:
    """State of a gate's live stream in this process: its query and its batches. Thread-safe."""

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self._changing = threading.Lock()
        self._running = False
        self._start_ms: int | None = None
        self._end_ms: int | None = None
        self._helped: set[str] = set()
        self._waited_ms: dict[str, int] = {}
        self._limited: set[str] = set()
        self._rates_after_outage: dict[str, float | None] = {}
        self._on_batch_end: Callable[[], None] | None = None
        self._query: StreamingQuery | None = None
        self._ending = threading.Lock()
        self._ended_run: str | None = None
        self.stopped_by: str | None = None
        """Author and reason of a request to stop the query; None without a request."""
        self.is_bounded = False
        """Whether the query reads all available records and ends, as with ``availableNow``."""
        self.is_remote = False
        """Whether the handler runs in a process of Spark Connect's server, not in this one."""

    @property
    def query(self) -> StreamingQuery | None:
        """The gate's current or last query; None before the first start."""
        return self._query

    def follow(self, query: StreamingQuery, *, is_bounded: bool = False) -> None:
        """Set the gate's current query, after its start."""
        self.is_bounded = is_bounded
        self.stopped_by = None
        self._query = query

    def starts_anew(self) -> None:
        """Forget the gate's last query before another one starts."""
        with self._ending:
            self._query = None

    @property
    def has_said_its_end(self) -> bool:
        """Whether the end of the query's last run was recorded."""
        return self._query is not None and str(self._query.runId) == self._ended_run

    @contextmanager
    def ending(self, run: str) -> Iterator[Self | None]:
        """Yield this state, to record the end of a run, and block a new start meanwhile.

        Yields None if the run is not the query's last run, or if its end was recorded already.
        """
        with self._ending:
            is_last = self._query is not None and str(self._query.runId) == run
            is_first = self._ended_run != run
            if is_last and is_first:
                self._ended_run = run
            yield self if is_last and is_first else None

    def is_run(self, run: UUID) -> bool:
        """Return whether a run belongs to the gate's query."""
        return self._query is not None and str(self._query.runId) == str(run)

    def is_active(self) -> bool:
        """Return whether the gate has a running query; False if Spark does not respond."""
        with contextlib.suppress(Py4JError, PySparkException):
            return self._query is not None and not has_ended(self._query)
        return False

    def is_stopped(self) -> bool:
        """Return whether the query is being stopped or has ended; False before the first start."""
        return self._query is not None and has_ended(self._query)

    def refuse_a_second_query(self) -> None:
        """Raise `GateInUseError` if a query of this process uses the gate."""
        query = self._query
        if query is not None and not has_ended(query):
            raise GateInUseError(
                f"The gate {self.gate!r} is in use by the query {query.name!r} of this same program"
                f" (run {query.runId}): a gate has one query at a time, so stop that query first,"
                " or give this query a gate of another name."
            )

    def batch_began(self, batch: str, *, is_limited: bool = False) -> None:
        """Record that a batch goes to the handler.

        ``is_limited`` means that an operator's limit or a ceiling has reduced the batch.
        """
        with self._changing:
            self._running = True
            if is_limited:
                self._limited.add(batch)

    def batch_was_helped(
        self, batch: str, *, had_no_sink: bool = False, rate_after_outage: float | None = None
    ) -> None:
        """Record that a batch failed at first, or waited for its sink or another process.

        The rate law must not learn from the duration of such a batch.
        """
        with self._changing:
            self._helped.add(batch)
            if had_no_sink:
                self._rates_after_outage[batch] = rate_after_outage

    def batch_waited(self, batch: str, waited_ms: int) -> None:
        """Record how long a batch waited for the handler (ms)."""
        with self._changing:
            self._waited_ms[batch] = waited_ms

    def batch_ended(self, batch: str, progress: BatchProgress) -> BatchProgress:
        """Record that a batch has ended. Return its progress with all that was recorded for it.

        ``batch`` is the batch's key, empty if the batch has no offsets of the gate.
        """
        with self._changing:
            ended = replace(
                progress,
                waited_ms=self._waited_ms.pop(batch, 0),
                went_through=batch not in self._helped,
                is_limited=batch in self._limited,
                had_no_sink=batch in self._rates_after_outage,
                rate_after_outage=self._rates_after_outage.pop(batch, None),
            )
            for keys in (self._helped, self._limited):
                keys.discard(batch)
        self.handler_ended(progress.start_ms, progress.end_ms)
        return ended

    def handler_ended(self, start_ms: int, end_ms: int) -> None:
        """Record that a batch's handler has returned. Call the function from `on_batch_end`."""
        with self._changing:
            self._running = False
            self._start_ms, self._end_ms = start_ms, end_ms
            call = self._on_batch_end
        if call is not None:
            call()

    def on_batch_end(self, call: Callable[[], None] | None) -> None:
        """Replace the function that is called after each batch; None removes it."""
        with self._changing:
            self._on_batch_end = call

    def live(self, rate_per_s: float | None, interval_ms: int) -> LiveStream:
        """Return the stream's rate, interval and last batch, for a backfill in the same process."""
        with self._changing:
            return LiveStream(rate_per_s, interval_ms, self._running, self._start_ms, self._end_ms)


_lock: Final = threading.Lock()
_states: Final[dict[tuple[str, str], StreamState]] = {}


def state_of(ledger_url: str, gate: str) -> StreamState:
    """Return the state of a gate's stream in this process; create it at the first call."""
    with _lock:
        return _states.setdefault((ledger_url, gate), StreamState(gate))


def all_states() -> dict[tuple[str, str], StreamState]:
    """Return the states of all gates of this process, by ledger URL and gate name."""
    with _lock:
        return dict(_states)


# Separate from the states' lock: opening a ledger may take long.
_ledgers_lock: Final = threading.Lock()
_open: Final[dict[str, Ledger]] = {}
_of_gate: Final[dict[str, list[str]]] = {}


def shared_ledger(url: str, timeouts: Timeouts = OF_A_QUERY) -> Ledger:
    """Return the ledger at a URL, which this process opens only once.

    The ledger waits for an unreachable database. The URL must be as
    `headrace.gate.ledger.normalize_url` returns it.

    Raises:
        LedgerError: the ledger cannot be opened.
    """
    with _ledgers_lock:
        if url not in _open:
            _open[url] = Ledger.open(url, timeouts=timeouts)
        return _open[url]


def use_ledger(gate: str, url: str, timeouts: Timeouts = OF_A_QUERY) -> Ledger:
    """Record which ledger a gate uses, for the listener, and return the ledger.

    The listener's events contain only the gate's name. The call opens the ledger anew to check it,
    even if this process has it open already. Raises `LedgerError` if this fails.
    """
    Ledger.open(url, timeouts=timeouts).close()
    ledger = shared_ledger(url, timeouts)
    with _ledgers_lock:
        urls = _of_gate.setdefault(gate, [])
        if url in urls:
            urls.remove(url)
        urls.append(url)
    return ledger


def ledger_of(gate: str, run: UUID, default_url: str | None) -> Ledger | None:
    """Return the ledger of a gate, or the ledger at ``default_url`` for an unknown gate.

    If several ledgers have a gate of this name, return the ledger whose query has this run. If
    there is none, return the ledger used last.
    """
    with _ledgers_lock:
        urls = _of_gate.get(gate) or ([] if default_url is None else [default_url])
    mine = [url for url in urls if state_of(url, gate).is_run(run)] or urls
    return shared_ledger(mine[-1]) if mine else None


def record_end(ledger_url: str, gate: str, run: str, error: ErrorReport | None) -> None:
    """Record how a run of a query has ended, unless another query has the gate already."""
    with _ending(ledger_url, gate, run) as state:
        if state is not None:
            _record(ledger_url, gate, error, state, has_taken_all=state.is_bounded)


def _record(
    ledger_url: str,
    gate: str,
    error: ErrorReport | None,
    state: StreamState,
    *,
    has_taken_all: bool,
) -> None:
    was_asked = state.stopped_by is not None
    ending = QueryEnd.FINISHED if has_taken_all and not was_asked else QueryEnd.STOPPED
    why = state.stopped_by if error is None else error.line
    # The end of Spark, or of the program, waits for this.
    with cancel_when(lambda: True, "the query ended"):
        gates = shared_ledger(ledger_url).gates
        program = this_program(over_connect=state.is_remote)
        gates.end(gate, program, ending if error is None else QueryEnd.FAILED, why)


@contextmanager
def _ending(ledger_url: str, gate: str, run: str) -> Iterator[StreamState | None]:
    """Yield a gate's state, as `StreamState.ending` does. Log a `HeadraceError` of the block."""
    with all_states()[ledger_url, gate].ending(run) as state:
        try:
            yield state
        except HeadraceError as raised:
            _LOG.warning("The end of the query behind gate %r was not recorded: %s", gate, raised)


EVENTS_S: Final = 2.0
"""Maximum time that an ending program waits until Spark has delivered the events of ended queries
(s). Spark logs a stack trace for each event that it cannot deliver."""


@atexit.register
def _record_ends() -> None:
    """At the program's end, record the end of queries whose termination events have not arrived."""
    deadline_s = time.monotonic() + EVENTS_S
    for (ledger_url, gate), state in all_states().items():
        query = state.query
        # Over Spark Connect a query continues without its program.
        if not isinstance(query, StreamingQuery):
            continue
        # After Spark was stopped, it has delivered the events and no longer answers.
        with contextlib.suppress(Py4JError, OSError):
            is_active, error = query.isActive, _error(query)
            while not is_active and not state.has_said_its_end and time.monotonic() < deadline_s:
                time.sleep(0.01)
            with _ending(ledger_url, gate, str(query.runId)) as own:
                if own is not None:
                    taken = own.is_bounded and not is_active
                    _record(ledger_url, gate, error, own, has_taken_all=taken)
            # From now on Spark would log a trace for each event that it cannot deliver.
            context = active_context()
            if context is not None:
                context.setLogLevel("OFF")


def _error(query: StreamingQuery) -> ErrorReport | None:
    raised: StreamingQueryException | None = query.exception()
    return None if raised is None else ErrorReport.of(raised)
