"""States that stages publish, and their codec, which is that of signals, too.

The codec is strict JSON: every text is checked before it is believed.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final, NoReturn, Protocol

from headrace.core.options import require_name, require_whole
from headrace.errors import OptionError, SignalError
from headrace.gate import MAX_LEASE_MS, Epoch, PressureSignal, require_level

MAX_BYTES: Final = 4096
"""Longest text that is decoded (bytes). Texts of stages have a half of it at most."""

MOST_UPSTREAM: Final = 10
"""Stages before a stage that its state names; beyond it the first ones by name."""

_INTEGER_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class StageState:
    """State of a stage, for everybody to see.

    Attributes:
        throttled_by: The stage directly after it whose pressure is in force; None while it is free.
        throttle_level: How hard that one throttles it, above 0 to `MAX_LEVEL`; 0 while it is free.
        rate_limit_per_s: What it may emit under that pressure (records/s); None while it is free,
            or emits nothing of which there could be a part.
        queue_bytes: What waits on its input channel; None where that is not known.
        lease_ms: How long this holds unless it is published again; 1 to `MAX_LEASE_MS`.
        missing_upstream: A stage directly before it that does not run, so that nothing comes from
            there; None while all of them run.
        upstream: The stages directly before it, `MOST_UPSTREAM` of them at most.
        throttled_since_ms: Since when that stage throttles it, by the stage's own clock (ms since
            the epoch); None while it is free.

    Raises:
        OptionError: A value is out of its range, of the wrong type, or contradicts another.
    """

    flow: str
    stage: str
    throttled_by: str | None
    throttle_level: float
    rate_limit_per_s: float | None
    queue_bytes: int | None
    lease_ms: int
    missing_upstream: str | None = None
    upstream: tuple[str, ...] = ()
    throttled_since_ms: int | None = None

    def __post_init__(self) -> None:
        require_name("The flow of a stage's state", self.flow)
        require_name("The stage of a stage's state", self.stage)
        if self.missing_upstream is not None:
            require_name("What does not run before a stage", self.missing_upstream)
        if not isinstance(self.upstream, tuple) or len(self.upstream) > MOST_UPSTREAM:
            raise OptionError(
                f"What is before stage {self.stage!r} must be {MOST_UPSTREAM} names at most."
            )
        for each in self.upstream:
            require_name("A stage before another one", each)
        if self.throttled_by is not None:
            require_name("What throttles a stage", self.throttled_by)
        require_level("The throttle level of a stage's state", self.throttle_level)
        limit, queue = self.rate_limit_per_s, self.queue_bytes
        if limit is not None and not (_is_number(limit) and 0 <= limit < math.inf):
            raise OptionError(
                f"The rate limit of a stage's state is {limit!r} records/s; it must be a finite"
                " number of 0 or more, or None."
            )
        if queue is not None:
            require_whole("The queue of a stage's state", queue, 0, unit="bytes")
        if self.throttled_since_ms is not None:
            require_whole(
                "The start of a stage's throttling", self.throttled_since_ms, 0, unit="ms"
            )
        require_whole("The lease of a stage's state", self.lease_ms, 1, MAX_LEASE_MS, unit="ms")
        is_free = self.throttled_by is None
        if is_free != (self.throttle_level == 0) or (is_free and limit is not None):
            raise OptionError(
                f"The state of stage {self.stage!r} is level {self.throttle_level!r}, throttled by"
                f" {self.throttled_by!r}, with a rate limit of {limit!r}; a free stage has level 0"
                " and no limit, and a throttled one has a level."
            )


def bottlenecks(states: Iterable[StageState]) -> list[str]:
    """The stages that throttle others and are not throttled themselves, by name.

    An operator must look at these: a throttled stage only passes its pressure on, and a stage that
    does not run throttles nobody for longer than a lease.
    """
    states = list(states)
    free = {state.stage for state in states if state.throttled_by is None}
    throttling = {state.throttled_by for state in states if state.throttled_by is not None}
    return sorted(throttling & free)


def encode(value: PressureSignal | StageState) -> str:
    """A signal or a state as text, in ASCII."""
    return json.dumps(asdict(value), allow_nan=False)


def decode_signal(text: str | bytes) -> PressureSignal:
    """The signal that `encode` wrote; `OptionError` says what is wrong with any other text."""
    found = _object(text, PressureSignal)
    found["epoch"] = Epoch(**_checked(found["epoch"], Epoch))
    return PressureSignal(**found)


def decode_state(text: str | bytes) -> StageState:
    """The state that `encode` wrote; `OptionError` says what is wrong with any other text."""
    found = _object(text, StageState)
    if isinstance(found.get("upstream"), list):
        found["upstream"] = tuple(found["upstream"])
    return StageState(**found)


def _object(text: str | bytes, kind: type[Any]) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise OptionError(f"It has {len(text)} bytes; signals have {MAX_BYTES} at most.")
    try:
        found = json.loads(
            text if isinstance(text, str) else text.decode("ascii"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise OptionError(
            "It is not JSON in ASCII with each name once and no number beyond 64 bits."
        ) from error
    return _checked(found, kind)


def _checked(found: object, kind: type[Any]) -> dict[str, Any]:
    """The fields of a value: all that have no default, and no field that it does not have."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(found, dict) or not needed <= found.keys() <= names:
        raise OptionError(f"It must have {', '.join(sorted(names))}, and nothing else.")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _integer(digits: str) -> int:
    number = int(digits)
    if abs(number) >= _INTEGER_LIMIT:
        raise ValueError("a number of more than 64 bits")
    return number


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CLOCK_SLACK_MS: Final = 1_000
"""Greatest time by which a signal may seem to come from the future, as clocks are read (ms)."""


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
        fault: Why it must not be believed, whatever it says; None if nothing speaks against it.
    """

    stage: str
    text: str | bytes
    age_ms: int
    fault: str | None = None

    def is_current(self, lease_ms: int) -> bool:
        """Whether this lease is not over.

        A lease that seems to come from the future is not current either, for the clock was set
        back: a stage that runs soon renews it, and one that does not would throttle others until
        then.
        """
        return -CLOCK_SLACK_MS <= self.age_ms < lease_ms


class Transport(Protocol):
    """Where one stage's signals and state are written, and those of others are read.

    Each call raises `UnreachableError` if the transport does not answer, and `SignalError` if it
    answers with a refusal. A call may block for a few seconds.
    """

    poll_interval_s: float
    """Interval at which to receive without being woken (s)."""

    wake: Callable[[], None]
    """Called, from any thread, whenever there is a reason to receive; set by `Signals`."""

    @property
    def is_connected(self) -> bool:
        """Whether it answers at present."""

    @property
    def session(self) -> object:
        """Identity of the session: if it changes, earlier writes may be lost."""

    def publish(self, state: StageState | None) -> None:
        """Publish this stage's state in the place of the one before; None when the stage ends."""

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        """Return the published states of the stages with these names; None for all of the flow."""

    def send(self, signal: PressureSignal) -> None:
        """Write a signal for its receiver; it replaces the one before."""

    def receive(self) -> Sequence[RawSignal]:
        """Take the signals of others for this stage: they are removed, unless that fails."""
