"""The law that learns what a batch costs before its first record.

A batch of n records takes ``T = a + b n``: a seconds whatever is in it (planning, the checkpoint,
starting tasks, the sink's commit), and b for each record. `BatchCost` is a Kalman filter of
``x = (a, b)`` with the covariance P. With ``h = (1, n)`` and noise in proportion to the time::

    expected   T^ = a + b n
    variance   S  = h P h' + R,    R = (sigma T^)^2
    surprise   z  = (T - T^) / sqrt(S)
    gain       k  = P h' / S
    update     x += k (T - T^),    P -= k h P,    then P_aa += (0.003 i)^2, P_bb += (0.03 b)^2

where ``|z| > 2``, R is multiplied by ``|z| / 2`` (Huber), and i is the interval. Two sums detect
that the job has changed, which of drifts alone would be learnt too slowly::

    up   = max(0, up + z - 0.5)        down = max(0, down - z - 0.5)

Above 3.5, b is unknown again (``P_bb = (2 b)^2``), a is kept, and what was seen since the sum last
was 0 is learnt again. A single batch that does so may be an outlier: if the next one fits the old
model better, the old model is back.

The next batch has the largest n with::

    a + b n                            <= i + (i - a) min(0.15 (sigma - 0.03), 0.02)
    a + b n + kappa sqrt(h P h')       <= 1.1 i
    n                                  <= 8 times the last batch

So little is admitted while little is known, and the climb from a small batch is the experiment that
tells a from b. ``tests/control/test_learned.py`` says after how many batches it settles.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.validation import require_number

KAPPA: Final = 0.2
"""How many standard deviations of the expected time must have room. More: it climbs slower."""

_ALLOWED: Final = 1.1
"""Of the interval, with `KAPPA` standard deviations."""

_MOST_GROWTH: Final = 8.0
"""Of a batch over the one before."""

_SLACK: Final = 0.5
"""What a surprise must exceed to count as a change: in standard deviations."""

_CHANGE: Final = 3.5
"""The sum of surprises that is a change. Less: noise is taken for one. More: it is seen later."""

_REMEMBERED: Final = 12
"""Batches from which is learnt again after a change."""

_OUTLIER: Final = 3.0
"""A surprise beyond which the noise is not learnt from it."""

_LEAST_NOISE: Final = 0.02
_FIRST_NOISE: Final = 0.1
_NOISE_WEIGHT: Final = 0.07
_NOISE_OF_DEVIATION: Final = 1.25
"""The standard deviation over the mean absolute one, of a normal distribution."""

_DRIFT_A: Final = 0.003
"""How much a may change from batch to batch, of the interval."""

_DRIFT_B: Final = 0.03
"""How much b may change from batch to batch, of itself."""

_TINY: Final = 1e-300
"""No variance is less, whatever rounding makes of it."""

_MOST_A: Final = 0.95
"""Of the interval. With more, no rate would leave time for records."""


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What is known of a batch's time, ``a + b n``.

    Attributes:
        fixed_s: a, the time of a batch without records (s).
        record_s: b, the time of one record (s); above 0.
        fixed_variance: P_aa (s²).
        covariance: P_ab (s²).
        record_variance: P_bb (s²).
        noise: sigma, the standard deviation of a batch's time over the expected time.
    """

    fixed_s: float
    record_s: float
    fixed_variance: float
    covariance: float
    record_variance: float
    noise: float = _FIRST_NOISE

    @classmethod
    def first(cls, records: float, time_s: float, interval_s: float) -> "BatchCost":
        """From one batch, which says what a and b are together, and hardly what each of them is."""
        fixed_s = min(0.2 * interval_s, time_s / 2)
        variance = (0.3 * interval_s) ** 2
        noise_s = _FIRST_NOISE * time_s
        return cls(
            fixed_s,
            (time_s - fixed_s) / records,
            variance,
            -variance / records,
            (variance + noise_s**2) / records**2,
        )

    def expected_s(self, records: float) -> float:
        """How long a batch of so many records takes (s)."""
        return self.fixed_s + self.record_s * records

    def variance(self, records: float) -> float:
        """Of `expected_s`, for a and b are not known exactly (s²)."""
        cross = 2 * self.covariance * records
        return max(self.fixed_variance + cross + self.record_variance * records**2, 0.0)

    def surprise(self, records: float, time_s: float) -> float:
        """By how many standard deviations a batch took longer than expected."""
        expected_s = self.expected_s(records)
        return (time_s - expected_s) / math.sqrt(
            self.variance(records) + (self.noise * expected_s) ** 2
        )

    def drifted(self, interval_s: float) -> "BatchCost":
        """One batch later: a and b may have changed a little."""
        return replace(
            self,
            fixed_variance=self.fixed_variance + (_DRIFT_A * interval_s) ** 2,
            record_variance=self.record_variance + (_DRIFT_B * self.record_s) ** 2,
        )

    def updated(self, records: float, time_s: float, interval_s: float) -> "BatchCost":
        """With what one batch says."""
        weight = max(abs(self.surprise(records, time_s)) / 2, 1.0)
        known = self.variance(records)
        spread = known + weight * (self.noise * self.expected_s(records)) ** 2
        along_fixed = self.fixed_variance + self.covariance * records
        along_record = self.covariance + self.record_variance * records
        error_s = time_s - self.expected_s(records)
        fixed_s = self.fixed_s + along_fixed / spread * error_s
        record_s = self.record_s + along_record / spread * error_s
        fixed_variance = max(self.fixed_variance - along_fixed**2 / spread, _TINY)
        covariance = self.covariance - along_fixed * along_record / spread
        record_variance = max(self.record_variance - along_record**2 / spread, _TINY)
        possible_s = min(max(fixed_s, 0.0), _MOST_A * interval_s)
        if possible_s != fixed_s:
            record_s += covariance / fixed_variance * (possible_s - fixed_s)
        if not record_s > 0:
            record_s = max(time_s - possible_s, 0.05 * time_s) / records
        return replace(
            self,
            fixed_s=possible_s,
            record_s=record_s,
            fixed_variance=fixed_variance,
            covariance=covariance,
            record_variance=record_variance,
        )

    def with_noise_of(self, records: float, time_s: float) -> "BatchCost":
        """With what one batch says of the noise."""
        expected_s = self.expected_s(records)
        seen = _NOISE_OF_DEVIATION * abs(time_s - expected_s) / expected_s
        return replace(
            self, noise=max(self.noise + _NOISE_WEIGHT * (seen - self.noise), _LEAST_NOISE)
        )

    def best_records(self, interval_s: float) -> float:
        """The largest batch that meets the first two conditions of the law; 0 where a is too much.

        The target exceeds the interval by as little as lets noise not cost throughput, and by
        nothing where there is none.
        """
        slack = min(max(0.15 * (self.noise - 0.03), 0.0), 0.02)
        most = max(interval_s - self.fixed_s, 0.0) * (1 + slack) / self.record_s
        # (1.1 i - a - b n)^2 = kappa^2 h P h' is q n^2 - 2 p n + c = 0, of which the smaller root.
        left_s = _ALLOWED * interval_s - self.fixed_s
        q = self.record_s**2 - KAPPA**2 * self.record_variance
        p = left_s * self.record_s + KAPPA**2 * self.covariance
        c = left_s**2 - KAPPA**2 * self.fixed_variance
        if c <= 0:
            return 0.0
        root = p**2 - q * c
        if root < 0 or p + math.sqrt(root) <= 0:
            return most
        return min(most, c / (p + math.sqrt(root)))

    def forgotten(self) -> "BatchCost":
        """After a change: a is what it was, and b may be anything."""
        return replace(self, covariance=0.0, record_variance=(2 * self.record_s) ** 2)


@dataclass(slots=True)
class _Sum:
    """A sum of surprises in one direction, and the batches since it was 0."""

    sign: int
    value: float = 0.0
    batches: int = 0

    def add(self, surprise: float) -> bool:
        """Whether the job has changed."""
        self.value = max(self.value + self.sign * surprise - _SLACK, 0.0)
        self.batches = self.batches + 1 if self.value > 0 else 0
        return self.value > _CHANGE

    def clear(self) -> None:
        self.value, self.batches = 0.0, 0


class LearnedRateEstimator:
    """Learns the fixed and the marginal cost of a batch, and fills the interval.

    An estimator belongs to one source of one query; batches are reported in the order in which they
    end, by one thread. Batches that something else limited teach it too. ::

        >>> estimator = LearnedRateEstimator(batch_interval_ms=1000)
        >>> for records in (100, 800, 1400):  # each takes 0.3 s, and 0.5 ms for each record
        ...     rate = estimator.compute(0, records, 300 + records // 2, 0)
        >>> round(rate, -2)
        1400.0

    Args:
        batch_interval_ms: The time that a batch should take (ms); above 0.
        min_rate: The smallest rate that is ever returned (records/s); above 0. Default: 100.
        cost: What an earlier run has learnt. Default: nothing.

    Attributes:
        cost: What it knows; None before the first batch.
        changes: How often it has seen the job change.

    Raises:
        OptionError: An argument is out of its range, or not a finite number.
    """

    def __init__(
        self, batch_interval_ms: int, min_rate: float = 100.0, cost: BatchCost | None = None
    ) -> None:
        require_number("batch_interval_ms", batch_interval_ms, above=True)
        require_number("min_rate", min_rate, above=True)
        self._interval_s = batch_interval_ms / 1000
        self._min_rate = min_rate
        self._sums = (_Sum(+1), _Sum(-1))
        self._recent: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._before: BatchCost | None = None
        """The model from before a change that a single batch has made."""
        self.cost = cost
        self.changes = 0

    def compute(
        self,
        time_ms: int,
        num_elements: int,
        processing_delay_ms: int,
        scheduling_delay_ms: int,
    ) -> float | None:
        """Take one finished batch into account; the arguments are those of `PIDRateEstimator`.

        A batch that had no records or took no time changes nothing. When it ended, and how late it
        began, say nothing of what it costs.

        Returns:
            The new rate (records/s); None where the batch changed nothing.
        """
        if num_elements <= 0 or processing_delay_ms <= 0:
            return None
        records, time_s = float(num_elements), processing_delay_ms / 1000
        if self.cost is None:
            self.cost = BatchCost.first(records, time_s, self._interval_s)
        else:
            self._learn(self.cost, records, time_s)
        most = min(self.cost.best_records(self._interval_s), _MOST_GROWTH * records)
        return max(most / self._interval_s, self._min_rate)

    def _learn(self, cost: BatchCost, records: float, time_s: float) -> None:
        before, self._before = self._before, None
        if before is not None:
            of_old, of_new = (abs(c.surprise(records, time_s)) for c in (before, cost))
            if of_old < min(of_new, 2.0):
                cost = before
        surprise = cost.surprise(records, time_s)
        if abs(surprise) <= _OUTLIER:
            cost = cost.with_noise_of(records, time_s)
        self._recent.append((records, time_s))
        changed = [each for each in self._sums if each.add(surprise)]
        if not changed:
            drifted = cost.drifted(self._interval_s)
            self.cost = drifted.updated(records, time_s, self._interval_s)
            return
        self.changes += 1
        if changed[0].batches == 1:
            self._before = cost
        self.cost = self._relearnt(cost, changed[0].batches)
        self._recent.clear()
        for each in self._sums:
            each.clear()

    def _relearnt(self, cost: BatchCost, batches: int) -> BatchCost:
        """The model from the last batches alone, but for a."""
        cost = cost.forgotten()
        for records, time_s in list(self._recent)[-batches:]:
            cost = cost.updated(records, time_s, self._interval_s)
        return cost
