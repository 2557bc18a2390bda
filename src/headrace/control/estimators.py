"""What a finished batch tells the law that learns the rate, and which law that is.

In DStreams the jobs of late batches queue, and a batch's scheduling delay is the length of that
queue. In Structured Streaming nothing queues: after an overrun the next trigger fires at once, and
the missed ticks are skipped. `batch_stats` therefore reads the delay off two successive batches.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from headrace.control.batch_cost import MOST_FIXED, SourceCost
from headrace.control.interval import IntervalLaw, too_short
from headrace.control.pid import PIDRateEstimator
from headrace.errors import OptionError


class LawName(StrEnum):
    """The laws that learn a rate. The values are what users write."""

    PID = "pid"
    """The estimator of Spark's DStreams: `PIDRateEstimator`."""
    LEARNED = "learned"
    """It learns what a batch costs before its first record: `LearnedBatches`."""

    @property
    def other(self) -> "LawName":
        """The law that runs in the shadow of this one."""
        return LawName.LEARNED if self is LawName.PID else LawName.PID


_AT_ONCE: Final = 0.1
"""The part of the interval within which a batch that follows another one began at once.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine), more on a slow machine, where users set longer intervals. A batch
that waited for data begins when the data comes, nine times out of ten later than this.
"""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """The law of ``backpressure.rateEstimator``, ``pid`` or ``learned``, and its settings.

    `PIDRateEstimator` documents and checks the gains, which are PID's alone. The settings go as
    text through the ledger from the source's process, which knows the options, to the driver's
    listener.

    Attributes:
        name: ``pid`` or ``learned``.
        min_rate: The smallest rate that is ever learnt (records/s); above 0.
        auto: What the interval must hold where it is ``auto``; None for a fixed one.

    Raises:
        OptionError: There is no such law.
    """

    name: str = "pid"
    proportional: float = 1.0
    integral: float = 0.2
    derivative: float = 0.0
    min_rate: float = 100.0
    auto: IntervalLaw | None = None

    def __post_init__(self) -> None:
        if self.name not in list(LawName):
            raise OptionError(
                f"backpressure.rateEstimator is {self.name!r}; it must be one of:"
                f" {', '.join(LawName)}."
            )

    def pid(self, batch_interval_ms: int) -> PIDRateEstimator:
        """A new estimator with the gains.

        Raises:
            OptionError: A gain or the smallest rate is out of its range.
        """
        gains = self.proportional, self.integral, self.derivative
        return PIDRateEstimator(batch_interval_ms, *gains, self.min_rate)

    def too_short(self, interval_ms: int, cost: SourceCost) -> str | None:
        """One sentence where an interval (ms) is too short for what a batch costs; else None."""
        least_work = 1 - MOST_FIXED if self.name == LawName.LEARNED else 0.0
        return too_short(interval_ms, cost, least_work=least_work, auto=self.auto)

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The opposite of ``to_text``.

        Raises:
            OptionError: It was not written by ``to_text`` of this version.
        """
        unreadable = OptionError(
            f"The settings of an estimator are {text!r}; this version of Headrace reads only what"
            " it writes itself, so use one version throughout."
        )
        try:
            values = json.loads(text)
            auto = values.pop("auto")
            settings = cls(**values, auto=None if auto is None else IntervalLaw(**auto))
            settings.pid(1)
        except (AttributeError, KeyError, TypeError, ValueError, OptionError) as error:
            raise unreadable from error
        return settings


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What is known of a batch when it has ended.

    Attributes:
        start_ms: When its trigger fired (Unix time in ms).
        duration_ms: How long it took, planning and commit included
            (``durationMs.triggerExecution``).
        records: The records of one source in it; 0 if its handler failed or it was skipped.
        left_over: The offsets that its plan left unread (`Plan.left_over`).
        waited_ms: How much of its time it waited for something else, such as a backfill that had
            the handler.
        overhead_ms: How much of its time was not the sink's: planning, the checkpoint.
    """

    start_ms: int
    duration_ms: int
    records: int
    left_over: int
    waited_ms: int = 0
    overhead_ms: int = 0

    @property
    def end_ms(self) -> int:
        """When it ended (Unix time in ms)."""
        return self.start_ms + self.duration_ms

    @property
    def own_ms(self) -> int:
        """How long it took by itself."""
        return max(self.duration_ms - self.waited_ms, 0)


class BatchStats(NamedTuple):
    """The four arguments of `PIDRateEstimator.compute`, in their order."""

    time_ms: int
    num_elements: int
    processing_delay_ms: int
    scheduling_delay_ms: int


def batch_stats(
    previous: BatchProgress | None, present: BatchProgress, interval_ms: int
) -> BatchStats:
    """What the batch that has just ended tells the estimator.

    Its scheduling delay is the time by which it began later than one interval after the batch
    before, if data was waiting by then. Data was waiting if the batch before left some unread, or
    took longer than the interval and was followed at once. Otherwise the source had nothing to
    give, and the delay is 0. Time for which a batch waited for something else does not count.

    Args:
        previous: The batch that ran before; None for the first of a run, and where the time of the
            one before says nothing of the job.
        present: The batch that has just ended.
        interval_ms: The trigger's interval or, where the trigger has none, the gate's (ms).
    """
    delay_ms = 0
    if previous is not None:
        at_once = present.start_ms - previous.end_ms <= _AT_ONCE * interval_ms
        overran = previous.own_ms > interval_ms
        if previous.left_over > 0 or (overran and at_once):
            due_ms = previous.start_ms + previous.waited_ms + interval_ms
            delay_ms = max(0, present.start_ms - due_ms)
    return BatchStats(present.end_ms, present.records, present.own_ms, delay_ms)
