"""The law of backpressure on the side of the stage that presses: when, and how hard.

After Heron's and Storm's successors: a queue above one threshold for a while slows the stage before
by a step, a queue below another, much lower one for a while lets it go by a step, and between the
two nothing is said. What this law adds is in `HopController`.
"""

from dataclasses import dataclass, replace
from typing import Final

from headgate.control.assertion import MOST_LEVELS, Assertion, Incarnation
from headgate.control.hop_rate import ChunkRate
from headgate.control.hop_settings import HopSettings

DRAINING: Final = 0.9
"""The part of what an overloaded stage takes that it lets come: the rest works off what waits. Less
would empty the queue sooner, and then leave the stage idle until the next signal has worked."""

LEAST_CHANGE: Final = 0.01
"""The least change of a level that is worth a message: 0.7 % of a rate, with the usual step."""

_NEARLY: Final = 0.95
"""The part of what should come at which a measurement of it is believed at once."""

_PATIENCE: Final = 10
"""Sensitivity intervals for which less must come than should before that is believed: the stage
before may be short of records for as long, because a stage before it is slowed more than it."""


@dataclass(frozen=True, slots=True)
class InputQueue:
    """What is on all incoming channels of a stage together.

    Attributes:
        waiting_bytes: What no batch of the stage has been given yet.
        left_bytes: What its newest batch left waiting, of that which was there when the batch was
            planned: 0 where it took all. Where that is not known, ``waiting_bytes``.
        arrived_bytes: What has ever come, counted from any one beginning.
        takes_bytes_per_s: The rate that the stage would admit if there were enough: the least of
            its estimator's rate, its own bound and its caps, and no more than what the batch at
            hand can have (`slowed`). None where it is not known.
    """

    waiting_bytes: int
    left_bytes: int
    arrived_bytes: int
    takes_bytes_per_s: float | None = None


def slowed(rate_per_s: float, interval_ms: int, batch_records: int, running_ms: int) -> float:
    """A stage's rate, while a batch is running that takes longer than this rate promised.

    A batch is reported when it ends, and a stage that has become slow ends it late. Until then it
    is known that its rate is at most its records over the time they have taken already.

    Args:
        rate_per_s: The rate in force (records/s).
        interval_ms: The time that a batch should take.
        batch_records: The records of the batch that is running.
        running_ms: How long it has been running; 0 if none is.
    """
    if running_ms <= interval_ms:
        return rate_per_s
    return min(rate_per_s, batch_records * 1000 / running_ms)


class HopController:
    """Decides how hard one stage presses one stage before it.

    The stage looks at its queue as often as it likes, and at best whenever it has planned a batch:
    it sends what `look` returns, and nothing else. One controller belongs to one pair of stages and
    one run of the stage that presses. Nothing in it waits, and time is an argument (ms, from any
    one beginning, never going back).

    - At least ``overload_bytes`` have waited for all of the overload's sensitivity interval, and
      bytes have come meanwhile: the level rises, and again after each further interval. It rises by
      as many steps as bring what comes to `DRAINING` of what the stage takes, and by none where
      less is coming. Where it is not known what the stage takes, it rises by one, unless the queue
      is falling already.
    - At most ``light_load_bytes`` were left by batches for all of the light load's interval, with
      no overload meanwhile: the level falls by one, and again after each further interval; where it
      is known what the stage takes, by no more than brings what comes to that.
    - In between nothing changes. A look that breaks a condition begins its interval anew.

    What is asserted above 0 is asserted again every third of a lease; 0 is asserted once.

    Args:
        flow: The flow's name.
        sender: The stage whose queue is looked at.
        receiver: The stage before it.
        incarnation: The run of the sender.
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
        incarnation: Incarnation,
        settings: HopSettings,
        *,
        level: float = 0.0,
    ) -> None:
        self._asserted = Assertion(
            flow, sender, receiver, incarnation, sequence=0, level=level, lease_ms=settings.lease_ms
        )
        self._settings = settings
        self._level = level
        self._due_ms: float | None = None
        self._arrived_bytes: int | None = None
        self._overload: _Interval | None = None
        self._light: _Interval | None = None
        interval_ms = settings.light_load_sensitivity_ms
        self._inflow = ChunkRate(2 * _PATIENCE * interval_ms, _PATIENCE * interval_ms)
        self._expected_per_s: float | None = None

    @property
    def level(self) -> float:
        """How hard it presses: 0, not at all, to 20."""
        return self._level

    def look(self, time_ms: int, queue: InputQueue) -> Assertion | None:
        """Look at the queue once.

        Returns:
            What is to be sent to the stage before: the level has changed, or is to be asserted
            again. None if nothing is.
        """
        self._inflow.look(time_ms, queue.arrived_bytes)
        if queue.waiting_bytes >= self._settings.overload_bytes:
            self._light = None
            self._look_at_overload(time_ms, queue)
        else:
            self._overload = None
            self._look_at_light_load(time_ms, queue)
        self._arrived_bytes = queue.arrived_bytes
        is_due = self._due_ms is None or time_ms >= self._due_ms
        if self._level != self._asserted.level or (self._level > 0 and is_due):
            return self._assert(time_ms)
        return None

    def release(self, time_ms: int) -> Assertion | None:
        """Press no longer, because the stage stops; what to send, or None if it did not press."""
        if self._level == 0:
            return None
        self._level = 0.0
        return self._assert(time_ms)

    def _assert(self, time_ms: int) -> Assertion:
        self._due_ms = time_ms + self._settings.lease_ms / 3
        self._asserted = replace(
            self._asserted, sequence=self._asserted.sequence + 1, level=self._level
        )
        return self._asserted

    def _look_at_overload(self, time_ms: int, queue: InputQueue) -> None:
        if self._overload is None:
            # What has made the queue an overload came just before the look that found it.
            before = queue.arrived_bytes if self._arrived_bytes is None else self._arrived_bytes
            length_ms = self._settings.overload_sensitivity_ms
            self._overload = _Interval(time_ms, length_ms, queue.waiting_bytes, before)
        interval = self._overload
        interval.look(queue)
        if not interval.is_over(time_ms) or queue.arrived_bytes == interval.arrived_bytes:
            return
        length_ms = self._settings.overload_spacing_ms
        self._overload = _Interval(time_ms, length_ms, queue.waiting_bytes, queue.arrived_bytes)
        self._change(time_ms, self._needed(time_ms, queue, interval))

    def _needed(self, time_ms: int, queue: InputQueue, interval: "_Interval") -> float:
        """How many levels bring what comes below what the stage takes; 0 if it is below."""
        comes, takes = self._comes_per_s(time_ms), interval.takes_per_s
        if not comes or takes is None:
            return 0.0 if queue.waiting_bytes < interval.waiting_bytes else 1.0
        if takes <= 0:
            return 1.0
        return max(self._settings.levels_between(comes, DRAINING * takes), 0.0)

    def _look_at_light_load(self, time_ms: int, queue: InputQueue) -> None:
        if queue.left_bytes > self._settings.light_load_bytes:
            self._light = None
            return
        if self._light is None:
            self._light = self._light_interval(time_ms, queue)
        interval = self._light
        interval.look(queue)
        if interval.is_over(time_ms):
            self._light = self._light_interval(time_ms, queue)
            if self._level > 0:
                self._change(time_ms, -self._room(time_ms, interval))

    def _light_interval(self, time_ms: int, queue: InputQueue) -> "_Interval":
        length_ms = self._settings.light_load_sensitivity_ms
        return _Interval(time_ms, length_ms, queue.waiting_bytes, queue.arrived_bytes)

    def _room(self, time_ms: int, interval: "_Interval") -> float:
        """By how many levels, at most one, more can come before it is all that the stage takes."""
        comes, takes = self._comes_per_s(time_ms), interval.takes_per_s
        if not comes or takes is None:
            return 1.0
        if takes <= 0:
            return 0.0
        return min(max(self._settings.levels_between(takes, comes), 0.0), 1.0)

    def _comes_per_s(self, time_ms: int) -> float | None:
        """What comes (bytes/s), or would come if the stage before had enough.

        That is what should come after the last change, unless more is measured once the change can
        have worked, or less for long.
        """
        interval_ms, expected = self._settings.light_load_sensitivity_ms, self._expected_per_s
        measured = self._inflow.per_s(time_ms, interval_ms)
        if expected is None or (measured is not None and measured >= _NEARLY * expected):
            return measured
        for_long = self._inflow.per_s(time_ms, _PATIENCE * interval_ms)
        return expected if for_long is None else for_long

    def _change(self, time_ms: int, levels: float) -> None:
        if abs(levels) < LEAST_CHANGE:
            return
        level = min(max(self._level + levels, 0.0), float(MOST_LEVELS))
        if level < LEAST_CHANGE:
            level = 0.0
        comes = self._comes_per_s(time_ms)
        self._expected_per_s = (
            None if comes is None else comes * self._settings.step ** (level - self._level)
        )
        self._inflow.restart(time_ms + self._settings.light_load_sensitivity_ms)
        self._level = level


@dataclass(slots=True)
class _Interval:
    """A time for which a condition must hold, and what was found when it began and meanwhile."""

    start_ms: int
    length_ms: int
    waiting_bytes: int
    arrived_bytes: int
    looks: int = 0
    takes_in_all: float = 0.0

    def look(self, queue: InputQueue) -> None:
        """Take note of what the stage takes."""
        if queue.takes_bytes_per_s is not None:
            self.looks += 1
            self.takes_in_all += queue.takes_bytes_per_s

    def is_over(self, time_ms: int) -> bool:
        """Whether the condition has held for long enough."""
        return time_ms - self.start_ms >= self.length_ms

    @property
    def takes_per_s(self) -> float | None:
        """What the stage took on the average of all looks (bytes/s); None where it is not known."""
        return self.takes_in_all / self.looks if self.looks else None
