"""The settings of backpressure from one stage to the stage before it."""

import math
from dataclasses import dataclass

from headrace.control.assertion import MAX_LEASE_MS, require_whole
from headrace.errors import OptionError


@dataclass(frozen=True, slots=True)
class HopSettings:
    """When a stage presses those before it, by how much, and for how long they believe it.

    Attributes:
        overload_bytes: What waits on a stage's incoming channels when it is overloaded (bytes); 1
            or more, 50 MB unless told otherwise. Too large, and what waits is old and fills disks;
            too small, and a few large batches are taken for an overload: it should be several
            times what comes in an interval.
        light_load_bytes: What its newest batch may have left waiting when its load is light
            (bytes); 0 or more and below ``overload_bytes``, 500 KB unless told otherwise. Too
            large, and the stages before it are let go before it has caught up; too small, and they
            are held longer than they need to be.
        overload_sensitivity_ms: How long an overload must last before it is signalled, and how
            often it is signalled (ms); 0 or more, 2000 unless told otherwise. Too large, and the
            queue grows for longer; too small, and a momentary spike slows the stages before. At 0
            the first look that finds an overload signals it, and those that follow are as far
            apart as signals of a light load.
        light_load_sensitivity_ms: How long a light load must last before it is signalled, and how
            often it is signalled (ms); above 0, 2000 unless told otherwise. Too large, and a flow
            comes back slowly; shorter than a batch of the stage before, and it comes back before
            the last signal has been seen to work.
        step: By which the rate is multiplied for each level; above 0 and below 1, 0.5 unless told
            otherwise. Small, and a flow comes back in few, large strides; near 1, in many small
            ones.
        lease_ms: How long a stage believes what it was told (ms); 1 to 600 000, 10 000 unless told
            otherwise. Too large, and a stage stays slow for longer after the one that pressed it
            has died; too small, and it is let go when a message is late: it is told anew every
            third of this time.

    Raises:
        OptionError: A setting is out of its range, or not a finite number.
    """

    overload_bytes: int = 50_000_000
    light_load_bytes: int = 500_000
    overload_sensitivity_ms: int = 2000
    light_load_sensitivity_ms: int = 2000
    step: float = 0.5
    lease_ms: int = 10_000

    def __post_init__(self) -> None:
        require_whole("overload_bytes", self.overload_bytes, 1, unit="bytes")
        require_whole("light_load_bytes", self.light_load_bytes, 0, unit="bytes")
        require_whole("overload_sensitivity_ms", self.overload_sensitivity_ms, 0, unit="ms")
        require_whole("light_load_sensitivity_ms", self.light_load_sensitivity_ms, 1, unit="ms")
        require_whole("lease_ms", self.lease_ms, 1, MAX_LEASE_MS, unit="ms")
        if self.light_load_bytes >= self.overload_bytes:
            raise OptionError(
                f"light_load_bytes is {self.light_load_bytes} and overload_bytes is"
                f" {self.overload_bytes}; a light load must be below an overload, so lower the"
                " first or raise the second."
            )
        if not _is_number(self.step) or not 0 < self.step < 1:
            raise OptionError(
                f"step is {self.step!r}; it must be a number above 0 and below 1, such as 0.5,"
                " for the rate is multiplied by it."
            )

    @property
    def overload_spacing_ms(self) -> int:
        """How far apart signals of one overload are (ms)."""
        return self.overload_sensitivity_ms or self.light_load_sensitivity_ms

    def levels_between(self, high_per_s: float, low_per_s: float) -> float:
        """How many levels lead from a rate down to another; below 0 where it leads up.

        Both are above 0.
        """
        return math.log(high_per_s / low_per_s) / -math.log(self.step)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
