"""The law ``pid``: the PID rate estimator of Spark's DStreams.

The law does the same operations on doubles in the same order as Spark's class (in
``org.apache.spark.streaming.scheduler.rate``), so that equal batches give equal rates. A batch of N
records took the time T and began D late. The time since the last update is t, the interval is i,
and the gains are P, I and Q::

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
    """The terms from which a `PIDRateEstimator` computed its last rate, for display.

    Up to rounding, the new rate is the previous rate plus ``proportional``, ``integral`` and
    ``derivative``. If the sum is below the smallest rate, the new rate is the smallest rate.

    Attributes:
        processing_rate_per_s: Processing rate of the batch (records/s).
        error: The previous rate minus the processing rate (records/s). It is above 0 if more
            records were admitted than could be processed.
        historical_error: The records that waited because the batch began late, divided by one
            interval (records/s).
        d_error: The change of ``error`` since the previous update, per second (records/s²).
        proportional: Contribution of the proportional term to the rate (records/s).
        integral: Contribution of the integral term to the rate (records/s).
        derivative: Contribution of the derivative term to the rate (records/s).
    """

    processing_rate_per_s: float
    error: float
    historical_error: float
    d_error: float
    proportional: float
    integral: float
    derivative: float


class PIDRateEstimator:
    """Spark's PID rate estimator: computes a source's rate from its finished batches.

    The rate is steady when batches take exactly one interval and begin in time. The first batch
    gives no rate; its processing rate is the start value. An estimator belongs to one source of one
    query. One thread passes it the batches in the order in which they end. ::

        >>> estimator = PIDRateEstimator(batch_interval_ms=1000)
        >>> estimator.compute(1_000, 5_000, processing_delay_ms=1000, scheduling_delay_ms=0)
        >>> estimator.compute(3_000, 5_000, processing_delay_ms=2000, scheduling_delay_ms=0)
        2500.0

    Args:
        batch_interval_ms: The time that a batch should take (ms); above 0.
        proportional: Gain P: the fraction of the present error that is corrected at once; 0 or
            more. Default: 1.0, with which the rate becomes the last processing rate. Too large: the
            rate overshoots and oscillates. Too small: the rate falls too late when the job becomes
            slower. At 0 only the other two terms change the rate.
        integral: Gain I: the weight of the records that wait because batches begin late; 0 or more.
            Default: 0.2. This term lowers the rate while batches begin late. Too large: the rate
            falls too far, and the job is idle at times. Too small: the delay of the batches stays.
        derivative: Gain Q: the weight of the error's trend; 0 or more. Default: 0.0. This term
            damps fast changes, but is rarely used. Too large: the term amplifies the noise of batch
            times until the rate is unstable.
        min_rate: The smallest rate that `compute` returns (records/s); above 0. Default: 100, so
            that batches never become empty. Too large: a slower job falls ever further behind. Too
            small: the rate recovers slowly after a standstill.

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
        """The terms of the last rate that `compute` returned; None before the first rate."""

    def compute(
        self,
        time_ms: int,
        num_elements: int,
        processing_delay_ms: int,
        scheduling_delay_ms: int,
    ) -> float | None:
        """Compute the new rate from one finished batch.

        A batch is ignored if it did not end later than the previous batch, or if its records or its
        duration are 0.

        Args:
            time_ms: The time when the batch ended (Unix time in ms).
            num_elements: Number of the source's records in the batch.
            processing_delay_ms: Duration of the batch with planning and commit (ms).
            scheduling_delay_ms: Time by which the batch began late (ms).

        Returns:
            The new rate (records/s over all partitions). None for the first batch and for an
            ignored batch; the rate in force then stays in force.
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
            # Not `-x`, which would print "-0" for a term of 0.
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
        # Most of the time of a small batch is fixed cost. PID would take the batch's rate for the
        # job's maximum, and fall below the limit that made the batch small. So a limited batch is
        # ignored, unless it took longer than its interval: then the limit is still too high.
        if part.progress.is_limited and part.progress.own_ms <= part.interval_ms:
            return None
        return self._estimator.compute(*part.stats)

    def terms(self) -> LawTerms:
        """Return the contributions of P, I and Q to the last rate; `NO_TERMS` before a rate."""
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
"""The options of the gains of `PIDRateEstimator`, in the order of its arguments."""

PID: Final = Law("pid", _GatePID, options=_GAINS, shown=_shown)
