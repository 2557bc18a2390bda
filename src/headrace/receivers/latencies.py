"""How long something takes, counted in buckets as Prometheus has them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Latencies:
    """Counts durations; of one event loop.

    >>> latencies = Latencies((0.1, 1.0))
    >>> for duration_s in (0.05, 0.1, 0.5, 3.0):
    ...     latencies.count(duration_s)
    >>> latencies.cumulative, latencies.sum_s
    ([('0.1', 2), ('1.0', 3), ('+Inf', 4)], 3.65)
    """

    def __init__(self, buckets_s: Sequence[float] = BUCKETS_S) -> None:
        self._buckets_s = tuple(buckets_s)
        self._counts = [0] * (len(self._buckets_s) + 1)
        self.sum_s = 0.0

    def count(self, duration_s: float) -> None:
        """Count one (s)."""
        self._counts[bisect_left(self._buckets_s, duration_s)] += 1
        self.sum_s += duration_s

    @property
    def cumulative(self) -> list[tuple[str, int]]:
        """Each bucket's upper end and how many took no longer."""
        ends = [*map(str, self._buckets_s), "+Inf"]
        return list(zip(ends, accumulate(self._counts), strict=True))
