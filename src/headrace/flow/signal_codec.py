"""States that stages publish, the codec of states and signals, and the transport's interface.

The codec is strict JSON: every received text is checked before it is used.
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
"""Maximum size of a decoded text (bytes); stages write at most half of this."""

MOST_UPSTREAM: Final = 10
"""Maximum number of upstream stages in a state; of more stages, the first ones by name."""

_INTEGER_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class StageState:
    """Published state of a stage.

    Attributes:
        throttled_by: The downstream stage whose pressure is in force; None without throttling.
        throttle_level: The level of the throttling, above 0 to `MAX_LEVEL`; 0 without throttling.
        rate_limit_per_s: The rate limit of the throttling (records/s); None without throttling, or
            while the stage emits no records.
        queue_bytes: The bytes that wait on the input channel; None if unknown.
        lease_ms: The time for which this state is valid (ms); 1 to `MAX_LEASE_MS`.
        missing_upstream: An upstream stage that does not run; None while all run.
        upstream: The stages directly before this stage, at most `MOST_UPSTREAM`.
        throttled_since_ms: The start of the throttling by the stage's own clock (ms since the
            epoch); None without throttling.

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
            require_name("A missing upstream stage", self.missing_upstream)
        if not isinstance(self.upstream, tuple) or len(self.upstream) > MOST_UPSTREAM:
            raise OptionError(
                f"The upstream stages of {self.stage!r} must be {MOST_UPSTREAM} names at most."
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
                f"The state of stage {self.stage!r} is level {self.throttle_level!r}, throttled by"
                f" {self.throttled_by!r}, with a rate limit of {limit!r}; a free stage has level 0"
                " and no limit, and a throttled one has a level."
            )


def bottlenecks(states: Iterable[StageState]) -> list[str]:
    """Return the names of the stages that throttle others and are not throttled, sorted.

    These stages need an operator's attention: a throttled stage only passes pressure on, and a
    stopped stage throttles others for one lease at most.
    """
    states = list(states)
    free = {state.stage for state in states if state.throttled_by is None}
    throttling = {state.throttled_by for state in states if state.throttled_by is not None}
    return sorted(throttling & free)


def encode(value: PressureSignal | StageState) -> str:
    """Encode a signal or a state as ASCII text."""
    return json.dumps(asdict(value), allow_nan=False)


def decode_signal(text: str | bytes) -> PressureSignal:
    """Decode a signal; `OptionError` if `encode` cannot have written the text."""
    values = _object(text, PressureSignal)
    values["epoch"] = Epoch(**_checked(values["epoch"], Epoch))
    return PressureSignal(**values)


def decode_state(text: str | bytes) -> StageState:
    """Decode a state; `OptionError` if `encode` cannot have written the text."""
    values = _object(text, StageState)
    if isinstance(values.get("upstream"), list):
        values["upstream"] = tuple(values["upstream"])
    return StageState(**values)


def _object(text: str | bytes, kind: type[Any]) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise OptionError(f"It has {len(text)} bytes; signals have {MAX_BYTES} at most.")
    try:
        values = json.loads(
            text if isinstance(text, str) else text.decode("ascii"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        raise OptionError(
            "It is not JSON in ASCII with each name once and no number beyond 64 bits."
        ) from error
    return _checked(values, kind)


def _checked(found: object, kind: type[Any]) -> dict[str, Any]:
    """Return the fields; OptionError if a required field is missing or a field is unknown."""
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(found, dict) or not needed <= found.keys() <= names:
        raise OptionError(f"It must have {', '.join(sorted(names))}, and nothing else.")
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
    raise ValueError(f"{constant} is no JSON")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CLOCK_SLACK_MS: Final = 1_000
"""Tolerated time by which a signal may seem to come from the future (ms)."""


class UnreachableError(SignalError):
    """The transport does not respond; the call must be repeated."""


@dataclass(frozen=True, slots=True)
class RawSignal:
    """Unchecked text of a signal or a state, as a transport received it."""

    stage: str
    """Author, according to the row or node."""
    text: str | bytes
    """Encoded signal or state."""
    age_ms: int
    """Time since the write (ms) by the transport's own clock, because the clocks of the stages'
    machines may differ by any amount."""
    fault: str | None = None
    """Reason to ignore the text; None without one."""

    def is_current(self, lease_ms: int) -> bool:
        """Whether a lease of ``lease_ms`` since the write is still running.

        A text from the future is not current, because the clock was set back. A live stage soon
        renews its lease; a dead stage would throttle others until that future time.
        """
        return -CLOCK_SLACK_MS <= self.age_ms < lease_ms


class Transport(Protocol):
    """Medium with which one stage writes its signals and state, and reads other stages' texts.

    The implementations use the ledger's database, ZooKeeper, and memory in tests; one test suite
    runs over all. Each call raises `UnreachableError` if the medium does not respond, and
    `SignalError` if it refuses. A call may block for a few seconds.
    """

    poll_interval_s: float
    """Interval between polls for signals without a wake-up (s)."""

    wake: Callable[[], None]
    """Callback that the transport calls, from any thread, when signals may have arrived; set by
    `Signals`."""

    @property
    def is_connected(self) -> bool:
        """Whether the medium responds at present."""

    @property
    def session(self) -> object:
        """Identity of the session: after a change, earlier writes may be lost."""

    def publish(self, state: StageState | None) -> None:
        """Replace this stage's published state; None withdraws the state when the stage ends."""

    def states(self, names: Collection[str] | None = None) -> Sequence[RawSignal]:
        """Return the published states of the named stages. Default: all stages of the flow."""

    def send(self, signal: PressureSignal) -> None:
        """Write a signal for its receiver, replacing this stage's previous signal to it."""

    def receive(self) -> Sequence[RawSignal]:
        """Return the signals for this stage, and try to remove them."""
