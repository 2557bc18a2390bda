"""A gate's last batches over time, each divided by what the ledger knows of it.

The ledger has four times of a batch: when it was planned, when its handler was called last, when
that ended, and when Spark had committed it, which the rate sample says. Spark reads while the
handler asks for rows, so that reading has no time of its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.gate import BatchRecord, RateSample, Status
from headrace.operate.status.states import GateHistory

MOST: Final = 40
"""Batches on a timeline."""

PAUSE: Final = 20
"""Intervals without a batch before which the timeline begins: else that is all there is to see."""

SHORTEST_PAUSE_MS: Final = 60_000

_NARROWEST: Final = 0.25
"""The narrowest bar (percent of the width), so that it can be seen and pointed at."""

_RUNNING: Final = (Status.IN_PROGRESS, Status.BACKFILLING)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a batch's time; its name is also its class on the page."""

    name: str
    begin_ms: int
    end_ms: int

    @property
    def duration_ms(self) -> int:
        """How long it took."""
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True)
class TimedBatch:
    """A batch with the phases that are known of it, one at least.

    Attributes:
        batch: The batch.
        phases: In their order, without a gap.
        is_again: Whether its latest run began after a later batch was planned, as a backfill does.
        late_ms: Time by which it began later than its interval, as the batch before took so long.
    """

    batch: BatchRecord
    phases: tuple[Phase, ...]
    is_again: bool
    late_ms: int

    @property
    def begin_ms(self) -> int:
        """When its first phase began."""
        return self.phases[0].begin_ms

    @property
    def end_ms(self) -> int:
        """When its last phase ended; of a batch that runs, now."""
        return self.phases[-1].end_ms


@dataclass(frozen=True, slots=True)
class Timeline:
    """Batches, the oldest first, from the last pause on."""

    batches: tuple[TimedBatch, ...]

    @property
    def since_ms(self) -> int:
        """Where it begins (ms since the epoch)."""
        return min(each.begin_ms for each in self.batches)

    @property
    def until_ms(self) -> int:
        """Where it ends (ms since the epoch)."""
        return max(each.end_ms for each in self.batches)

    @property
    def has_again(self) -> bool:
        """Whether there is a batch for the second row."""
        return any(each.is_again for each in self.batches)

    def places(self, timed: TimedBatch) -> Iterator[tuple[str, float, float]]:
        """The phases of a batch by their name, with x and width in percent."""
        since_ms, span_ms = self.since_ms, max(self.until_ms - self.since_ms, 1)
        for phase in timed.phases:
            width = max(100 * phase.duration_ms / span_ms, _NARROWEST)
            left = 100 * (phase.begin_ms - since_ms) / span_ms
            yield phase.name, min(left, 100 - _NARROWEST), width


def timeline_of(history: GateHistory, now_ms: int) -> Timeline | None:
    """Lay out the gate's last batches up to the last pause before them; None without a batch."""
    samples = {sample.batch_key: sample for sample in history.samples}
    pause_ms = max(PAUSE * history.gate.interval_ms, SHORTEST_PAUSE_MS)
    # Nobody knows how long a batch has run whose query is gone.
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
