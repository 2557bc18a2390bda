"""The law of backpressure on the side of the stage that presses: when, and how hard.

After Heron's and Storm's successors: a queue above one threshold for a while slows the stage before
by a step, a queue below another, much lower one for a while lets it go by a step, and between the
two nothing is said. What this law adds is in `HopController`.
"""

from dataclasses import dataclass
from typing import Final

from headgate.control.assertion import MOST_LEVELS, Assertion, Incarnation
from headgate.control.hop_inflow import Inflow
from headgate.control.hop_settings import HopSettings

DRAINING: Final = 0.9
"""The part of what an overloaded stage takes that it lets come: the rest works off what waits. Less
would empty the queue sooner, and then leave the stage idle until the next signal has worked."""

LEAST_CHANGE: Final = 0.01
"""The least change of a level that is worth a message: 0.7 % of a rate, with the usual step."""

_SPAN: Final = 10
"""Sensitivity intervals over which what comes is measured, where nothing changes meanwhile."""


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


def slowed(rate_per_s: float, batch_records: int, running_ms: int) -> float:
    """A stage's rate, while a batch is running that takes longer than this rate promised.

    A batch is reported when it ends, and a stage that has become slow ends it late. Until then it
    is known that its rate is at most its records over the time they have taken already.

    Args:
        rate_per_s: The rate in force (records/s).
        batch_records: The records of the batch that is running; 0 if none is.
        running_ms: How long it has been running.
    """
    if batch_records <= 0 or running_ms <= 0:
        return rate_per_s
    return min(rate_per_s, batch_records * 1000 / running_ms)


class HopController:
    """Decides how hard one stage presses one stage before it.

    The stage looks at its queue as often as it likes, and at best whenever it has planned a batch:
    it sends what `look` returns, and nothing else. One controller belongs to one pair of stages and
    one run of the stage that presses. Nothing in it waits, and time is an argument (ms, from any one
    beginning, never going back).

    - At least ``overload_bytes`` have waited for all of the overload's sensitivity interval, and
      bytes have come since the interval began: the level rises, and again after each further
      interval. It rises by as many steps as bring what comes to `DRAINING` of what the stage takes,
      and by none where no more is coming. Where it is not known what the stage takes, it rises by
      one, unless the queue is falling already.
    - At most ``light_load_bytes`` were left by batches for all of the light load's interval, with
      no overload meanwhile: the level falls by one step, and again after each further interval, but
      only as far as brings what comes to what the stage takes, where that is known. Near 0, it is 0.
    - In between nothing changes. A look that breaks a condition begins its interval anew.

    What is asserted above 0 is asserted again every third of a lease; 0 is asserted once.

    Args:
        flow: The flow's name.
        sender: The stage whose queue is looked at.
        receiver: The stage before it.
        incarnation: The run of the sender.
        settings: The thresholds and the rest.

    Raises:
        OptionError: A name is none (at the first assertion).
    """

    def __init__(
        self,
        flow: str,
        sender: str,
        receiver: str,
        incarnation: Incarnation,
        settings: HopSettings,
    ) -> None:
        self._pair = flow, sender, receiver, incarnation
        self._settings = settings
        self._level = 0.0
        self._sequence = 0
        self._asserted_ms = 0
        self._overload: _Interval | None = None
        self._light_since_ms: int | None = None
        self._inflow = Inflow(_SPAN * settings.light_load_sensitivity_ms)
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
        before = self._level
        if queue.waiting_bytes >= self._settings.overload_bytes:
            self._light_since_ms = None
            self._look_at_overload(time_ms, queue)
        else:
            self._overload = None
            self._look_at_light_load(time_ms, queue)
        due_ms = self._asserted_ms + self._settings.lease_ms / 3
        if self._level != before or (self._level > 0 and time_ms >= due_ms):
            return self._asserted(time_ms)
        return None

    def release(self, time_ms: int) -> Assertion | None:
        """Press no longer, because the stage stops; what to send, or None if it did not press."""
        if self._level == 0:
            return None
        self._level = 0.0
        return self._asserted(time_ms)

    def _asserted(self, time_ms: int) -> Assertion:
        flow, sender, receiver, incarnation = self._pair
        self._asserted_ms = time_ms
        self._sequence += 1
        return Assertion(
            flow,
            sender,
            receiver,
            incarnation,
            self._sequence,
            self._level,
            self._settings.lease_ms,
        )

    def _look_at_overload(self, time_ms: int, queue: InputQueue) -> None:
        interval = self._overload
        if interval is None:
            interval = _Interval(time_ms, self._settings.overload_sensitivity_ms, queue)
            self._overload = interval
        has_come = interval.queue.arrived_bytes != queue.arrived_bytes or interval.length_ms == 0
        if time_ms - interval.start_ms < interval.length_ms or not has_come:
            return
        self._overload = _Interval(time_ms, self._settings.overload_spacing_ms, queue)
        self._change(time_ms, self._needed(time_ms, queue, interval.queue))

    def _needed(self, time_ms: int, queue: InputQueue, at_first: InputQueue) -> float:
        """How many levels bring what comes below what the stage takes; 0 if it is below."""
        comes, takes = self._comes_per_s(time_ms), queue.takes_bytes_per_s
        if not comes or takes is None:
            return 0.0 if queue.waiting_bytes < at_first.waiting_bytes else 1.0
        if takes <= 0:
            return 1.0
        return max(self._settings.levels_between(comes, DRAINING * takes), 0.0)

    def _look_at_light_load(self, time_ms: int, queue: InputQueue) -> None:
        if queue.left_bytes > self._settings.light_load_bytes:
            self._light_since_ms = None
        elif self._light_since_ms is None:
            self._light_since_ms = time_ms
        elif time_ms - self._light_since_ms >= self._settings.light_load_sensitivity_ms:
            self._light_since_ms = time_ms
            if self._level > 0:
                self._change(time_ms, -self._room(time_ms, queue))

    def _room(self, time_ms: int, queue: InputQueue) -> float:
        """By how many levels, at most one, more can come before it is all that the stage takes."""
        comes, takes = self._comes_per_s(time_ms), queue.takes_bytes_per_s
        if not comes or takes is None:
            return 1.0
        if takes <= 0:
            return 0.0
        return min(max(self._settings.levels_between(takes, comes), 0.0), 1.0)

    def _comes_per_s(self, time_ms: int) -> float | None:
        """What comes (bytes/s), or soon will: a change is not measured before it can have worked."""
        measured = self._inflow.per_s(time_ms, self._settings.light_load_sensitivity_ms)
        return self._expected_per_s if measured is None else measured

    def _change(self, time_ms: int, levels: float) -> None:
        if abs(levels) < LEAST_CHANGE:
            return
        level = min(max(self._level + levels, 0.0), float(MOST_LEVELS))
        if level < LEAST_CHANGE:
            level = 0.0
        comes = self._comes_per_s(time_ms)
        if comes is not None:
            self._expected_per_s = comes * self._settings.step ** (level - self._level)
        self._inflow.restart(time_ms + self._settings.light_load_sensitivity_ms)
        self._level = level


@dataclass(frozen=True, slots=True)
class _Interval:
    """A time for which an overload must last, and the queue when it began."""

    start_ms: int
    length_ms: int
    queue: InputQueue
