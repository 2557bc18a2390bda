"""Settings of a gate's wait for its sink, and the state of the wait.

A batch is held where its handler is called: Spark asks the planner for the next batch when the
present call has returned. So a call that waits makes its gate admit nothing, over Spark Connect as
well, and batches keep their order. The state of the wait is in the gate's row, so a restart
continues the wait. The batch keeps its key, so a sink that knows the key stores the batch once even
after a lost commit.
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
    """Reaction to an unavailable sink. The values are option values."""

    HOLD = "hold"
    """The batch waits in place, and the gate admits nothing more."""
    DEFER = "defer"
    """Any other failure's reaction: ``on_failure``."""
    STOP = "stop"
    """The query ends."""


class Held(NamedTuple):
    """A batch that waits in place. Times are the ledger's (ms since the epoch).

    Attributes:
        since_ms: The time of the first failure.
        calls: Number of failed calls.
        next_ms: The time of the next call.
        is_certain: Whether the failures report the sink away; else nothing of the batch passes.
    """

    since_ms: int
    calls: int
    next_ms: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """Settings of a gate's wait for its sink.

    Attributes:
        on_outage: The reaction to an outage.
        retry_ms: The wait before the first call after an outage began (ms); above 0. Default: 1
            000. Too short: a starting sink is in use before it is ready.
        max_retry_ms: The longest wait (ms); ``retry_ms`` at least. Default: 60 000. A gate
            continues at most this long after its sink is back.
        max_hold_ms: The longest hold before the policy ``on_failure`` applies (ms); None for no
            limit. Default: None.

    Raises:
        OptionError: The longest wait is below the first.
    """

    on_outage: OnOutage = OnOutage.HOLD
    retry_ms: int = 1_000
    max_retry_ms: int = 60_000
    max_hold_ms: int | None = None

    def __post_init__(self) -> None:
        if self.max_retry_ms < self.retry_ms:
            raise OptionError(
                f"outage.maxRetry is {self.max_retry_ms} ms, less than the {self.retry_ms} ms of"
                " outage.retry, the first wait for a sink that is away; raise the first, or lower"
                " the second."
            )

    def wait_ms(self, calls: int, chance: float) -> int:
        """Return the wait after a number of failed calls (ms).

        The wait is between half of ``min(retry · 2^(calls - 1), maxRetry)`` and all of it, so that
        a hundred gates do not return to one database at once. ``chance`` is in [0, 1).

        >>> [OutageSettings().wait_ms(calls, 0.5) for calls in (1, 2, 3, 7, 100)]
        [750, 1500, 3000, 45000, 45000]
        """
        longest_ms = Backoff(self.retry_ms, self.max_retry_ms).wait_ms(calls)
        return max(round(longest_ms * (1 + chance) / 2), 1)

    def is_over(self, held: Held | None, now_ms: Callable[[], int]) -> bool:
        """Whether a batch stops waiting: the gate never waits, or ``max_hold_ms`` has passed."""
        if self.on_outage is not OnOutage.HOLD:
            return True
        if held is None or self.max_hold_ms is None:
            return False
        return now_ms() - held.since_ms >= self.max_hold_ms


@dataclass(frozen=True, slots=True)
class SinkOutage:
    """State of the sink that a gate waits for. Times are ms since the epoch, by the ledger's clock.

    Attributes:
        batch: The key of the waiting batch.
        since_ms: The time of the first failure.
        runs: Number of failed runs.
        next_ms: The time of the next run.
        error: Last error of the handler: its class, and the first line of its message.
        is_certain: Whether the error reports the sink away; else nothing of the batch passes.
    """

    batch: str
    since_ms: int
    runs: int
    next_ms: int
    error: str
    is_certain: bool

    @property
    def awaited(self) -> str:
        """The unavailable system, as far as the error names it."""
        return "what it reads" if self.error.startswith(_OF_SOURCES) else "its sink"

    @property
    def held(self) -> Held:
        """The waiting batch."""
        return Held(self.since_ms, self.runs, self.next_ms, self.is_certain)

    @classmethod
    def of(cls, batch: str, held: Held, error: str) -> Self:
        """Return the state while a batch waits."""
        return cls(batch, held.since_ms, held.calls, held.next_ms, error, held.is_certain)

    def to_text(self) -> str:
        """Serialize the state as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Parse a text of ``to_text``; None for any other text."""
        try:
            return None if text is None else cls(**json.loads(text))
        except (TypeError, ValueError):
            return None
