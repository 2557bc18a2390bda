"""The wait of a gate for an unavailable sink: its settings and its state.

While the sink is unavailable, the call of the batch handler does not return, and Spark does not ask
the planner for the next batch. So the gate admits nothing during the wait, over Spark Connect as
well, and batches keep their order. The state of the wait is in the ledger, so a restart continues
the wait. The batch keeps its key. So a sink that compares keys stores the batch once, even if the
answer to an earlier commit was lost.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final, NamedTuple, Self

from headrace.core.backoff import Backoff
from headrace.errors import BrokerError, OptionError, RegistryError, SourceError

_OF_SOURCES: Final = tuple(
    f"{kind.__module__}.{kind.__name__}" for kind in (BrokerError, RegistryError, SourceError)
)


class OnOutage(Enum):
    """Reactions to an unavailable sink. The values are the values of the option ``on_outage``."""

    HOLD = "hold"
    """The batch waits for the sink, and the gate admits no other batch."""
    DEFER = "defer"
    """The policy ``on_failure`` applies, as for any other failure."""
    STOP = "stop"
    """The query ends with the error of the sink."""


class Held(NamedTuple):
    """The state of a batch that waits for its sink.

    Times are ms since the epoch, by the ledger's clock.

    Attributes:
        since_ms: The time of the first failed call.
        calls: Number of failed calls so far.
        next_ms: The time of the next call.
        is_certain: Whether the failures report that the sink is unavailable. Otherwise they only
            suggest it, because no part of the batch passes.
    """

    since_ms: int
    calls: int
    next_ms: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """Settings of a gate's wait for an unavailable sink.

    Attributes:
        on_outage: The reaction to an outage of the sink. Default: ``HOLD``.
        retry_ms: The first wait between a failed call and the next call (ms); above 0. Default:
            1000. Too short: calls reach a starting sink before it is ready.
        max_retry_ms: The longest wait between two calls (ms); at least ``retry_ms``. Default:
            60 000. This is also the longest time between the recovery of the sink and the next
            call.
        max_hold_ms: The longest time that a batch waits (ms); then the policy ``on_failure``
            applies. None for no limit. Default: None.

    Raises:
        OptionError: ``max_retry_ms`` is less than ``retry_ms``.
    """

    on_outage: OnOutage = OnOutage.HOLD
    retry_ms: int = 1_000
    max_retry_ms: int = 60_000
    max_hold_ms: int | None = None

    def __post_init__(self) -> None:
        if self.max_retry_ms < self.retry_ms:
            raise OptionError(
                f"outage.maxRetry is {self.max_retry_ms} ms, less than the {self.retry_ms} ms of"
                " outage.retry, the first wait for an unavailable sink; raise outage.maxRetry, or"
                " lower outage.retry."
            )

    def wait_ms(self, calls: int, chance: float) -> int:
        """Return the wait before the next call (ms), if ``calls`` calls have failed so far.

        The wait is a random fraction, from a half to 1, of ``min(retry · 2^(calls - 1),
        maxRetry)``. So a hundred gates do not call one database at the same moment. ``chance`` is a
        random number in [0, 1).

        >>> [OutageSettings().wait_ms(calls, 0.5) for calls in (1, 2, 3, 7, 100)]
        [750, 1500, 3000, 45000, 45000]
        """
        longest_ms = Backoff(self.retry_ms, self.max_retry_ms).wait_ms(calls)
        return max(round(longest_ms * (1 + chance) / 2), 1)

    def is_over(self, held: Held | None, now_ms: Callable[[], int]) -> bool:
        """Whether a batch must not wait any longer for its sink.

        The wait is over if the reaction is not `OnOutage.HOLD`, or after ``max_hold_ms``. ``held``
        is the state of the wait; None before the first wait.
        """
        if self.on_outage is not OnOutage.HOLD:
            return True
        if held is None or self.max_hold_ms is None:
            return False
        return now_ms() - held.since_ms >= self.max_hold_ms


@dataclass(frozen=True, slots=True)
class SinkOutage:
    """An outage of a gate's sink, as the gate's row of the ledger stores it.

    Times are ms since the epoch, by the ledger's clock.

    Attributes:
        batch: The key of the waiting batch.
        since_ms: The time of the first failed call.
        runs: Number of failed calls so far.
        next_ms: The time of the next call.
        error: The handler's last error: its class, and the first line of its message.
        is_certain: Whether the error reports that the sink is unavailable. Otherwise the failures
            only suggest it, because no part of the batch passes.
    """

    batch: str
    since_ms: int
    runs: int
    next_ms: int
    error: str
    is_certain: bool

    @property
    def awaited(self) -> str:
        """The unavailable system, for messages: ``what it reads`` (a source) or ``its sink``."""
        return "what it reads" if self.error.startswith(_OF_SOURCES) else "its sink"

    @property
    def held(self) -> Held:
        """The state of the waiting batch, without its key and error."""
        return Held(self.since_ms, self.runs, self.next_ms, self.is_certain)

    @classmethod
    def of(cls, batch: str, held: Held, error: str) -> Self:
        """Build the outage from the waiting batch's key, the wait's state and the last error."""
        return cls(batch, held.since_ms, held.calls, held.next_ms, error, held.is_certain)

    def to_text(self) -> str:
        """Serialize the outage as JSON for the gate's row."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Parse an outage that ``to_text`` has serialized. Return None for None or invalid text."""
        try:
            return None if text is None else cls(**json.loads(text))
        except (TypeError, ValueError):
            return None
