"""The receiver's side of the law of backpressure: the emission that signals allow a stage.

Its law, and the sender's side, is `headrace.control.hop`.
"""

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from headrace.control.pressure import (
    HopSettings,
    PressureSignal,
    PressureState,
    RateLimit,
)
from headrace.errors import OptionError


class SignalOutcome(StrEnum):
    """Outcome of a signal. The values are shown to users."""

    THROTTLES = "throttles"
    """There is a rate limit, once there is a rate to start from."""
    FREE = "free"
    """Its sender throttles no longer."""
    STALE = "ignored: a newer one of the same run is known"
    """Its sequence is not above the last one's."""
    STALE_EPOCH = "ignored: of an earlier run of its sender"
    """Its epoch is older than the last one's, whose lease is not over."""


class UpstreamThrottle:
    """Limits a stage's emission under the pressure of all stages directly after it.

    Each stage after it has its own origin and level; the strictest limit is in force, and the stage
    is free when none is left. A level that jumps, because signals were lost, is taken as it is. A
    stage that emits nothing has no origin and no limit until it emits.

    A signal holds for its lease, from when it was applied; then its sender throttles no longer,
    without any signal. If another one comes within one more lease, the origin is still the first
    one: the stage's emission by then is not yet that of a free stage.

    Within one run of a sender, an older signal never counts. Nor does a signal of an earlier run
    during the lease of a later run's; after that it does, for the clock of the sender's machine may
    have been set back, or the later run may have been forged.

    Time is an argument (ms, from any one beginning, never going back).

    Args:
        flow: The flow's name.
        stage: This stage.
        downstreams: The stages directly after it.
        settings: Only the step counts here: the lease is the sender's.
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
        """Take a signal into account; in any order, any number of times.

        Args:
            signal: The signal.
            time_ms: Now.
            present_rate_per_s: The measured recent emission of this stage (records/s), not its
                estimator's rate. None (unknown) or 0: no limit until a signal comes again with a
                rate.

        Raises:
            OptionError: It is for another flow or stage, or its sender is not directly after this
                one.
        """
        self._require_ours(signal)
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
        """The senders whose lease has ended since the last call, to be logged.

        `rate_limit` ignores them whether this is called or not.
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
        """The last signal of each sender, by their names; a restart continues with them."""
        return [self._states[sender] for sender in sorted(self._states)]

    def restore(self, states: Iterable[PressureState], time_ms: int) -> None:
        """Go on with the states of an earlier run of this stage; their leases restart now.

        So a stage that restarts while it is throttled keeps its origin, and one whose sender died
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
