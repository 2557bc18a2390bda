"""What the stages of a flow tell each other, whatever carries it."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from headrace.control.pressure import MAX_LEASE_MS, PressureSignal, require_level
from headrace.control.validation import require_name, require_whole
from headrace.errors import OptionError


@dataclass(frozen=True, slots=True)
class StageState:
    """How a stage fares, for everybody to see.

    Attributes:
        flow: The flow's name.
        stage: The stage's.
        held_by: The stage directly after it whose pressure is in force; None while it is free.
        level: How hard that one presses, above 0 to `MAX_LEVEL`; 0 while it is free.
        rate_bound_per_s: What it may emit under that pressure (records/s); None while it is free,
            or emits nothing of which there could be a part.
        queue_bytes: What waits on its incoming channels; None where that is not known.
        lease_ms: How long this holds unless it is published again; 1 to `MAX_LEASE_MS`.
        without: A stage directly before it that does not run, so that nothing comes from there;
            None while all of them do.

    Raises:
        OptionError: A value is out of its range, of the wrong type, or does not go with another.
    """

    flow: str
    stage: str
    held_by: str | None
    level: float
    rate_bound_per_s: float | None
    queue_bytes: int | None
    lease_ms: int
    without: str | None = None

    def __post_init__(self) -> None:
        require_name("The flow of a stage's state", self.flow)
        if self.without is not None:
            require_name("What does not run before a stage", self.without)
        require_name("The stage of a stage's state", self.stage)
        if self.held_by is not None:
            require_name("What holds a stage back", self.held_by)
        require_level("The level of a stage's state", self.level)
        bound, queue = self.rate_bound_per_s, self.queue_bytes
        if bound is not None and not (_is_number(bound) and 0 <= bound < math.inf):
            raise OptionError(
                f"The rate bound of a stage's state is {bound!r} records/s; it must be a finite"
                " number of 0 or more, or None."
            )
        if queue is not None and not (_is_whole(queue) and queue >= 0):
            raise OptionError(
                f"The queue of a stage's state is {queue!r} bytes; it must be a whole number of 0"
                " or more, or None."
            )
        require_whole("The lease of a stage's state", self.lease_ms, 1, MAX_LEASE_MS, unit="ms")
        is_free = self.held_by is None
        if is_free != (self.level == 0) or (is_free and bound is not None):
            raise OptionError(
                f"The state of stage {self.stage!r} is level {self.level!r}, held by"
                f" {self.held_by!r}, with a rate bound of {bound!r}; a free stage has level 0 and"
                " no bound, and one that is held back has a level."
            )


class Signals(Protocol):
    """One stage's part in the signals of its flow.

    Its methods can be called from any thread, and none of them waits for whatever carries the
    signals, `states` excepted, and `receive` if it is asked to. While the carrier is away nothing
    is lost that still counts: of every pair of stages the newest assertion is kept, until it is
    delivered or its lease is over, and is delivered once the carrier is back. Nothing that is found
    there is believed before it is checked; what is not as it should be is told once and removed.
    """

    def send(self, assertion: PressureSignal) -> None:
        """Have the newest assertion to a stage delivered, instead of one that still waits for it.

        Raises:
            OptionError: It is another flow's, or another stage's.
            SignalError: These signals are closed.
        """

    def receive(self, wait_s: float = 0) -> list[PressureSignal]:
        """What has come since the last call: of each stage that presses this one, the newest.

        Each assertion comes once; one that is overtaken by a newer one before this is called does
        not come at all.

        Args:
            wait_s: How long to wait for something if nothing is there; closing ends the wait.
        """

    def publish(self, state: StageState) -> None:
        """Show everybody how this stage fares, instead of what was shown before.

        Raises:
            OptionError: It is another flow's, or another stage's.
            SignalError: These signals are closed.
        """

    def states(self, names: Collection[str] | None = None) -> Mapping[str, StageState]:
        """How the stages of the flow fare, by name: those that have published within their lease.

        It is read anew at every call, at a cost that grows with the number of stages asked for.
        While the carrier is away it is what was known last, less whose lease has ended.

        Args:
            names: Which stages; None for all, which is meant for those who look on.
        """

    @property
    def is_connected(self) -> bool:
        """Whether what carries the signals answers at present."""

    def close(self) -> None:
        """Deliver what can still be delivered at once, and take this stage's state back."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_raised: object) -> None: ...


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
