"""Limits of batches: a user's, checked against each other, and operators' for a running gate.

An operator's settings (pause, limit, drain) have their author and reason, and are in force at the
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
    """One number for all partitions, or a number for some and a default for the rest."""

    default: Number_co
    overrides: Mapping[TopicPartition, Number_co] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> Number_co:
        """The number that holds for this partition."""
        return self.overrides.get(partition, self.default)

    def of_all(self, partitions: Sequence[TopicPartition]) -> list[Number_co]:
        """The numbers that hold for these partitions, in their order."""
        if not self.overrides:
            return [self.default] * len(partitions)
        return [self.overrides.get(partition, self.default) for partition in partitions]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Everything that bounds a batch besides the estimated rate.

    Attributes:
        seconds_per_batch: The interval for which a batch is planned (s); above 0.
        initial_rate: The rate of the whole source while none has been estimated (records/s); above
            0. Too high: the first batch after a long stop overruns. Too low: the first few batches
            are smaller than they could be. None: backpressure is off, and an estimated rate is
            ignored.
        max_rate_per_partition: The cap of each partition (records/s). Default: 0, no cap.
        min_per_partition: Records that each partition gets at least in every batch, if it has that
            many; 1 or more, so that no partition starves. The two caps on the whole batch are
            stronger.
        max_records: ``maxOffsetsPerTrigger``, the native connector's cap of the whole batch
            (records); 1 or more. A batch may exceed it by one record for each partition whose share
            is less than one. None: no cap.
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
    STOP = "stop"
    """End the query of the moment; the next one that has the gate plans as usual."""
    LIFT_CEILING = "lift ceiling"
    """Forget that batches have failed for their size: the next may be as large as any."""
    ADOPT = "adopt"
    """Allow the next start a checkpoint that its ledger would refuse."""
    RESTART = "restart"
    """Have the next start with a new checkpoint read everything again."""
    CONTINUED = "continued"
    """A query with a new checkpoint went on from the ledger's position, by Headrace itself."""
    RETRY = "retry"
    """Failed batches are not to wait for their next backfill, or for a sink that is away."""
    DROP_BATCH = "drop batch"
    """A dead batch need not be processed."""
    SEND = "send"
    """Dead letters are sent to Kafka again."""
    DROP_LETTERS = "drop letters"
    """Dead letters need not be processed."""
    ACCEPT = "accept"
    """Lost or skipped offsets need not be processed."""

    @property
    def is_on_failures(self) -> bool:
        """Whether it is about failures, and has an outcome."""
        return self in (
            OperatorActionKind.RETRY,
            OperatorActionKind.DROP_BATCH,
            OperatorActionKind.SEND,
            OperatorActionKind.DROP_LETTERS,
            OperatorActionKind.ACCEPT,
        )


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
        target: The id that an `adopt` is about, or the failures, in words.
        outcome: Outcome of an action on failures; None while it is being done, or if that was
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
        """The operator, and why, in one text."""
        return f"{self.by}: {self.why}" if self.why else self.by

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
            OperatorActionKind.STOP: "stopped",
            OperatorActionKind.LIMIT: f"limited to {self.records_per_s or 0:g} records/s",
        }.get(self.kind, str(self.kind))
        until = "" if self.until_ms is None else f" until {_clock_time(self.until_ms, now_ms)}"
        return f"{done} by {self.author}, since {_clock_time(self.time_ms, now_ms)}{until}"


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Operators' settings in force for a gate, at one moment.

    Attributes:
        at_ms: The time of the read.
        hold: The pause or the drain in force; None if the gate plans batches.
        limit: The limit in force; None without one.
        newest: The number of the newest action on the gate, in force or not; None without any.
        stop: The stop of the query that has the gate, or had it last; None without one.
    """

    gate: str
    at_ms: int
    hold: OperatorAction | None = None
    limit: OperatorAction | None = None
    newest: int | None = None
    stop: OperatorAction | None = None

    @property
    def closed_by(self) -> OperatorAction | None:
        """The action by which the gate plans no batch; None if it plans batches."""
        return self.stop or self.hold

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
        """Whether the gate's planner has planned by all that is in force; True if nothing is."""
        return all(each.seen_ms is not None for each in self.in_force)

    @property
    def in_force(self) -> tuple[OperatorAction, ...]:
        """The actions in force: a stop, then the hold, then the limit."""
        return tuple(each for each in (self.stop, self.hold, self.limit) if each is not None)

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
