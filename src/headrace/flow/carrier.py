"""What carries the signals of one stage: ZooKeeper, or the ledger's database."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.control.pressure import PressureSignal
from headrace.errors import SignalError
from headrace.flow.signals import StageState

SLACK_MS: Final = 1_000
"""How far in the future something may seem to have been written, as clocks are read."""


class AwayError(SignalError):
    """The carrier does not answer; whatever was asked of it is to be asked again."""


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a stage seems to have written; nothing of it is checked yet.

    Attributes:
        stage: Whose it is, by the place where it was found.
        text: What it says.
        age_ms: How long ago it was written, by the carrier's own clock: those of the stages'
            machines may differ as they like.
        mark: What the carrier needs to delete this one, and no later one in its place.
        fault: Why it is not to be believed, whatever it says; None if nothing speaks against it.
    """

    stage: str
    text: str | bytes
    age_ms: int
    mark: Any
    fault: str | None = None

    def counts(self, lease_ms: int) -> bool:
        """Whether this lease is not over.

        Nor does anything count that was written in the future, which is so after the clock was set
        back: who lives says it anew soon, and who does not would hold others until then.
        """
        return -SLACK_MS <= self.age_ms < lease_ms


class Carrier(Protocol):
    """Where one stage leaves what it says, and finds what others have left for it.

    Each method raises `AwayError` if the carrier does not answer, and `SignalError` if it does, but
    refuses. It waits a few seconds at most, so it is called from a thread that may wait.
    """

    look_every_s: float
    """How often to look for what has come, without being woken."""

    @property
    def is_connected(self) -> bool:
        """Whether it answers at present."""

    @property
    def session(self) -> object:
        """Where this changes, what was left or shown before may be lost."""

    def begin(self, wake: Callable[[], None]) -> None:
        """Have this called, from any thread, whenever there is a reason to look."""

    def put(self, item: PressureSignal | StageState) -> None:
        """Leave an assertion for its receiver, or show a state; in place of the one before."""

    def look(self) -> Sequence[Found]:
        """What others have left for this stage."""

    def drop(self, found: Found) -> None:
        """Delete what was found, unless something else stands in its place by now."""

    def states(self, names: Collection[str] | None = None) -> Sequence[Found]:
        """What the stages of these names show; all stages of the flow where none are given."""

    def end(self) -> None:
        """Show this stage's state no more, and wake nobody any more."""
