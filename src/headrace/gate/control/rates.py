"""The rates of all gates of one query. Each gate's own law computes the gate's rate.

The sources of a join share the time of a batch. So each query has one `LearnedBatches`, whatever
the laws of its gates are. `LearnedBatches` learns the cost of each source. ``headrace status``
shows the costs, an ``auto`` interval depends on them, and a law may use them.

The laws learn only from batches that succeeded at once. If a batch was retried, isolated, deferred
or taken over by another process, its duration does not measure the job. The laws compute with times
that leave out such batches, and the time spent waiting for a backfill. The batch after such a batch
does not count as late.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from headrace.gate.control.batch_cost import SourceCost
from headrace.gate.control.interval import AutoInterval, IntervalChange
from headrace.gate.control.law import (
    NO_TERMS,
    BatchProgress,
    BatchStats,
    FinishedPart,
    LawTerms,
    batch_stats,
)
from headrace.gate.control.laws import EstimatorSettings
from headrace.gate.control.learned import FinishedBatch, LearnedBatches

_TOO_SHORT: Final = 5
"""A warning is logged after this many consecutive batches with a too short interval."""

UNREAD_BATCHES: Final = 3
"""A warning is logged after this many consecutive batches in which Spark read no record."""

_UNREAD: Final = (
    "Spark has read no record of its last %d batches, so the gate cannot learn their cost or a"
    " rate; let the handler read its DataFrame."
)


@dataclass(frozen=True, slots=True)
class LearntRate:
    """Effect of a finished batch on one gate's rate.

    Attributes:
        stats: The batch's measurements: the input of the law.
        rate_per_s: The new rate (records/s); None to keep the rate in force.
        processing_rate_per_s: The gate's records divided by the batch's duration (records/s); None
            if the law could not learn from the batch.
        terms: Contributions of the law's terms to the new rate; `NO_TERMS` without a new rate.
        cost: The learned cost of a batch; None while the cost is unknown.
        interval: The new interval of a gate whose interval is ``auto``; None to keep the interval.
        warning: One sentence if the interval is too short, or if the handler does not read its
            DataFrame. Each of the two warnings comes once in a run. None without a warning.
    """

    stats: BatchStats
    rate_per_s: float | None = None
    processing_rate_per_s: float | None = None
    terms: LawTerms = NO_TERMS
    cost: SourceCost | None = None
    interval: IntervalChange | None = None
    warning: str | None = None


class _GateLaws:
    def __init__(
        self, settings: EstimatorSettings, interval_ms: int, in_force: float | None
    ) -> None:
        self.settings = settings
        self.interval_ms = interval_ms
        self.in_force = in_force
        self.law = settings.start(interval_ms)
        self.auto = None if settings.auto is None else AutoInterval(settings.auto)
        self.late = _Streak(_TOO_SHORT)
        self.unread = _Streak(UNREAD_BATCHES)
        self._previous: BatchProgress | None = None
        self._aside_ms = 0

    def change(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.law = self.settings.start(interval_ms)

    def outage_ended(self, rate_per_s: float | None) -> None:
        self.law = self.settings.start(self.interval_ms)
        if rate_per_s is not None:
            self.in_force = rate_per_s

    def stats(self, part: BatchProgress, *, teaches: bool) -> BatchStats:
        """Return the law's input for a batch.

        The times in the input exclude batches from which no law could learn.
        """
        previous, self._previous = self._previous, part if teaches else None
        self._aside_ms += part.waited_ms if teaches else part.duration_ms
        stats = batch_stats(previous, part, self.interval_ms)
        return stats._replace(time_ms=stats.time_ms - self._aside_ms)

    def learnt(
        self,
        part: BatchProgress,
        stats: BatchStats,
        filling_per_s: float | None,
        cost: SourceCost | None,
        change: IntervalChange | None,
    ) -> LearntRate:
        finished = FinishedPart(part, stats, self.interval_ms, filling_per_s)
        new = self.law.batch(finished, self.in_force)
        if new is not None:
            self.in_force = new
        return LearntRate(
            stats,
            rate_per_s=new,
            processing_rate_per_s=_per_s(stats),
            terms=self.law.terms() if new is not None else NO_TERMS,
            cost=cost,
            interval=change,
            warning=self.warning(part, cost),
        )

    def warning(self, part: BatchProgress, cost: SourceCost | None) -> str | None:
        """Return the warning that is due after this batch; None if no warning is due.

        A warning is due once in a run, after several consecutive batches with the same problem.
        """
        is_unread = part.records == 0 and not part.was_rejected
        if part.went_through and self.unread.is_full(holds=is_unread):
            return _UNREAD % UNREAD_BATCHES
        if cost is None:
            return None
        sentence = self.settings.too_short(self.interval_ms, cost)
        return sentence if self.late.is_full(holds=sentence is not None) else None


class _Streak:
    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._was_full = False

    def is_full(self, *, holds: bool) -> bool:
        self._count = self._count + 1 if holds else 0
        if self._count < self._most or self._was_full:
            return False
        self._was_full = True
        return True


class QueryRates:
    """The rate laws of all gates in one run of a query.

    Call `add` for each gate, then `finished` for each batch, in the order in which batches end.
    """

    def __init__(self) -> None:
        self._gates: dict[str, _GateLaws] = {}
        self._learned: LearnedBatches | None = None

    def add(
        self,
        gate: str,
        settings: EstimatorSettings,
        interval_ms: int,
        cost: SourceCost | None = None,
        rate_per_s: float | None = None,
    ) -> None:
        """Add a gate of the query.

        Args:
            gate: The gate's name.
            settings: The gate's law and the law's options.
            interval_ms: The time that a batch should take (ms).
            cost: The cost that earlier runs have learned; None for no cost.
            rate_per_s: The rate in force from an earlier run (records/s); None for no rate.

        Raises:
            OptionError: An option of the law is out of its range.
        """
        self._gates[gate] = _GateLaws(settings, interval_ms, rate_per_s)
        if self._learned is None:
            self._learned = LearnedBatches(interval_ms, {} if cost is None else {gate: cost})
            return
        if cost is not None:
            self._learned.add(gate, cost)
        self._learned.interval_ms = min(self._learned.interval_ms, interval_ms)

    def finished(self, batch: Mapping[str, BatchProgress]) -> dict[str, LearntRate]:
        """Learn from one finished batch. Return the result of each gate whose share is not empty.

        1. If one gate's share did not succeed at once, no gate learns from the batch.
        2. The cost of each gate's records is updated, and then each ``auto`` interval.
        3. Each gate's law computes the gate's new rate.
        4. If a gate's sink was unreachable, the gate's law starts anew. The learned cost stays.

        Args:
            batch: Each gate's share, by the gate's name. A gate that was not added is missing from
                the result. But if its share did not succeed at once, no gate learns from the batch.
        """
        waited_ms = max((part.waited_ms for part in batch.values()), default=0)
        went_through = all(part.went_through for part in batch.values())
        parts = {
            gate: replace(part, waited_ms=waited_ms, went_through=went_through)
            for gate, part in batch.items()
        }
        stats = {
            gate: self._gates[gate].stats(part, teaches=part.says_something)
            for gate, part in parts.items()
            if gate in self._gates
        }
        own = {gate: part for gate, part in parts.items() if gate in stats and not part.is_empty}
        learned = self._learned
        if learned is not None and own and all(part.says_something for part in parts.values()):
            learned.learn(_shared(own))
            changes = self._changed(own, learned)
            filling = self._filling(learned)
            costs = learned.cost
            learnt = {
                gate: self._gates[gate].learnt(
                    part,
                    stats[gate],
                    filling.get(gate),
                    costs.of_source(gate, learned.changed_ms) if costs else None,
                    changes.get(gate),
                )
                for gate, part in own.items()
            }
        else:
            learnt = {
                gate: LearntRate(stats[gate], warning=self._gates[gate].warning(part, None))
                for gate, part in own.items()
            }
        for gate in stats:
            if parts[gate].had_no_sink:
                self._gates[gate].outage_ended(parts[gate].rate_after_outage)
        return learnt

    def _filling(self, learned: LearnedBatches) -> dict[str, float]:
        """Return the rates at which the next batch takes one interval (records/s).

        The result contains only gates with known costs.
        """
        least = {gate: laws.settings.min_rate for gate, laws in self._gates.items()}
        return {
            gate: max(records * 1000 / learned.interval_ms, least[gate])
            for gate, records in learned.records(least).items()
        }

    def _changed(
        self, gates: Mapping[str, BatchProgress], learned: LearnedBatches
    ) -> dict[str, IntervalChange]:
        changes = {}
        for name in gates:
            laws = self._gates[name]
            change = laws.auto and laws.auto.after_batch(laws.interval_ms, learned.cost)
            if change:
                laws.change(change.interval_ms)
                changes[name] = change
        if changes:
            learned.interval_ms = min(laws.interval_ms for laws in self._gates.values())
        return changes


def _shared(parts: Mapping[str, BatchProgress]) -> FinishedBatch:
    """Combine the gates' shares of a batch into the input of `LearnedBatches.learn`."""
    newest = next(iter(parts.values()))
    return FinishedBatch(
        newest.end_ms,
        {gate: part.records for gate, part in parts.items()},
        newest.own_ms,
        newest.overhead_ms,
        {gate for gate, part in parts.items() if part.left_over > 0},
    )


def _per_s(stats: BatchStats) -> float | None:
    delay_ms = stats.processing_delay_ms
    return stats.num_elements / delay_ms * 1000 if delay_ms > 0 else None
