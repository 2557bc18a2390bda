"""Timeline of a gate's last batches, each divided into phases.

The ledger has four times of a batch: its plan, the start of the last call of its handler, the end
of that call, and Spark's commit, which comes from the rate sample. Spark reads while the handler
asks for rows, so reading is no phase of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.gate import BatchRecord, RateSample, Status
from headrace.operate.status.states import GateHistory

MOST: Final = 40
"""Largest number of batches on a timeline."""

PAUSE: Final = 20
"""A time without a batch counts as a pause if it is longer than this many intervals. A timeline
begins after the last pause, because a pause would take most of the timeline's width."""

SHORTEST_PAUSE_MS: Final = 60_000

_NARROWEST: Final = 0.25
"""A bar is at least this wide (percent of the timeline), so that people can see and click it."""

_RUNNING: Final = (Status.IN_PROGRESS, Status.BACKFILLING)


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a batch on the timeline. Its name is also its CSS class."""

    name: str
    begin_ms: int
    end_ms: int

    @property
    def duration_ms(self) -> int:
        """Duration of the phase (ms)."""
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch on the timeline, with its known phases.

    Attributes:
        batch: The batch.
        phases: One or more phases in order, without a gap.
        is_again: Whether the batch's latest run began after a later batch was planned, as in a
            backfill.
        late_ms: Delay of the batch's start (ms), because the preceding batch took too long.
    """

    batch: BatchRecord
    phases: tuple[Phase, ...]
    is_again: bool
    late_ms: int

    @property
    def begin_ms(self) -> int:
        """Start of the batch's first phase (ms since the epoch)."""
        return self.phases[0].begin_ms

    @property
    def end_ms(self) -> int:
        """End of the batch's last phase (ms since the epoch); now for a running batch."""
        return self.phases[-1].end_ms


@dataclass(frozen=True, slots=True)
class Timeline:
    """Batches since the query's last pause, oldest first, on a timeline."""

    batches: tuple[TimedBatch, ...]

    @property
    def since_ms(self) -> int:
        """Start of the timeline (ms since the epoch)."""
        return min(timed.begin_ms for timed in self.batches)

    @property
    def until_ms(self) -> int:
        """End of the timeline (ms since the epoch)."""
        return max(timed.end_ms for timed in self.batches)

    @property
    def has_again(self) -> bool:
        """Whether a batch was run again. The page shows such runs in a second row."""
        return any(timed.is_again for timed in self.batches)

    def places(self, timed: TimedBatch) -> Iterator[tuple[str, float, float]]:
        """Yield name, x and width (both in percent of the timeline) of each phase of a batch."""
        since_ms, span_ms = self.since_ms, max(self.until_ms - self.since_ms, 1)
        for phase in timed.phases:
            width = max(100 * phase.duration_ms / span_ms, _NARROWEST)
            left = 100 * (phase.begin_ms - since_ms) / span_ms
            yield phase.name, min(left, 100 - _NARROWEST), width


def timeline_of(history: GateHistory, now_ms: int) -> Timeline | None:
    """Return the timeline of a gate's last batches since the last pause; None without a batch."""
    samples = {sample.batch_key: sample for sample in history.samples}
    pause_ms = max(PAUSE * history.gate.interval_ms, SHORTEST_PAUSE_MS)
    # Without a query, the time until which the batch ran is not known.
    until_ms = now_ms if history.query is not None else None
    kept: list[TimedBatch] = []
    following: BatchRecord | None = None
    begin_ms: int | None = None
    for batch in history.batches[:MOST]:
        timed = _timed(batch, following, samples, pause_ms, until_ms)
        following = batch
        if not timed.is_again:
            if begin_ms is not None and begin_ms - timed.end_ms > pause_ms:
                break
            begin_ms = timed.begin_ms
        kept.append(timed)
    return Timeline(tuple(reversed(kept))) if kept else None


def _timed(
    batch: BatchRecord,
    following: BatchRecord | None,
    samples: Mapping[str | None, RateSample],
    pause_ms: int,
    until_ms: int | None,
) -> TimedBatch:
    planned_ms, sample = batch.created_time_ms, samples.get(batch.batch_key)
    start_ms = planned_ms if batch.start_time_ms is None else batch.start_time_ms
    is_again = following is not None and start_ms > following.created_time_ms
    end_ms = until_ms if batch.status in _RUNNING else batch.end_time_ms
    end_ms = max(start_ms, end_ms or start_ms)
    phases = []
    if batch.start_time_ms is None:
        phases = [Phase("waiting", planned_ms, end_ms)]
    else:
        if not is_again and 0 < start_ms - planned_ms <= pause_ms:
            before = "waiting" if batch.attempts == 1 else "earlier attempts"
            phases = [Phase(before, planned_ms, start_ms)]
        phases.append(Phase("handler", start_ms, end_ms))
        if sample is not None and batch.attempts == 1 and sample.time_ms > end_ms:
            phases.append(Phase("commit", end_ms, sample.time_ms))
    late_ms = 0 if sample is None else sample.scheduling_delay_ms
    return TimedBatch(batch, tuple(phases), is_again, late_ms)
