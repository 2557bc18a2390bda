"""The law of backpressure on the side of the stage that presses: when, and how hard.

After Heron's and Storm's successors: a queue above one threshold for a while slows the stage before
by a step, a queue below another, much lower one for a while lets it go by a step, and between the
two nothing is said. This law knows by how much. With

- ``c``: what comes, or would come if the stage before had enough (bytes/s);
- ``t``: what the stage takes, or an upper bound of it (bytes/s): see `takes_per_s`;
- ``v``: the step, and ``levels(a, b) = log(a / b) / log(1 / v)``, the levels from rate a down to b;
- ``S``: for how long the stage has stood still, and ``S'``: the same at the last rise,

the level changes by, after a whole sensitivity interval of

=====================================  ============================================
(1) overload                           ``+ max(levels(c, DRAINING t), 0)``
(2) overload, and it stands still      ``+ 1``, and then each time ``+ levels(S, S')``
(3) overload, and ``t`` is not known   ``+ 1`` where the queue does not fall
(4) light load                         ``- min(max(levels(t, c), 0), 1)``
(5) neither light, nor ``c`` as much   ``- levels(DRAINING t, c)``
    as ``EXCESS t``
=====================================  ============================================

A batch that takes too long says how fast the stage is at most: with N records and after a time T it
is no faster than N/T. So (1) brings what comes to 0.87 of an upper bound of the stage's speed, and
when the batch ends after D, to 0.87 of N/D: however long it took, no rise went further than that.
A rise also lowers ``c`` at once, to what must come then: a second rise is by as much as ``t`` has
fallen since the first one, or as ``c`` was measured to be more. (2) is the same for a stage of
whose batches nothing is known: it takes an interval's worth in S, not in an interval. (5) takes
back at once what was too much after all.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Self

from headrace.control.assertion import MAX_LEVEL, Epoch, PressureSignal
from headrace.control.hop_queue import InputQueue, Upstream
from headrace.control.hop_rate import ChunkRate
from headrace.control.hop_settings import HopSettings

DRAINING: Final = 0.9
"""The part of what an overloaded stage takes that it lets come: the rest works off what waits. Less
would empty the queue sooner, and then leave the stage idle until the next signal has worked."""

EXCESS: Final = 0.6
"""The part of what a stage takes below which what comes is too little, whatever waits: the stage
before is pressed harder than anything justifies. Between it and `DRAINING` there is room for what
an estimate may be wrong by; and more than half is left to every stage."""

FREE: Final = 0.1
"""A level that has fallen below this is 0: with the usual step, 7 % of the origin rate are not
worth holding a stage for, and an estimate is not that exact."""

LEAST_CHANGE: Final = 0.01
"""The least change of a level that is worth a message: 0.7 % of a rate, with the usual step."""

_NEARLY: Final = 0.95
"""The part of what should come at which a measurement of it is believed at once."""

_SILENCE: Final = 5
"""Sensitivity intervals after which nothing has come because nothing comes, not because the batches
of the stage before are long."""

_PATIENCE: Final = 30
"""Sensitivity intervals for which less must come than should before that is believed: the stage
before may be short of records for as long, because a stage before it is slowed more than it."""


class HopController:
    """Decides how hard one stage presses one stage before it.

    The stage looks at its queue as often as it likes, and at best whenever it has planned a batch:
    it sends what `look` returns, and nothing else. One controller belongs to one pair of stages and
    one run of the stage that presses. Nothing in it waits, and time is an argument (ms, from any
    one beginning, never going back).

    - At least ``overload_bytes`` have waited for all of the overload's sensitivity interval, and
      bytes have come meanwhile: the level rises by (1) of this module's law, and again after each
      further interval. Where the stage has taken nothing meanwhile, and has no batch at hand that
      says how fast it is, by (2); where it is not known what the stage takes, by (3).
    - At most ``light_load_bytes`` were left by batches for all of the light load's interval, with
      no overload meanwhile: the level falls by (4), and again after each further interval; by one
      where it is not known what the stage takes.
    - In between nothing changes, but what turns out to be too much, for all of the light load's
      interval, is taken back by (5). A look that breaks a condition begins its interval anew.

    What is asserted above 0 is asserted again every third of a lease; 0 is asserted once.

    Args:
        flow: The flow's name.
        sender: The stage whose queue is looked at.
        receiver: The stage before it.
        epoch: The run of the sender.
        settings: The thresholds and the rest.
        level: The level that an earlier run of the sender asserted last, to go on with.

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
        self._asserted = PressureSignal(
            flow, sender, receiver, epoch, sequence=0, level=level, lease_ms=settings.lease_ms
        )
        self._settings = settings
        self._level = level
        self._due_ms: float | None = None
        self._arrived_bytes: int | None = None
        self._overload: _Interval | None = None
        self._light: _Interval | None = None
        self._excess: _Interval | None = None
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
        """How hard it presses: 0, not at all, to 20."""
        return self._level

    @property
    def is_watching(self) -> bool:
        """Whether time alone may change what it asserts: it presses, or there is an overload."""
        return self._level > 0 or self._overload is not None

    @property
    def overload_due_ms(self) -> int | None:
        """When the overload that was found will have lasted for long enough; None without one."""
        overload = self._overload
        return None if overload is None else overload.start_ms + overload.length_ms

    def look(
        self, time_ms: int, queue: InputQueue, upstream: Upstream = Upstream.RUNNING
    ) -> PressureSignal | None:
        """Look at the queue once.

        What comes from a stage before that does not run, or is held back by another, says nothing
        of the pressure on it: it is not measured, and a light load lets it go only if it does run.

        Args:
            time_ms: Now.
            queue: What is found.
            upstream: How the stage before fares.

        Returns:
            What is to be sent to the stage before: the level has changed, or is to be asserted
            again. None if nothing is.
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
        if self._level != self._asserted.level or (self._level > 0 and is_due):
            return self._assert(time_ms)
        return None

    def release(self, time_ms: int) -> PressureSignal | None:
        """Press no longer, because the stage stops; what to send, or None if it did not press."""
        if self._level == 0:
            return None
        self._level = 0.0
        return self._assert(time_ms)

    def _assert(self, time_ms: int) -> PressureSignal:
        again_ms = self._settings.lease_ms / 3
        if self._overload is not None:
            again_ms = min(again_ms, self._settings.overload_spacing_ms)
        self._due_ms = time_ms + again_ms
        self._asserted = replace(
            self._asserted, sequence=self._asserted.sequence + 1, level=self._level
        )
        return self._asserted

    def _look_at_overload(self, time_ms: int, queue: InputQueue) -> None:
        if self._overload is None:
            length_ms = self._settings.overload_sensitivity_ms
            # What has made the queue an overload came just before the look that found it.
            has_come = self._arrived_bytes not in {None, queue.arrived_bytes}
            self._overload = _Interval.begun(time_ms, length_ms, queue, has_come=has_come)
        interval = self._overload
        interval.look(queue)
        if not (interval.is_over(time_ms) and interval.has_come):
            return
        length_ms = self._settings.overload_spacing_ms
        self._overload = _Interval.begun(time_ms, length_ms, queue)
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
        """Whether as much comes as before it pressed, and the last rise is not a lease old.

        The stage before has not heard of it yet, or has a batch at hand from before it did: it is
        told again, and harder only if that has not helped.
        """
        free, since_ms = self._free_per_s, time_ms - self._risen_at_ms
        is_free = self._is_confirmed and bool(comes and free and comes >= _NEARLY * free)
        return self._level > 0 and is_free and since_ms < self._settings.lease_ms

    def _needed(
        self, time_ms: int, comes: float | None, queue: InputQueue, interval: "_Interval"
    ) -> float:
        """How many levels an overload needs: (1) to (3)."""
        stands, takes = self._stands_since_ms is not None, interval.takes_per_s
        if comes and takes:
            least = self._by_standing(time_ms) if stands and not queue.is_running else 0.0
            return max(self._settings.levels_between(comes, DRAINING * takes), least)
        if stands or takes == 0:
            return self._by_standing(time_ms)
        return 0.0 if queue.waiting_bytes < interval.waiting_bytes else 1.0

    def _by_standing(self, time_ms: int) -> float:
        """(2): what it justifies that nothing has been taken for so long."""
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
            self._light = _Interval.begun(time_ms, length_ms, queue)
        interval = self._light
        interval.look(queue)
        if interval.is_over(time_ms):
            self._light = _Interval.begun(time_ms, length_ms, queue)
            # What comes from one that shows nothing of itself shows that it runs.
            is_gone = upstream is Upstream.GONE and not interval.has_come
            if is_gone or upstream is Upstream.THROTTLED:
                return
            comes = self._comes_per_s(time_ms)
            self._change(time_ms, -self._room(comes, interval), comes)

    def _look_at_excess(self, time_ms: int, queue: InputQueue) -> None:
        comes, takes = self._comes_per_s(time_ms), queue.takes_bytes_per_s
        is_light = queue.left_bytes <= self._settings.light_load_bytes
        if self._level == 0 or is_light or not comes or not takes or comes >= EXCESS * takes:
            self._excess = None
            return
        if self._excess is None:
            length_ms = self._settings.light_load_sensitivity_ms
            self._excess = _Interval.begun(time_ms, length_ms, queue)
        interval = self._excess
        interval.look(queue)
        if interval.is_over(time_ms):
            justified = DRAINING * interval.least_takes_per_s
            self._change(time_ms, -self._settings.levels_between(justified, comes), comes)

    def _room(self, comes: float | None, interval: "_Interval") -> float:
        """By how many levels, at most one, more can come before it is all that the stage takes."""
        takes = interval.takes_per_s
        if takes is None or comes == 0:
            return 1.0
        if takes <= 0 or comes is None:
            return 0.0
        return min(max(self._settings.levels_between(takes, comes), 0.0), 1.0)

    def _comes_per_s(self, time_ms: int) -> float | None:
        """What comes (bytes/s), or would come if the stage before had enough.

        That is what should come after the last change, unless more is measured once the change can
        have worked, or less for long.
        """
        interval_ms, expected = self._settings.light_load_sensitivity_ms, self._expected_per_s
        measured = self._inflow.per_s(time_ms, interval_ms)
        if self._level == 0:
            return measured
        if measured is not None and not self._is_confirmed:
            # The first after a rise is believed whatever it is: the stage before was not short of
            # records when it was pressed, and it cannot be so soon.
            self._expected_per_s, self._is_confirmed = measured, True
            return measured
        if expected is None or (measured is not None and measured >= _NEARLY * expected):
            return measured
        for_long = self._inflow.per_s(time_ms, _PATIENCE * interval_ms)
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
        """Go by what must come when the level has worked, and measure it once it can have."""
        self._expected_per_s = comes
        self._inflow.restart(time_ms + self._settings.light_load_sensitivity_ms)


@dataclass(slots=True)
class _Interval:
    """A time for which a condition must hold, and what was found when it began and meanwhile."""

    start_ms: int
    length_ms: int
    waiting_bytes: int
    arrived_bytes: int
    has_come: bool
    looks: int = 0
    takes_in_all: float = 0.0
    least_takes_per_s: float = math.inf

    @classmethod
    def begun(
        cls, time_ms: int, length_ms: int, queue: InputQueue, *, has_come: bool = False
    ) -> Self:
        """One that begins with this look."""
        return cls(time_ms, length_ms, queue.waiting_bytes, queue.arrived_bytes, has_come)

    def look(self, queue: InputQueue) -> None:
        """Take note of what has come and of what the stage takes."""
        self.has_come = self.has_come or queue.arrived_bytes != self.arrived_bytes
        if queue.takes_bytes_per_s is not None:
            self.looks += 1
            self.takes_in_all += queue.takes_bytes_per_s
            self.least_takes_per_s = min(self.least_takes_per_s, queue.takes_bytes_per_s)

    def has_taken(self, queue: InputQueue) -> bool:
        """Whether the stage has taken anything since it began."""
        grown = queue.waiting_bytes - self.waiting_bytes
        return grown < queue.arrived_bytes - self.arrived_bytes

    def came_per_s(self, time_ms: int, queue: InputQueue) -> float | None:
        """What came since it began (bytes/s), by and large; None if it has only just begun."""
        lasted_ms = time_ms - self.start_ms
        return (queue.arrived_bytes - self.arrived_bytes) * 1000 / lasted_ms if lasted_ms else None

    def is_over(self, time_ms: int) -> bool:
        """Whether the condition has held for long enough."""
        return time_ms - self.start_ms >= self.length_ms

    @property
    def takes_per_s(self) -> float | None:
        """What the stage took on the average of all looks (bytes/s); None where it is not known."""
        return self.takes_in_all / self.looks if self.looks else None
