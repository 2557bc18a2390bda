"""The rates of all gates of one query, each by the law that it has chosen.

The sources of a join share the time of a batch: the learned law tells their costs apart, PID takes
the whole time for each. What a batch costs is learned under PID too: status shows it, and an
``auto`` interval follows it. A batch that something helped through (a retry, an isolation, another
process) teaches nothing, for its time says nothing of the job.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, Self

from headrace.errors import OptionError
from headrace.gate.control.batch_cost import MOST_FIXED, SourceCost
from headrace.gate.control.interval import AutoInterval, IntervalChange, IntervalLaw, too_short
from headrace.gate.control.learned import FinishedBatch, LearnedBatches
from headrace.gate.control.pid import PIDRateEstimator, PIDTerms


class LawName(StrEnum):
    """The laws that learn a rate. The values are option values."""

    PID = "pid"
    """The estimator of Spark's DStreams: `PIDRateEstimator`."""
    LEARNED = "learned"
    """It learns the cost of a batch before its first record: `LearnedBatches`."""


_AT_ONCE: Final = 0.1
"""The part of the interval within which a batch that follows another one began at once.

Some milliseconds always lie between two batches (the end of one trigger, the lookup of offsets in
the next, a pause of the engine), more on a slow machine, where users set longer intervals. A batch
that waited for data begins when the data comes, nine times out of ten later than this."""


@dataclass(frozen=True, slots=True)
class EstimatorSettings:
    """The law of ``backpressure.rateEstimator``, and its settings.

    `PIDRateEstimator` documents and checks the gains, which are PID's alone. The settings go as
    text through the ledger from the source's process, which knows the options, to the driver's
    listener.

    Attributes:
        name: ``learned`` or ``pid``. Default: ``learned``.
        min_rate: The smallest rate that is ever learnt (records/s); above 0.
        auto: Constraints on an ``auto`` interval; None for a fixed one.

    Raises:
        OptionError: There is no such law.
    """

    name: str = LawName.LEARNED
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


_TOO_SHORT: Final = 5
"""After how many batches in a row that say so an interval is called too short."""

UNREAD_BATCHES: Final = 3
"""Number of batches in a row without a record read that lead to a warning."""

_UNREAD: Final = (
    "Spark has read no record of its last %d batches, so what they cost is not known, and it learns"
    " no rate; have the handler read its DataFrame."
)


@dataclass(frozen=True, slots=True)
class LearntRate:
    """Result of a batch for one gate's rate.

    Attributes:
        stats: The batch's measurements, as PID was given them.
        rate_per_s: The new rate (records/s); None where the law gave none, and the rate in force
            stays.
        processing_rate_per_s: The records by the time that the batch took (records/s); None where
            the batch taught nothing.
        terms: Contributions of PID's terms to the rate; None if it is not in force.
        cost: Known cost of a batch; None while it is unknown.
        interval: The new interval of a gate whose interval is ``auto``; None to leave it.
        warning: One sentence, once in a run, where the interval is too short, or the handler does
            not read its batches.
    """

    stats: BatchStats
    rate_per_s: float | None = None
    processing_rate_per_s: float | None = None
    terms: PIDTerms | None = None
    cost: SourceCost | None = None
    interval: IntervalChange | None = None
    warning: str | None = None


class _GateLaws:
    def __init__(self, settings: EstimatorSettings, interval_ms: int) -> None:
        self.settings = settings
        self.interval_ms = interval_ms
        self.pid = settings.pid(interval_ms)
        self.auto = None if settings.auto is None else AutoInterval(settings.auto)
        self.late = _Streak(_TOO_SHORT)
        self.unread = _Streak(UNREAD_BATCHES)
        self._previous: BatchProgress | None = None
        self._aside_ms = 0

    def change(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self.pid = self.settings.pid(interval_ms)

    def stats(self, part: BatchProgress, *, teaches: bool) -> BatchStats:
        """Return the input to PID, for which the time of all that was not taught has not passed."""
        previous, self._previous = self._previous, part if teaches else None
        self._aside_ms += part.waited_ms if teaches else part.duration_ms
        stats = batch_stats(previous, part, self.interval_ms)
        return stats._replace(time_ms=stats.time_ms - self._aside_ms)

    def learnt(
        self,
        part: BatchProgress,
        stats: BatchStats,
        by_learned: float | None,
        cost: SourceCost | None,
        change: IntervalChange | None,
    ) -> LearntRate:
        # PID takes the rate of a small batch, most of which is its fixed cost, for all that the
        # job can process, and would go down under the limit that made it small: it is not told.
        # One that took longer than its interval says that the job cannot process even that.
        is_pid = self.settings.name == LawName.PID
        is_told = is_pid and (not part.is_limited or part.own_ms > self.interval_ms)
        by_pid = self.pid.compute(*stats) if is_told else None
        return LearntRate(
            stats,
            rate_per_s=by_pid if is_pid else by_learned,
            processing_rate_per_s=_per_s(stats),
            terms=self.pid.terms if by_pid is not None else None,
            cost=cost,
            interval=change,
            warning=self.warning(part, cost),
        )

    def warning(self, part: BatchProgress, cost: SourceCost | None) -> str | None:
        """One sentence, after some batches in a row that give the same reason."""
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

    def finished(self, batch: Mapping[str, BatchProgress]) -> dict[str, LearntRate]:
        """Learn from one finished batch; return the result for each gate that had records in it.

        1. Help for one gate's part is help for all: all say something of the job, or none does.
        2. The learned law tells the gates' costs apart, and an ``auto`` interval follows them.
        3. Each gate has its rate by its own law.
        4. A gate whose sink was away begins as after a start; the cost of a batch stays known.

        Args:
            batch: Each gate's part. A gate without laws here is one that learns nothing, and whose
                part can say that the batch teaches nothing.
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
            by_learned = self._by_learned(learned)
            costs = learned.cost
            learnt = {
                gate: self._gates[gate].learnt(
                    part,
                    stats[gate],
                    by_learned.get(gate),
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
                self._gates[gate].change(self._gates[gate].interval_ms)
        return learnt

    def _by_learned(self, learned: LearnedBatches) -> dict[str, float]:
        """The rates (records/s) by the learned law; of the gates of which it knows the costs."""
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
    """Return the batch as the learned law takes it: its time, and each gate's records."""
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
