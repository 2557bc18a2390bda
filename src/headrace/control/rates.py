"""The rates of all gates of one query: the law that each has chosen, and the other in its shadow.

Both laws learn from every batch, so that the other one's rate can be shown, and a user can compare
before changing over. The sources of a join share the time of a batch: the learned law tells their
costs apart, PID takes the whole time for each.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from headrace.control.batch_cost import MOST_FIXED, SourceCost
from headrace.control.interval import AutoInterval, IntervalChange, IntervalLaw, too_short
from headrace.control.learned import FinishedBatch, LearnedBatches
from headrace.control.pid import PIDRateEstimator, PIDTerms
from headrace.errors import OptionError


class LawName(StrEnum):
    """The laws that learn a rate. The values are option values."""

    PID = "pid"
    """The estimator of Spark's DStreams: `PIDRateEstimator`."""
    LEARNED = "learned"
    """It learns the cost of a batch before its first record: `LearnedBatches`."""

    @property
    def other(self) -> "LawName":
        """The law that runs in the shadow of this one."""
        return LawName.LEARNED if self is LawName.PID else LawName.PID


_AT_ONCE: Final = 0.1
"""The part of the interval within which a batch that follows another one began at once.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine), more on a slow machine, where users set longer intervals. A batch
that waited for data begins when the data comes, nine times out of ten later than this."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """The law of ``backpressure.rateEstimator``, ``pid`` or ``learned``, and its settings.

    `PIDRateEstimator` documents and checks the gains, which are PID's alone. The settings go as
    text through the ledger from the source's process, which knows the options, to the driver's
    listener.

    Attributes:
        name: ``pid`` or ``learned``.
        min_rate: The smallest rate that is ever learnt (records/s); above 0.
        auto: Constraints on an ``auto`` interval; None for a fixed one.

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
        """One sentence if an interval (ms) is too short for the cost of a batch; else None."""
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
    """Measurements of a batch that has ended.

    Attributes:
        start_ms: When its trigger fired (Unix time in ms).
        duration_ms: Duration, planning and commit included (``durationMs.triggerExecution``).
        records: The records of one source in it; 0 if its handler failed or it was skipped.
        left_over: The offsets that its plan left unread (`Plan.left_over`).
        waited_ms: Part of its time in which it waited for something else, such as a backfill that
            had the handler.
        overhead_ms: Part of its time that was not the sink's: planning, the checkpoint.
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
        """Time that it took by itself."""
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
    """Return the estimator's input from the batch that has just ended.

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


_TOO_SHORT: Final = 5
"""After how many batches in a row that say so an interval is called too short."""


@dataclass(frozen=True, slots=True)
class LearntRate:
    """Result of a batch for one gate's rate.

    Attributes:
        rate_per_s: The new rate (records/s); None where the law gave none, and the rate in force
            stays.
        other_per_s: Rate of the other law (records/s); None if it gave none.
        terms: Contributions of PID's terms to the rate; None if it is not in force.
        cost: Known cost of a batch; None while it is unknown.
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
    """State of one gate."""

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
        """Add a gate of the query, with the costs that its earlier runs have learned.

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
        """Begin as after a start: PID has learned no rate, and the cost of a batch stays known."""
        self._gates[gate].change(self._gates[gate].interval_ms)

    def finished(
        self,
        batch: FinishedBatch,
        stats: Mapping[str, BatchStats],
        *,
        limited: Collection[str] = (),
    ) -> dict[str, LearntRate]:
        """Learn from one finished batch; return the result for each gate that had records in it.

        Args:
            batch: The batch's part that all gates share.
            stats: The input to the law of each gate that had records in it.
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
