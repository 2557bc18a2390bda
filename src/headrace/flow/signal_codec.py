"""Published states of stages, JSON encoding of states and signals, and the `Transport` interface.

Decoding is strict: every received text is checked before it is used.
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
"""Maximum size of a text that is decoded (bytes). Stages write texts of at most half this size."""

MOST_UPSTREAM: Final = 10
"""Maximum number of upstream stages in a published state. If a stage has more upstream stages, the
state has the first of them in order of their names."""

_INTEGER_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class StageState:
    """State that a stage publishes for its neighbours and for operators.

    Attributes:
        flow: The flow's name.
        stage: The stage's name.
        throttled_by: The downstream stage that throttles this stage; None without throttling.
        throttle_level: The throttle level, above 0 to `MAX_LEVEL`; 0 without throttling.
        rate_limit_per_s: The stage's rate limit (records/s); None without throttling, or while the
            stage emits no records.
        queue_bytes: The size of the waiting input (bytes); None if unknown.
        lease_ms: The time for which this state is valid (ms); 1 to `MAX_LEASE_MS`.
        missing_upstream: An upstream stage that does not run; None while all upstream stages run.
        upstream: The stages directly before this stage, at most `MOST_UPSTREAM`.
        throttled_since_ms: The time when the throttling began (ms since the epoch, by this stage's
            own clock); None without throttling.

    Raises:
        OptionError: A value is out of its range, of the wrong type, or contradicts another value.
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
            require_name("A missing upstream stage", self.missing_upstream)
        if not isinstance(self.upstream, tuple) or len(self.upstream) > MOST_UPSTREAM:
            raise OptionError(
                f"The upstream stages of {self.stage!r} must be a tuple of at most {MOST_UPSTREAM}"
                " names."
            )
        for name in self.upstream:
            require_name("An upstream stage", name)
        if self.throttled_by is not None:
            require_name("The stage that throttles a stage", self.throttled_by)
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
                f"The state of stage {self.stage!r} has the throttle level {self.throttle_level!r},"
                f" throttled by {self.throttled_by!r}, with the rate limit {limit!r}; a stage that"
                " is not throttled must have the level 0 and the limit None, and a throttled stage"
                " a level above 0."
            )


def bottlenecks(states: Iterable[StageState]) -> list[str]:
    """Return the sorted names of the stages that throttle others and are not throttled.

    These stages need an operator's attention, because a throttled stage only passes pressure on. A
    stage that stopped is in the result for at most one lease.
    """
    states = list(states)
    free = {state.stage for state in states if state.throttled_by is None}
    throttling = {state.throttled_by for state in states if state.throttled_by is not None}
    return sorted(throttling & free)


def encode(value: PressureSignal | StageState) -> str:
    """Encode a signal or a state as ASCII text."""
    return json.dumps(asdict(value), allow_nan=False)


def decode_signal(text: str | bytes) -> PressureSignal:
    """Decode a signal; raise `OptionError` if the text is not a valid signal."""
    values = _object(text, PressureSignal)
    values["epoch"] = Epoch(**_checked(values["epoch"], Epoch))
    return PressureSignal(**values)


def decode_state(text: str | bytes) -> StageState:
    """Decode a state; raise `OptionError` if the text is not a valid state."""
    values = _object(text, StageState)
    if isinstance(values.get("upstream"), list):
        values["upstream"] = tuple(values["upstream"])
    return StageState(**values)


def _object(text: str | bytes, kind: type[Any]) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise OptionError(f"A signal has {len(text)} bytes; at most {MAX_BYTES} are allowed.")
    try:
        values = json.loads(
            text if isinstance(text, str) else text.decode("ascii"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise OptionError(
            "It is not JSON in ASCII with unique keys and numbers of at most 64 bits."
        ) from error
    return _checked(values, kind)


def _checked(found: object, kind: type[Any]) -> dict[str, Any]:
    """Return a decoded JSON object if its keys are the fields of the dataclass ``kind``.

    Raise OptionError if a required field is missing or a key is unknown.
    """
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(found, dict) or not needed <= found.keys() <= names:
        raise OptionError(f"It is not a JSON object with the keys {', '.join(sorted(names))}.")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name comes twice")
    return values


def _integer(digits: str) -> int:
    number = int(digits)
    if abs(number) >= _INTEGER_LIMIT:
        raise ValueError("a number of more than 64 bits")
    return number


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CLOCK_SLACK_MS: Final = 1_000
"""Maximum time by which a signal's write may seem to be in the future (ms)."""


class UnreachableError(SignalError):
    """The transport does not respond, so the caller must repeat the call later."""


@dataclass(frozen=True, slots=True)
class RawSignal:
    """Text of a signal or a state as a transport received it, before any check."""

    stage: str
    """Name of the stage that wrote the text, taken from the row or the node."""
    text: str | bytes
    """Encoded signal or state."""
    age_ms: int
    """Time since the text was written (ms), by the transport's own clock, because the clocks of the
    stages' machines may differ by any amount."""
    fault: str | None = None
    """Reason to ignore the text, found by the transport; None if it found no fault."""

    def is_current(self, lease_ms: int) -> bool:
        """Whether a lease of ``lease_ms`` that began when the text was written is still valid.

        A text that seems to come from the future is not current: the transport's clock was set back
        after the write. Otherwise the text of a stopped stage would throttle other stages until
        that future time. A running stage soon writes a new text.
        """
        return -CLOCK_SLACK_MS <= self.age_ms < lease_ms


class Transport(Protocol):
    """Medium through which stages write their signals and states, and read each other's.

    Implementations use the ledger's database, ZooKeeper, and, in tests, memory; the same tests run
    with each of them. Each call raises `UnreachableError` if the medium does not respond, and
    `SignalError` if it refuses the call. A call may block for a few seconds.
    """

    poll_interval_s: float
    """Interval at which a stage polls for signals (s). A call of `wake` causes an earlier poll."""

    wake: Callable[[], None]
    """Callback that the transport calls, from any thread, when signals may have arrived. `Signals`
    sets this callback."""

    @property
    def is_connected(self) -> bool:
        """Whether the medium responds at present."""

    @property
    def session(self) -> object:
        """Identity of the connection's session. Writes in an earlier session may be lost."""

    def publish(self, state: StageState | None) -> None:
        """Replace the state that this stage has published; None deletes it."""

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        """Return the published states of the named stages. Default: all stages of the flow."""

    def send(self, signal: PressureSignal) -> None:
        """Write a signal for its receiver, in place of the last signal from this stage to it."""

    def receive(self) -> Sequence[RawSignal]:
        """Return the signals for this stage, and try to delete them from the medium."""
