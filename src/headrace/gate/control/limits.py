"""Limits of batches: a user's, checked against each other, and operators' for a running gate.

An operator's setting (pause, limit, drain) carries its author and reason, and takes effect at the
gate's next plan. Times are ms since the epoch, by the ledger's clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Generic, TypeVar

from headrace.core.options import require_number, require_whole
from headrace.core.ranges import TopicPartition
from headrace.errors import OptionError

Number_co = TypeVar("Number_co", bound=float, covariant=True)


@dataclass(frozen=True, slots=True)
class PartitionLimit(Generic[Number_co]):
    """A number for all partitions, or a number for some and a default for the rest."""

    default: Number_co
    overrides: Mapping[TopicPartition, Number_co] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> Number_co:
        """Return the number for a partition."""
        return self.overrides.get(partition, self.default)

    def of_all(self, partitions: Sequence[TopicPartition]) -> list[Number_co]:
        """Return the numbers for these partitions, in their order."""
        if not self.overrides:
            return [self.default] * len(partitions)
        return [self.overrides.get(partition, self.default) for partition in partitions]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """All limits of a batch other than the estimated rate.

    Attributes:
        seconds_per_batch: The interval for which a batch is planned (s); above 0.
        initial_rate: The rate of the whole source before an estimate (records/s); above 0. Too
            high: the first batch after a long stop overruns. Too low: the first few batches are
            smaller than necessary. None: backpressure is off, and an estimated rate is ignored.
        max_rate_per_partition: The cap of each partition (records/s). Default: 0, no cap.
        min_per_partition: Minimum number of records of each partition in every batch, if available;
            1 or more, so that no partition starves. The two caps on the whole batch take
            precedence.
        max_records: ``maxOffsetsPerTrigger``, the native connector's cap of the whole batch
            (records); 1 or more. A batch may exceed it by one record for each partition whose
            proportional count is below one. None: no cap.
        max_bytes: ``maxBytesPerTrigger``, the same in estimated bytes; 1 or more. None: no cap.

    Raises:
        OptionError: A number is out of its range, or a floor is above a cap.
    """

    seconds_per_batch: float
    initial_rate: float | None
    max_rate_per_partition: PartitionLimit[float] = PartitionLimit(0)
    min_per_partition: PartitionLimit[int] = PartitionLimit(1)
    max_records: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        require_number("headrace.interval", self.seconds_per_batch, "s", above=True)
        if self.initial_rate is not None:
            require_number("backpressure.initialRate", self.initial_rate, "records/s", above=True)
        for name, most in (
            ("maxOffsetsPerTrigger", self.max_records),
            ("maxBytesPerTrigger", self.max_bytes),
        ):
            if most is not None:
                require_whole(name, most, 1)
        for where, cap in _each(self.max_rate_per_partition):
            require_number("maxRatePerPartition", cap, f"records/s{where}")
        for where, floor in _each(self.min_per_partition):
            require_whole("minRatePerPartition", floor, 1, unit=f"records a batch{where}")
        self._refuse_a_floor_above_a_cap()

    def _refuse_a_floor_above_a_cap(self) -> None:
        caps, floors = self.max_rate_per_partition, self.min_per_partition
        pairs = [("", caps.default, floors.default)]
        pairs += [
            (f" for {partition}", caps.of(partition), floors.of(partition))
            for partition in sorted(caps.overrides.keys() | floors.overrides.keys())
        ]
        for where, cap, floor in pairs:
            most = self.seconds_per_batch * cap
            if cap > 0 and floor > most:
                raise OptionError(
                    f"minRatePerPartition is {floor} records a batch{where}, more than the"
                    f" {most:g} that a maxRatePerPartition of {cap:g} records/s allows in a batch"
                    f" of {self.seconds_per_batch:g} s; lower the first, or raise the second or"
                    " the interval."
                )
            if self.max_records is not None and floor > self.max_records:
                raise OptionError(
                    f"minRatePerPartition is {floor} records a batch{where}, more than the"
                    f" {self.max_records} of maxOffsetsPerTrigger; lower the first or raise the"
                    " second."
                )


def _each(limit: PartitionLimit[Number_co]) -> Iterable[tuple[str, Number_co]]:
    yield "", limit.default
    for partition, number in limit.overrides.items():
        yield f" for {partition}", number


LAST_MS: Final = 253_402_300_799_999
"""The latest time that Python can represent: the end of the year 9999 (ms since the epoch)."""


class OperatorActionKind(StrEnum):
    """Kinds of operators' actions. The values are shown to users."""

    PAUSE = "pause"
    """Plan no batch with records until a resume."""
    DRAIN = "drain"
    """As a pause, to stop the query once the admitted records are processed."""
    RESUME = "resume"
    """End a pause or a drain."""
    LIMIT = "limit"
    """Cap the rate of the whole gate, in addition to all other limits."""
    UNLIMIT = "unlimit"
    """End a limit."""
    STOP = "stop"
    """End the current query; the next query of the gate plans as usual."""
    LIFT_CEILING = "lift ceiling"
    """Remove the size ceiling learned from failed batches."""
    ADOPT = "adopt"
    """Allow the next start to use a checkpoint that its ledger would refuse."""
    RESTART = "restart"
    """Make the next start with a new checkpoint read all records again."""
    CONTINUED = "continued"
    """A query with a new checkpoint continued from the ledger's position; recorded by Headrace
    itself."""
    RETRY = "retry"
    """Retry failed batches without waiting for their next backfill, or for the sink."""
    DROP_BATCH = "drop batch"
    """Accept that a dead batch is not processed."""
    SEND = "send"
    """Send dead letters to Kafka again."""
    DROP_LETTERS = "drop letters"
    """Accept that dead letters are not processed."""
    ACCEPT = "accept"
    """Accept that lost or skipped offsets are not processed."""

    @property
    def is_on_failures(self) -> bool:
        """Whether the action is about failures, and has an outcome."""
        return self in (
            OperatorActionKind.RETRY,
            OperatorActionKind.DROP_BATCH,
            OperatorActionKind.SEND,
            OperatorActionKind.DROP_LETTERS,
            OperatorActionKind.ACCEPT,
        )


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """One action of an operator, as stored in the ledger.

    Attributes:
        number: Counts up over all gates; a later action has a higher number.
        by: The author, as named by the author or a tool.
        why: The author's reason; may be empty.
        time_ms: The time of the action.
        records_per_s: The cap of a limit (records/s over all partitions).
        until_ms: The time when a limit ends by itself; None for never.
        seen_ms: The first time when the gate's planner applied the action, or a later action that
            replaced it; None before. It stays None for a gate without a running query.
        target: The id of the checkpoint of an `adopt`, or a description of the failures.
        outcome: Outcome of an action on failures; None while it is in progress, or if it was
            interrupted.
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
    target: str | None = None
    outcome: str | None = None

    @property
    def author(self) -> str:
        """The author and the reason, in one text."""
        return f"{self.by}: {self.why}" if self.why else self.by

    def describe(self, now_ms: int) -> str:
        """Describe the action while it is in force; the date is included unless it is today's.

        >>> OperatorAction(
        ...     1, "orders", OperatorActionKind.PAUSE, "ops", "sink migration", 36_840_000
        ... ).describe(36_900_000)
        'paused by ops: sink migration, since 10:14:00 UTC'
        """
        action = {
            OperatorActionKind.PAUSE: "paused",
            OperatorActionKind.DRAIN: "drained",
            OperatorActionKind.STOP: "stopped",
            OperatorActionKind.LIMIT: f"limited to {self.records_per_s or 0:g} records/s",
        }.get(self.kind, str(self.kind))
        until = "" if self.until_ms is None else f" until {_clock_time(self.until_ms, now_ms)}"
        return f"{action} by {self.author}, since {_clock_time(self.time_ms, now_ms)}{until}"


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Operators' settings in force for a gate, at one moment.

    Attributes:
        at_ms: The time of the read.
        hold: The pause or the drain in force; None if the gate plans batches.
        limit: The limit in force; None without one.
        newest: The number of the newest action on the gate, in force or not; None without any.
        stop: The stop of the gate's current or last query; None without a stop.
    """

    gate: str
    at_ms: int
    hold: OperatorAction | None = None
    limit: OperatorAction | None = None
    newest: int | None = None
    stop: OperatorAction | None = None

    @property
    def closed_by(self) -> OperatorAction | None:
        """The action that prevents the gate from planning batches; None without one."""
        return self.stop or self.hold

    @property
    def paused(self) -> bool:
        """Whether an operator has paused the gate."""
        return self.hold is not None and self.hold.kind is OperatorActionKind.PAUSE

    @property
    def draining(self) -> bool:
        """Whether an operator has asked the gate to drain."""
        return self.hold is not None and self.hold.kind is OperatorActionKind.DRAIN

    @property
    def seen(self) -> bool:
        """Whether the gate's planner has applied all actions in force; True without any."""
        return all(action.seen_ms is not None for action in self.in_force)

    @property
    def in_force(self) -> tuple[OperatorAction, ...]:
        """The actions in force: a stop, then the hold, then the limit."""
        return tuple(action for action in (self.stop, self.hold, self.limit) if action is not None)

    def describe(self) -> str | None:
        """Describe the settings in force; None if there are none."""
        return "; ".join(action.describe(self.at_ms) for action in self.in_force) or None


def _clock_time(time_ms: int, now_ms: int) -> str:
    """Return a time of day, with the date unless it is today's.

    >>> _clock_time(36_840_000, 36_900_000), _clock_time(36_840_000, 136_900_000)
    ('10:14:00 UTC', '1970-01-01 10:14:00 UTC')
    """
    then, now = (
        datetime.fromtimestamp(min(max(moment_ms, 0), LAST_MS) / 1000, UTC)
        for moment_ms in (time_ms, now_ms)
    )
    return then.strftime("%H:%M:%S UTC" if then.date() == now.date() else "%Y-%m-%d %H:%M:%S UTC")
