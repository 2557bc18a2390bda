"""A gate whose sink is unavailable: the retries of its batch, and the reaction if they fail.

A failed batch is run again, whole and under its own key, after waits that double. A sink that is
away fails for any records, so the batch is held; where something says that it may be the records,
parts of the batch are run as well, and if one passes the sink is there::

    the handler raised          runs           then
    that its sink is away       4, 8, 16 ...   parts are run: none passes, it waits on
    that, in a batch too small  16             it is left to the policy
    something else              1              parts are run: none passes, it waits
    the same again              7              it is left to the policy
"""

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from typing import Final, Self

from headrace.core.backoff import Backoff
from headrace.errors import BrokerError, OptionError, RegistryError, SourceError

CERTAIN_PROBE: Final = 4
"""After so many runs that say that the sink is away parts are run, and each time they double."""

MOST_UNTOLD: Final = 16
"""Runs of a batch that is too small for parts: about ten minutes."""

MOST_DOUBTFUL: Final = 7
"""Number of runs of a batch without evidence that its sink is unavailable: about a minute."""


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


@dataclass(frozen=True, slots=True)
class OutageSettings:
    """Settings of a gate's wait for its sink.

    Attributes:
        on_outage: Whether it waits at all.
        retry_ms: The wait before the first run after an outage began (ms); above 0. Default: 1 000.
            Too short, and a sink that starts is in use before it is ready.
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

    def wait_ms(self, runs: int, chance: float) -> int:
        """The wait after so many failed runs (ms).

        Between half of ``min(retry · 2^(runs - 1), maxRetry)`` and all of it, so that a hundred
        gates do not come back to one database at once. ``chance`` is of [0, 1).

        >>> [OutageSettings().wait_ms(runs, 0.5) for runs in (1, 2, 3, 7, 100)]
        [750, 1500, 3000, 45000, 45000]
        """
        longest_ms = Backoff(self.retry_ms, self.max_retry_ms).wait_ms(runs)
        return max(round(longest_ms * (1 + chance) / 2), 1)


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


def going_on(outage: SinkOutage | None, *, is_certain: bool) -> SinkOutage | None:
    """The outage that a failure belongs to; None where it is of another kind, and the first one."""
    return outage if outage is not None and outage.is_certain == is_certain else None


def failed(
    before: SinkOutage | None,
    batch: str,
    error: str,
    now_ms: int,
    wait_ms: int,
    *,
    is_certain: bool,
) -> SinkOutage:
    """The outage after one more run that failed; a new one where another batch has waited."""
    before = going_on(before, is_certain=is_certain)
    if before is None or before.batch != batch:
        before = SinkOutage(batch, now_ms, 0, now_ms, error, is_certain)
    return replace(before, runs=before.runs + 1, next_ms=now_ms + wait_ms, error=error)


class Next(Enum):
    """Next step for a failed batch."""

    WAIT = auto()
    """Run it again, whole, after a wait."""
    TRY_PARTS = auto()
    """Run parts of it, to see whether others pass."""
    LEAVE = auto()
    """Leave it to the policy ``on_failure``."""


def next_step(
    outage: SinkOutage | None,
    settings: OutageSettings,
    now_ms: int,
    *,
    is_certain: bool,
    has_parts: bool,
    may_try: bool,
) -> Next:
    """Return the next step for a batch that has failed once more than its outage knows.

    Args:
        outage: The outage so far; None if this was its first failure.
        settings: The settings of the gate's wait.
        now_ms: The time.
        is_certain: Whether what was raised now says that the sink is away.
        has_parts: Whether it is large enough that parts of it tell.
        may_try: Whether it may be run in parts.
    """
    outage = going_on(outage, is_certain=is_certain)
    held_ms = 0 if outage is None else now_ms - outage.since_ms
    is_over = settings.max_hold_ms is not None and held_ms >= settings.max_hold_ms
    if settings.on_outage is not OnOutage.HOLD or is_over:
        return Next.LEAVE
    runs = 1 + (0 if outage is None else outage.runs)
    if not is_certain:
        return _in_doubt(runs, may_try=may_try and has_parts)
    if may_try and not has_parts and runs >= MOST_UNTOLD:
        return Next.LEAVE
    is_due = runs >= CERTAIN_PROBE and runs & (runs - 1) == 0
    return Next.TRY_PARTS if may_try and has_parts and is_due else Next.WAIT


def _in_doubt(runs: int, *, may_try: bool) -> Next:
    if runs == 1:
        return Next.TRY_PARTS if may_try else Next.LEAVE
    return Next.WAIT if runs < MOST_DOUBTFUL else Next.LEAVE
