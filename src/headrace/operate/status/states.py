"""States of gates and receivers, each declared once, and the values of what needs somebody.

A query is dead if it has not left its gate and its lease or its process has ended. A query that is
stopped leaves its gate, so it is not dead. The planner of a killed program does not: Spark's JVM
ends that planner in order, so its end proves nothing.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, Self

from headrace.core.timing import is_in_force
from headrace.gate import (
    FIT_BATCHES,
    BatchRecord,
    ErrorReport,
    FitCount,
    GateQuery,
    GateRecord,
    Ledger,
    Loss,
    Missed,
    OperatorAction,
    OperatorLimits,
    PlannedRange,
    QueryEnd,
    RateSample,
    Reason,
    ReceiverRecord,
    SinkOutage,
    Status,
    Unresolved,
    stopped_fitting,
)
from headrace.operate.status.trends import LagChange, Trend, newest_run
from headrace.operate.status.words import plural

HISTORY: Final = 60
"""Batches that are looked back on."""

SILENCE: Final = 3
"""Intervals after which a gate without a new batch is no longer between two of them."""

SHORTEST_SILENCE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class GateHistory:
    """The ledger's records of one gate's live stream; batches and samples are newest first."""

    gate: GateRecord
    batches: tuple[BatchRecord, ...] = ()
    samples: tuple[RateSample, ...] = ()
    ranges: tuple[PlannedRange, ...] = ()
    """Ranges of the newest batch."""
    losses: tuple[Loss, ...] = ()
    missed: Missed = field(default_factory=Missed)
    unresolved: Unresolved = field(default_factory=Unresolved)
    receivers: tuple[ReceiverRecord, ...] = ()
    query: GateQuery | None = None
    """The query that runs behind it."""
    gone: GateQuery | None = None
    """One that stood behind it and ended without a finish."""
    isolating: BatchRecord | None = None
    """The newest batch that is run in parts now."""
    isolated: Mapping[str, ErrorReport] = field(default_factory=dict)
    """Those since the oldest of ``batches`` with records for which the handler raised, and what it
    raised, newest first."""
    fit_counts: tuple[FitCount, ...] = ()
    """Records and undecodable values of the newest batches that are a success, if any is kept."""
    operator_limits: OperatorLimits | None = None
    new_checkpoint: str | None = None
    """Where the query of now went on, if it began a new checkpoint."""
    look_back: int = HISTORY
    """Batches that were asked for; where there are fewer, these are all."""
    waits_with: str | None = None
    """The gate of the same query whose sink is away, if the newest batch waits with that one's."""
    failed_error: str | None = None
    """Why the newest batch failed that waits for a backfill, if it is not one of ``batches``."""

    def ended_by(self, how: QueryEnd) -> str | None:
        """What is known of the query's end, if it ended so and no other runs: an error, or who."""
        if self.query is not None:
            return None
        if self.gate.ended is None and self.stop is not None:  # nobody was left to say so
            return self.stop.author if how is QueryEnd.STOPPED else None
        return self.gate.ended_error if self.gate.ended == how else None

    def abandoned(self, now_ms: int) -> int:
        """Count the batches in progress that no process runs, while a query is there.

        An earlier process has run them last, or their owner's lease is over.
        """
        query = self.query
        if query is None:
            return 0
        return sum(
            batch.status is Status.IN_PROGRESS
            and batch.start_time_ms is not None
            and batch.lease_until_ms is not None
            and not (
                batch.start_time_ms >= query.since_ms and is_in_force(batch.lease_until_ms, now_ms)
            )
            for batch in self.batches
        )

    @property
    def unfit_records(self) -> int:
        """Number of the newest records that the schema does not fit.

        0 while it fits enough of them, or no dead letter of them waits.
        """
        fit = self.fit_counts
        if not self.unresolved.letters or not stopped_fitting(fit):
            return 0
        return sum(batch.unfit for batch in fit[:FIT_BATCHES])

    @property
    def ended_ms(self) -> int | None:
        """When the last query ended, or was asked to; None while one runs, or if nobody knows."""
        asked_ms = None if self.stop is None else self.stop.time_ms
        return None if self.query is not None else self.gate.ended_ms or asked_ms

    @property
    def stop(self) -> OperatorAction | None:
        """An operator's stop of the query that has the gate, or had it last."""
        return None if self.operator_limits is None else self.operator_limits.stop

    def is_silent(self, now_ms: int) -> bool:
        """Whether it has had batches, and none was planned for a while."""
        if not self.batches:
            return False
        return now_ms - self.batches[0].created_time_ms > silence_ms(self.gate.interval_ms)


def query_behind(ledger: Ledger, gate: str) -> tuple[GateQuery | None, GateQuery | None]:
    """The query that runs behind a gate, and one that ended without a finish; at most one is."""
    return sorted_query(ledger.gates.last_queries([gate]).get(gate))


def sorted_query(found: tuple[GateQuery, bool] | None) -> tuple[GateQuery | None, GateQuery | None]:
    """The same of a query that is known, and of which it is known whether its lease is in force."""
    if found is None:
        return None, None
    query, lives = found
    return (query, None) if lives and not query.has_ended else (None, query)


def silence_ms(interval_ms: int) -> int:
    """After how long without a batch (ms) a gate is no longer between two of them."""
    return max(SILENCE * interval_ms, SHORTEST_SILENCE_MS)


OVERDUE: Final = 3
"""Intervals after which a running batch takes longer than it should."""

SHORTEST_OVERDUE_MS: Final = 5_000


WHY: Final = "headrace why {gate}"
BATCH: Final = "headrace batches {batch}"


class Urgency(IntEnum):
    """Time until somebody has to look; the lowest number is the most urgent."""

    NOW = 0
    """Records are lost, or nothing is processed."""
    SOON = 1
    """Something failed, and waits for somebody."""
    WATCH = 2
    """It may get worse by itself."""
    FINE = 3
    """Nobody has to look."""


class GateState(StrEnum):
    """State of a gate, in the words of ``--json``; lists show them in this order.

    Another state is another entry here, and its condition in `gate_state`.

    Attributes:
        urgency: How soon it needs somebody; `FINE` is no need.
        colour: Colour of the word: green is fine, yellow to be watched, red somebody's work.
        headline: Its sentence, with the fields that `sentences.headline` fills in.
        command: The command that acts on it, with ``{gate}`` and ``{batch}``, the newest one's key.
    """

    urgency: Urgency
    colour: str
    headline: str
    command: str

    def __new__(
        cls, word: str, urgency: Urgency, colour: str, headline: str, command: str = WHY
    ) -> Self:
        """Make a state of its declaration."""
        state = str.__new__(cls, word)
        state._value_ = word
        state.urgency, state.colour = urgency, colour
        state.headline, state.command = headline, command
        return state

    FAILED = "failed", Urgency.NOW, "red", "Failed: {error}", BATCH
    """The last batch failed."""
    DEAD = (
        "dead",
        Urgency.NOW,
        "red",
        "Dead: its process has ended without a word; last sign of its query {ended}.",
        BATCH,
    )
    """Its process is gone without a word: killed."""
    SILENT = (
        "silent",
        Urgency.NOW,
        "red",
        "Silent: no sign of its query since {ended}; its process is frozen or gone, or it waits for"
        " the ledger, as its log says.",
        BATCH,
    )
    """Its process gives no sign of life: frozen, killed elsewhere, or cut off from the ledger."""
    STALLED = (
        "stalled",
        Urgency.NOW,
        "red",
        "Stalled: no batch for {silence}, with {waiting}.",
    )
    """No batch for a while, although records were waiting: the query has stopped."""
    WAITING = (
        "waiting",
        Urgency.SOON,
        "red",
        "Waiting {for_what} since {away}. {waiting_for_it}.",
        "headrace retry {gate}",
    )
    """Its sink is away: its batch waits and is run again, and nothing more is admitted."""
    OVERDUE = (
        "overdue",
        Urgency.WATCH,
        "red",
        "Overdue: {batch} runs for {running}, the interval is {interval}; {waits_in}.",
        BATCH,
    )
    """A batch has been running for several intervals: the job is slow, or it hangs."""
    ISOLATING = "isolating", Urgency.WATCH, "yellow", "Isolating {isolating}.", BATCH
    """A batch failed, and its records are run in parts to find those that cannot be processed."""
    INTERRUPTED = (
        "interrupted",
        Urgency.WATCH,
        "yellow",
        "Interrupted: the query was stopped; its next start runs the batch again.",
        BATCH,
    )
    """The query was stopped while the last batch ran, which runs again at its next start."""
    FALLING_BEHIND = (
        "falling behind",
        Urgency.WATCH,
        "yellow",
        "Falling behind: {waiting}, {growth} more each second.",
    )
    """Records wait, and more each time."""
    STEADY = "steady", Urgency.FINE, "yellow", "Holding: {waiting}."
    """Records wait, about as many each time, or it is too early to say."""
    LIMITED = (
        "limited",
        Urgency.WATCH,
        "yellow",
        "{operator_limits}; {waiting}.",
        "headrace limit off {gate}",
    )
    """Records wait, and an operator's limit made the last batch smaller."""
    CATCHING_UP = "catching up", Urgency.FINE, "green", "Catching up: {waiting}, {to_go}."
    """Records wait, and fewer each time."""
    PAUSED = "paused", Urgency.WATCH, "yellow", "{operator_limits}.", "headrace resume {gate}"
    """An operator has paused it, or asked it to drain: it plans no batch."""
    NEW = "new", Urgency.FINE, "default", "No batch yet."
    """It has had no batch yet."""
    KEEPING_UP = (
        "keeping up",
        Urgency.FINE,
        "green",
        "Keeping up: all that was waiting is admitted.",
    )
    """The last batch admitted all that was waiting."""
    STOPPED = (
        "stopped",
        Urgency.NOW,
        "yellow",
        "Stopped {said_end}{why_ended}; {left}.",
        "headrace failures {gate}",
    )
    """Its program has stopped the query, or has ended, or the query has ended by an exception."""
    FINISHED = (
        "finished",
        Urgency.FINE,
        "green",
        "Finished {said_end}: {all_records}, none left{by_now}.",
    )
    """Its query has taken what there was, with a trigger such as ``availableNow``, and ended."""
    IDLE = "idle", Urgency.FINE, "default", "Idle: no batch for {silence}; {nothing_new}."
    """No batch for a while, and nothing was waiting: no data, or no query."""


class ReceiverState(StrEnum):
    """State of a receiver, in the words of ``--json``."""

    RECEIVING = "receiving"
    """Records come, and none waits for the rate."""
    REFUSING = "refusing"
    """All records wait: its journal is at its cap, which its ``refusing`` says."""
    LIMITED = "limited"
    """Records wait for the rate: more come than it allows."""
    IDLE = "idle"
    """No records came lately."""
    SILENT = "silent"
    """It has not been seen for a while: it has died, or cannot reach the ledger."""


def gate_state(
    history: GateHistory, change: LagChange | None, now_ms: int, lag_now: int | None
) -> GateState:
    """Return a gate's state, by the ledger's records and the records that wait in its source."""
    if not history.batches:
        if history.gone is not None:
            return _of_gone(history.gone)
        return _end(history, waiting=None) or GateState.NEW
    newest = history.batches[0]
    left_over = left_by(newest)
    waiting = left_over if lag_now is None else lag_now
    found = (
        _trouble(history, now_ms)
        or _end(history, waiting=left_over)
        or _held(history)
        or _quiet(history, now_ms, waiting=waiting)
    )
    if found is not None:
        return found
    if left_over == 0:
        return GateState.KEEPING_UP
    limited = history.operator_limits is not None and history.operator_limits.limit is not None
    if limited and newest.reason.startswith(Reason.LIMITED):
        return GateState.LIMITED
    trend = change.lag_trend if change else Trend.STEADY
    if trend is Trend.RISING:
        warm = LagChange.of(_warm_batches(history))
        trend = warm.lag_trend if warm else Trend.STEADY
    moving = {Trend.FALLING: GateState.CATCHING_UP, Trend.RISING: GateState.FALLING_BEHIND}
    return moving.get(trend, GateState.STEADY)


def _warm_batches(history: GateHistory) -> list[BatchRecord]:
    """Return the query's batches but for its first: what came before and in that is no trend."""
    query, run = history.query, newest_run(history.batches)
    if query is not None:
        return [each for each in run if each.created_time_ms >= query.since_ms][:-1]
    return run[:-1] if run[-1].reason == Reason.INITIAL_RATE else run


def _trouble(history: GateHistory, now_ms: int) -> GateState | None:
    newest = history.batches[0]
    if newest.status in (Status.FAILED, Status.DEAD):
        return GateState.INTERRUPTED if newest.interrupted else GateState.FAILED
    if history.gone is not None and history.stop is None:
        return _of_gone(history.gone)
    if newest.end_time_ms is not None:
        return None
    if history.query is None and history.gate.ended is not None:
        return GateState.INTERRUPTED  # its program has ended, and said so, while the batch ran
    return _of_running(history, now_ms)


def _of_gone(gone: GateQuery) -> GateState:
    return GateState.DEAD if gone.has_ended else GateState.SILENT


def _of_running(history: GateHistory, now_ms: int) -> GateState | None:
    newest, interval_ms = history.batches[0], history.gate.interval_ms
    if waits_for(history) is not None:
        return GateState.WAITING
    if history.isolating is not None:
        return GateState.ISOLATING
    is_late = elapsed_ms(newest, now_ms) > max(OVERDUE * interval_ms, SHORTEST_OVERDUE_MS)
    return GateState.OVERDUE if is_late else None


def waits_for(history: GateHistory) -> SinkOutage | None:
    """The outage of the sink that a gate's newest batch waits for; None if it does not."""
    outage, newest = history.gate.waits, history.batches[0] if history.batches else None
    is_open = newest is not None and newest.end_time_ms is None and history.query is not None
    return outage if outage and newest and is_open and outage.batch == newest.batch_key else None


def _end(history: GateHistory, *, waiting: int | None) -> GateState | None:
    """Return the reported end of the last query; None while one runs, or without a report."""
    if history.query is not None or (history.gate.ended is None and history.stop is None):
        return None
    is_finished = history.gate.ended == QueryEnd.FINISHED and not waiting
    return GateState.FINISHED if is_finished else GateState.STOPPED


def _held(history: GateHistory) -> GateState | None:
    """Whether an operator has it plan nothing, also while its last batch still runs."""
    held = history.operator_limits is not None and history.operator_limits.closed_by is not None
    return GateState.PAUSED if held else None


def _quiet(history: GateHistory, now_ms: int, *, waiting: int | None) -> GateState | None:
    """Return the state of a gate that runs no batch; None if a batch is expected, or runs."""
    ended_ms = history.batches[0].end_time_ms
    if ended_ms is None:
        return None
    if now_ms - ended_ms > silence_ms(history.gate.interval_ms):
        return GateState.STALLED if waiting else GateState.IDLE
    return None


def left_by(batch: BatchRecord) -> int | None:
    """Return the records that a batch has left of those before it; None if that is not known."""
    return None if batch.lag is None else max(batch.lag - batch.planned_records, 0)


def is_over(history: GateHistory, newest: BatchRecord, now_ms: int) -> bool:
    """Whether no batch follows the newest one, which is done: what waits is what it has left."""
    is_last = has_ended(history) or history.is_silent(now_ms)
    return is_last and newest.status is Status.SUCCESS


def has_ended(history: GateHistory) -> bool:
    """Whether the last query is known to have ended, or gives no sign of life."""
    known = (history.gate.ended, history.gone, history.stop)
    return history.query is None and any(each is not None for each in known)


def waiting_behind(history: GateHistory, lag_now: int | None) -> int | None:
    """Return the records behind the newest batch, by the source, or else by the batch's plan.

    None where nobody knows: that batch left nothing, and no query has looked since.
    """
    if lag_now is not None:
        return lag_now
    left = left_by(history.batches[0])
    return left if history.query is not None else left or None


def batch_time_ms(batch: BatchRecord, reported_ms: Mapping[str, int], now_ms: int) -> int:
    """The time of a batch, as every list has it: as its engine reported it, else what elapsed."""
    known = reported_ms.get(batch.batch_key)
    return elapsed_ms(batch, now_ms) if known is None else known


def elapsed_ms(batch: BatchRecord, now_ms: int) -> int:
    """The time of a batch by the ledger's clock; of its latest attempt, where it had several."""
    began_ms = batch.created_time_ms
    if batch.attempts > 1 and batch.start_time_ms is not None:
        began_ms = batch.start_time_ms
    return max((now_ms if batch.end_time_ms is None else batch.end_time_ms) - began_ms, 0)


class Where(StrEnum):
    """Place that acts on a need."""

    GATE = "gate"
    FAILURES = "failures"
    VERIFY = "verify"
    RECEIVERS = "receivers"
    FLOWS = "flows"


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody.

    Attributes:
        kind: What is wrong, such as ``dead letters``, or a value of `GateState`. Needs of one kind
            are mended alike, so lists show them as one.
        urgency: How soon: 0 is now, 1 soon, 2 means that it may get worse.
        about: The gate, or the stage of a flow.
        sentence: What it is, in one sentence without the gate's name.
        where: What acts on it.
        command: The command that acts on it, or shows the next step.
        records: The records that are at stake; 0 where their number is not known.
    """

    kind: str
    urgency: Urgency
    about: str
    sentence: str
    where: Where
    command: str
    records: int = 0


@dataclass(frozen=True, slots=True)
class NeedGroup:
    """Needs of one kind, the most urgent first, then those with the most records."""

    kind: str
    needs: tuple[Need, ...]
    """One or more."""

    @property
    def urgency(self) -> Urgency:
        """Urgency of the most urgent need."""
        return self.needs[0].urgency

    @property
    def number(self) -> int:
        """Number of gates or stages."""
        return len({need.about for need in self.needs})

    @property
    def records(self) -> int:
        """The records that are at stake, as far as their number is known."""
        return sum(need.records for need in self.needs)

    @property
    def sentence(self) -> str:
        """Sentence for all of them, such as "3 gates: falling behind, with 1,200 records."."""
        noun = "stage" if self.needs[0].where is Where.FLOWS else "gate"
        records = f", with {plural(self.records, 'record')}" if self.records else ""
        return f"{plural(self.number, noun)}: {self.kind}{records}."

    @property
    def command(self) -> str:
        """The command that lists all of them, or acts on the worst."""
        worst = self.needs[0]
        if self.number == 1 or worst.where not in (Where.FAILURES, Where.VERIFY):
            return worst.command
        of_all = worst.command.replace(f" {shlex.quote(worst.about)}", "")
        return "headrace failures" if of_all == worst.command else of_all


def grouped(needs: Iterable[Need]) -> list[NeedGroup]:
    """Needs by their kind: the most urgent kind first, then by gates, then by records."""
    kinds: dict[str, list[Need]] = {}
    for need in sorted(needs, key=lambda each: (each.urgency, -each.records, each.about)):
        kinds.setdefault(need.kind, []).append(need)
    groups = [NeedGroup(kind, tuple(of_kind)) for kind, of_kind in kinds.items()]
    return sorted(groups, key=lambda each: (each.urgency, -each.number, -each.records))
