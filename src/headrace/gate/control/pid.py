"""The rate that the next batches can sustain, computed from a finished batch.

The law is the PID estimator of Spark's DStreams (``org.apache.spark.streaming.scheduler.rate``),
with the same operations on doubles in the same order, so that equal batches give equal rates. With
a batch of N records that took T and began D late, the time since the last update t, the interval i,
and the gains P, I, Q::

    processing    = N / T
    error         = rate - processing
    historical    = D * processing / i
    d_error       = (error - last error) / t
    new rate      = max(rate - P * error - I * historical - Q * d_error, min_rate)
"""

from dataclasses import dataclass
from typing import Final

from headrace.core.options import require_number
from headrace.gate.control.law import (
    NO_TERMS,
    FinishedPart,
    Law,
    LawOption,
    LawTerms,
    Options,
    Shown,
)


@dataclass(frozen=True, slots=True)
class PIDTerms:
    """Terms of the last rate of a `PIDRateEstimator`, for display.

    Up to rounding, the new rate is the previous rate plus the three contributions, or the smallest
    rate allowed if that is larger.

    Attributes:
        processing_rate_per_s: Processing rate of the batch (records/s).
        error: The rate in force minus the processing rate (records/s): above 0 when more was
            admitted than could be processed.
        historical_error: The records that waited because the batch began late, spread over one
            interval (records/s).
        d_error: The change of the error since the previous update, per second (records/s²).
        proportional: Contribution of the proportional term to the rate (records/s).
        integral: Contribution of the integral term (records/s).
        derivative: Contribution of the derivative term (records/s).
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

    The rate is steady when batches take exactly one interval and begin in time. The first batch
    gives no rate: its processing rate is the start of the corrections. An estimator belongs to one
    source of one query; one thread reports the batches in the order in which they end. ::

        >>> estimator = PIDRateEstimator(batch_interval_ms=1000)
        >>> estimator.compute(1_000, 5_000, processing_delay_ms=1000, scheduling_delay_ms=0)
        >>> estimator.compute(3_000, 5_000, processing_delay_ms=2000, scheduling_delay_ms=0)
        2500.0

    Args:
        batch_interval_ms: The time that a batch should take (ms); above 0.
        proportional: Fraction of the present error that is corrected at once; 0 or more. Default:
            1.0, at which the rate goes straight to the last processing rate. Too large: the rate
            overshoots and swings. Too small: it follows a slower job too late. At 0 only the other
            two terms move the rate.
        integral: Speed at which waiting records are caught up with; 0 or more. Default: 0.2. It
            lowers the rate while batches begin late. Too large: the rate undershoots and leaves the
            job idle in turns. Too small: an accumulated delay stays.
        derivative: Weight of the error's trend; 0 or more. Default: 0.0. It damps fast changes. Too
            large: the noise of batch times is amplified until the rate is unstable, which is why it
            is rarely used.
        min_rate: The smallest rate that is ever returned (records/s); above 0. Default: 100, so
            that batches never become empty. Too large: a slower job falls behind without bound. Too
            small: the way back up from a standstill is long.

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
        require_number("batch_interval_ms", batch_interval_ms, above=True)
        require_number("proportional", proportional)
        require_number("integral", integral)
        require_number("derivative", derivative)
        require_number("min_rate", min_rate, above=True)
        self._batch_interval_ms = batch_interval_ms
        self._proportional = proportional
        self._integral = integral
        self._derivative = derivative
        self._min_rate = min_rate
        self._latest_time_ms = -1
        self._latest_rate: float | None = None
        self._latest_error = 0.0
        self.terms: PIDTerms | None = None
        """Terms of the last rate returned; None before the first rate."""

    def compute(
        self,
        time_ms: int,
        num_elements: int,
        processing_delay_ms: int,
        scheduling_delay_ms: int,
    ) -> float | None:
        """Update the rate with one finished batch.

        A batch changes nothing if it ended no later than the previous batch, had no records or took
        no time.

        Args:
            time_ms: The end of the batch (Unix time in ms).
            num_elements: The records of this source in it.
            processing_delay_ms: Duration, planning and commit included (ms).
            scheduling_delay_ms: Delay of its start (ms).

        Returns:
            The new rate (records/s over all partitions together). None if the batch changed
            nothing, or was the first; the rate in force then stays in force.
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
        self.terms = PIDTerms(
            processing_rate_per_s=processing_rate,
            error=error,
            historical_error=historical_error,
            d_error=d_error,
            # Not `-x`, which would show a minus zero.
            proportional=0.0 - by_proportional,
            integral=0.0 - by_integral,
            derivative=0.0 - by_derivative,
        )
        return new_rate


class _GatePID:
    def __init__(self, options: Options, min_rate: float, interval_ms: int) -> None:
        proportional, integral, derivative = (options[option.name] for option in _GAINS)
        self._estimator = PIDRateEstimator(
            interval_ms, proportional, integral, derivative, min_rate
        )

    def batch(self, part: FinishedPart, rate_in_force: float | None) -> float | None:
        """Compute a rate from the estimator's own last rate, as Spark does."""
        del rate_in_force
        # Most of the time of a small batch is fixed cost. PID would take its rate for the job's
        # maximum, and fall below the limit that made the batch small, so PID does not see it.
        # A batch longer than its interval counts: the job cannot process even the limited batch.
        if part.progress.is_limited and part.progress.own_ms <= part.interval_ms:
            return None
        return self._estimator.compute(*part.stats)

    def terms(self) -> LawTerms:
        """Return the contributions of the three terms to the last rate."""
        terms = self._estimator.terms
        if terms is None:
            return NO_TERMS
        return LawTerms(terms.proportional, terms.integral, terms.derivative)


def _shown(_options: Options, rate_per_s: float, terms: LawTerms) -> tuple[Shown, ...]:
    if terms.proportional is None:
        return ()
    added = [term or 0.0 for term in terms]
    return (
        Shown("before", rate_per_s - sum(added)),
        *(Shown(name, term, is_change=True) for name, term in zip("PID", added, strict=True)),
    )


_GAINS: Final = (
    LawOption("backpressure.pid.proportional", 1.0),
    LawOption("backpressure.pid.integral", 0.2),
    LawOption("backpressure.pid.derived", 0.0),
)
"""The arguments of `PIDRateEstimator`, in their order."""

PID: Final = Law("pid", _GatePID, options=_GAINS, shown=_shown)
