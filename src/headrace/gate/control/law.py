"""The interface of rate laws. A law computes a gate's rate from the gate's finished batches.

A new law is a module in this package with a `Law` object, and one line in `laws`. No other module
names a law. Laws are pure: they use no Spark, no I/O, no clock and no threads. So tests can compare
the PID law with Spark's own class, double for double, and simulate a thousand batches in a
millisecond.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

_AT_ONCE: Final = 0.1
"""A batch follows at once if the gap before it is at most this fraction of the interval.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine). The gap is longer on a slow machine, but users set longer
intervals for such a machine. After a longer gap than this fraction, the batch is assumed to have
waited for data. Nine of ten waits for data are longer.
"""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Measurements of one gate's share of a finished batch.

    Attributes:
        start_ms: The time of the trigger (Unix time in ms).
        duration_ms: Duration of the batch with planning and commit
            (``durationMs.triggerExecution``, in ms).
        records: Number of the gate's records in the batch; 0 if the handler failed or the batch was
            skipped.
        left_over: Number of available offsets that the plan left unread (`Plan.left_over`).
        waited_ms: Time for which the batch waited, for example for a backfill that used the handler
            (ms).
        overhead_ms: Time for planning and the checkpoint, outside the handler (ms).
        is_empty: Whether the batch was planned without a record of the gate.
        went_through: Whether the handler processed the batch at the first attempt. Otherwise the
            duration does not measure the job.
        is_limited: Whether a limit reduced the batch (`headrace.gate.control.rate_law.is_limited`).
        had_no_sink: Whether the batch waited for an unreachable sink.
        rate_after_outage: The gate's rate after an outage of the sink (records/s); None if there
            was no outage, or if the outage did not change the rate.
        was_rejected: Whether the batch's values were read, but became dead letters because they
            could not be decoded. ``records`` is then 0.
    """

    start_ms: int
    duration_ms: int
    records: int
    left_over: int
    waited_ms: int = 0
    overhead_ms: int = 0
    is_empty: bool = False
    went_through: bool = True
    is_limited: bool = False
    had_no_sink: bool = False
    rate_after_outage: float | None = None
    was_rejected: bool = False

    @property
    def end_ms(self) -> int:
        """The time when the batch ended (Unix time in ms)."""
        return self.start_ms + self.duration_ms

    @property
    def own_ms(self) -> int:
        """The duration without the time for which the batch waited (ms)."""
        return max(self.duration_ms - self.waited_ms, 0)

    @property
    def says_something(self) -> bool:
        """Whether a law can learn from the batch's duration.

        A law can learn if the batch succeeded at once, and either had records or was planned empty.
        """
        return self.went_through and (self.records > 0 or self.is_empty)


class BatchStats(NamedTuple):
    """The four arguments of `PIDRateEstimator.compute`, in the order of its signature."""

    time_ms: int
    num_elements: int
    processing_delay_ms: int
    scheduling_delay_ms: int


def batch_stats(
    previous: BatchProgress | None, present: BatchProgress, interval_ms: int
) -> BatchStats:
    """Return the PID estimator's input for a batch that has just ended.

    The scheduling delay is the time between the starts of the two batches, less one interval and
    less the time for which the previous batch waited. The delay counts only if data was waiting:
    the previous batch left offsets unread, or it took longer than the interval and this batch
    followed at once. Otherwise the delay is 0. A longer gap between the batches, such as an
    operator's pause, does not count, because no batch caused it.

    Args:
        previous: The previous batch. None for the first batch of a run, and after a batch whose
            duration does not measure the job.
        present: The batch that has just ended.
        interval_ms: The interval of the trigger; the gate's interval if the trigger has no interval
            (ms).
    """
    delay_ms = 0
    if previous is not None:
        late_ms = previous.own_ms - interval_ms
        gap_ms = present.start_ms - previous.end_ms
        if gap_ms <= _AT_ONCE * interval_ms:
            delay_ms = late_ms + gap_ms if previous.left_over > 0 or late_ms > 0 else 0
        elif previous.left_over > 0:
            delay_ms = late_ms
        delay_ms = max(delay_ms, 0)
    return BatchStats(present.end_ms, present.records, present.own_ms, delay_ms)


@dataclass(frozen=True, slots=True)
class FinishedPart:
    """One gate's share of a finished batch: the input of the gate's law.

    Attributes:
        progress: The measurements of the share.
        stats: The same measurements as arguments of Spark's DStreams estimator.
        interval_ms: The time that a batch should take (ms).
        filling_per_s: The rate at which the next batch would take exactly one interval
            (records/s), from the learned costs of all sources of the query. None while the costs
            are unknown.
    """

    progress: BatchProgress
    stats: BatchStats
    interval_ms: int
    filling_per_s: float | None


class LawTerms(NamedTuple):
    """The contributions of the PID terms to a rate (records/s). The ledger stores them.

    A law that has no PID terms returns `NO_TERMS`, in which every value is None.
    """

    proportional: float | None = None
    integral: float | None = None
    derivative: float | None = None


NO_TERMS: Final = LawTerms()


class GateLaw(Protocol):
    """The state of one gate's law in one run of a query.

    Pass it the gate's batches in the order in which the batches end. `QueryRates` creates a new
    `GateLaw` when the gate's interval changes, and after an outage of the sink.
    """

    def batch(self, part: FinishedPart, rate_in_force: float | None) -> float | None:
        """Learn from a batch. Return the new rate (records/s), or None to keep the rate in force.

        Args:
            part: The gate's share of a batch that succeeded at once.
            rate_in_force: The present rate (records/s); None before the first rate.
        """

    def terms(self) -> LawTerms:
        """Return the terms of the last rate that `batch` returned; `NO_TERMS` without terms."""


class LawOption(NamedTuple):
    """A numeric option of one law.

    Attributes:
        name: The name that users set, such as ``backpressure.pid.integral``.
        default: The default value.
        above_zero: Whether the option must be above 0. Otherwise 0 is allowed too.
    """

    name: str
    default: float
    above_zero: bool = False


class Shown(NamedTuple):
    """A number that ``headrace why`` prints to explain a learned rate.

    Attributes:
        name: The printed name, such as ``before`` or ``P``.
        per_s: The number (records/s).
        is_change: Whether the number was added to the previous rate. Such a number is printed with
            its sign.
    """

    name: str
    per_s: float
    is_change: bool = False


Options = Mapping[str, float]
"""The values of a law's options, by the option's name."""


def _half(rate_in_force: float) -> float:
    return rate_in_force / 2


def _shows_nothing(_options: Options, _rate_per_s: float, _terms: LawTerms) -> tuple[Shown, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Law:
    """The registry entry of a rate law.

    Attributes:
        name: The value of ``backpressure.rateEstimator`` that selects the law.
        start: ``start(options, min_rate, interval_ms)`` creates the `GateLaw` of one gate. It
            raises `OptionError` if a number is out of its range.
        options: The options that only this law has. Default: none.
        fills_interval: Whether the law computes the batch size from the learned cost, so that a
            batch takes one interval. A batch takes longer if the fixed cost leaves too little of
            the interval for records. Default: False.
        after_outage: Function that returns the gate's rate after an outage of the sink, from the
            rate before the outage. Default: half, because a recovering sink may be slow at first.
        shown: ``shown(options, rate_per_s, terms)`` returns the numbers that ``headrace why``
            prints to explain a rate. Default: none.
    """

    name: str
    start: Callable[[Options, float, int], GateLaw]
    options: tuple[LawOption, ...] = ()
    fills_interval: bool = False
    after_outage: Callable[[float], float] = _half
    shown: Callable[[Options, float, LawTerms], tuple[Shown, ...]] = _shows_nothing
