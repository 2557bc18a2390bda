"""What a stage says to one stage before it: how much pressure it puts on it, and for how long."""

import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import OptionError

MAX_LEVEL: Final = 20
"""The highest level: with the usual step of a half, a millionth of the origin rate is left."""

MAX_LEASE_MS: Final = 600_000
"""The longest lease (ms): no assertion, not even a forged one, can hold a stage for longer."""

MAX_CLOCK_AHEAD_MS: Final = 24 * 3_600_000
"""How far the clock of another machine may be ahead: clocks that are a day off are seen, and what
they say counts; what says that it is later than that is nobody's."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One run of a stage; of two, the newer is the larger.

    Attributes:
        started_ms: When it started, by the clock of its machine (milliseconds since the epoch).
        id: What tells it from another that started in the same millisecond; a name as those of
            stages.

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
    """The level at which one stage presses another, until its lease is over.

    It carries the level itself, not a change of it, so it may come twice, late, out of order or not
    at all: the newest one that came says all there is to know.

    Attributes:
        flow: The flow's name.
        sender: The stage that presses.
        receiver: The stage that is to slow down, directly before it.
        epoch: The sender's run.
        sequence: The place among what this run of the sender says to this receiver; 0 or more.
        level: How hard: 0, free, to `MAX_LEVEL`; in steps, of which a part may be one too.
        lease_ms: How long it holds from when it is received, unless it is asserted again; 1 to
            `MAX_LEASE_MS`.

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
        require_name("The flow of an assertion", self.flow)
        require_name("The sender of an assertion", self.sender)
        require_name("The receiver of an assertion", self.receiver)
        if not isinstance(self.epoch, Epoch):
            raise OptionError(
                f"The epoch of an assertion is {self.epoch!r}; it must be a value of Epoch."
            )
        require_whole("The sequence of an assertion", self.sequence, 0)
        require_level("The level of an assertion", self.level)
        require_whole("The lease of an assertion, in ms,", self.lease_ms, 1, MAX_LEASE_MS)


def require_possible(assertion: PressureSignal, now_ms: int) -> None:
    """Refuse what no run of a stage can have said by now.

    Args:
        assertion: What came.
        now_ms: Now, by the clock of this machine (milliseconds since the epoch).

    Raises:
        OptionError: Its sender would begin later than clocks can differ, or have said more than
            one thing in each millisecond since.
    """
    latest_ms = now_ms + MAX_CLOCK_AHEAD_MS
    started_ms = assertion.epoch.started_ms
    if started_ms > latest_ms:
        raise OptionError(
            f"It says that its sender began at {started_ms} ms, which is in the future by more than"
            " a day; set the clocks of the stages' machines."
        )
    if assertion.sequence > latest_ms - started_ms:
        raise OptionError(
            f"Its sequence is {assertion.sequence}; nobody has said so much since {started_ms} ms."
        )


def require_name(what: str, value: object) -> None:
    """Refuse what cannot be the name of a flow or a stage.

    Raises:
        OptionError: It is not 1 to 100 letters, digits, ``.``, ``_`` or ``-``.
    """
    if not (isinstance(value, str) and _NAME.fullmatch(value)):
        raise OptionError(
            f"{what} is {value!r}; it must be 1 to 100 letters, digits, '.', '_' or '-'."
        )


def require_level(what: str, value: object) -> None:
    """Refuse what cannot be a level.

    Raises:
        OptionError: It is no finite number from 0 to `MAX_LEVEL`.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_LEVEL:
        raise OptionError(f"{what} is {value!r}; it must be a number from 0 to {MAX_LEVEL}.")


def require_whole(
    what: str, value: object, least: int, most: int | None = None, *, unit: str = ""
) -> None:
    """Refuse what is no whole number within these bounds.

    Raises:
        OptionError: It names the number, with its unit if it has one, and what is allowed.
    """
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or value < least
        or (most is not None and value > most)
    ):
        shown = f"{value!r} {unit}" if unit else repr(value)
        allowed = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise OptionError(f"{what} is {shown}; it must be a whole number {allowed}.")
