"""Pressure signals between stages of a flow, and their settings.

`headrace.control.hop` holds the law that these values belong to.
"""

import math
from dataclasses import dataclass
from typing import Final

from headrace.core.options import require_name, require_number, require_whole
from headrace.errors import OptionError

MAX_LEVEL: Final = 20
"""The highest throttle level: with the default step of 0.5 a millionth of the rate is left."""

MAX_LEASE_MS: Final = 600_000
"""The longest lease (ms): no signal, not even a forged one, throttles a stage for longer."""

MAX_CLOCK_AHEAD_MS: Final = 24 * 3_600_000
"""Largest lead of another machine's clock (ms). Signals from later are refused."""


def require_level(what: str, value: object) -> None:
    """Refuse an invalid throttle level.

    Raises:
        OptionError: It is no finite number from 0 to `MAX_LEVEL`.
    """
    require_number(what, value, most=MAX_LEVEL)


@dataclass(frozen=True, slots=True)
class HopSettings:
    """Settings of the throttling of upstream stages: conditions, amount and time.

    Attributes:
        overload_bytes: The size of a stage's input queue from which on the stage is overloaded
            (bytes); 1 or more. Default: 50 MB. Too large: the queue is old and fills disks. Too
            small: a few large batches count as an overload; use several times what arrives in an
            interval.
        light_load_bytes: Bytes that the newest batch may leave in the queue under a light load; 0
            or more and below ``overload_bytes``. Default: 500 KB. Too large: the stages before
            speed up before the queue is drained. Too small: they stay slow for too long.
        overload_sensitivity_ms: Time that an overload must last before it is signalled, and the
            time between its signals (ms); 0 or more. Default: 2000. Too large: the queue grows for
            longer. Too small: a momentary spike throttles. At 0 the first overloaded look signals,
            and the next signals are ``light_load_sensitivity_ms`` apart.
        light_load_sensitivity_ms: The same for a light load (ms); 1 or more. Default: 2000. Too
            large: a flow recovers slowly. Below the batch time of the stage before: it recovers
            before the last signal has been seen to work.
        step: The factor of the rate for each throttle level; above 0 and below 1. Default: 0.5.
            Small: a flow recovers in few large strides. Near 1: in many small ones.
        lease_ms: Lease of a signal (ms); 1 to 600 000. Default: 10 000. Too large: a stage stays
            slow for longer after the one that throttled it has died. Too small: it speeds up
            whenever a signal is late; signals are repeated every third of this time.

    Raises:
        OptionError: A setting is out of its range, or not a finite number.
    """

    overload_bytes: int = 50_000_000
    light_load_bytes: int = 500_000
    overload_sensitivity_ms: int = 2000
    light_load_sensitivity_ms: int = 2000
    step: float = 0.5
    lease_ms: int = 10_000

    def __post_init__(self) -> None:
        require_whole("overload_bytes", self.overload_bytes, 1, unit="bytes")
        require_whole("light_load_bytes", self.light_load_bytes, 0, unit="bytes")
        require_whole("overload_sensitivity_ms", self.overload_sensitivity_ms, 0, unit="ms")
        require_whole("light_load_sensitivity_ms", self.light_load_sensitivity_ms, 1, unit="ms")
        require_whole("lease_ms", self.lease_ms, 1, MAX_LEASE_MS, unit="ms")
        if self.light_load_bytes >= self.overload_bytes:
            raise OptionError(
                f"light_load_bytes is {self.light_load_bytes} and overload_bytes is"
                f" {self.overload_bytes}; a light load must be below an overload, so lower the"
                " first or raise the second."
            )
        is_number = isinstance(self.step, int | float) and not isinstance(self.step, bool)
        if not is_number or not 0 < self.step < 1:
            raise OptionError(
                f"step is {self.step!r}; it must be a number above 0 and below 1, such as 0.5,"
                " for the rate is multiplied by it."
            )

    @property
    def overload_spacing_ms(self) -> int:
        """The time between the signals of one overload (ms)."""
        return self.overload_sensitivity_ms or self.light_load_sensitivity_ms

    def levels_between(self, high_per_s: float, low_per_s: float) -> float:
        """``log(high / low) / log(1 / step)``: the levels from one rate above 0 down to another."""
        return math.log(high_per_s / low_per_s) / -math.log(self.step)


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One run of a stage; of two, the newer is the larger.

    Attributes:
        started_ms: When it started, by the clock of its machine (Unix time in ms).
        id: Distinguishes runs that started in the same millisecond; a name like a stage's.

    Raises:
        OptionError: The time is below 0 or no whole number, or the id is no name.
    """

    started_ms: int
    id: str

    def __post_init__(self) -> None:
        require_whole("An epoch's start", self.started_ms, 0)
        require_name("An epoch's id", self.id)


@dataclass(frozen=True, slots=True)
class PressureSignal:
    """The throttle level that one stage asks of the stage before it, for the time of a lease.

    A signal carries the level itself, not a change of it. So signals may be duplicated, late, lost
    or out of order: the newest one that arrived says all there is to know.

    Attributes:
        flow: The flow's name.
        sender: The overloaded stage.
        receiver: The stage that is to slow down, directly before it.
        epoch: The sender's run.
        sequence: The number of the signal among those of this epoch to this receiver; 0 or more.
        level: The throttle level; 0, free, to `MAX_LEVEL`, fractions included.
        lease_ms: Lease once received, unless repeated (ms); 1 to `MAX_LEASE_MS`.

    Raises:
        OptionError: A name is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``, a number is out
            of its range, or either is of the wrong type.
    """

    flow: str
    sender: str
    receiver: str
    epoch: Epoch
    sequence: int
    level: float
    lease_ms: int

    def __post_init__(self) -> None:
        require_name("The flow of a signal", self.flow)
        require_name("The sender of a signal", self.sender)
        require_name("The receiver of a signal", self.receiver)
        if not isinstance(self.epoch, Epoch):
            raise OptionError(
                f"The epoch of a signal is {self.epoch!r}; it must be a value of Epoch."
            )
        require_whole("The sequence of a signal", self.sequence, 0)
        require_level("The level of a signal", self.level)
        require_whole("The lease of a signal", self.lease_ms, 1, MAX_LEASE_MS, unit="ms")

    def require_possible(self, now_ms: int) -> None:
        """Refuse a signal that cannot have been sent by now (Unix time in ms, by our clock).

        Raises:
            OptionError: Its sender would start later than clocks can differ, or have sent more
                than one signal in each millisecond since.
        """
        latest_ms, started_ms = now_ms + MAX_CLOCK_AHEAD_MS, self.epoch.started_ms
        if started_ms > latest_ms:
            raise OptionError(
                f"It says that its sender started at {started_ms} ms, which is more than a day in"
                " the future; set the clocks of the stages' machines."
            )
        if self.sequence > latest_ms - started_ms:
            raise OptionError(
                f"Its sequence is {self.sequence}; no sender sends so many signals from"
                f" {started_ms} ms on."
            )


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Limit on a stage's emission while a downstream stage throttles it.

    Attributes:
        rate_per_s: The limit (records/s).
        throttled_by: The stage after it that asks for this; of several, the strictest.
        level: That stage's throttle level.
        origin_per_s: The emission rate from before it was throttled (records/s).
    """

    rate_per_s: float
    throttled_by: str
    level: float
    origin_per_s: float

    def applied_to(self, rate_per_s: float | None) -> float:
        """The rate to plan with: the lesser of the limit and another rate, if there is one."""
        return self.rate_per_s if rate_per_s is None else min(rate_per_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class PressureState:
    """The last signal of one sender and its effect, as plain values that can be stored.

    Attributes:
        sender: The stage that sent it.
        epoch: The run of it that was received last.
        sequence: The last sequence of that run.
        level: The throttle level in force; 0 for none.
        lease_ms: The lease of the signal (ms).
        until_ms: When that ends, by the receiver's clock (ms).
        origin_per_s: The emission rate when the throttling began (records/s); None where nothing
            was emitted then, or the level is 0.
    """

    sender: str
    epoch: Epoch
    sequence: int
    level: float
    lease_ms: int
    until_ms: int
    origin_per_s: float | None
