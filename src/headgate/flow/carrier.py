"""What carries the signals of one stage: ZooKeeper, or the ledger's database."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headgate.control.assertion import Assertion
from headgate.errors import SignalError
from headgate.flow.signals import StageState


class AwayError(SignalError):
    """The carrier does not answer; whatever was asked of it is to be asked again."""


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a stage seems to have written; nothing of it is checked yet.

    Attributes:
        stage: Whose it is, by the place where it was found.
        text: What it says.
        age_ms: How long ago it was written, where the carrier knows.
        mark: What another one, written later in the same place, would have different.
        fault: Why it is not to be believed, whatever it says; None if nothing speaks against it.
    """

    stage: str
    text: str | bytes
    age_ms: int | None
    mark: Any
    fault: str | None = None


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

    def put(self, item: Assertion | StageState) -> None:
        """Leave an assertion for its receiver, or show a state; in place of the one before."""

    def look(self) -> Sequence[Found]:
        """What others have left for this stage."""

    def drop(self, found: Found) -> None:
        """Delete what was found, unless something else stands in its place by now."""

    def states(self) -> Sequence[Found]:
        """What all stages of the flow show."""

    def end(self) -> None:
        """Show this stage's state no more, and wake nobody any more."""
