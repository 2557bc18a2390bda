"""Rate estimators: what a finished batch says about the rate that the next ones can bear.

The law is the one of Spark's DStreams (``org.apache.spark.streaming.scheduler.rate``), with the
same operations on doubles in the same order, so that equal batches give equal rates.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.errors import OptionError

ESTIMATORS: Final = ("pid",)
"""The names that `create_estimator` knows."""


class RateEstimator(Protocol):
    """Computes the rate at which a source may admit records, from the batches that have ended.

    An estimator has a state and belongs to one source of one query. It is told of every batch, in
    the order in which they end, from one thread at a time.
    """

    def compute(
        self,
        time_ms: int,
        num_elements: int,
        processing_delay_ms: int,
        scheduling_delay_ms: int,
    ) -> float | None:
        """Take one finished batch into account.

        Args:
            time_ms: When the batch ended (milliseconds since the epoch).
            num_elements: The records of this source in it.
            processing_delay_ms: How long it took, planning and commit included.
            scheduling_delay_ms: How late it began.

        Returns:
            The new rate in records/s over all partitions together, or None if there is none: the
            rate in force then stays in force.
        """
        ...


@dataclass(frozen=True, slots=True)
class PIDTerms:
    """What went into the last rate of a `PIDRateEstimator`, for people to look at.

    Up to rounding, the new rate is the rate before it plus the three contributions, or the smallest
    rate allowed if that is larger.

    Attributes:
        processing_rate_per_s: How fast the batch was processed (records/s).
        error: The rate in force minus the processing rate (records/s): above 0 when more was
            admitted than could be processed.
        historical_error: The records that waited because the batch began late, spread over one
            interval (records/s).
        d_error: The change of the error since the update before, per second (records/s²).
        proportional: What the proportional term added to the rate (records/s); below 0, what it
            took away.
        integral: The same of the integral term.
        derivative: The same of the derivative term.
    """

    processing_rate_per_s: float
    error: float
    historical_error: float
    d_error: float
    proportional: float
    integral: float
    derivative: float


class PIDRateEstimator:
    """The estimator of Spark's DStreams: a controller with three terms over the rate.

    The rate in force is corrected by its distance from the rate at which the last batch was
    processed. It is steady when batches take exactly one interval and begin in time.

    The first batch gives no rate: its processing rate is where the corrections start from. ::

        >>> estimator = PIDRateEstimator(batch_interval_ms=1000)
        >>> estimator.compute(1_000, 5_000, processing_delay_ms=1000, scheduling_delay_ms=0)
        >>> estimator.compute(3_000, 5_000, processing_delay_ms=2000, scheduling_delay_ms=0)
        2500.0

    Args:
        batch_interval_ms: The time that a batch should take (ms); above 0.
        proportional: How much of the present error is corrected at once; 0 or more, 1.0 unless
            told otherwise. It does the bulk of the work: at 1.0 the rate goes straight to the last
            processing rate. Too large, and the rate overshoots and swings; too small, and it
            follows a slower job too late. At 0 only the other two terms move the rate.
        integral: How much of what waited is worked off; 0 or more, 0.2 unless told otherwise. It
            lowers the rate while batches begin late, so that they catch up. Too large, and the rate
            undershoots and leaves the job idle in turns; too small, and a delay that has built up
            stays.
        derivative: How much the trend of the error is anticipated; 0 or more, 0.0 unless told
            otherwise. It damps fast changes. Too large, and the noise of batch times is amplified
            until the rate is unstable, which is why it is rarely used; at 0 there is no
            anticipation.
        min_rate: The smallest rate that is ever answered (records/s); above 0, 100 unless told
            otherwise, so that batches never become empty and there is always something to learn
            from. Too large, and a job slower than that falls behind without bound; too small, and
            the way back up from a standstill is long.

    Raises:
        OptionError: An argument is out of its range, or not a finite number.
    """

    def __init__(
        self,
        batch_interval_ms: int,
        proportional: float = 1.0,
        integral: float = 0.2,
        derivative: float = 0.0,
        min_rate: float = 100.0,
    ) -> None:
        _require_above_zero("batch_interval_ms", batch_interval_ms)
        _require_zero_or_more("proportional", proportional)
        _require_zero_or_more("integral", integral)
        _require_zero_or_more("derivative", derivative)
        _require_above_zero("min_rate", min_rate)
        self._batch_interval_ms = batch_interval_ms
        self._proportional = proportional
        self._integral = integral
        self._derivative = derivative
        self._min_rate = min_rate
        self._latest_time_ms = -1
        self._latest_rate: float | None = None
        self._latest_error = 0.0
        self._terms: PIDTerms | None = None

    @property
    def terms(self) -> PIDTerms | None:
        """What went into the last rate answered; None until there is one."""
        return self._terms

    def compute(
        self,
        time_ms: int,
        num_elements: int,
        processing_delay_ms: int,
        scheduling_delay_ms: int,
    ) -> float | None:
        """Take one finished batch into account; see `RateEstimator.compute`.

        A batch that did not end after the one before, that had no records or that took no time
        teaches nothing: the answer is None and the state stays as it was. The first batch that
        does teach something answers None too.
        """
        if time_ms <= self._latest_time_ms or num_elements <= 0 or processing_delay_ms <= 0:
            return None
        # Rounded to a double before the division, as on the JVM: the last bit depends on it.
        processing_rate = float(num_elements) / processing_delay_ms * 1000
        delay_since_update_s = float(time_ms - self._latest_time_ms) / 1000
        self._latest_time_ms = time_ms
        if self._latest_rate is None:
            self._latest_rate = processing_rate
            return None

        error = self._latest_rate - processing_rate
        historical_error = float(scheduling_delay_ms) * processing_rate / self._batch_interval_ms
        d_error = (error - self._latest_error) / delay_since_update_s
        by_proportional = self._proportional * error
        by_integral = self._integral * historical_error
        by_derivative = self._derivative * d_error
        new_rate = max(
            self._latest_rate - by_proportional - by_integral - by_derivative, self._min_rate
        )
        self._latest_rate = new_rate
        self._latest_error = error
        self._terms = PIDTerms(
            processing_rate_per_s=processing_rate,
            error=error,
            historical_error=historical_error,
            d_error=d_error,
            # Not `-x`: nobody wants to be shown a minus zero.
            proportional=0.0 - by_proportional,
            integral=0.0 - by_integral,
            derivative=0.0 - by_derivative,
        )
        return new_rate


def create_estimator(
    name: str,
    batch_interval_ms: int,
    *,
    proportional: float,
    integral: float,
    derivative: float,
    min_rate: float,
) -> RateEstimator:
    """Make the estimator that the option ``backpressure.rateEstimator`` names.

    Args:
        name: One of `ESTIMATORS`.
        batch_interval_ms: As for `PIDRateEstimator`, like all that follow.
        proportional: The gain of the present error.
        integral: The gain of what waited.
        derivative: The gain of the error's trend.
        min_rate: The smallest rate answered (records/s).

    Raises:
        OptionError: There is no estimator of that name, or one of its arguments is out of range.
    """
    if name not in ESTIMATORS:
        raise OptionError(
            f"backpressure.rateEstimator is {name!r}; it must be one of: {', '.join(ESTIMATORS)}."
        )
    return PIDRateEstimator(batch_interval_ms, proportional, integral, derivative, min_rate)


def _require_above_zero(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{name} is {value!r}; it must be a finite number above 0.")


def _require_zero_or_more(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise OptionError(f"{name} is {value!r}; it must be a finite number of 0 or more.")
