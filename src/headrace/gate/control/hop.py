"""The law of backpressure between two stages: how one stage throttles the stage before it.

**The sender** reads its input queue and sets the throttle level of the stage before it. As in
Storm and Heron, a queue above one threshold raises the level, and a queue below a much lower
threshold lowers the level. Between the two thresholds, the level falls only by rule (5). This law
also computes the size of each change. Symbols:

- ``c``: the inflow of the queue (bytes/s), measured while the stage before has enough records;
- ``t``: the rate of the stage, or an upper bound of it (bytes/s), see `takes_per_s`;
- ``v``: the step; ``levels(a, b) = log(a / b) / log(1 / v)`` is the number of levels that lower the
  rate a to b;
- ``S``: the time for which the stage has taken nothing; ``S'``: ``S`` when the level last rose.

After a condition has held for a whole sensitivity interval, the level changes as follows:

=========================================  ============================================
(1) overload                               ``+ max(levels(c, DRAINING t), 0)``
(2) overload, and the stage takes nothing  ``+ 1`` first, then ``+ levels(S, S')``
(3) overload, and ``t`` is unknown         ``+ 1`` if the queue does not fall
(4) light load                             ``- min(max(levels(t, c), 0), 1)``
(5) no light load, and ``c < EXCESS t``    ``- levels(DRAINING t, c)``
=========================================  ============================================

While a batch of N records runs, its stage takes at most N/T, where T is the time so far. So (1)
lowers ``c`` to 0.87 of this bound (`DRAINING` times `HEADROOM`). As T grows, the bound falls, and
the level rises until the batch ends. After a rise, ``c`` is the expected inflow until the new
inflow has been measured. So a second rise only corrects a further fall of ``t``, or a higher
measurement of ``c``. (2) lowers ``c`` in the same way while no batch shows the stage's rate. (5)
reverts an excessive rise in one step.

**The receiver** remembers its origin, the emission rate at the first signal above level 0. The
receiver emits at most

    ``origin * v ** level``

until the signal's lease ends. With several downstream stages, the lowest limit is in force. The
receiver's code is in `headrace.gate.control.pressure`.
"""

from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headrace.gate.control.input_queue import InputQueue, QueueInterval
from headrace.gate.control.pressure import (
    MAX_LEVEL,
    Epoch,
    HopSettings,
    PressureSignal,
)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """An increase of a total between two measurements.

    Attributes:
        unseen_ms: The time of the measurement before the increase (ms).
        seen_ms: The time of the measurement after the increase (ms).
        total: The total after the increase.
    """

    unseen_ms: int
    seen_ms: int
    total: int


class ChunkRate:
    """Measures the rate of data that arrives in chunks, such as the output of batches.

    The rate is the size of whole chunks divided by the time between them. A fixed window would be
    less exact: with one chunk a second, a window of two seconds contains two or three chunks.

    `look` only sees that a chunk has arrived since the last call. If calls are as rare as chunks,
    the time between two chunks may seem half or twice as long. Over more chunks this error shrinks.

    Args:
        most_ms: Time for which chunks are remembered (ms). The newest two chunks are always kept.
        silence_ms: Time without chunks after which the rate is 0 (ms).
    """

    def __init__(self, most_ms: int, silence_ms: int) -> None:
        self._most_ms = most_ms
        self._silence_ms = silence_ms
        self._from_ms: int | None = None
        self._looked_ms = 0
        self._total: int | None = None
        self._chunks: deque[_Chunk] = deque()

    def look(self, time_ms: int, total: int) -> None:
        """Record the total that has arrived by ``time_ms``; times must not go back.

        If the total is lower than before, because a channel was recreated, the measurement starts
        again.
        """
        if self._from_ms is None:
            self._from_ms = time_ms
        if time_ms < self._from_ms:
            return
        before, self._total = self._total, total
        if before is None or total < before:
            self._chunks.clear()
        elif total > before:
            self._chunks.append(_Chunk(self._looked_ms, time_ms, total))
        self._looked_ms = time_ms
        while len(self._chunks) > 2 and time_ms - self._chunks[1].seen_ms >= self._most_ms:
            self._chunks.popleft()

    def restart(self, from_ms: int) -> None:
        """Discard all chunks, and ignore measurements before ``from_ms``."""
        self._from_ms = from_ms
        self._total = None
        self._chunks.clear()

    def per_s(self, time_ms: int, least_ms: int, exact: float = 0.0) -> float | None:
        """Return the rate per second over the newest chunks; None while the data does not suffice.

        If no chunk has arrived for longer than the mean gap between chunks, the excess is added to
        the time of the chunks, so that the rate falls.

        Args:
            time_ms: The current time (ms).
            least_ms: Least time that the chunks must span (ms).
            exact: Required precision: the least ratio of the lowest to the highest possible rate,
                from 0 (no precision required) to 1 (exact). A rate is only known within bounds,
                because a chunk may have arrived at any time between two calls of `look`.
        """
        if len(self._chunks) < 2:
            since_ms = self._chunks[0].seen_ms if self._chunks else self._from_ms
            is_silent = since_ms is not None and time_ms - since_ms >= self._silence_ms
            return 0.0 if is_silent else None
        last = self._chunks[-1]
        gap_ms = (last.seen_ms - self._chunks[0].seen_ms) / (len(self._chunks) - 1)
        until_ms = max(float(last.seen_ms), time_ms - gap_ms)
        least_until_ms = last.unseen_ms if until_ms == last.seen_ms else until_ms
        for first in reversed(self._chunks):
            if first.seen_ms == last.seen_ms:  # two looks in one millisecond
                continue
            lasted_ms = until_ms - first.seen_ms
            is_exact = least_until_ms - first.seen_ms >= exact * (until_ms - first.unseen_ms)
            if lasted_ms >= max(least_ms, 1) and is_exact:
                return (last.total - first.total) * 1000 / lasted_ms
        return None


DRAINING: Final = 0.9
"""An overloaded stage requests an inflow of this fraction of its own rate, and drains its queue
with the rest of its rate. A smaller fraction would empty the queue sooner, but then leave the stage
idle until the next signal takes effect."""

EXCESS: Final = 0.6
"""The throttling is excessive if the inflow is below this fraction of the stage's own rate. The gap
to `DRAINING` allows for errors of the estimates. So throttling leaves every stage more than half of
its rate."""

FREE: Final = 0.1
"""A throttle level that falls below this value becomes 0. With the default step, a level of 0.1
lowers the rate by 7 %, which is less than the error of the estimates."""

LEAST_CHANGE: Final = 0.01
"""A change of a throttle level by less than this value is ignored. With the default step, a change
by this value changes the rate by 0.7 %."""

_NEARLY: Final = 0.95
"""A measured inflow counts at once if it is at least this fraction of the expected inflow."""

_SILENCE: Final = 5
"""The inflow counts as 0 after this many sensitivity intervals without arrivals. A shorter silence
may only mean that the stage before has long batches."""

_PATIENCE: Final = 30
"""An inflow below the expected inflow counts only after it has lasted for this many sensitivity
intervals. Until then, the stage before may lack records because its own input is throttled."""

_EXACT: Final = 0.75
"""An inflow measurement counts only with at least this precision, which is the ratio of the lowest
to the highest possible rate. Lower: a rate may seem half or twice its value. Higher: a measurement
takes longer."""


class Upstream(StrEnum):
    """The published state of the stage before this stage. The values are shown to users."""

    RUNNING = "running"
    """The upstream stage runs. If another stage throttles it, this stage throttles it as much."""
    THROTTLED = "throttled by another"
    """Another downstream stage throttles the upstream stage more than this stage does."""
    GONE = "not running"
    """The upstream stage has ended, or publishes no state."""


class HopController:
    """The sender's side of throttling: sets the throttle level of one stage before the sender.

    The sender passes the state of its queue to `look`, ideally after each planned batch, and sends
    the signals that `look` returns. A controller belongs to one pair of stages and one run of the
    sender. Methods take the current time as an argument, in ms of any clock that never goes back.
    The numbers (1) to (5) refer to the table in the module's docstring.

    - Overload: at least ``overload_bytes`` have waited for the whole overload interval, and bytes
      have arrived meanwhile. The level rises by (1), and again after each further interval. Rule
      (2) replaces (1) if the stage has taken nothing and no running batch shows its speed. Rule (3)
      replaces (1) if the stage's rate is unknown.
    - Light load: batches left at most ``light_load_bytes`` for the whole light-load interval. The
      level falls by (4), and again after each further interval. The level falls by 1 if the stage's
      rate is unknown.
    - In between, the level falls by (5) if the inflow has been too low for a whole light-load
      interval.

    If a condition does not hold at a call of `look`, its interval starts again. A signal with a
    level above 0 is repeated every third of a lease. A signal with level 0 is not repeated.

    Args:
        flow: The flow's name.
        sender: The name of the stage that reads the queue.
        receiver: The name of the stage before the sender.
        epoch: The sender's run.
        settings: The thresholds, intervals, step and lease.
        level: The start level: the last level of an earlier run of the sender. Default: 0.

    Raises:
        OptionError: A name is invalid, or the level is out of its range.
    """

    def __init__(
        self,
        flow: str,
        sender: str,
        receiver: str,
        epoch: Epoch,
        settings: HopSettings,
        *,
        level: float = 0.0,
    ) -> None:
        self._signal = PressureSignal(
            flow, sender, receiver, epoch, sequence=0, level=level, lease_ms=settings.lease_ms
        )
        self._settings = settings
        self._level = level
        self._due_ms: float | None = None
        self._arrived_bytes: int | None = None
        self._overload: QueueInterval | None = None
        self._light: QueueInterval | None = None
        self._excess: QueueInterval | None = None
        self._stands_since_ms: int | None = None
        self._risen_at_ms = 0
        self._free_per_s: float | None = None
        self._hoped_per_s: float | None = None
        interval_ms = settings.light_load_sensitivity_ms
        self._inflow = ChunkRate(2 * _PATIENCE * interval_ms, _SILENCE * interval_ms)
        self._expected_per_s: float | None = None
        self._is_confirmed = False

    @property
    def level(self) -> float:
        """The current throttle level, from 0 (no throttling) to `MAX_LEVEL`."""
        return self._level

    @property
    def is_watching(self) -> bool:
        """Whether `look` must be called even if the queue does not change.

        A signal can become due without a change of the queue while the level is above 0, and during
        an overload.
        """
        return self._level > 0 or self._overload is not None

    @property
    def overload_due_ms(self) -> int | None:
        """The time at which the present overload causes the next signal (ms).

        None without an overload.
        """
        overload = self._overload
        return None if overload is None else overload.start_ms + overload.length_ms

    def look(
        self, time_ms: int, queue: InputQueue, upstream: Upstream = Upstream.RUNNING
    ) -> PressureSignal | None:
        """Update the throttle level from the state of the queue. Return the signal to send.

        If the stage before does not run, or another stage throttles it more, this level has no
        effect on the inflow. The inflow is then not measured, and a light load does not lower the
        level.

        Args:
            time_ms: The current time (ms).
            queue: The state of the sender's queue.
            upstream: The state of the stage before the sender.

        Returns:
            The signal for the stage before; None if the level is unchanged and no repetition is
            due.
        """
        if upstream is Upstream.RUNNING:
            self._inflow.look(time_ms, queue.arrived_bytes)
        else:
            self._inflow.restart(time_ms)
        if self._level > 0 and not self._is_confirmed:
            self._comes_per_s(time_ms)
        if queue.waiting_bytes >= self._settings.overload_bytes:
            self._light = None
            self._look_at_overload(time_ms, queue)
        else:
            self._overload = self._stands_since_ms = None
            self._look_at_light_load(time_ms, queue, upstream)
        self._look_at_excess(time_ms, queue)
        self._arrived_bytes = queue.arrived_bytes
        is_due = self._due_ms is None or time_ms >= self._due_ms
        if self._level != self._signal.level or (self._level > 0 and is_due):
            return self._next_signal(time_ms)
        return None

    def release(self, time_ms: int) -> PressureSignal | None:
        """Set the level to 0, because the sender stops.

        Returns:
            The signal for the stage before; None if the level was 0 already.
        """
        if self._level == 0:
            return None
        self._level = 0.0
        return self._next_signal(time_ms)

    def _next_signal(self, time_ms: int) -> PressureSignal:
        again_ms = self._settings.lease_ms / 3
        if self._overload is not None:
            again_ms = min(again_ms, self._settings.overload_spacing_ms)
        self._due_ms = time_ms + again_ms
        self._signal = replace(self._signal, sequence=self._signal.sequence + 1, level=self._level)
        return self._signal

    def _look_at_overload(self, time_ms: int, queue: InputQueue) -> None:
        if self._overload is None:
            length_ms = self._settings.overload_sensitivity_ms
            # The records that caused the overload have arrived since the last call.
            has_come = self._arrived_bytes not in {None, queue.arrived_bytes}
            self._overload = QueueInterval.begun(time_ms, length_ms, queue, has_come=has_come)
        interval = self._overload
        interval.look(queue)
        if not (interval.is_over(time_ms) and interval.has_come):
            return
        length_ms = self._settings.overload_spacing_ms
        self._overload = QueueInterval.begun(time_ms, length_ms, queue)
        if interval.has_taken(queue):
            self._stands_since_ms = None
        elif self._stands_since_ms is None:
            self._stands_since_ms = interval.start_ms
        comes = self._comes_per_s(time_ms) or interval.came_per_s(time_ms, queue)
        if self._is_unheard(time_ms, comes):
            self._is_confirmed = False
            self._expect(time_ms, self._hoped_per_s)
        else:
            self._change(time_ms, self._needed(time_ms, comes, queue, interval), comes)

    def _is_unheard(self, time_ms: int, comes: float | None) -> bool:
        """Whether the stage before seems not to have applied the last signal yet.

        This is so if the inflow is as high as without throttling, and the level last rose less than
        a lease ago. The signal may be lost, or the stage before may still run an earlier batch. The
        signal is then repeated before the level rises again.
        """
        free, since_ms = self._free_per_s, time_ms - self._risen_at_ms
        is_free = self._is_confirmed and bool(comes and free and comes >= _NEARLY * free)
        return self._level > 0 and is_free and since_ms < self._settings.lease_ms

    def _needed(
        self, time_ms: int, comes: float | None, queue: InputQueue, interval: QueueInterval
    ) -> float:
        """Return by how much an overload raises the level: rule (1), (2) or (3)."""
        stands, takes = self._stands_since_ms is not None, interval.takes_per_s
        if comes and takes:
            least = self._by_standing(time_ms) if stands and not queue.is_running else 0.0
            return max(self._settings.levels_between(comes, DRAINING * takes), least)
        if stands or takes == 0:
            return self._by_standing(time_ms)
        return 0.0 if queue.waiting_bytes < interval.waiting_bytes else 1.0

    def _by_standing(self, time_ms: int) -> float:
        """Return by how much the level rises if the stage takes nothing: rule (2)."""
        since_ms = self._stands_since_ms
        if since_ms is None or self._risen_at_ms <= since_ms:
            return 1.0
        return self._settings.levels_between(time_ms - since_ms, self._risen_at_ms - since_ms)

    def _look_at_light_load(self, time_ms: int, queue: InputQueue, upstream: Upstream) -> None:
        if self._level == 0 or queue.left_bytes > self._settings.light_load_bytes:
            self._light = None
            return
        length_ms = self._settings.light_load_sensitivity_ms
        if self._light is None:
            self._light = QueueInterval.begun(time_ms, length_ms, queue)
        interval = self._light
        interval.look(queue)
        if interval.is_over(time_ms):
            self._light = QueueInterval.begun(time_ms, length_ms, queue)
            # A stage that publishes no state, but sends records, is running.
            is_gone = upstream is Upstream.GONE and not interval.has_come
            if is_gone or upstream is Upstream.THROTTLED:
                return
            comes = self._comes_per_s(time_ms)
            self._change(time_ms, -self._spare_levels(comes, interval), comes)

    def _spare_levels(self, comes: float | None, interval: QueueInterval) -> float:
        """Return by how much a light load lowers the level: rule (4)."""
        takes = interval.takes_per_s
        if takes is None or comes == 0:
            return 1.0
        if takes <= 0 or comes is None:
            return 0.0
        return min(max(self._settings.levels_between(takes, comes), 0.0), 1.0)

    def _look_at_excess(self, time_ms: int, queue: InputQueue) -> None:
        """Apply rule (5): lower the level if the inflow was too low for a light-load interval."""
        comes, takes = self._comes_per_s(time_ms), queue.takes_bytes_per_s
        is_light = queue.left_bytes <= self._settings.light_load_bytes
        if self._level == 0 or is_light or not comes or not takes or comes >= EXCESS * takes:
            self._excess = None
            return
        if self._excess is None:
            length_ms = self._settings.light_load_sensitivity_ms
            self._excess = QueueInterval.begun(time_ms, length_ms, queue)
        interval = self._excess
        interval.look(queue)
        if interval.is_over(time_ms):
            justified = DRAINING * interval.least_takes_per_s
            self._change(time_ms, -self._settings.levels_between(justified, comes), comes)

    def _comes_per_s(self, time_ms: int) -> float | None:
        """Return the inflow ``c`` (bytes/s): the measured or the expected inflow.

        After a change of the level, the expected inflow counts until the change has had time to
        take effect. Then the measured inflow counts; if it is below the expected inflow, it counts
        only after it has lasted for a while.
        """
        interval_ms, expected = self._settings.light_load_sensitivity_ms, self._expected_per_s
        measured = self._inflow.per_s(time_ms, interval_ms, _EXACT)
        if self._level == 0:
            return measured
        if measured is not None and not self._is_confirmed:
            # The first measurement after a rise always counts: the stage before had enough
            # records when it was throttled, and cannot lack records so soon.
            self._expected_per_s, self._is_confirmed = measured, True
            return measured
        if expected is None or (measured is not None and measured >= _NEARLY * expected):
            return measured
        for_long = self._inflow.per_s(time_ms, _PATIENCE * interval_ms, _EXACT)
        return expected if for_long is None else for_long

    def _change(self, time_ms: int, levels: float, comes: float | None) -> None:
        if abs(levels) < LEAST_CHANGE:
            return
        level = min(max(self._level + levels, 0.0), float(MAX_LEVEL))
        if levels < 0 and level < FREE:
            level = 0.0
        rises = level - self._level
        if rises > 0:
            self._free_per_s = comes if self._level == 0 else self._free_per_s
            self._risen_at_ms = time_ms
        self._excess = None
        self._level = level
        self._hoped_per_s = None if comes is None else comes * self._settings.step**rises
        self._is_confirmed = self._is_confirmed and rises < 0
        self._expect(time_ms, self._hoped_per_s)

    def _expect(self, time_ms: int, comes: float | None) -> None:
        """Set the expected inflow. Restart the measurement once the level has taken effect."""
        self._expected_per_s = comes
        self._inflow.restart(time_ms + self._settings.light_load_sensitivity_ms)
