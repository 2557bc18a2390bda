"""The limits that a user sets on a batch, checked against each other when they are read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
    """The numbers of a limit, each with the words that say for which partition it holds."""
    yield "", limit.default
    for partition, number in limit.overrides.items():
        yield f" for {partition}", number
