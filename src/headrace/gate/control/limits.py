"""Limits of batches: a user's options, and operators' settings for a running gate.

An operator's setting (pause, limit, drain) names its author and reason, and takes effect when the
gate plans its next batch. Times are ms since the epoch, by the ledger's clock.
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
    """A limit for each partition: one default for all, with overrides for single partitions."""

    default: Number_co
    overrides: Mapping[TopicPartition, Number_co] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> Number_co:
        """Return the limit of a partition: its override, or the default."""
        return self.overrides.get(partition, self.default)

    def of_all(self, partitions: Sequence[TopicPartition]) -> list[Number_co]:
        """Return the limits of several partitions, in the order of ``partitions``."""
        if not self.overrides:
            return [self.default] * len(partitions)
        return [self.overrides.get(partition, self.default) for partition in partitions]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """All limits of a batch other than the estimated rate.

    Attributes:
        seconds_per_batch: The interval for which a batch is planned (s); above 0.
        initial_rate: The rate of the whole source before the first estimate (records/s); above 0.
            Too high: the first batch after a long stop takes longer than its interval. Too low: the
            first few batches are smaller than necessary. None: backpressure is off, and an
            estimated rate is ignored.
        max_rate_per_partition: The cap of each partition (records/s). Default: 0, which means no
            cap.
        min_per_partition: The floor of each partition: the least number of its records in every
            batch, if so many are available; 1 or more, so that no partition starves. Default: 1.
            ``max_records`` and ``max_bytes`` take precedence.
        max_records: ``maxOffsetsPerTrigger``, the native connector's cap of the whole batch
            (records); 1 or more. A batch may exceed the cap by one record for each partition whose
            proportional count is below one. None: no cap.
        max_bytes: ``maxBytesPerTrigger``, the native connector's cap of the whole batch in
            estimated bytes; 1 or more. None: no cap.

    Raises:
        OptionError: A number is out of its range, or a partition's floor is above a cap.
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
                    f"minRatePerPartition needs {floor} records in a batch{where}, but"
                    f" maxRatePerPartition ({cap:g} records/s) allows only {most:g} in a batch of"
                    f" {self.seconds_per_batch:g} s; lower minRatePerPartition, or raise"
                    " maxRatePerPartition or the interval."
                )
            if self.max_records is not None and floor > self.max_records:
                raise OptionError(
                    f"minRatePerPartition needs {floor} records in a batch{where}, but"
                    f" maxOffsetsPerTrigger allows only {self.max_records}; lower"
                    " minRatePerPartition or raise maxOffsetsPerTrigger."
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
    """The gate plans no batch with records until an operator resumes the gate."""
    DRAIN = "drain"
    """The gate plans no batch with records, and the query is to stop when it has processed all
    admitted records."""
    RESUME = "resume"
    """Ends a pause or a drain of the gate."""
    LIMIT = "limit"
    """Caps the rate of the whole gate, in addition to all other limits."""
    UNLIMIT = "unlimit"
    """Ends an operator's rate limit on the gate."""
    STOP = "stop"
    """Ends the gate's current query; the gate's next query plans batches as usual."""
    LIFT_CEILING = "lift ceiling"
    """Removes the gate's size ceiling, which was learned from failed batches."""
    ADOPT = "adopt"
    """Allows the gate's next start to use a checkpoint that the ledger would refuse."""
    RESTART = "restart"
    """Makes the gate's next start with a new checkpoint read all records again."""
    CONTINUED = "continued"
    """A query with a new checkpoint has continued from the ledger's position. Headrace itself
    records this action."""
    RETRY = "retry"
    """Runs failed batches again at once, without waiting for the next backfill or for the sink."""
    DROP_BATCH = "drop batch"
    """Accepts that the records of a dead batch are never processed."""
    SEND = "send"
    """Sends dead letters to Kafka again."""
    DROP_LETTERS = "drop letters"
    """Accepts that the records of dead letters are never processed."""
    ACCEPT = "accept"
    """Accepts that lost or skipped offsets are never processed."""

    @property
    def is_on_failures(self) -> bool:
        """Whether the action handles failed batches, dead letters or losses.

        Only such an action has an outcome.
        """
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
        number: The action's number in the ledger. All gates share one sequence: a later action has
            a higher number.
        gate: The gate's name.
        kind: The kind of the action.
        by: The author's name, as the author or a tool wrote it.
        why: The author's reason; may be empty.
        time_ms: The time of the action (ms since the epoch).
        records_per_s: The cap that a limit sets (records/s over all partitions); None for other
            kinds.
        until_ms: The time when a limit ends by itself (ms since the epoch); None for never.
        seen_ms: The time when the gate's planner first applied this action, or a later action that
            replaced it (ms since the epoch). None until then: without a running query, a gate
            applies no action.
        target: The checkpoint id of an ``adopt``, or a description of the failures that the action
            handles; None for other kinds.
        outcome: The outcome of an action on failures. None while the action is in progress, and if
            it was interrupted.
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
        """The author and the reason in one text, such as ``ops: sink migration``."""
        return f"{self.by}: {self.why}" if self.why else self.by

    def describe(self, now_ms: int) -> str:
        """Describe an action in force. Omit its date if it is the date of ``now_ms``.

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
    """Operators' settings in force for a gate, as read from the ledger at one moment.

    Attributes:
        gate: The gate's name.
        at_ms: The time when the settings were read (ms since the epoch).
        hold: The pause or the drain in force; None if neither is in force.
        limit: The rate limit in force; None without a limit.
        newest: The number of the newest action on the gate, in force or not; None without an
            action.
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
        """The stop, pause or drain that keeps the gate from planning batches; else None."""
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
        """Whether the gate's planner has applied all actions in force; True without an action."""
        return all(action.seen_ms is not None for action in self.in_force)

    @property
    def in_force(self) -> tuple[OperatorAction, ...]:
        """The actions in force: first a stop, then a pause or a drain, then a limit."""
        return tuple(action for action in (self.stop, self.hold, self.limit) if action is not None)

    def describe(self) -> str | None:
        """Describe the actions in force; None without an action."""
        return "; ".join(action.describe(self.at_ms) for action in self.in_force) or None


def _clock_time(time_ms: int, now_ms: int) -> str:
    """Format a time as a UTC time of day, with the date if it is not the date of ``now_ms``.

    >>> _clock_time(36_840_000, 36_900_000), _clock_time(36_840_000, 136_900_000)
    ('10:14:00 UTC', '1970-01-01 10:14:00 UTC')
    """
    then, now = (
        datetime.fromtimestamp(min(max(moment_ms, 0), LAST_MS) / 1000, UTC)
        for moment_ms in (time_ms, now_ms)
    )
    return then.strftime("%H:%M:%S UTC" if then.date() == now.date() else "%Y-%m-%d %H:%M:%S UTC")
