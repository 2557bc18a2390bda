"""A gate in simulated time: estimator, timing and planner in a closed loop with a job.

Nothing here decides anything: the control code itself is driven, against a job whose speed is a
function of time. Equal arguments give equal results.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headgate.control.estimator import RateEstimator
from headgate.control.limits import Limits
from headgate.control.plan import plan
from headgate.control.ranges import TopicPartition
from headgate.control.reason import Reason
from headgate.control.timing import BatchProgress, batch_stats


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """A batch of a simulation, with the lag and the rate (records/s) that it was planned with."""

    progress: BatchProgress
    lag: int
    rate_per_s: float | None
    reason: Reason


def simulate(
    estimator: RateEstimator,
    limits: Limits,
    *,
    capacity_per_s: Callable[[int], float],
    arrivals_per_s: Callable[[int], float],
    until_ms: int,
    backlog: int = 0,
    partitions: int = 1,
    fixed_ms: int = 0,
) -> list[SimulatedBatch]:
    """Run a gated query from time 0 until ``until_ms`` and return its batches.

    The trigger is Structured Streaming's: it fires at every multiple of the interval or, if a batch
    has run past the next one, at once after it. A trigger that finds nothing makes no batch.

    Args:
        estimator: A fresh one, made for the interval of ``limits``.
        limits: Whose ``seconds_per_batch`` is the interval.
        capacity_per_s: How fast a batch that starts at this time (ms) is processed; it takes 1 ms
            at least.
        arrivals_per_s: How fast records come in from the trigger at this time (ms) to the next.
        until_ms: Triggers at this time or later do not fire.
        backlog: The records that are there at the start.
        partitions: Over how many partitions the records are spread evenly.
        fixed_ms: What a batch costs whatever its size.
    """
    interval_ms = round(limits.seconds_per_batch * 1000)
    names = [TopicPartition("simulated", number) for number in range(partitions)]
    current = dict.fromkeys(names, 0)
    arrived, now_ms = float(backlog), 0
    rate: float | None = None
    previous: BatchProgress | None = None
    batches: list[SimulatedBatch] = []
    while now_ms < until_ms:
        latest = {name: int(arrived + name.partition) // partitions for name in names}
        planned = plan(current, latest, rate, limits)
        count, end_ms = planned.records, now_ms
        if count:
            present = BatchProgress(
                start_ms=now_ms,
                duration_ms=fixed_ms + max(round(count / capacity_per_s(now_ms) * 1000), 1),
                records=count,
                left_over=planned.left_over,
            )
            answer = estimator.compute(*batch_stats(previous, present, interval_ms))
            batches.append(SimulatedBatch(present, planned.lag, planned.rate_per_s, planned.reason))
            rate = rate if answer is None else answer
            current, previous, end_ms = planned.until, present, present.end_ms
        next_ms = max(end_ms, (now_ms // interval_ms + 1) * interval_ms)
        arrived += arrivals_per_s(now_ms) * (next_ms - now_ms) / 1000
        now_ms = next_ms
    return batches


def batches_to_settle(
    batches: Sequence[SimulatedBatch], *, from_ms: int, target_ms: int, tolerance: float = 0.15
) -> int | None:
    """How many batches it takes, from a disturbance at ``from_ms`` on, until all take their time.

    Returns:
        The number of batches up to the last whose duration is off ``target_ms`` by more than that
        part of it (``tolerance``): 0 if none is. None if the very last one still is.
    """
    since = [batch.progress for batch in batches if batch.progress.start_ms >= from_ms]
    off = [abs(batch.duration_ms - target_ms) > tolerance * target_ms for batch in since]
    if off and off[-1]:
        return None
    return max((number for number, is_off in enumerate(off, start=1) if is_off), default=0)
