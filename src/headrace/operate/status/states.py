"""States of gates and receivers, each declared once, and the needs (problems) of operators.

A query is dead if its lease or its process has ended before the query released its gate. A stopped
query has released its gate, so it is not dead. If a program is killed, its query does not release
the gate, even though Spark's JVM still stops the planner in order.
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
"""Default number of newest batches that a snapshot covers."""

SILENCE: Final = 3
"""A gate counts as silent after this many intervals without a new batch."""

SHORTEST_SILENCE_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class GateHistory:
    """The ledger's records of a gate. Batches and rate samples are sorted, newest first."""

    gate: GateRecord
    batches: tuple[BatchRecord, ...] = ()
    samples: tuple[RateSample, ...] = ()
    ranges: tuple[PlannedRange, ...] = ()
    """Ranges of offsets of the newest batch."""
    losses: tuple[Loss, ...] = ()
    missed: Missed = field(default_factory=Missed)
    unresolved: Unresolved = field(default_factory=Unresolved)
    receivers: tuple[ReceiverRecord, ...] = ()
    query: GateQuery | None = None
    """The gate's running query; None without one."""
    gone: GateQuery | None = None
    """The gate's last query, if it ended without reporting its end; else None."""
    isolating: BatchRecord | None = None
    """The newest batch that is being isolated, that is, run in parts to find bad records; None
    without one."""
    isolated: Mapping[str, ErrorReport] = field(default_factory=dict)
    """Isolated batches since the oldest batch in ``batches``, newest first: the batch key, and the
    error that the handler raised on a single record."""
    fit_counts: tuple[FitCount, ...] = ()
    """Counts of all records and of undecodable values in the newest successful batches, as far as
    the ledger keeps these counts."""
    operator_limits: OperatorLimits | None = None
    new_checkpoint: str | None = None
    """If the running query began a new checkpoint, the position from which it continued, in words.
    Else None."""
    look_back: int = HISTORY
    """Number of batches that were requested. If ``batches`` has fewer, it has all batches of the
    gate."""
    waits_with: str | None = None
    """If the newest batch waits for the sink of another gate of the same query, the name of that
    gate. Else None."""
    failed_error: str | None = None
    """Error of the newest failed batch, if this batch is older than all of ``batches``; else
    None."""

    def ended_by(self, how: QueryEnd) -> str | None:
        """Return the operator or the error that ended the last query, if ``how`` is its end.

        Return None if the query ended in another way, or if a query runs.
        """
        if self.query is not None:
            return None
        if self.gate.ended is None and self.stop is not None:  # the query reported no end
            return self.stop.author if how is QueryEnd.STOPPED else None
        return self.gate.ended_error if self.gate.ended == how else None

    def abandoned(self, now_ms: int) -> int:
        """Return the number of batches in progress that no process runs; 0 without a running query.

        A batch counts if it was last run before the query began, or if its owner's lease has
        expired.
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
        """Number of records that the schema does not fit, in the last `FIT_BATCHES` batches.

        0 while the schema fits enough records, or while no dead letter waits.
        """
        fit = self.fit_counts
        if not self.unresolved.letters or not stopped_fitting(fit):
            return 0
        return sum(batch.unfit for batch in fit[:FIT_BATCHES])

    @property
    def ended_ms(self) -> int | None:
        """Time at which the last query ended or was asked to stop (ms since the epoch).

        None while a query runs, or if the time is not known.
        """
        asked_ms = None if self.stop is None else self.stop.time_ms
        return None if self.query is not None else self.gate.ended_ms or asked_ms

    @property
    def stop(self) -> OperatorAction | None:
        """Action with which an operator stopped the gate's current or last query, or None."""
        return None if self.operator_limits is None else self.operator_limits.stop

    def is_silent(self, now_ms: int) -> bool:
        """Whether the gate has had batches, but none within `silence_ms`."""
        if not self.batches:
            return False
        return now_ms - self.batches[0].created_time_ms > silence_ms(self.gate.interval_ms)


def query_behind(ledger: Ledger, gate: str) -> tuple[GateQuery | None, GateQuery | None]:
    """Return a gate's running query and its lost query; at least one of the two is None.

    A lost query is a query that ended without reporting its end.
    """
    return sorted_query(ledger.gates.last_queries([gate]).get(gate))


def sorted_query(found: tuple[GateQuery, bool] | None) -> tuple[GateQuery | None, GateQuery | None]:
    """Return (running query, lost query); a query is lost if its lease or process has ended."""
    if found is None:
        return None, None
    query, lives = found
    return (query, None) if lives and not query.has_ended else (None, query)


def silence_ms(interval_ms: int) -> int:
    """Return the time without a batch (ms) after which a gate counts as silent."""
    return max(SILENCE * interval_ms, SHORTEST_SILENCE_MS)


OVERDUE: Final = 3
"""A batch is overdue after it has run for this many intervals."""

SHORTEST_OVERDUE_MS: Final = 5_000


WHY: Final = "headrace why {gate}"
BATCH: Final = "headrace batches {batch}"


class Urgency(IntEnum):
    """Urgency of a problem for an operator; the lowest number is the most urgent."""

    NOW = 0
    """Records are lost, or the gate processes no records."""
    SOON = 1
    """A batch, record or process failed and waits for an operator."""
    WATCH = 2
    """The problem may get worse without an operator's action."""
    FINE = 3
    """The state is no problem."""


class GateState(StrEnum):
    """State of a gate. Its value is the word in ``--json``; lists show the states in this order.

    A new state needs an entry here and its condition in `gate_state`.

    Attributes:
        urgency: Urgency of the state; `FINE` if the state is no problem.
        colour: Colour of the state's name: green is fine, yellow needs watching, red needs work.
        headline: Sentence about the state, with fields that `needs.headline` fills in.
        command: Command for the state. ``{gate}`` stands for the gate's name, and ``{batch}`` for
            the newest batch's key.
    """

    urgency: Urgency
    colour: str
    headline: str
    command: str

    def __new__(
        cls, word: str, urgency: Urgency, colour: str, headline: str, command: str = WHY
    ) -> Self:
        """Create a state from its name, urgency, colour, headline and command."""
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
    """The query's process has ended without reporting the end of the query."""
    SILENT = (
        "silent",
        Urgency.NOW,
        "red",
        "Silent: no sign of its query since {ended}; its process is frozen or gone, or it waits for"
        " the ledger, as its log says.",
        BATCH,
    )
    """The query's process gives no sign of life: frozen, killed, or unable to reach the ledger."""
    STALLED = (
        "stalled",
        Urgency.NOW,
        "red",
        "Stalled: no batch for {silence}, with {waiting}.",
    )
    """The gate has had no batch for a while, although records wait: its query has stopped."""
    WAITING = (
        "waiting",
        Urgency.SOON,
        "red",
        "Waiting {for_what} since {away}. {waiting_for_it}.",
        "headrace retry {gate}",
    )
    """The sink is away. The batch waits and is retried, and no further batch is planned."""
    OVERDUE = (
        "overdue",
        Urgency.WATCH,
        "red",
        "Overdue: {batch} runs for {running}, the interval is {interval}; {waits_in}.",
        BATCH,
    )
    """A batch has been running for several intervals: the job is slow, or it hangs."""
    ISOLATING = "isolating", Urgency.WATCH, "yellow", "Isolating {isolating}.", BATCH
    """A batch failed, and is run in parts to find the records that cannot be processed."""
    INTERRUPTED = (
        "interrupted",
        Urgency.WATCH,
        "yellow",
        "Interrupted: the query was stopped; its next start runs the batch again.",
        BATCH,
    )
    """The query was stopped during the last batch; its next start runs the batch again."""
    FALLING_BEHIND = (
        "falling behind",
        Urgency.WATCH,
        "yellow",
        "Falling behind: {waiting}, {growth} more each second.",
    )
    """Records wait, and the number of waiting records grows."""
    STEADY = "steady", Urgency.FINE, "yellow", "Holding: {waiting}."
    """Records wait, and their number is steady, or there are too few batches to show a trend."""
    LIMITED = (
        "limited",
        Urgency.WATCH,
        "yellow",
        "{operator_limits}; {waiting}.",
        "headrace limit off {gate}",
    )
    """Records wait, and an operator's limit made the last batch smaller."""
    CATCHING_UP = "catching up", Urgency.FINE, "green", "Catching up: {waiting}, {to_go}."
    """Records wait, and the number of waiting records falls."""
    PAUSED = "paused", Urgency.WATCH, "yellow", "{operator_limits}.", "headrace resume {gate}"
    """An operator has paused or drained the gate, so it plans no batch."""
    NEW = "new", Urgency.FINE, "default", "No batch yet."
    """The gate has had no batch yet."""
    KEEPING_UP = (
        "keeping up",
        Urgency.FINE,
        "green",
        "Keeping up: all that was waiting is admitted.",
    )
    """The last batch admitted all waiting records."""
    STOPPED = (
        "stopped",
        Urgency.NOW,
        "yellow",
        "Stopped {said_end}{why_ended}; {left}.",
        "headrace failures {gate}",
    )
    """The query has ended: its program stopped it or ended, or an exception ended it."""
    FINISHED = (
        "finished",
        Urgency.FINE,
        "green",
        "Finished {said_end}: {all_records}, none left{by_now}.",
    )
    """The query ran with a trigger such as ``availableNow``, read all records, and ended."""
    IDLE = "idle", Urgency.FINE, "default", "Idle: no batch for {silence}; {nothing_new}."
    """The gate has had no batch for a while, and no records wait: there is no data, or no query."""


class ReceiverState(StrEnum):
    """State of a receiver. Its value is the word in ``--json``."""

    RECEIVING = "receiving"
    """Records arrive, and none of them waits because of the rate limit."""
    REFUSING = "refusing"
    """All senders wait, for the reason in `ReceiverSnapshot.refusing`, such as a full journal."""
    LIMITED = "limited"
    """Records wait because more records arrive than the rate limit allows."""
    IDLE = "idle"
    """No records have arrived lately."""
    SILENT = "silent"
    """The receiver has sent no heartbeat for a while: it died, or cannot reach the ledger."""


def gate_state(
    history: GateHistory, change: LagChange | None, now_ms: int, lag_now: int | None
) -> GateState:
    """Return a gate's state. ``lag_now`` is the lag that the source reports; None if not known."""
    if not history.batches:
        if history.gone is not None:
            return _of_gone(history.gone)
        return _end(history, waiting=None) or GateState.NEW
    newest = history.batches[0]
    left_over = left_by(newest)
    waiting = left_over if lag_now is None else lag_now
    state = (
        _trouble(history, now_ms)
        or _end(history, waiting=left_over)
        or _held(history)
        or _quiet(history, now_ms, waiting=waiting)
    )
    if state is not None:
        return state
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
    """Return the running query's batches, except the first, whose lag grew before the query ran."""
    query, run = history.query, newest_run(history.batches)
    if query is not None:
        return [batch for batch in run if batch.created_time_ms >= query.since_ms][:-1]
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
        return GateState.INTERRUPTED  # the program reported its end while the batch ran
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
    """Return the sink outage that a gate's newest batch waits for; None if it does not wait."""
    outage, newest = history.gate.waits, history.batches[0] if history.batches else None
    is_open = newest is not None and newest.end_time_ms is None and history.query is not None
    return outage if outage and newest and is_open and outage.batch == newest.batch_key else None


def _end(history: GateHistory, *, waiting: int | None) -> GateState | None:
    """Return FINISHED or STOPPED if the last query reported its end or was stopped; else None."""
    if history.query is not None or (history.gate.ended is None and history.stop is None):
        return None
    is_finished = history.gate.ended == QueryEnd.FINISHED and not waiting
    return GateState.FINISHED if is_finished else GateState.STOPPED


def _held(history: GateHistory) -> GateState | None:
    """Return PAUSED if an operator has paused or drained the gate, also while a batch runs."""
    held = history.operator_limits is not None and history.operator_limits.closed_by is not None
    return GateState.PAUSED if held else None


def _quiet(history: GateHistory, now_ms: int, *, waiting: int | None) -> GateState | None:
    """Return STALLED or IDLE for a gate without a recent batch; None for any other gate."""
    ended_ms = history.batches[0].end_time_ms
    if ended_ms is None:
        return None
    if now_ms - ended_ms > silence_ms(history.gate.interval_ms):
        return GateState.STALLED if waiting else GateState.IDLE
    return None


def left_by(batch: BatchRecord) -> int | None:
    """Return the number of waiting records that a batch did not admit; None if not known."""
    return None if batch.lag is None else max(batch.lag - batch.planned_records, 0)


def is_over(history: GateHistory, newest: BatchRecord, now_ms: int) -> bool:
    """Whether the newest batch is a success and is the last: the query has ended or is silent.

    The gate's lag is then the number of records that the newest batch left.
    """
    is_last = has_ended(history) or history.is_silent(now_ms)
    return is_last and newest.status is Status.SUCCESS


def has_ended(history: GateHistory) -> bool:
    """Whether the gate's last query has ended, or the query's process gives no sign of life."""
    signs = (history.gate.ended, history.gone, history.stop)
    return history.query is None and any(sign is not None for sign in signs)


def waiting_behind(history: GateHistory, lag_now: int | None) -> int | None:
    """Return the number of records that wait after the newest batch.

    This is ``lag_now`` if known, else the number of records that the batch left. Return None if the
    batch left no records and no query runs, because new records may then wait.
    """
    if lag_now is not None:
        return lag_now
    left = left_by(history.batches[0])
    return left if history.query is not None else left or None


def batch_time_ms(batch: BatchRecord, reported_ms: Mapping[str, int], now_ms: int) -> int:
    """Return a batch's duration (ms) as Spark reported it, or else by the ledger's times."""
    duration_ms = reported_ms.get(batch.batch_key)
    return elapsed_ms(batch, now_ms) if duration_ms is None else duration_ms


def elapsed_ms(batch: BatchRecord, now_ms: int) -> int:
    """Return the duration (ms) of a batch's latest attempt, by the times in the ledger."""
    began_ms = batch.created_time_ms
    if batch.attempts > 1 and batch.start_time_ms is not None:
        began_ms = batch.start_time_ms
    return max((now_ms if batch.end_time_ms is None else batch.end_time_ms) - began_ms, 0)


class Where(StrEnum):
    """View of the dashboard in which an operator acts on a problem."""

    GATE = "gate"
    FAILURES = "failures"
    VERIFY = "verify"
    RECEIVERS = "receivers"
    FLOWS = "flows"


@dataclass(frozen=True, slots=True)
class Need:
    """Problem that an operator has to look at.

    Attributes:
        kind: Name of the kind, such as ``dead letters``, or a value of `GateState`. Problems of one
            kind have the same remedy, so lists combine them.
        urgency: 0 is now, 1 is soon, 2 means that the problem may get worse.
        about: Name of the gate, or of the flow's stage.
        sentence: Description in one sentence, without the gate's name.
        where: View of the dashboard in which an operator acts on the problem.
        command: Command that acts on the problem, or shows the next step.
        records: Number of affected records; 0 if it is not known.
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
    """Needs (problems) of one kind, sorted by urgency, then by records, the most urgent first."""

    kind: str
    needs: tuple[Need, ...]
    """The needs; there is at least one."""

    @property
    def urgency(self) -> Urgency:
        """Urgency of the group's most urgent need."""
        return self.needs[0].urgency

    @property
    def number(self) -> int:
        """Number of gates or stages that have a need of this kind."""
        return len({need.about for need in self.needs})

    @property
    def records(self) -> int:
        """Sum of the affected records; needs with an unknown number count as 0."""
        return sum(need.records for need in self.needs)

    @property
    def sentence(self) -> str:
        """Sentence about all needs of the group, such as "3 gates: falling behind."."""
        noun = "stage" if self.needs[0].where is Where.FLOWS else "gate"
        records = f", with {plural(self.records, 'record')}" if self.records else ""
        return f"{plural(self.number, noun)}: {self.kind}{records}."

    @property
    def command(self) -> str:
        """Command that lists all needs of the group, or acts on the most urgent need."""
        worst = self.needs[0]
        if self.number == 1 or worst.where not in (Where.FAILURES, Where.VERIFY):
            return worst.command
        of_all = worst.command.replace(f" {shlex.quote(worst.about)}", "")
        return "headrace failures" if of_all == worst.command else of_all


def grouped(needs: Iterable[Need]) -> list[NeedGroup]:
    """Group needs by kind. Sort kinds by urgency, then number of gates, then affected records."""
    kinds: dict[str, list[Need]] = {}
    for need in sorted(needs, key=lambda item: (item.urgency, -item.records, item.about)):
        kinds.setdefault(need.kind, []).append(need)
    groups = [NeedGroup(kind, tuple(of_kind)) for kind, of_kind in kinds.items()]
    return sorted(groups, key=lambda item: (item.urgency, -item.number, -item.records))
