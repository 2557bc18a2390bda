"""From what Structured Streaming reports of a batch to what a rate estimator wants to know.

The estimators come from DStreams, where the jobs of late batches queue and the delay of a batch is
the length of that queue. In Structured Streaming nothing queues: after an overrun the next trigger
fires at once, and the ticks that were missed are skipped. The delay of a batch is therefore read
off two batches in succession.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

_AT_ONCE: Final = 0.1
"""The part of the interval within which a batch that follows another one began at once.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine), more on a slow machine, where users set longer intervals. A batch
that had to wait for data begins when the data comes, anywhere up to the next tick and past it: nine
times out of ten later than this.
"""


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What is known of a batch when it has ended.

    Attributes:
        start_ms: When its trigger fired (milliseconds since the epoch).
        duration_ms: How long it took, planning and commit included
            (``durationMs.triggerExecution``).
        records: The records of one source in it; 0 if its handler failed or it was put aside.
        left_over: The offsets that its plan left unread (`Plan.left_over`).
        waited_ms: How much of its time it waited for something that is no part of it, such as a
            backfill that had the handler.
    """

    start_ms: int
    duration_ms: int
    records: int
    left_over: int
    waited_ms: int = 0

    @property
    def end_ms(self) -> int:
        """When it ended (milliseconds since the epoch)."""
        return self.start_ms + self.duration_ms

    @property
    def own_ms(self) -> int:
        """How long it took by itself."""
        return max(self.duration_ms - self.waited_ms, 0)


class BatchStats(NamedTuple):
    """The four arguments of `RateEstimator.compute`, in their order."""

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
    if that one took longer than the interval and this one began at once after it. Otherwise the
    source had simply nothing to give, and the delay is 0.

    What either of them waited for something that is no part of it counts as no time at all.

    Args:
        previous: The batch that ran before; None for the first of a run, and where the time of the
            one before says nothing of the job.
        present: The batch that has just ended.
        interval_ms: The trigger's interval or, where the trigger has none, the gate's (ms).
    """
    return BatchStats(
        time_ms=present.end_ms,
        num_elements=present.records,
        processing_delay_ms=present.own_ms,
        scheduling_delay_ms=_scheduling_delay_ms(previous, present, interval_ms),
    )


def _scheduling_delay_ms(
    previous: BatchProgress | None, present: BatchProgress, interval_ms: int
) -> int:
    if previous is None:
        return 0
    at_once = present.start_ms - previous.end_ms <= _AT_ONCE * interval_ms
    overran = previous.own_ms > interval_ms
    if previous.left_over == 0 and not (overran and at_once):
        return 0
    due_ms = previous.start_ms + previous.waited_ms + interval_ms
    return max(0, present.start_ms - due_ms)
