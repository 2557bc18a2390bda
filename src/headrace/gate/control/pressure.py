"""Pressure signals between the stages of a flow: settings, signals, and the receiver's side.

The receiver is the stage that a signal slows down. `headrace.gate.control.hop` has the law of the
signals, and the code of the sender.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headrace.core.options import require_name, require_number, require_whole
from headrace.errors import OptionError

MAX_LEVEL: Final = 20
"""The highest throttle level. With the default step of 0.5, a millionth of the rate remains."""

MAX_LEASE_MS: Final = 600_000
"""The longest lease of a signal (ms). Even a forged signal cannot throttle a stage for longer."""

MAX_CLOCK_AHEAD_MS: Final = 24 * 3_600_000
"""A sender's clock may be ahead of this machine's clock by at most this time (ms). A signal is
refused if its sender's start is further in the future."""


def require_level(what: str, value: object) -> None:
    """Check a throttle level. ``what`` names the value in the error message.

    Raises:
        OptionError: The value is no finite number from 0 to `MAX_LEVEL`.
    """
    require_number(what, value, most=MAX_LEVEL)


@dataclass(frozen=True, slots=True)
class HopSettings:
    """Settings by which a stage throttles the stages before it: thresholds, times and step.

    Attributes:
        overload_bytes: The stage is overloaded if at least this much waits in its input queue
            (bytes); 1 or more. Default: 50 MB. Too large: the queue fills disks, and its records
            become old. Too small: a few large batches count as an overload. Use several times the
            bytes that arrive in an interval.
        light_load_bytes: The stage has a light load if its newest batch leaves at most this much in
            the queue (bytes); 0 or more, and below ``overload_bytes``. Default: 500 KB. Too large:
            the stages before speed up before the queue is drained. Too small: the stages before
            stay slow for too long.
        overload_sensitivity_ms: Time that an overload must last before the stage sends a signal,
            and the time between further signals (ms); 0 or more. Default: 2000. Too large: the
            queue grows for longer. Too small: a short spike causes throttling. At 0 the stage sends
            a signal at once, and further signals every ``light_load_sensitivity_ms``.
        light_load_sensitivity_ms: Time that a light load must last before the throttle level falls,
            and the time between further falls (ms); 1 or more. Default: 2000. Too large: a flow
            recovers slowly. Shorter than a batch of the stage before: the level falls again before
            the last signal has had a visible effect.
        step: The factor by which each throttle level multiplies the rate; above 0 and below 1.
            Default: 0.5. Small: a flow recovers in a few large steps. Near 1: a flow recovers in
            many small steps.
        lease_ms: Time for which a signal is valid (ms); 1 to 600 000. Signals are repeated every
            third of this time. Default: 10 000. Too large: a stage stays slow for longer after the
            sender has died. Too small: a stage speeds up whenever a signal is late.

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
                f"light_load_bytes ({self.light_load_bytes}) must be below overload_bytes"
                f" ({self.overload_bytes}); lower light_load_bytes or raise overload_bytes."
            )
        is_number = isinstance(self.step, int | float) and not isinstance(self.step, bool)
        if not is_number or not 0 < self.step < 1:
            raise OptionError(
                f"step is {self.step!r}; it must be a number above 0 and below 1, such as 0.5,"
                " because it is the factor of the rate for each throttle level."
            )

    @property
    def overload_spacing_ms(self) -> int:
        """The time between the signals during an overload (ms)."""
        return self.overload_sensitivity_ms or self.light_load_sensitivity_ms

    def levels_between(self, high_per_s: float, low_per_s: float) -> float:
        """Return the number of throttle levels that lower the rate ``high_per_s`` to ``low_per_s``.

        The result is ``log(high / low) / log(1 / step)``; both rates must be above 0.
        """
        return math.log(high_per_s / low_per_s) / -math.log(self.step)


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """The identity of one run of a stage. A later run compares as greater than an earlier run.

    Attributes:
        started_ms: The start of the run, by the clock of the stage's machine (Unix time in ms).
        id: A name that distinguishes runs with the same start time. It may have the same characters
            as a stage's name.

    Raises:
        OptionError: The start is not a whole number of 0 or more, or the id is not a valid name.
    """

    started_ms: int
    id: str

    def __post_init__(self) -> None:
        require_whole("An epoch's start", self.started_ms, 0)
        require_name("An epoch's id", self.id)


@dataclass(frozen=True, slots=True)
class PressureSignal:
    """A message with the throttle level that a stage requests from the stage directly before it.

    A signal contains the level itself, not a change of the level. So signals may be duplicated,
    late, lost or out of order: the receiver only needs the newest signal.

    Attributes:
        flow: The flow's name.
        sender: The name of the overloaded stage.
        receiver: The name of the stage to slow down, directly before the sender.
        epoch: The sender's run.
        sequence: The number of the signal, counted for this epoch and receiver; 0 or more.
        level: The throttle level from 0 (no throttling) to `MAX_LEVEL`; fractions are allowed.
        lease_ms: Time after the receipt for which the signal is valid (ms); 1 to `MAX_LEASE_MS`. A
            repeated signal begins a new lease.

    Raises:
        OptionError: A name is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``, a number is out
        of its range, or a value has the wrong type.
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
        """Check that the signal can have been sent before ``now_ms`` (Unix time in ms).

        Raises:
            OptionError: The sender's start is more than `MAX_CLOCK_AHEAD_MS` in the future, or the
                sequence exceeds one signal for each millisecond since the start.
        """
        latest_ms, started_ms = now_ms + MAX_CLOCK_AHEAD_MS, self.epoch.started_ms
        if started_ms > latest_ms:
            raise OptionError(
                f"The signal says that its sender started at {started_ms} ms, more than a day in"
                " the future; set the clocks of the stages' machines."
            )
        if self.sequence > latest_ms - started_ms:
            raise OptionError(
                f"The signal's sequence is {self.sequence}; a sender that started at"
                f" {started_ms} ms cannot have sent so many signals."
            )


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limit on a stage's emission rate while a downstream stage throttles the stage.

    Attributes:
        rate_per_s: The largest allowed emission rate (records/s).
        throttled_by: The name of the downstream stage that requests the limit. If several stages
            throttle, it is the stage with the lowest limit.
        level: The throttle level that this downstream stage requests.
        origin_per_s: The emission rate before the throttling began (records/s).
    """

    rate_per_s: float
    throttled_by: str
    level: float
    origin_per_s: float

    def applied_to(self, rate_per_s: float | None) -> float:
        """Return the lower of this limit and another rate (records/s); this limit for None."""
        return self.rate_per_s if rate_per_s is None else min(rate_per_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class PressureState:
    """The last signal of one sender and its effect on the receiver, in a form that can be stored.

    Attributes:
        sender: The name of the stage that sent the signal.
        epoch: The sender's run, from its last signal.
        sequence: The sequence of the last signal in that run.
        level: The throttle level in force; 0 for no throttling.
        lease_ms: The lease of the signal (ms).
        until_ms: The end of the lease, by the receiver's clock (ms).
        origin_per_s: The receiver's emission rate when the throttling began (records/s). None if
            the receiver emitted nothing then, or if the level is 0.
    """

    sender: str
    epoch: Epoch
    sequence: int
    level: float
    lease_ms: int
    until_ms: int
    origin_per_s: float | None


class SignalOutcome(StrEnum):
    """Effect of a received pressure signal. The values are shown to users."""

    THROTTLES = "throttles"
    """The signal sets a rate limit, as soon as the receiver's emission rate is known."""
    FREE = "free"
    """The signal has the level 0: its sender no longer throttles the receiver."""
    STALE = "ignored: a newer one of the same run is known"
    """The signal is ignored, because a later signal of the same run has already arrived."""
    STALE_EPOCH = "ignored: of an earlier run of its sender"
    """The signal is ignored, because its sender has already sent a signal in a later run, and the
    lease of that signal has not ended."""


class UpstreamThrottle:
    """The receiver's side of throttling: computes the rate limit of a stage from received signals.

    For each downstream stage, the limit is ``origin * step ** level``. The origin is this stage's
    emission rate when the throttling began. The lowest limit is in force. While this stage emits
    nothing, it has no origin and no limit.

    A signal is valid from its application to the end of its lease. After the lease, its sender no
    longer throttles this stage. If the sender's next signal arrives within one more lease, the old
    origin is used again, because this stage has not yet returned to its full emission rate.

    A signal that is older than the last signal of the same run is ignored. A signal of an earlier
    run is ignored during the lease of a later run's signal. After that lease it is accepted: the
    clock of the sender's machine may have been set back, or the later run may have been forged.

    Methods take the current time as an argument, in ms of any clock that never goes back.

    Args:
        flow: The flow's name.
        stage: The name of this stage.
        downstreams: The names of the stages directly after this stage.
        settings: The settings; only ``step`` is used. The lease comes with each signal.
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
        """Apply a received signal, and return its effect.

        Signals may arrive in any order and more than once.

        Args:
            signal: The received signal.
            time_ms: The current time (ms).
            present_rate_per_s: The measured recent emission rate of this stage (records/s), not the
                rate of its estimator. If it is 0 or None (unknown), a new throttling sets no limit
                until a later signal is applied with a rate.

        Raises:
            OptionError: The signal is for another flow or stage, or its sender is not a stage
                directly after this stage.
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
        """Return the lowest limit on this stage's emission rate; None for no limit.

        Of equal limits, the limit of the sender whose name sorts first is returned.
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
        """Return the names of the senders whose lease has ended since the last call, for the log.

        `rate_limit` ignores expired signals even if this method is never called.
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
        """Return the state of each sender, sorted by name, to be stored for `restore`."""
        return [self._states[sender] for sender in sorted(self._states)]

    def restore(self, states: Iterable[PressureState], time_ms: int) -> None:
        """Continue with the states of an earlier run of this stage. Each lease starts again now.

        So this stage keeps its origin over a restart. If a sender has died meanwhile, its limit
        ends after one lease.

        Raises:
            OptionError: The sender of a state is not a stage directly after this stage.
        """
        for state in states:
            if state.sender not in self._downstreams:
                raise OptionError(
                    f"A pressure state to restore has the sender {state.sender!r}; the stages after"
                    f" {self._stage!r} are {self._names()}, so restore only their states."
                )
            self._states[state.sender] = replace(state, until_ms=time_ms + state.lease_ms)

    def _require_ours(self, signal: PressureSignal) -> None:
        if (signal.flow, signal.receiver) != (self._flow, self._stage):
            raise OptionError(
                f"A signal is for stage {signal.receiver!r} of flow {signal.flow!r}; this is stage"
                f" {self._stage!r} of flow {self._flow!r}, which applies only signals for itself."
            )
        if signal.sender not in self._downstreams:
            raise OptionError(
                f"A signal comes from stage {signal.sender!r}; stage {self._stage!r} applies only"
                f" signals of the stages directly after it, which are {self._names()}."
            )

    def _names(self) -> str:
        return ", ".join(repr(name) for name in sorted(self._downstreams)) or "none"
