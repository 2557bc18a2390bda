"""A model of a batch's duration, learned from finished batches: ``T = a + b1 n1 + b2 n2 + ...``.

Here a is the fixed cost, the seconds that a batch takes whatever its size (planning, the
checkpoint, starting tasks, the sink's commit). For each source, b is the seconds that one record
takes, and n is the number of records. In a join, T is the time of one batch with records of several
sources. `BatchCost` is a Kalman filter of ``x = (a, b1, b2, ...)`` with the covariance P. With
``h = (1, n1, n2, ...)`` and noise in proportion to the duration::

    expected   T^ = h x
    variance   S  = h P h' + R,    R = (sigma T^)^2
    surprise   z  = (T - T^) / sqrt(S)
    gain       k  = P h' / S
    update     x += k (T - T^),    P -= k h P,    then P_aa += (0.003 i)^2, P_bb += (d b)^2

Here i is the interval. Where ``|z| > 2``, R is multiplied by ``|z| / 2`` (Huber), so that an
outlier counts less. The drift d is 0.03, and more if successive batches have similar surprises
(`learned`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from operator import mul
from typing import Final, Self

from headrace.errors import OptionError

Records = Mapping[str, float]
"""Numbers of records in a batch, by source."""

KAPPA: Final = 0.2
"""Safety margin of a planned batch, in standard deviations of its expected time. Higher: batch
sizes rise more slowly."""

MOST_FIXED: Final = 0.7
"""The fixed cost takes at most this fraction of a planned batch's time. If the fixed cost is a
larger fraction of the interval, batches are planned longer than the interval."""

_ALLOWED: Final = 1.1
"""A batch's planned time plus its safety margin (`KAPPA`) is at most this many intervals."""

_LEAST_NOISE: Final = 0.02
_FIRST_NOISE: Final = 0.1
_NOISE_WEIGHT: Final = 0.07
_NOISE_OF_DEVIATION: Final = 1.25
"""Ratio of the standard deviation to the mean absolute deviation of a normal distribution."""

_DRIFT_A: Final = 0.003
"""Standard deviation of the fixed cost's assumed change from one batch to the next, as a fraction
of the interval."""

_DRIFT_B: Final = 0.03
"""Standard deviation of the record cost's assumed change from one batch to the next, as a fraction
of the record cost b."""

_TINY: Final = 1e-300
"""Lower bound of a variance, which rounding could make 0 or negative."""

_LEAST_WORK: Final = 0.05
"""If the filter makes a record cost 0 or negative, at least this fraction of the batch's time is
attributed to its records."""

_UNTOLD: Final = 10.0
"""Standard deviation of the record cost b after the first batch, as a multiple of b. One batch does
not show how its time divides into a and b."""


@dataclass(frozen=True, slots=True)
class SourceCost:
    """The learned cost of one source's batches, which the ledger stores with the gate.

    Attributes:
        fixed_s: The fixed cost a: the time of a batch without records (s).
        record_s: The record cost b: the additional time for each record (s); above 0.
        fixed_variance: The variance of a, P_aa (s²).
        covariance: The covariance of a and b, P_ab (s²).
        record_variance: The variance of b, P_bb (s²).
        noise: The standard deviation sigma of a batch's time, as a fraction of the expected time.
        changed_ms: The time of the last detected change of the job (Unix time in ms); None for no
            change.
    """

    fixed_s: float
    record_s: float
    fixed_variance: float
    covariance: float
    record_variance: float
    noise: float = _FIRST_NOISE
    changed_ms: int | None = None

    def to_text(self) -> str:
        """Serialize the cost as JSON for the ledger."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse a cost that ``to_text`` has serialized.

        Raises:
            OptionError: This version of Headrace cannot read the text.
        """
        unreadable = OptionError(
            f"The stored cost of a batch is {text!r}, which this version of Headrace cannot read,"
            " so the cost is learned again."
        )
        try:
            cost = cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise unreadable from error
        numbers = (
            cost.fixed_s,
            cost.record_s,
            cost.fixed_variance,
            cost.covariance,
            cost.record_variance,
            cost.noise,
            0 if cost.changed_ms is None else cost.changed_ms,
        )
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise unreadable
        if min(cost.fixed_s, cost.fixed_variance, cost.record_variance) < 0 or not (
            cost.record_s > 0 and cost.noise > 0
        ):
            raise unreadable
        return cost


@dataclass(frozen=True, slots=True)
class BatchCost:
    """The model of a query's batch duration: the fixed cost, and the record cost of each source.

    Attributes:
        sources: The sources' names, in the order of ``record_s``.
        fixed_s: The fixed cost a: the time of a batch without records (s).
        record_s: The record cost b of each source: the additional time for each record (s); above
            0.
        covariance: The covariance matrix P. The first row and column belong to a, the next rows and
            columns to the sources in their order.
        noise: The standard deviation sigma of a batch's time, as a fraction of the expected time.
    """

    sources: tuple[str, ...]
    fixed_s: float
    record_s: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float = _FIRST_NOISE

    @classmethod
    def first(cls, records: Records, time_s: float, interval_s: float) -> "BatchCost":
        """Return the first model, from a single batch of ``time_s`` seconds.

        One batch determines the sum of fixed cost and record costs. How the time divides between
        them is a guess with a high variance.
        """
        fixed_s = min(0.2 * interval_s, time_s / 2)
        each_s = (time_s - fixed_s) / sum(records.values())
        names = tuple(name for name, count in records.items() if count > 0)
        # The variance admits that all time above the interval is fixed cost.
        unknown_s = max(0.3 * interval_s, time_s - interval_s)
        spread = unknown_s**2, *[(_UNTOLD * each_s) ** 2] * len(names)
        guess = cls(names, fixed_s, (each_s,) * len(names), _diagonal(spread))
        return guess.updated(records, time_s, interval_s)

    @classmethod
    def of_sources(cls, costs: Mapping[str, SourceCost]) -> "BatchCost | None":
        """Combine each source's cost from earlier runs into a model; return None without costs.

        The model gets the fixed cost with the smallest variance among the sources.
        """
        if not costs:
            return None
        learned = list(costs.values())
        least = min(learned, key=lambda cost: cost.fixed_variance)
        rows = [[0.0] * (len(learned) + 1) for _ in range(len(learned) + 1)]
        rows[0][0] = least.fixed_variance
        for place, cost in enumerate(learned, start=1):
            rows[place][place] = cost.record_variance
            # The covariances of the other sources belong to fixed costs that are not used here.
            if cost is least:
                rows[0][place] = rows[place][0] = cost.covariance
        return cls(
            tuple(costs),
            least.fixed_s,
            tuple(cost.record_s for cost in learned),
            tuple(map(tuple, rows)),
            max(cost.noise for cost in learned),
        )

    def of_source(self, name: str, changed_ms: int | None) -> SourceCost | None:
        """Return one source's cost, to be stored in the ledger; None if the source is unknown."""
        if name not in self.sources:
            return None
        place = self.sources.index(name) + 1
        return SourceCost(
            self.fixed_s,
            self.record_s[place - 1],
            self.fixed_variance,
            self.covariance[0][place],
            self.covariance[place][place],
            self.noise,
            changed_ms,
        )

    @property
    def fixed_variance(self) -> float:
        """The variance of the fixed cost, P_aa (s²)."""
        return self.covariance[0][0]

    def is_sure_of_fixed(self, interval_s: float) -> bool:
        """Whether the standard deviation of the fixed cost is small.

        Small means at most a tenth of the fixed cost, or at most a fiftieth of the interval.
        """
        return math.sqrt(self.fixed_variance) <= max(0.1 * self.fixed_s, 0.02 * interval_s)

    def is_vague(self, source: str) -> bool:
        """Whether the standard deviation of a source's record cost is above a tenth of the cost."""
        place = self.sources.index(source) + 1
        return math.sqrt(self.covariance[place][place]) > 0.1 * self.record_s[place - 1]

    def expected_s(self, records: Records) -> float:
        """Return the time that the model expects for a batch with these records (s)."""
        return self.fixed_s + sum(
            cost_s * records.get(name, 0.0)
            for name, cost_s in zip(self.sources, self.record_s, strict=True)
        )

    def variance(self, records: Records) -> float:
        """Return the variance of `expected_s` that the uncertainty of a and b causes (s²)."""
        counts = self._counts(records)
        return max(_dot(counts, _times(self.covariance, counts)), 0.0)

    def surprise(self, records: Records, time_s: float) -> float:
        """Return how much longer than expected a batch took, in standard deviations.

        The result is negative if the batch took less time than expected.
        """
        expected_s = self.expected_s(records)
        return (time_s - expected_s) / math.sqrt(
            self.variance(records) + (self.noise * expected_s) ** 2
        )

    def drifted(self, interval_s: float, more: float = 0.0) -> "BatchCost":
        """Return the model with larger variances, because a and b may drift from batch to batch.

        ``more`` is added to the relative drift of b.
        """
        drift_b = _DRIFT_B + more
        drifts = (_DRIFT_A * interval_s, *[drift_b * value for value in self.record_s])
        return replace(self, covariance=_widened(self.covariance, [value**2 for value in drifts]))

    def with_source(self, name: str, count: float, left_s: float) -> "BatchCost":
        """Return the model with one more source.

        Args:
            name: The source's name.
            count: The number of the source's records in its first batch.
            left_s: The time of that batch beyond the time expected for the other sources (s).
        """
        usual_s = sum(self.record_s) / len(self.record_s)
        each_s = left_s / count if left_s > 0 else usual_s
        rows = [*[(*row, 0.0) for row in self.covariance], (0.0,) * (len(self.sources) + 1)]
        bare = replace(
            self,
            sources=(*self.sources, name),
            record_s=(*self.record_s, each_s),
            covariance=tuple((*row[: len(self.sources) + 1], 0.0) for row in rows),
        )
        spread = [0.0] * (len(self.sources) + 1) + [(_UNTOLD * each_s) ** 2]
        return replace(bare, covariance=_widened(bare.covariance, spread))

    def updated(
        self, records: Records, time_s: float, interval_s: float, least_s: float = 0.0
    ) -> "BatchCost":
        """Return the model after one more batch.

        Args:
            records: The records of each source in the batch.
            time_s: The time that the batch took (s).
            interval_s: The time that a batch should take (s).
            least_s: Lower bound of the fixed cost (s).
        """
        counts = self._counts(records)
        weight = max(abs(self.surprise(records, time_s)) / 2, 1.0)
        along = _times(self.covariance, counts)
        spread = _dot(counts, along) + weight * (self.noise * self.expected_s(records)) ** 2
        error_s = time_s - self.expected_s(records)
        fixed_s, *record_s = (
            value + gain / spread * error_s
            for value, gain in zip((self.fixed_s, *self.record_s), along, strict=True)
        )
        covariance = tuple(
            tuple(value - along[i] * along[j] / spread for j, value in enumerate(row))
            for i, row in enumerate(self.covariance)
        )
        covariance = _widened(
            covariance, [max(_TINY - row[i], 0.0) for i, row in enumerate(covariance)]
        )
        possible_s = max(fixed_s, least_s, 0.0)
        if possible_s != fixed_s:
            along_fixed = [value_a / covariance[0][0] for value_a in covariance[0][1:]]
            record_s = [
                b + part * (possible_s - fixed_s)
                for b, part in zip(record_s, along_fixed, strict=True)
            ]
        new = replace(self, fixed_s=possible_s, record_s=tuple(record_s), covariance=covariance)
        if min(record_s) > 0:
            return new
        # The more the fixed cost exceeds the batch's whole time, the less the old model counts.
        work = min(max(1 - time_s / max(self.fixed_s, _TINY), _LEAST_WORK), 0.5)
        return new._made_possible(records, time_s, interval_s, work)

    def _made_possible(
        self, records: Records, time_s: float, interval_s: float, work: float
    ) -> "BatchCost":
        """Raise record costs to above 0, and reduce a fixed cost that exceeds the batch's time.

        The fraction ``work`` of the batch's time is divided equally among the sources. A record
        cost of 0 or less becomes its source's time divided by its source's records.
        """
        part_s = work * time_s / len(self.sources)
        record_s = tuple(
            each_s if each_s > 0 else part_s / max(records.get(name, 0.0), 1.0)
            for name, each_s in zip(self.sources, self.record_s, strict=True)
        )
        worked_s = sum(
            each_s * records.get(name, 0.0)
            for name, each_s in zip(self.sources, record_s, strict=True)
        )
        fixed_s = min(self.fixed_s, max(time_s - worked_s, 0.0))
        unknown = (0.3 * max(fixed_s, interval_s)) ** 2, *[0.0] * len(record_s)
        wider = self.covariance if fixed_s == self.fixed_s else _widened(self.covariance, unknown)
        return replace(self, fixed_s=fixed_s, record_s=record_s, covariance=wider)

    def with_noise_of(self, records: Records, time_s: float) -> "BatchCost":
        """Return the model with its noise updated by one batch.

        While a and b are uncertain, the noise changes only slightly.
        """
        expected_s = self.expected_s(records)
        noise_variance = (self.noise * expected_s) ** 2
        weight = _NOISE_WEIGHT * noise_variance / (self.variance(records) + noise_variance)
        seen = _NOISE_OF_DEVIATION * abs(time_s - expected_s) / expected_s
        return replace(self, noise=max(self.noise + weight * (seen - self.noise), _LEAST_NOISE))

    def most(self, parts: Records, interval_s: float) -> float:
        """Return the largest factor f for which a batch of f times ``parts`` fits the interval.

        ``parts`` has a number of records for each source. With n = f times ``parts``, two
        conditions must hold::

            a + b n                       <= i + (i - a) min(0.15 (sigma - 0.03), 0.02)
            a + b n + kappa sqrt(h P h')  <= 1.1 i

        The first condition lets batches with noisy times take slightly longer than the interval, so
        that noise does not lower the throughput. The second condition keeps batches small while the
        model is uncertain. The factor is 0 if the fixed cost alone is too large.
        """
        counts = (0.0, *self._counts(parts)[1:])
        along = _times(self.covariance, counts)
        record_s, record_variance, covariance = (
            self.expected_s(parts) - self.fixed_s,
            max(_dot(counts, along), 0.0),
            along[0],
        )
        slack = min(max(0.15 * (self.noise - 0.03), 0.0), 0.02)
        most = max(interval_s - self.fixed_s, 0.0) * (1 + slack) / record_s
        # The smaller root of (1.1 i - a - b n)^2 = kappa^2 h P h', or q n^2 - 2 p n + c = 0.
        left_s = _ALLOWED * interval_s - self.fixed_s
        q = record_s**2 - KAPPA**2 * record_variance
        p = left_s * record_s + KAPPA**2 * covariance
        c = left_s**2 - KAPPA**2 * self.fixed_variance
        if left_s <= 0 or c <= 0:
            return 0.0
        root = p**2 - q * c
        if root < 0 or p + math.sqrt(root) <= 0:
            return most
        return min(most, c / (p + math.sqrt(root)))

    def forgotten(
        self, records: Records, time_s: float, fixed_within_s: float = 0.0
    ) -> "BatchCost":
        """Return the model after a change of the job: the record costs are uncertain again.

        The fixed cost keeps its value; its standard deviation becomes at least ``fixed_within_s``.
        The standard deviation of a record cost b becomes 2 b. If the last batch, without the fixed
        cost, took longer than b for each record, the standard deviation becomes twice that time: a
        b near 0, learned while records were cheap, says little about the present cost.

        Args:
            records: The records of each source in the last batch.
            time_s: The time that the last batch took (s).
            fixed_within_s: Least standard deviation of the fixed cost (s).
        """
        fixed_variance = max(self.fixed_variance, fixed_within_s**2)
        count = sum(records.values())
        shown_s = max(time_s - self.fixed_s, 0.0) / count
        spread = (fixed_variance, *[(2 * max(cost_s, shown_s)) ** 2 for cost_s in self.record_s])
        return replace(self, covariance=_diagonal(spread))

    def _counts(self, records: Records) -> tuple[float, ...]:
        return (1.0, *[records.get(name, 0.0) for name in self.sources])


def _diagonal(values: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    size = range(len(values))
    return tuple(tuple(values[i] if i == j else 0.0 for j in size) for i in size)


def _widened(
    matrix: tuple[tuple[float, ...], ...], by: list[float] | tuple[float, ...]
) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(value + (by[i] if i == j else 0.0) for j, value in enumerate(row))
        for i, row in enumerate(matrix)
    )


def _times(matrix: tuple[tuple[float, ...], ...], vector: tuple[float, ...]) -> list[float]:
    return [_dot(row, vector) for row in matrix]


def _dot(one: tuple[float, ...], other: tuple[float, ...] | list[float]) -> float:
    return sum(map(mul, one, other), 0.0)
