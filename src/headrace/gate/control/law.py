"""A law that learns a rate: its input for each batch, its output, and its registry entry.

A law is a module beside this one with a `Law`, and one line in `laws`. No other module names it.
The laws are pure: no Spark, no I/O, no clock, no threads. So the estimator can be compared with
Spark's own class, double for double, and a thousand batches can be simulated in a millisecond.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

_AT_ONCE: Final = 0.1
"""Longest gap after the previous batch, as a fraction of the interval, of a batch that began at
once.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine). They are more on a slow machine, where users set longer intervals.
A batch that waited for data begins when the data comes, nine times out of ten after a longer gap.
"""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Measurements of one gate's share of a batch that has ended.

    Attributes:
        start_ms: The time of the trigger (Unix time in ms).
        duration_ms: Duration, planning and commit included (``durationMs.triggerExecution``).
        records: The gate's records in the batch; 0 if its handler failed or the batch was skipped.
        left_over: Number of offsets that its plan left unread (`Plan.left_over`).
        waited_ms: Time spent waiting, for example for a backfill that used the handler.
        overhead_ms: Time spent outside the sink: planning, the checkpoint.
        is_empty: Whether the batch was planned without a record of the gate.
        went_through: Whether the batch went through at once. Otherwise its time is no measure of
            the job.
        is_limited: Whether a limit reduced the batch (`headrace.gate.control.is_limited`).
        had_no_sink: Whether the batch waited for an unreachable sink.
        rate_after_outage: The rate in force after the outage (records/s); None if it was not
            changed.
        was_rejected: Whether its values were read and could not be decoded, so that it has no
            records.
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
        """The end of the batch (Unix time in ms)."""
        return self.start_ms + self.duration_ms

    @property
    def own_ms(self) -> int:
        """The duration without waiting (ms)."""
        return max(self.duration_ms - self.waited_ms, 0)

    @property
    def says_something(self) -> bool:
        """Whether the batch's time is a measure of the job."""
        return self.went_through and (self.records > 0 or self.is_empty)


class BatchStats(NamedTuple):
    """The four arguments of `PIDRateEstimator.compute`, in their order."""

    time_ms: int
    num_elements: int
    processing_delay_ms: int
    scheduling_delay_ms: int


def batch_stats(
    previous: BatchProgress | None, present: BatchProgress, interval_ms: int
) -> BatchStats:
    """Return the estimator's input from the batch that has just ended.

    The scheduling delay is the excess over one interval between the starts of the two batches, if
    data was waiting by then. Data was waiting if the previous batch left some unread, or took
    longer than the interval and was followed at once. Otherwise the source had no data, and the
    delay is 0. Waiting time within a batch does not count, nor does a gap after the previous batch,
    such as an operator's pause: no batch was in the way.

    Args:
        previous: The previous batch; None for the first of a run, and if the previous batch's time
            is no measure of the job.
        present: The batch that has just ended.
        interval_ms: The trigger's interval or, for a trigger without one, the gate's (ms).
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
    """One gate's share of a finished batch, as the input of its law.

    Attributes:
        progress: The measurements.
        stats: The same measurements in the form of Spark's DStreams estimator.
        interval_ms: The time that a batch should take (ms).
        filling_per_s: The rate at which the next batch fills the interval, by the costs that all
            gates of the query share (records/s); None while the costs are unknown.
    """

    progress: BatchProgress
    stats: BatchStats
    interval_ms: int
    filling_per_s: float | None


class LawTerms(NamedTuple):
    """The contribution of each term of a law to a rate (records/s), as stored in the ledger.

    A law without such terms returns `NO_TERMS`.
    """

    proportional: float | None = None
    integral: float | None = None
    derivative: float | None = None


NO_TERMS: Final = LawTerms()


class GateLaw(Protocol):
    """A running law of one gate in one run. Batches come in the order in which they end.

    The law is recreated when the gate's interval changes, and after an outage of the sink.
    """

    def batch(self, part: FinishedPart, rate_in_force: float | None) -> float | None:
        """Learn from a batch. Return the new rate (records/s), or None to keep the rate in force.

        Args:
            part: The gate's share of a batch that went through at once.
            rate_in_force: The present rate (records/s); None before the first one.
        """

    def terms(self) -> LawTerms:
        """Return the terms of the last rate that `batch` returned."""


class LawOption(NamedTuple):
    """An option of one law: a number.

    Attributes:
        name: The option's name for users, such as ``backpressure.pid.integral``.
        default: The default value.
        above_zero: Whether 0 is refused, as negative numbers are.
    """

    name: str
    default: float
    above_zero: bool = False


class Shown(NamedTuple):
    """A rate that ``headrace why`` prints as the origin of another rate.

    Attributes:
        name: The name of the rate.
        per_s: The rate (records/s).
        is_change: Whether the rate was added to another rate, and so is printed with its sign.
    """

    name: str
    per_s: float
    is_change: bool = False


Options = Mapping[str, float]
"""The values of a law's options, by name."""


def _half(rate_in_force: float) -> float:
    return rate_in_force / 2


def _shows_nothing(_options: Options, _rate_per_s: float, _terms: LawTerms) -> tuple[Shown, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Law:
    """A law in the registry.

    Attributes:
        name: The value of ``backpressure.rateEstimator``.
        start: ``start(options, min_rate, interval_ms)`` creates the law of one gate. It raises
            `OptionError` for a number out of its range.
        options: The law's own options.
        fills_interval: Whether the law sizes a batch by its learned cost, so that the batch fills
            the interval, or takes longer if the fixed cost leaves too little of the interval.
        after_outage: Returns the gate's rate after an outage, from the rate in force before.
            Default: half, because a recovering sink may be slow at first.
        shown: ``shown(options, rate_per_s, terms)`` returns the rates that ``headrace why`` prints
            beside a rate.
    """

    name: str
    start: Callable[[Options, float, int], GateLaw]
    options: tuple[LawOption, ...] = ()
    fills_interval: bool = False
    after_outage: Callable[[float], float] = _half
    shown: Callable[[Options, float, LawTerms], tuple[Shown, ...]] = _shows_nothing
