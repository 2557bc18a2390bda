"""The law of backpressure from one stage to the stage before it, in both directions.

**The sender** reads its input queue and sets the throttle level of the stage before it. As in
Heron's and Storm's successors, a queue above one threshold raises the level, and a queue below
another, much lower threshold lowers the level. Between the two nothing changes. This law also
computes the size of the change. With

- ``c``: the inflow, or the inflow if the stage before had enough (bytes/s);
- ``t``: the rate of the stage, or an upper bound of it (bytes/s), see `takes_per_s`;
- ``v``: the step, and ``levels(a, b) = log(a / b) / log(1 / v)``, the levels from rate a down to b;
- ``S``: the time for which the stage has stood still, and ``S'``: the same at the last rise,

the level changes, after a whole sensitivity interval of the condition, by

=========================================  ============================================
(1) overload                               ``+ max(levels(c, DRAINING t), 0)``
(2) overload, and the stage stands still   ``+ 1``, and then each time ``+ levels(S, S')``
(3) overload, and ``t`` is unknown         ``+ 1`` if the queue does not fall
(4) light load                             ``- min(max(levels(t, c), 0), 1)``
(5) no light load, and ``c < EXCESS t``    ``- levels(DRAINING t, c)``
=========================================  ============================================

A batch of N records that has run for T bounds the speed of its stage: N/T. So (1) brings ``c`` to
0.87 of that bound (`DRAINING` of `HEADROOM`), and to 0.87 of N/D when the batch ends after D. No
rise goes further, however long the batch took. A rise also lowers ``c`` at once to the expected
inflow, so a second rise covers only a further fall of ``t`` or a higher measurement of ``c``. (2)
does the same for a stage without a measured batch. (5) takes back an excessive rise at once.

**The receiver** remembers its emission rate at the first signal above level 0, its origin, and
emits at most

    ``origin * v ** level``

until the signal's lease ends. With several downstream stages, the strictest limit is in force. Its
code is `headrace.gate.control.pressure`.
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
    """A chunk that came between two looks, and the total including the chunk."""

    unseen_ms: int
    seen_ms: int
    total: int


class ChunkRate:
    """Measures a rate from one chunk to another: whole chunks over the whole gaps between them.

    A batch moves a second's worth of records at once. A fixed window of two seconds contains two or
    three chunks; from one chunk to the chunk two seconds later there are always two.

    A chunk came at some time between two looks. If looks are as rare as chunks, a gap between two
    chunks may seem half or twice as long; over more chunks that error shrinks.

    Args:
        most_ms: Time for which chunks are remembered (ms); at least two chunks are kept at any age.
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
        """Record the total so far, at a time not before the last one.

        A lower total than before (after a channel was recreated) starts a new measurement.
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
        """Discard all chunks, and measure from this time on."""
        self._from_ms = from_ms
        self._total = None
        self._chunks.clear()

    def per_s(self, time_ms: int, least_ms: int, exact: float = 0.0) -> float | None:
        """Return the rate per second over the newest chunks; None while they do not suffice.

        A silence longer than the mean gap between chunks counts too.

        Args:
            time_ms: Now.
            least_ms: The time that the chunks must span (ms).
            exact: Least ratio of the lowest to the highest possible rate, as each chunk came at
                some time between two looks: 0 (any) to 1 (looks at the very moment).
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
"""The fraction of ``t`` that an overloaded stage admits; the rest drains its queue. A smaller
fraction would empty the queue sooner, and then leave the stage idle until the next signal takes
effect."""

EXCESS: Final = 0.6
"""The fraction of ``t`` below which ``c`` is too little, whatever waits. The gap between it and
`DRAINING` leaves room for errors of an estimate; and every stage keeps more than half."""

FREE: Final = 0.1
"""A level that falls below this becomes 0: with the default step it stands for 7 % of the origin
rate, and estimates are less exact."""

LEAST_CHANGE: Final = 0.01
"""The least change of a level that causes a signal: 0.7 % of a rate, with the default step."""

_NEARLY: Final = 0.95
"""Least ratio of a measurement to the expected rate at which the measurement counts at once."""

_SILENCE: Final = 5
"""Sensitivity intervals without arrivals after which the rate is 0; before, the stage before may
merely have long batches."""

_PATIENCE: Final = 30
"""Sensitivity intervals of lower inflow than expected before the measurement counts. The stage
before may be short of records for as long, because another stage throttles its input more."""

_EXACT: Final = 0.75
"""Least ratio of the lowest to the highest possible rate at which a measurement counts. Lower: a
rate may seem half or twice its value. Higher: the measurement takes longer."""


class Upstream(StrEnum):
    """State of an upstream stage, as published. The values are shown to users."""

    RUNNING = "running"
    """The stage runs, and at most this stage throttles it."""
    THROTTLED = "throttled by another"
    """Another downstream stage throttles the stage more than this one."""
    GONE = "not running"
    """The stage has ended, or publishes nothing."""


class HopController:
    """Sets the throttle level that one stage requests from one stage before it.

    The stage looks at its queue at any interval, ideally after each plan of a batch, and sends only
    the signals that `look` returns. One controller belongs to one pair of stages and one run of the
    sender. Time is an argument (ms, from any one beginning, never going back).

    - Overload: at least ``overload_bytes`` have waited for the whole overload interval, and bytes
      have come meanwhile. The level rises by (1), and again after each further interval. It rises
      by (2) if the stage has taken nothing and no running batch shows its speed, and by (3) if
      ``t`` is unknown.
    - Light load: batches left at most ``light_load_bytes`` for the whole light-load interval. The
      level falls by (4), and again after each further interval; by one if ``t`` is unknown.
    - In between, (5) takes back an excess that has lasted for a whole light-load interval.

    A look that breaks a condition restarts its interval. A level above 0 is signalled again every
    third of a lease; 0 is signalled once.

    Args:
        flow: The flow's name.
        sender: The stage that owns the queue.
        receiver: The stage before it.
        epoch: The run of the sender.
        settings: The thresholds, intervals, step and lease.
        level: The last level of an earlier run of the sender, as the start level.

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
        """The throttle level: 0, free, to `MAX_LEVEL`."""
        return self._level

    @property
    def is_watching(self) -> bool:
        """Whether time alone may change the signal: during a throttle or an overload."""
        return self._level > 0 or self._overload is not None

    @property
    def overload_due_ms(self) -> int | None:
        """The time at which the present overload has lasted long enough; None without one."""
        overload = self._overload
        return None if overload is None else overload.start_ms + overload.length_ms

    def look(
        self, time_ms: int, queue: InputQueue, upstream: Upstream = Upstream.RUNNING
    ) -> PressureSignal | None:
        """Look at the queue once.

        The inflow from an upstream stage that does not run, or that another stage throttles, is not
        measured, because this level does not cause that inflow. A light load then does not lower
        the level.

        Args:
            time_ms: Now.
            queue: The state of the queue.
            upstream: The state of the stage before.

        Returns:
            The signal to the stage before, if the level has changed or the signal is due again;
            else None.
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
        """Set level 0 when the stage stops. Return the signal, or None if the level was 0."""
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
            # The records that made the queue an overload came just before this look.
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
        """Whether the inflow is still unthrottled, and the last rise is less than a lease ago.

        The stage before has not received the signal yet, or still runs a batch from before it. The
        signal is repeated, and the level rises only if the repetition does not help.
        """
        free, since_ms = self._free_per_s, time_ms - self._risen_at_ms
        is_free = self._is_confirmed and bool(comes and free and comes >= _NEARLY * free)
        return self._level > 0 and is_free and since_ms < self._settings.lease_ms

    def _needed(
        self, time_ms: int, comes: float | None, queue: InputQueue, interval: QueueInterval
    ) -> float:
        """Return the number of levels that an overload needs: (1) to (3)."""
        stands, takes = self._stands_since_ms is not None, interval.takes_per_s
        if comes and takes:
            least = self._by_standing(time_ms) if stands and not queue.is_running else 0.0
            return max(self._settings.levels_between(comes, DRAINING * takes), least)
        if stands or takes == 0:
            return self._by_standing(time_ms)
        return 0.0 if queue.waiting_bytes < interval.waiting_bytes else 1.0

    def _by_standing(self, time_ms: int) -> float:
        """Return the levels of (2)."""
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
            # A stage that publishes nothing, but sends records, does run.
            is_gone = upstream is Upstream.GONE and not interval.has_come
            if is_gone or upstream is Upstream.THROTTLED:
                return
            comes = self._comes_per_s(time_ms)
            self._change(time_ms, -self._spare_levels(comes, interval), comes)

    def _spare_levels(self, comes: float | None, interval: QueueInterval) -> float:
        """Return the levels of (4)."""
        takes = interval.takes_per_s
        if takes is None or comes == 0:
            return 1.0
        if takes <= 0 or comes is None:
            return 0.0
        return min(max(self._settings.levels_between(takes, comes), 0.0), 1.0)

    def _look_at_excess(self, time_ms: int, queue: InputQueue) -> None:
        """Apply (5)."""
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
        """Return ``c``: the inflow expected after the last change of level, or the measured inflow.

        A measurement replaces the expectation once the change has had time to take effect. A lower
        measurement must last first.
        """
        interval_ms, expected = self._settings.light_load_sensitivity_ms, self._expected_per_s
        measured = self._inflow.per_s(time_ms, interval_ms, _EXACT)
        if self._level == 0:
            return measured
        if measured is not None and not self._is_confirmed:
            # The first measurement after a rise always counts: the stage before had enough
            # records when it was throttled, and cannot be short of records so soon.
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
        """Expect the inflow that the level allows, and measure after the level takes effect."""
        self._expected_per_s = comes
        self._inflow.restart(time_ms + self._settings.light_load_sensitivity_ms)
