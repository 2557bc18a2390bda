"""The law of backpressure from one stage to the stage before it, in both directions.

**The sender** looks at its input queue and sets the throttle level of the stage before it. As in
Heron's and Storm's successors, a queue above one threshold raises the level, a queue below another,
much lower one lowers it, and between the two nothing changes. This law knows by how much. With

- ``c``: the inflow, or the inflow if the stage before had enough (bytes/s);
- ``t``: the rate of the stage, or an upper bound of it (bytes/s), see `takes_per_s`;
- ``v``: the step, and ``levels(a, b) = log(a / b) / log(1 / v)``, the levels from rate a down to b;
- ``S``: for how long the stage has stood still, and ``S'``: the same at the last rise,

the level changes, after a whole sensitivity interval of the condition, by

=========================================  ============================================
(1) overload                               ``+ max(levels(c, DRAINING t), 0)``
(2) overload, and the stage stands still   ``+ 1``, and then each time ``+ levels(S, S')``
(3) overload, and ``t`` is unknown         ``+ 1`` if the queue does not fall
(4) light load                             ``- min(max(levels(t, c), 0), 1)``
(5) no light load, and ``c < EXCESS t``    ``- levels(DRAINING t, c)``
=========================================  ============================================

A batch of N records that has run for T bounds the speed of its stage: N/T. So (1) brings ``c`` to
0.87 of that bound (`DRAINING` of `HEADROOM`), and when the batch ends after D, to 0.87 of N/D:
however long it took, no rise went further. A rise also lowers ``c`` at once, to what must come
then, so a second rise covers only what ``t`` has fallen since, or what ``c`` was measured to be
more. (2) does the same for a stage of whose batches nothing is known. (5) takes back at once what
turned out to be too much.

**The receiver** remembers the rate at which it emitted when the first signal above level 0 came,
its origin, and emits at most

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
    """Chunk that came between two looks, and the total including it."""

    unseen_ms: int
    seen_ms: int
    total: int


class ChunkRate:
    """Measures a rate from one chunk to another: whole chunks over the whole gaps between them.

    A batch moves a second's worth of records at once. A fixed window of two seconds has two chunks
    or three; from one chunk to the one two seconds later it is always two.

    A chunk came at some time between two looks. If looks are as rare as chunks, the gap between two
    of them may seem half or twice as long as it was; over more of them that matters less.

    Args:
        most_ms: Time for which chunks are remembered (ms); at least two are, however old.
        silence_ms: The time without chunks after which nothing moves (ms).
    """

    def __init__(self, most_ms: int, silence_ms: int) -> None:
        self._most_ms = most_ms
        self._silence_ms = silence_ms
        self._from_ms: int | None = None
        self._looked_ms = 0
        self._total: int | None = None
        self._chunks: deque[_Chunk] = deque()

    def look(self, time_ms: int, total: int) -> None:
        """Record how much has moved so far, at a time not before the last one.

        A total below the one before (of a channel that was recreated) starts a new measurement.
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
        """Forget all, and measure from that time on."""
        self._from_ms = from_ms
        self._total = None
        self._chunks.clear()

    def per_s(self, time_ms: int, least_ms: int, exact: float = 0.0) -> float | None:
        """The rate per second over the newest chunks; None while they do not suffice.

        A silence longer than the mean gap of the chunks counts too.

        Args:
            time_ms: Now.
            least_ms: The time that the chunks must span (ms).
            exact: The least part of the highest rate possible, given that each chunk came between
                two looks, that the lowest must be: 0 (any, for looks at the very moment) to 1.
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
"""The part of ``t`` that an overloaded stage lets come; the rest drains its queue. A smaller part
would empty the queue sooner, and then leave the stage idle until the next signal has worked."""

EXCESS: Final = 0.6
"""The part of ``t`` below which ``c`` is too little, whatever waits. The gap between it and
`DRAINING` leaves room for errors of an estimate; and every stage keeps more than half."""

FREE: Final = 0.1
"""A level that falls below this becomes 0: with the default step it stands for 7 % of the origin
rate, and estimates are not that exact."""

LEAST_CHANGE: Final = 0.01
"""The least change of a level that is worth a signal: 0.7 % of a rate, with the default step."""

_NEARLY: Final = 0.95
"""The part of the expected rate from which on a measurement replaces the expectation at once."""

_SILENCE: Final = 5
"""Sensitivity intervals without arrivals after which the rate is 0; before, the batches of the
stage before may merely be long."""

_PATIENCE: Final = 30
"""Sensitivity intervals for which less than expected must come before the measurement counts: the
stage before may be short of records for as long, because one before it is throttled more."""

_EXACT: Final = 0.75
"""Ratio of the lowest to the highest rate that the looks allow, from which on a measurement counts.
Lower: a rate may seem half or twice what it is; higher: it takes longer to measure."""


class Upstream(StrEnum):
    """State of an upstream stage, as published. The values are shown to users."""

    RUNNING = "running"
    """It runs, and only this stage throttles it, if any does."""
    THROTTLED = "throttled by another"
    """Another stage after it leaves it less than this one does."""
    GONE = "not running"
    """It has ended, or publishes nothing."""


class HopController:
    """Sets the throttle level that one stage asks of one stage before it.

    The stage looks at its queue as often as it likes, and at best whenever it has planned a batch;
    it sends what `look` returns, and nothing else. One controller belongs to one pair of stages and
    one run of the sender. Time is an argument (ms, from any one beginning, never going back).

    - Overload: at least ``overload_bytes`` have waited for the whole overload interval, and bytes
      have come meanwhile. The level rises by (1), and again after each further interval; by (2)
      where the stage has taken nothing and no batch at hand says how fast it is; by (3) where
      ``t`` is unknown.
    - Light load: batches left at most ``light_load_bytes`` for the whole light-load interval. The
      level falls by (4), and again after each further interval; by one where ``t`` is unknown.
    - In between, (5) takes back what was too much for a whole light-load interval.

    A look that breaks a condition restarts its interval. A level above 0 is signalled again every
    third of a lease; 0 is signalled once.

    Args:
        flow: The flow's name.
        sender: The stage whose queue is looked at.
        receiver: The stage before it.
        epoch: The run of the sender.
        settings: The thresholds and the rest.
        level: The last level of an earlier run of the sender, to go on with.

    Raises:
        OptionError: A name is none, or the level is out of its range.
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
        """Whether time alone may change its signal: it throttles, or there is an overload."""
        return self._level > 0 or self._overload is not None

    @property
    def overload_due_ms(self) -> int | None:
        """When the present overload will have lasted for long enough; None without one."""
        overload = self._overload
        return None if overload is None else overload.start_ms + overload.length_ms

    def look(
        self, time_ms: int, queue: InputQueue, upstream: Upstream = Upstream.RUNNING
    ) -> PressureSignal | None:
        """Look at the queue once.

        The inflow from an upstream stage that does not run, or that another stage throttles, is not
        measured: it says nothing of this level. A light load then does not lower the level.

        Args:
            time_ms: Now.
            queue: The state of the queue.
            upstream: The state of the stage before.

        Returns:
            The signal to the stage before, if the level has changed or is to be repeated; else
            None.
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
        """Go to level 0, as the stage stops; return the signal, or None if it was 0 already."""
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
        """Whether as much comes as before the first level, and the last rise is not a lease old.

        The stage before has not received the signal yet, or still runs a batch from before it. The
        signal is repeated, and the level rises only if that does not help.
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
        """(2)."""
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
        """(4)."""
        takes = interval.takes_per_s
        if takes is None or comes == 0:
            return 1.0
        if takes <= 0 or comes is None:
            return 0.0
        return min(max(self._settings.levels_between(takes, comes), 0.0), 1.0)

    def _look_at_excess(self, time_ms: int, queue: InputQueue) -> None:
        """(5)."""
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
        """``c``: the inflow expected after the last change, until a measurement replaces it.

        A measurement counts once the change can have worked: at once if it is not less than
        expected, else if it lasts.
        """
        interval_ms, expected = self._settings.light_load_sensitivity_ms, self._expected_per_s
        measured = self._inflow.per_s(time_ms, interval_ms, _EXACT)
        if self._level == 0:
            return measured
        if measured is not None and not self._is_confirmed:
            # The first after a rise counts whatever it is: the stage before had enough records
            # when it was throttled, and cannot be short of them so soon.
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
        """Expect the inflow that the level must give, and measure from when it can have worked."""
        self._expected_per_s = comes
        self._inflow.restart(time_ms + self._settings.light_load_sensitivity_ms)
