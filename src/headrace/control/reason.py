"""Why a batch has the size it has."""

from enum import StrEnum


class Reason(StrEnum):
    """What limited a batch, or one partition of it. The values are what users are shown."""

    RATE = "rate"
    """The estimated rate."""
    INITIAL_RATE = "initial rate"
    """``backpressure.initialRate``, while there is no estimated rate."""
    THROTTLED = "throttled"
    """The bound under the pressure of a stage after this one, lower than either rate; which stage,
    the plan knows."""
    PARTITION_CAP = "maxRatePerPartition"
    """The partition's cap, lower than its share of the rate."""
    PARTITION_FLOOR = "minRatePerPartition"
    """The partition's floor, higher than its share of the rate."""
    MAX_RECORDS = "maxOffsetsPerTrigger"
    """The cap of the whole batch in records."""
    MAX_BYTES = "maxBytesPerTrigger"
    """The cap of the whole batch in bytes."""
    WAITING = "waiting for minOffsetsPerTrigger"
    """Too little was there to be worth a batch."""
    EVERYTHING = "everything available"
    """Nothing: all that was there is admitted."""
    NOTHING_NEW = "nothing new"
    """There was nothing to admit."""
