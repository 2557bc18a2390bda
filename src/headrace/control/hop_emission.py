"""The law of backpressure on the side of the stage that is pressed: what it may emit."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from headrace.control.assertion import Epoch, PressureSignal
from headrace.control.hop_settings import HopSettings
from headrace.errors import OptionError


class SignalOutcome(StrEnum):
    """What became of a signal. The values are what users are shown."""

    THROTTLES = "held"
    """It presses: there is a bound, once there is a rate to begin from."""
    FREE = "free"
    """It does not press, or no longer."""
    STALE = "ignored: a newer one of the same run is known"
    """Its sequence is not above the last one's."""
    STALE_EPOCH = "ignored: of an earlier run of its sender"
    """Its epoch is older than the last one's, whose lease is not over."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What a stage may emit at most.

    Attributes:
        rate_per_s: The bound (records/s).
        throttled_by: The stage after it whose pressure this is: of several, the strictest.
        level: That stage's level.
        origin_per_s: The rate from before it pressed (records/s).
    """

    rate_per_s: float
    throttled_by: str
    level: float
    origin_per_s: float

    def applied_to(self, rate_per_s: float | None) -> float:
        """The rate to plan with, where another one (records/s) or none is in force too."""
        return self.rate_per_s if rate_per_s is None else min(rate_per_s, self.rate_per_s)


@dataclass(frozen=True, slots=True)
class PressureState:
    """What one stage asserted last, as plain values that can be stored.

    Attributes:
        sender: The stage that presses, or pressed.
        epoch: The run of it that was heard last.
        sequence: The last sequence of that run that was heard.
        level: The level in force; 0 for none.
        lease_ms: How long it holds from when it was heard.
        until_ms: Up to when it holds, by the receiver's clock.
        origin_per_s: The emission rate when it began to press (records/s); None where nothing was
            emitted then, or it let go.
    """

    sender: str
    epoch: Epoch
    sequence: int
    level: float
    lease_ms: int
    until_ms: int
    origin_per_s: float | None


class UpstreamThrottle:
    """Holds a stage's emission under the pressure of all stages directly after it.

    The first level above 0 that a downstream stage asserts remembers the rate at which this stage
    emits: its origin. Under a level the bound is ``origin * step ** level``; at level 0 there is
    none. Each downstream stage has its own origin and level; the least bound is in force, and the
    stage is free when none is left. A level that jumps, because messages were lost, is taken as it
    is. What emits nothing has no origin and no bound until it emits.

    A signal holds for its lease, from when it was obeyed; then its stage is free of it, without
    any message. Where that was only because messages were lost, and another one comes within one
    more lease, the origin is still the one from before: the rate that is emitted then is not yet
    what a free stage emits.

    Of one run of a sender what is older than what was heard never counts again. Nor does anything
    of an earlier run, while the lease of what a later one said lasts; then it does, for the clock
    of the sender's machine may have been set back, or the later run may have been nobody's.

    Time is an argument (ms, from any one beginning, never going back).

    Args:
        flow: The flow's name.
        stage: This stage.
        downstreams: The stages directly after it.
        settings: Of which only the step counts here: the lease is the sender's.
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
        """Take a signal into account.

        Args:
            signal: What came, in whatever order, however often.
            time_ms: Now.
            present_rate_per_s: What this stage has really been emitting lately (records/s), which
                is not its estimator's bound; None where it is not known, and then, as when it is 0,
                a signal gives no bound until one comes again with a rate.

        Returns:
            What became of it.

        Raises:
            OptionError: It is another flow's or is addressed to another stage, or its sender is not
                directly after this one.
        """
        self._refuse_a_stranger(signal)
        known = self._states.get(signal.sender)
        if known is not None:
            if signal.epoch < known.epoch and time_ms < known.until_ms:
                return SignalOutcome.STALE_EPOCH
            if signal.epoch == known.epoch and signal.sequence <= known.sequence:
                return SignalOutcome.STALE
        origin_per_s = None
        if signal.level > 0:
            if known is not None and time_ms < known.until_ms + known.lease_ms:
                origin_per_s = known.origin_per_s
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
        """What may be emitted at most at this time; None for no bound of ours.

        Of equal bounds, the one of the stage whose name comes first.
        """
        if not self._states:
            return None
        bounds = [
            RateLimit(
                pressure.origin_per_s * self._step**pressure.level,
                pressure.sender,
                pressure.level,
                pressure.origin_per_s,
            )
            for pressure in self._states.values()
            if pressure.level > 0
            and pressure.origin_per_s is not None
            and time_ms < pressure.until_ms
        ]
        return min(bounds, key=lambda bound: (bound.rate_per_s, bound.throttled_by), default=None)

    def expire(self, time_ms: int) -> list[str]:
        """The stages whose pressure has ended by itself since the last call, to be told of.

        `bound` does without them whether this is called or not.
        """
        ended = [
            pressure
            for pressure in self._states.values()
            if pressure.level > 0 and time_ms >= pressure.until_ms
        ]
        for pressure in ended:
            self._states[pressure.sender] = replace(pressure, level=0.0)
        return sorted(pressure.sender for pressure in ended)

    def states(self) -> list[PressureState]:
        """What was heard last of each stage, by their names: what a restart goes on with."""
        return [self._states[sender] for sender in sorted(self._states)]

    def restore(self, pressures: Iterable[PressureState], time_ms: int) -> None:
        """Go on with what an earlier run of this stage had heard; its leases begin anew now.

        So a stage that restarts while it is held keeps its origin, and one whose downstream died
        meanwhile is free after a lease.

        Raises:
            OptionError: One of them is of a stage that is not directly after this one.
        """
        for pressure in pressures:
            if pressure.sender not in self._downstreams:
                raise OptionError(
                    f"A pressure to restore is {pressure.sender!r}'s; the stages after"
                    f" {self._stage!r} are {self._names()}, so restore only theirs."
                )
            self._states[pressure.sender] = replace(pressure, until_ms=time_ms + pressure.lease_ms)

    def _refuse_a_stranger(self, signal: PressureSignal) -> None:
        if (signal.flow, signal.receiver) != (self._flow, self._stage):
            raise OptionError(
                f"A signal is for stage {signal.receiver!r} of flow {signal.flow!r}; this"
                f" is stage {self._stage!r} of flow {self._flow!r}, which obeys only its own."
            )
        if signal.sender not in self._downstreams:
            raise OptionError(
                f"A signal comes from stage {signal.sender!r}; stage {self._stage!r} obeys"
                f" only those directly after it, which are {self._names()}."
            )

    def _names(self) -> str:
        return ", ".join(repr(name) for name in sorted(self._downstreams)) or "none"
