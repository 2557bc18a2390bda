"""Settings of a gate's wait for its sink, and what is known of it while it lasts."""

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
    """As any other failure: by ``on_failure``."""
    STOP = "stop"
    """The query ends."""


class Held(NamedTuple):
    """A batch that waits in place. Times are the ledger's (ms since the epoch).

    Attributes:
        since_ms: When it failed first.
        calls: Number of its failures.
        next_ms: When it is called again.
        is_certain: Whether they say that the sink is away; else nothing of the batch passes.
    """

    since_ms: int
    calls: int
    next_ms: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """Settings of a gate's wait for its sink.

    Attributes:
        on_outage: Whether it waits at all.
        retry_ms: The wait before the first call after an outage began (ms); above 0. Default:
            1 000. Too short, and a sink that starts is in use before it is ready.
        max_retry_ms: The longest wait (ms); ``retry_ms`` at least. Default: 60 000. So long at most
            after its sink is back does a gate go on.
        max_hold_ms: After how long the policy ``on_failure`` has its say (ms); None for never, the
            default.

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
        """The wait after so many failed calls (ms).

        Between half of ``min(retry · 2^(calls - 1), maxRetry)`` and all of it, so that a hundred
        gates do not come back to one database at once. ``chance`` is of [0, 1).

        >>> [OutageSettings().wait_ms(calls, 0.5) for calls in (1, 2, 3, 7, 100)]
        [750, 1500, 3000, 45000, 45000]
        """
        longest_ms = Backoff(self.retry_ms, self.max_retry_ms).wait_ms(calls)
        return max(round(longest_ms * (1 + chance) / 2), 1)

    def is_over(self, held: Held | None, now_ms: Callable[[], int]) -> bool:
        """Whether a batch waits no more: it never does, or it has waited for ``max_hold_ms``."""
        if self.on_outage is not OnOutage.HOLD:
            return True
        if held is None or self.max_hold_ms is None:
            return False
        return now_ms() - held.since_ms >= self.max_hold_ms


@dataclass(frozen=True, slots=True)
class SinkOutage:
    """State of the sink that a gate waits for. Times are ms since the epoch, the ledger's.

    Attributes:
        batch: The key of the batch that waits.
        since_ms: When it failed first.
        runs: Number of its failures.
        next_ms: When it is run again.
        error: Last error of the handler: its class, and the first line of its message.
        is_certain: Whether that says that the sink is away; else nothing of the batch passes.
    """

    batch: str
    since_ms: int
    runs: int
    next_ms: int
    error: str
    is_certain: bool

    @property
    def awaited(self) -> str:
        """The unavailable system, as far as the error says."""
        return "what it reads" if self.error.startswith(_OF_SOURCES) else "its sink"

    @property
    def held(self) -> Held:
        """The batch that waits."""
        return Held(self.since_ms, self.runs, self.next_ms, self.is_certain)

    @classmethod
    def of(cls, batch: str, held: Held, error: str) -> Self:
        """Return the state while a batch waits."""
        return cls(batch, held.since_ms, held.calls, held.next_ms, error, held.is_certain)

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Parse a text of ``to_text``; None for any other."""
        try:
            return None if text is None else cls(**json.loads(text))
        except (TypeError, ValueError):
            return None
