"""What carries the signals of one stage: ZooKeeper, the ledger, or a test's memory."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.control.pressure import PressureSignal
from headrace.errors import SignalError
from headrace.flow.signals.codec import StageState

CLOCK_SLACK_MS: Final = 1_000
"""How far in the future something may seem to have been written, as clocks are read."""


class UnreachableError(SignalError):
    """The transport does not answer; whatever was asked of it must be asked again."""


@dataclass(frozen=True, slots=True)
class RawSignal:
    """Something that a stage seems to have written; nothing of it is checked yet.

    Attributes:
        stage: Whose it is, by the place where it was found.
        text: What it says.
        age_ms: How long ago it was written, by the transport's own clock: the clocks of the
            stages' machines may differ by any amount.
        version: What the transport needs to delete this one, and no later one in its place.
        fault: Why it must not be believed, whatever it says; None if nothing speaks against it.
    """

    stage: str
    text: str | bytes
    age_ms: int
    version: Any
    fault: str | None = None

    def is_current(self, lease_ms: int) -> bool:
        """Whether this lease is not over.

        What seems to come from the future is not current either, for the clock was set back: a
        stage that runs soon says it again, and one that does not would throttle others until then.
        """
        return -CLOCK_SLACK_MS <= self.age_ms < lease_ms


class Transport(Protocol):
    """Where one stage writes its signals, and reads those of others.

    Each method raises `UnreachableError` if the transport does not answer, and `SignalError` if it
    answers with a refusal. A call may block for a few seconds.
    """

    poll_interval_s: float
    """How often to poll without being woken."""

    @property
    def is_connected(self) -> bool:
        """Whether it answers at present."""

    @property
    def session(self) -> object:
        """Where this changes, what was written before may be lost."""

    def start(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, from any thread, whenever there is a reason to poll."""

    def put(self, item: PressureSignal | StageState) -> None:
        """Write a signal for its receiver, or publish a state; it replaces the one before."""

    def poll(self) -> Sequence[RawSignal]:
        """What others have written for this stage."""

    def remove(self, found: RawSignal) -> None:
        """Delete what was found, unless something else stands in its place by now."""

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        """What the stages of these names publish; all stages of the flow where none are given."""

    def stop(self) -> None:
        """Withdraw this stage's state, and wake nobody any more."""
