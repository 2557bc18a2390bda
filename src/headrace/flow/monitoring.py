"""Measurements for a stage's agent: the stage's batches, its neighbours, and the poll interval."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from headrace.flow.signal_codec import StageState
from headrace.flow.stage_signals import Signals
from headrace.gate import (
    BatchRecord,
    ChunkRate,
    InputQueue,
    Ledger,
    RateLimit,
    Status,
    Upstream,
    takes_per_s,
)

_MAX_NEW_BATCHES: Final = 20
"""Maximum number of new batches that are counted between two polls."""

_SIZE_SAMPLES: Final = 240
"""Number of polls over which the mean record size is measured; they take about one minute."""

NEIGHBOURS_MS: Final = 1000
"""Minimum interval between two reads of the neighbours' states (ms)."""

POLL_S: Final = 0.25
"""Default interval between polls of a stage's queue (s)."""

NEAR_POLL_S: Final = 0.05
"""Interval between polls (s) if the queue has reached half of the overload threshold, and the stage
does not throttle others yet."""

MIN_POLL_S: Final = 0.01
"""Shortest interval between polls (s), used just before the queue is expected to be overloaded."""


class StageProgress:
    """Progress of a stage's batches, read from the ledger. Not thread-safe.

    ``began_ms`` is the start of this run of the stage (ms since the epoch), by the clock with which
    batches are planned. If a batch is from an earlier run, its running time counts from
    ``began_ms``.
    """

    def __init__(self, ledger: Ledger, gate: str, interval_ms: int, began_ms: int) -> None:
        self._ledger = ledger
        self._gate = gate
        self._interval_ms = interval_ms
        self._began_ms = began_ms
        self._emitted = ChunkRate(5 * interval_ms, 5 * interval_ms)
        self._admitted = 0
        self._newest: BatchRecord | None = None
        self._sizes: deque[tuple[int, int]] = deque(maxlen=_SIZE_SAMPLES)
        self._record_size: float | None = None

    def refresh(self, time_ms: int) -> None:
        """Count the records of the batches that have begun since the last call."""
        begun = self._ledger.gates.last_begun(self._gate)
        if begun is None:
            return
        previous, self._newest = self._newest, begun[1]
        if previous is not None and previous.batch_key != self._newest.batch_key:
            for batch in self._ledger.batches.newest(self._gate, _MAX_NEW_BATCHES):
                if batch.batch_key == previous.batch_key:
                    break
                self._admitted += batch.planned_records
        self._emitted.look(time_ms, self._admitted)

    def emits_per_s(self, time_ms: int) -> float | None:
        """Return the recent rate of records in the stage's batches (records/s); None if unknown."""
        return self._emitted.per_s(time_ms, 2 * self._interval_ms)

    def takes_bytes_per_s(
        self, queue: InputQueue, limit: RateLimit | None, wall_ms: int
    ) -> float | None:
        """Return the rate at which the stage could process its queue (bytes/s); None if unknown.

        ``limit`` is the stage's present rate limit. ``wall_ms`` is the present time by the clock
        with which batches are planned.
        """
        rate_per_s, record_bytes = self._ledger.rates.current(self._gate), self._record_bytes(queue)
        if record_bytes is None:
            return None
        batch = self._newest
        records, running_ms = 0, 0
        if batch is not None and self.is_running:
            retried_ms = batch.start_time_ms if batch.attempts > 1 else None
            since_ms = max(batch.created_time_ms, self._began_ms, retried_ms or 0)
            records, running_ms = batch.planned_records, max(wall_ms - since_ms, 0)
        takes = takes_per_s(rate_per_s, limit, self._interval_ms, records, running_ms)
        return None if takes is None else takes * record_bytes

    @property
    def is_running(self) -> bool:
        """Whether the stage's newest batch was in progress at the last refresh."""
        return self._newest is not None and self._newest.status is Status.IN_PROGRESS

    def _record_bytes(self, queue: InputQueue) -> float | None:
        """Return the mean size of recently admitted records (bytes); None until it is known.

        Without recent records, return the last known size.
        """
        taken_bytes = queue.arrived_bytes - queue.waiting_bytes
        if self._sizes and taken_bytes < self._sizes[-1][0]:
            self._sizes.clear()
        self._sizes.append((taken_bytes, self._admitted))
        first_bytes, first = self._sizes[0]
        if self._admitted > first and taken_bytes > first_bytes:
            self._record_size = (taken_bytes - first_bytes) / (self._admitted - first)
        return self._record_size


class Neighbours:
    """States of the stages directly before and after a stage. Not thread-safe.

    An upstream stage sends few records if it does not run, or if another stage throttles it. With
    these states, the agent does not mistake such a low rate for an effect of its own throttling.
    While the transport is unreachable, each neighbour counts as running.
    """

    def __init__(self, stage: str, names: Collection[str], signals: Signals) -> None:
        self._stage = stage
        self._names = frozenset(names)
        self._signals = signals
        self._states: Mapping[str, StageState] | None = None
        self._read_ms: int | None = None

    def refresh(self, now_ms: int) -> None:
        """Read the neighbours' states, at most once per `NEIGHBOURS_MS`."""
        if self._read_ms is None or now_ms - self._read_ms >= NEIGHBOURS_MS:
            self._read_ms = now_ms
            self._read()

    def upstream(self, name: str) -> Upstream:
        """Return an upstream stage's condition: running, throttled by another stage, or gone."""
        if self._states is None:
            return Upstream.RUNNING
        state = self._states.get(name)
        if state is None:
            return Upstream.GONE
        is_ours = state.throttled_by in {None, self._stage}
        return Upstream.RUNNING if is_ours else Upstream.THROTTLED

    def is_running(self, name: str) -> bool:
        """Whether a stage publishes its state. If the state is missing, it is read once more."""
        if self._states is not None and name not in self._states:
            self._read()
        return self._states is None or name in self._states

    def _read(self) -> None:
        states = self._signals.states(self._names)
        self._states = states if self._signals.is_connected else None


class PollInterval:
    """Interval between polls of a queue; it becomes shorter as the queue nears an overload."""

    def __init__(self, overload_bytes: int) -> None:
        self._overload_bytes = overload_bytes
        self._poll_s = POLL_S
        self._last: tuple[int, int] | None = None
        """Time (ms) and queue size (bytes) of the last poll."""

    def observe(self, time_ms: int, waiting_bytes: int, *, throttles: bool) -> None:
        """Update the interval after a poll that found ``waiting_bytes`` in the queue.

        A stage that throttles others polls at the interval `POLL_S`.
        """
        last, self._last = self._last, (time_ms, waiting_bytes)
        left_bytes = self._overload_bytes - waiting_bytes
        if left_bytes <= 0 or throttles:
            self._poll_s = POLL_S
            return
        self._poll_s = POLL_S if left_bytes > self._overload_bytes / 2 else NEAR_POLL_S
        if last is not None and last[1] < waiting_bytes:
            grows_per_ms = (waiting_bytes - last[1]) / max(time_ms - last[0], 1)
            # Half the time until the overload, because a later forecast is more exact.
            half_s = left_bytes / grows_per_ms / 2000
            self._poll_s = min(self._poll_s, max(half_s, MIN_POLL_S))

    def next_s(self, now_ms: int, due_ms: Iterable[int | None]) -> float:
        """Return the time until the next poll (s).

        An overload must last for the sensitivity interval before the agent sends a signal.
        ``due_ms`` has the end of this interval for each upstream stage, or None without an
        overload. The next poll is at the earliest of these times, or before it.
        """
        left_ms = [due - now_ms for due in due_ms if due is not None and due > now_ms]
        return min(min(left_ms) / 1000, POLL_S) if left_ms else self._poll_s
