"""A law that learns a rate: what it is told of a batch, what it answers, and its registry entry.

A law is a module beside this one with a `Law`, and one line in `laws`. Nothing else names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

_AT_ONCE: Final = 0.1
"""The part of the interval within which a batch that follows another one began at once.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine), more on a slow machine, where users set longer intervals. A batch
that waited for data begins when the data comes, nine times out of ten later than this."""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Measurements of one gate's part of a batch that has ended.

    Attributes:
        start_ms: When its trigger fired (Unix time in ms).
        duration_ms: Duration, planning and commit included (``durationMs.triggerExecution``).
        records: The records of the gate in it; 0 if its handler failed or it was skipped.
        left_over: The offsets that its plan left unread (`Plan.left_over`).
        waited_ms: Part of its time in which it waited for something else, such as a backfill that
            had the handler.
        overhead_ms: Part of its time that was not the sink's: planning, the checkpoint.
        is_empty: Whether the batch was planned without a record of the gate.
        went_through: Whether it went through at once. Otherwise its time says nothing of the job.
        is_limited: Whether a limit made it as small as it was (`headrace.gate.control.is_limited`).
        had_no_sink: Whether it waited for a sink that was away.
        rate_after_outage: The rate in force since then (records/s); None where it was left alone.
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
        """When it ended (Unix time in ms)."""
        return self.start_ms + self.duration_ms

    @property
    def own_ms(self) -> int:
        """Time that it took by itself."""
        return max(self.duration_ms - self.waited_ms, 0)

    @property
    def says_something(self) -> bool:
        """Whether its time says something of the job."""
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

    Its scheduling delay is the time by which it began later than one interval after the batch
    before, if data was waiting by then. Data was waiting if the batch before left some unread, or
    took longer than the interval and was followed at once. Otherwise the source had nothing to
    give, and the delay is 0. Time for which a batch waited for something else does not count, and
    nor does a gap after the batch before, such as an operator's pause: no batch was in the way.

    Args:
        previous: The batch that ran before; None for the first of a run, and where the time of the
            one before says nothing of the job.
        present: The batch that has just ended.
        interval_ms: The trigger's interval or, where the trigger has none, the gate's (ms).
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
    """One gate's part of a finished batch, as its law is told of it.

    Attributes:
        progress: The measurements.
        stats: The same as the estimator of Spark's DStreams takes them.
        interval_ms: The time that a batch should take (ms).
        filling_per_s: The rate at which the next batch fills the interval, by the costs that all
            gates of the query share (records/s); None while they are unknown.
    """

    progress: BatchProgress
    stats: BatchStats
    interval_ms: int
    filling_per_s: float | None


class LawTerms(NamedTuple):
    """What each term of a law added to a rate (records/s), as a `rate` row of the ledger has it.

    A law without such terms returns `NO_TERMS`.
    """

    proportional: float | None = None
    integral: float | None = None
    derivative: float | None = None


NO_TERMS: Final = LawTerms()


class GateLaw(Protocol):
    """A law at work for one gate in one run. Batches come in the order in which they end.

    It is made anew when the gate's interval changes, and after an outage of the sink.
    """

    def batch(self, part: FinishedPart, rate_in_force: float | None) -> float | None:
        """Learn from a batch. Return the new rate (records/s), or None to keep the rate in force.

        Args:
            part: The gate's part of a batch that went through at once.
            rate_in_force: The rate now (records/s); None before the first one.
        """

    def terms(self) -> LawTerms:
        """Return the terms of the last rate that `batch` returned."""


class LawOption(NamedTuple):
    """An option of one law: a number.

    Attributes:
        name: The name that users write, such as ``backpressure.pid.integral``.
        default: The value where users set none.
        above_zero: Whether 0 is refused, as negative numbers are.
    """

    name: str
    default: float
    above_zero: bool = False


class Shown(NamedTuple):
    """A rate that ``headrace why`` prints as the ground of another one.

    Attributes:
        name: What the rate is.
        per_s: The rate (records/s).
        is_change: Whether it was added to another rate, and so is printed with its sign.
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
    """A law, as the registry has it.

    Attributes:
        name: The value of ``backpressure.rateEstimator``.
        start: ``start(options, min_rate, interval_ms)`` makes the law of one gate. It raises an
            `OptionError` where a number is out of its range.
        options: The options that are this law's alone.
        fills_interval: Whether the law sizes a batch by its learned cost, so that the batch fills
            the interval, or takes longer where the fixed cost leaves too little of it.
        after_outage: Returns the rate with which a gate goes on after its sink was away, of the
            rate in force then. Default: half, for a sink that is back may be slow at first.
        shown: ``shown(options, rate_per_s, terms)``: what ``headrace why`` prints beside a rate.
    """

    name: str
    start: Callable[[Options, float, int], GateLaw]
    options: tuple[LawOption, ...] = ()
    fills_interval: bool = False
    after_outage: Callable[[float], float] = _half
    shown: Callable[[Options, float, LawTerms], tuple[Shown, ...]] = _shows_nothing
