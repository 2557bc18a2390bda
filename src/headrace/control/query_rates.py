"""The rates of all gates of one query: the law that each has chosen, and the other in its shadow.

Both laws hear of every batch that teaches, so that what the other one would say can be shown, and
a user can compare before changing over. The sources of a join share the time of a batch: the
learned law tells their costs apart, PID takes the whole time for each.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.control.batch_cost import SourceCost
from headrace.control.estimators import BatchStats, EstimatorSettings, LawName
from headrace.control.interval import AutoInterval, IntervalChange
from headrace.control.learned import FinishedBatch, LearnedBatches
from headrace.control.pid import PIDTerms

_TOO_SHORT: Final = 5
"""After how many batches in a row that say so an interval is called too short."""


@dataclass(frozen=True, slots=True)
class LearntRate:
    """What a batch has taught of one gate.

    Attributes:
        rate_per_s: The new rate (records/s); None where the law gave none, and the rate in force
            stays.
        other_per_s: What the other law would say (records/s); None where it gave none.
        terms: What PID's terms added to the rate; None where it is not in force.
        cost: What is known of a batch's cost; None where nothing is.
        interval: The new interval of a gate whose interval is ``auto``; None to leave it.
        too_short: One sentence where the interval is too short, once in a run.
    """

    rate_per_s: float | None = None
    other_per_s: float | None = None
    terms: PIDTerms | None = None
    cost: SourceCost | None = None
    interval: IntervalChange | None = None
    too_short: str | None = None


class _GateLaws:
    """What belongs to one gate alone."""

    def __init__(self, settings: EstimatorSettings, interval_ms: int) -> None:
        self.settings = settings
        self.interval_ms = interval_ms
        self.pid = settings.pid(interval_ms)
        self.auto = None if settings.auto is None else AutoInterval(settings.auto)
        self.late = 0
        self.has_warned = False

    def change(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.pid = self.settings.pid(interval_ms)


class QueryRates:
    """The laws of one run of a query. Batches are reported in the order in which they end."""

    def __init__(self) -> None:
        self._gates: dict[str, _GateLaws] = {}
        self._learned: LearnedBatches | None = None

    def add(
        self,
        gate: str,
        settings: EstimatorSettings,
        interval_ms: int,
        cost: SourceCost | None = None,
    ) -> None:
        """One more gate of the query, with what its earlier runs have learnt.

        Raises:
            OptionError: There is no such law, or a gain is out of its range.
        """
        self._gates[gate] = _GateLaws(settings, interval_ms)
        if self._learned is None:
            self._learned = LearnedBatches(interval_ms, {} if cost is None else {gate: cost})
            return
        if cost is not None:
            self._learned.add(gate, cost)
        self._learned.interval_ms = min(self._learned.interval_ms, interval_ms)

    def restart(self, gate: str) -> None:
        """Begin as after a start: PID has learnt no rate, and what a batch costs stays known."""
        self._gates[gate].change(self._gates[gate].interval_ms)

    def finished(
        self,
        batch: FinishedBatch,
        stats: Mapping[str, BatchStats],
        *,
        limited: Collection[str] = (),
    ) -> dict[str, LearntRate]:
        """Take one finished batch into account; what it says of each gate that had records in it.

        Args:
            batch: What all gates share.
            stats: What it tells the law of each gate that had records in it.
            limited: The gates of which an operator's limit or a ceiling made it as small as it
                was. PID takes the rate of a small batch, most of which is its fixed cost, for all
                that the job can process, and would go down under the limit: it is not told.
        """
        learned = self._learned
        if learned is None:
            return {}
        learned.learn(batch)
        changes = self._changed(stats, learned)
        if changes:
            learned.interval_ms = min(gate.interval_ms for gate in self._gates.values())
        least = {name: gate.settings.min_rate for name, gate in self._gates.items()}
        records = learned.records(least)
        return {
            name: self._of_gate(
                name,
                None if name in limited else each,
                records.get(name),
                changes.get(name),
                learned,
            )
            for name, each in stats.items()
            if name in self._gates
        }

    def _of_gate(
        self,
        name: str,
        stats: BatchStats | None,
        records: float | None,
        change: IntervalChange | None,
        learned: LearnedBatches,
    ) -> LearntRate:
        gate = self._gates[name]
        by_pid = None if stats is None else gate.pid.compute(*stats)
        by_learned = (
            None
            if records is None or (stats is not None and stats.num_elements <= 0)
            else max(records * 1000 / learned.interval_ms, gate.settings.min_rate)
        )
        cost = learned.cost.of_source(name, learned.changed_ms) if learned.cost else None
        is_pid = gate.settings.name == LawName.PID
        return LearntRate(
            rate_per_s=by_pid if is_pid else by_learned,
            other_per_s=by_learned if is_pid else by_pid,
            terms=gate.pid.terms if is_pid and by_pid is not None else None,
            cost=cost,
            interval=change,
            too_short=self._warned(gate, cost),
        )

    def _changed(
        self, stats: Mapping[str, BatchStats], learned: LearnedBatches
    ) -> dict[str, IntervalChange]:
        """The gates whose ``auto`` interval changes now."""
        changes = {}
        for name in stats.keys() & self._gates.keys():
            gate = self._gates[name]
            change = gate.auto and gate.auto.after_batch(gate.interval_ms, learned.cost)
            if change:
                gate.change(change.interval_ms)
                changes[name] = change
        return changes

    def _warned(self, gate: _GateLaws, cost: SourceCost | None) -> str | None:
        """The sentence that the interval is too short, after some batches that say so."""
        if cost is None:
            return None
        sentence = gate.settings.too_short(gate.interval_ms, cost)
        gate.late = gate.late + 1 if sentence else 0
        if gate.late < _TOO_SHORT or gate.has_warned:
            return None
        gate.has_warned = True
        return sentence
