"""Pressure signals between stages of a flow, their settings, and the emission that they allow.

`headrace.gate.control.hop` has the law of these signals, and the sender's side.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headrace.core.options import require_name, require_number, require_whole
from headrace.errors import OptionError

MAX_LEVEL: Final = 20
"""The highest throttle level: with the default step of 0.5 a millionth of the rate remains."""

MAX_LEASE_MS: Final = 600_000
"""The longest lease (ms): no signal, not even a forged one, throttles a stage for longer."""

MAX_CLOCK_AHEAD_MS: Final = 24 * 3_600_000
"""Largest lead of another machine's clock (ms). Later signals are refused."""


def require_level(what: str, value: object) -> None:
    """Refuse an invalid throttle level.

    Raises:
        OptionError: The value is no finite number from 0 to `MAX_LEVEL`.
    """
    require_number(what, value, most=MAX_LEVEL)


@dataclass(frozen=True, slots=True)
class HopSettings:
    """Settings of the throttling of upstream stages: conditions, amount and time.

    Attributes:
        overload_bytes: The size of a stage's input queue from which on the stage is overloaded
            (bytes); 1 or more. Default: 50 MB. Too large: the queue is old and fills disks. Too
            small: a few large batches count as an overload; use several times the bytes that arrive
            in an interval.
        light_load_bytes: Bytes that the newest batch may leave in the queue under a light load; 0
            or more and below ``overload_bytes``. Default: 500 KB. Too large: the stages before
            speed up before the queue is drained. Too small: they stay slow for too long.
        overload_sensitivity_ms: Time that an overload must last before it is signalled, and the
            time between its signals (ms); 0 or more. Default: 2000. Too large: the queue grows for
            longer. Too small: a momentary spike throttles. At 0 the first overloaded look signals,
            and the next signals are ``light_load_sensitivity_ms`` apart.
        light_load_sensitivity_ms: The same for a light load (ms); 1 or more. Default: 2000. Too
            large: a flow recovers slowly. Below the batch time of the stage before: the level falls
            before the last signal has taken visible effect.
        step: The factor of the rate for each throttle level; above 0 and below 1. Default: 0.5.
            Small: a flow recovers in few large strides. Near 1: in many small ones.
        lease_ms: Lease of a signal (ms); 1 to 600 000. Default: 10 000. Too large: a stage stays
            slow for longer after the stage that throttles it has died. Too small: it speeds up
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
        """Return the levels from one rate above 0 down to another.

        The formula is ``log(high / low) / log(1 / step)``.
        """
        return math.log(high_per_s / low_per_s) / -math.log(self.step)


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One run of a stage; the newer of two runs is the larger value.

    Attributes:
        started_ms: The start, by the clock of the stage's machine (Unix time in ms).
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
    """The throttle level that one stage requests from the stage before it, for the time of a lease.

    A signal carries the level itself, not a change of the level. So signals may be duplicated,
    late, lost or out of order: the newest signal that arrived is sufficient.

    Attributes:
        flow: The flow's name.
        sender: The overloaded stage.
        receiver: The stage to slow down, directly before the sender.
        epoch: The sender's run.
        sequence: The number of the signal in this epoch to this receiver; 0 or more.
        level: The throttle level; 0, free, to `MAX_LEVEL`, fractions included.
        lease_ms: Lease after the receipt, unless repeated (ms); 1 to `MAX_LEASE_MS`.

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
            OptionError: Its sender would start later than clocks can differ, or have sent more than
                one signal in each millisecond since.
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
        throttled_by: The downstream stage that requests the limit; of several, the strictest.
        level: The throttle level of the downstream stage.
        origin_per_s: The emission rate before the throttling began (records/s).
    """

    rate_per_s: float
    throttled_by: str
    level: float
    origin_per_s: float

    def applied_to(self, rate_per_s: float | None) -> float:
        """Return the rate to plan with: the lesser of the limit and another rate, if given."""
        return self.rate_per_s if rate_per_s is None else min(rate_per_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class PressureState:
    """The last signal of one sender and its effect, as plain values that can be stored.

    Attributes:
        sender: The stage that sent the signal.
        epoch: The sender's last received run.
        sequence: The last sequence of that run.
        level: The throttle level in force; 0 for none.
        lease_ms: The lease of the signal (ms).
        until_ms: The end of the lease, by the receiver's clock (ms).
        origin_per_s: The emission rate when the throttling began (records/s); None if nothing was
            emitted then, or the level is 0.
    """

    sender: str
    epoch: Epoch
    sequence: int
    level: float
    lease_ms: int
    until_ms: int
    origin_per_s: float | None


class SignalOutcome(StrEnum):
    """Outcome of a signal. The values are shown to users."""

    THROTTLES = "throttles"
    """The signal sets a rate limit, as soon as there is a rate to start from."""
    FREE = "free"
    """Its sender no longer throttles."""
    STALE = "ignored: a newer one of the same run is known"
    """The signal's sequence number is not above the last signal's of the same run."""
    STALE_EPOCH = "ignored: of an earlier run of its sender"
    """The signal's epoch is older than the last signal's, whose lease is not over."""


class UpstreamThrottle:
    """Limits a stage's emission under the pressure of all stages directly after it.

    Each downstream stage has its own origin and level; the strictest limit is in force, and the
    stage is free when no limit remains. A level that jumps after lost signals is applied unchanged.
    A stage that emits nothing has no origin and no limit until it emits.

    A signal holds for its lease, from its application; then its sender no longer throttles, without
    any signal. If another signal comes within one more lease, the first origin still counts: by
    then the stage's emission is not yet the emission of a free stage.

    Within one run of a sender, an older signal never counts. Nor does a signal of an earlier run
    during the lease of a later run's. After the lease it counts, because the clock of the sender's
    machine may have been set back, or the later run may have been forged.

    Time is an argument (ms, from any one beginning, never going back).

    Args:
        flow: The flow's name.
        stage: This stage.
        downstreams: The stages directly after it.
        settings: The settings, used for the step only: the lease is the sender's.
    """

    def __init__(
        self, flow: str, stage: str, downstreams: Iterable[str], settings: HopSettings
    ) -> None:
        self._flow = flow
        self._stage = stage
        self._downstreams = frozenset(downstreams)
        self._step = settings.step
        self._states: dict[str, PressureState] = {}

    def apply(
        self, signal: PressureSignal, time_ms: int, present_rate_per_s: float | None
    ) -> SignalOutcome:
        """Apply a signal; signals may come in any order, any number of times.

        Args:
            signal: The signal.
            time_ms: Now.
            present_rate_per_s: The measured recent emission of this stage (records/s), not its
                estimator's rate. None (unknown) or 0: no limit until a signal comes again with a
                rate.

        Raises:
            OptionError: The signal is for another flow or stage, or its sender is not directly
                after this stage.
        """
        self._require_ours(signal)
        state = self._states.get(signal.sender)
        if state is not None:
            if signal.epoch < state.epoch and time_ms < state.until_ms:
                return SignalOutcome.STALE_EPOCH
            if signal.epoch == state.epoch and signal.sequence <= state.sequence:
                return SignalOutcome.STALE
        origin_per_s = None
        if signal.level > 0:
            if state is not None and time_ms < state.until_ms + state.lease_ms:
                origin_per_s = state.origin_per_s
            if origin_per_s is None and present_rate_per_s is not None and present_rate_per_s > 0:
                origin_per_s = present_rate_per_s
        self._states[signal.sender] = PressureState(
            signal.sender,
            signal.epoch,
            signal.sequence,
            signal.level,
            signal.lease_ms,
            time_ms + signal.lease_ms,
            origin_per_s,
        )
        return SignalOutcome.THROTTLES if signal.level > 0 else SignalOutcome.FREE

    def rate_limit(self, time_ms: int) -> RateLimit | None:
        """Return the limit on emission at this time; None for no limit.

        Ties go to the stage whose name comes first.
        """
        limits = [
            RateLimit(
                state.origin_per_s * self._step**state.level,
                state.sender,
                state.level,
                state.origin_per_s,
            )
            for state in self._states.values()
            if state.level > 0 and state.origin_per_s is not None and time_ms < state.until_ms
        ]
        return min(limits, key=lambda limit: (limit.rate_per_s, limit.throttled_by), default=None)

    def expire(self, time_ms: int) -> list[str]:
        """Return the senders whose lease has ended since the last call, for the log.

        `rate_limit` ignores these senders even without this call.
        """
        ended = [
            state
            for state in self._states.values()
            if state.level > 0 and time_ms >= state.until_ms
        ]
        for state in ended:
            self._states[state.sender] = replace(state, level=0.0)
        return sorted(state.sender for state in ended)

    def states(self) -> list[PressureState]:
        """Return the last signal of each sender, by name; a restart continues with these states."""
        return [self._states[sender] for sender in sorted(self._states)]

    def restore(self, states: Iterable[PressureState], time_ms: int) -> None:
        """Continue with the states of an earlier run of this stage; their leases restart now.

        So a stage that restarts while it is throttled keeps its origin. A stage whose sender died
        meanwhile is free after a lease.

        Raises:
            OptionError: A sender is not directly after this stage.
        """
        for state in states:
            if state.sender not in self._downstreams:
                raise OptionError(
                    f"A pressure state to restore is of {state.sender!r}; the stages after"
                    f" {self._stage!r} are {self._names()}, so restore only theirs."
                )
            self._states[state.sender] = replace(state, until_ms=time_ms + state.lease_ms)

    def _require_ours(self, signal: PressureSignal) -> None:
        if (signal.flow, signal.receiver) != (self._flow, self._stage):
            raise OptionError(
                f"A signal is for stage {signal.receiver!r} of flow {signal.flow!r}; this is stage"
                f" {self._stage!r} of flow {self._flow!r}, which applies only its own."
            )
        if signal.sender not in self._downstreams:
            raise OptionError(
                f"A signal comes from stage {signal.sender!r}; stage {self._stage!r} applies only"
                f" those of the stages directly after it, which are {self._names()}."
            )

    def _names(self) -> str:
        return ", ".join(repr(name) for name in sorted(self._downstreams)) or "none"
