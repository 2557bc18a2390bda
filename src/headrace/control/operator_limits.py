"""Operators' settings for a running gate (pause, limit, drain), with their author and reason.

It is in force at the gate's next plan. Times are ms since the epoch, by the ledger's clock.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

LAST_MS: Final = 253_402_300_799_999
"""The last time that Python can name: the end of the year 9999 (ms since the epoch)."""


class OperatorActionKind(StrEnum):
    """Kinds of operators' actions. The values are shown to users."""

    PAUSE = "pause"
    """Plan no batch with records until it is resumed."""
    DRAIN = "drain"
    """The same, to stop the query once the admitted records are done."""
    RESUME = "resume"
    """End a pause or a drain."""
    LIMIT = "limit"
    """Cap the rate of the whole gate, besides whatever else limits it."""
    UNLIMIT = "unlimit"
    """End a limit."""
    LIFT_CEILING = "lift ceiling"
    """Forget that batches have failed for their size: the next may be as large as any."""


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """One action of an operator, as the ledger keeps it.

    Attributes:
        number: Counts up over all gates; a later action has a higher one.
        by: The author, as they or their tool say.
        why: The reason in their words; may be empty.
        time_ms: When.
        records_per_s: The cap of a limit (records/s over all partitions).
        until_ms: The time when a limit ends by itself; None if it does not.
        seen_ms: When the gate's planner first planned by it, or by what replaced it; None before.
            Of a gate without a running query it stays None.
    """

    number: int
    gate: str
    kind: OperatorActionKind
    by: str
    why: str
    time_ms: int
    records_per_s: float | None = None
    until_ms: int | None = None
    seen_ms: int | None = None

    def describe(self, now_ms: int) -> str:
        """The action while it is in force, in words; with the day if that is another one.

        >>> OperatorAction(
        ...     1, "orders", OperatorActionKind.PAUSE, "ops", "sink migration", 36_840_000
        ... ).describe(36_900_000)
        'paused by ops: sink migration, since 10:14:00 UTC'
        """
        done = {
            OperatorActionKind.PAUSE: "paused",
            OperatorActionKind.DRAIN: "drained",
            OperatorActionKind.LIMIT: f"limited to {self.records_per_s or 0:g} records/s",
        }.get(self.kind, str(self.kind))
        why = f": {self.why}" if self.why else ""
        until = "" if self.until_ms is None else f" until {_clock_time(self.until_ms, now_ms)}"
        return f"{done} by {self.by}{why}, since {_clock_time(self.time_ms, now_ms)}{until}"


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Operators' settings in force for a gate, at one moment.

    Attributes:
        at_ms: The time of the read.
        hold: The pause or the drain in force; None if the gate plans batches.
        limit: The limit in force; None without one.
        newest: The number of the newest action on the gate, in force or not; None without any.
    """

    gate: str
    at_ms: int
    hold: OperatorAction | None = None
    limit: OperatorAction | None = None
    newest: int | None = None

    @property
    def paused(self) -> bool:
        """Whether an operator has paused it."""
        return self.hold is not None and self.hold.kind is OperatorActionKind.PAUSE

    @property
    def draining(self) -> bool:
        """Whether an operator has asked it to drain."""
        return self.hold is not None and self.hold.kind is OperatorActionKind.DRAIN

    @property
    def seen(self) -> bool:
        """Whether the gate's planner has planned by all of it; True if nothing is in force."""
        return all(each.seen_ms is not None for each in self.in_force)

    @property
    def in_force(self) -> tuple[OperatorAction, ...]:
        """The actions in force, the hold first."""
        return tuple(each for each in (self.hold, self.limit) if each is not None)

    def describe(self) -> str | None:
        """Describe the settings in force; None if there are none."""
        return "; ".join(each.describe(self.at_ms) for each in self.in_force) or None


def _clock_time(time_ms: int, now_ms: int) -> str:
    """A time of day, with the date if that is not today's.

    >>> _clock_time(36_840_000, 36_900_000), _clock_time(36_840_000, 136_900_000)
    ('10:14:00 UTC', '1970-01-01 10:14:00 UTC')
    """
    then, now = (
        datetime.fromtimestamp(min(max(each, 0), LAST_MS) / 1000, UTC) for each in (time_ms, now_ms)
    )
    return then.strftime("%H:%M:%S UTC" if then.date() == now.date() else "%Y-%m-%d %H:%M:%S UTC")
