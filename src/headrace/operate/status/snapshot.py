"""Snapshot of a gate at one moment. Each fact is declared once, for views and ``--json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from headrace.gate import (
    BatchRecord,
    GateMoment,
    QueryEnd,
    RateSample,
    SinkOutage,
    SourceCost,
    Status,
    known_ceiling,
)
from headrace.operate.status.facts import Column, Metric, fact
from headrace.operate.status.lags import GateLag
from headrace.operate.status.parts import (
    BatchSnapshot,
    IsolatedSnapshot,
    IsolatingSnapshot,
    PartitionSnapshot,
    QuerySnapshot,
    ReceiverSnapshot,
    batches_of,
)
from headrace.operate.status.states import (
    GateHistory,
    GateState,
    Need,
    gate_state,
    has_ended,
    is_over,
    left_by,
    silence_ms,
    waiting_behind,
    waits_for,
)
from headrace.operate.status.trends import (
    LagChange,
    Trend,
    advice_on,
    batch_cost_of,
    drain_trend,
    law_of,
    newest_run,
)
from headrace.operate.status.words import (
    UNKNOWN,
    count,
    drained_in,
    duration,
    reason_first,
    short_error,
)

IN_DOUBT: Final = "no part of its batch passes"
"""Reason for a batch's wait if it is uncertain whether the sink is away or the handler is wrong."""

ARROWS: Final[Mapping[Trend, str]] = {Trend.FALLING: "↓", Trend.STEADY: "→", Trend.RISING: "↑"}


@dataclass(frozen=True, slots=True)
class Moment:
    """Records and values of a gate at one time, from which the facts of its snapshot are computed.

    Attributes:
        history: The ledger's records of the gate.
        now_ms: The time (ms since the epoch).
        lag: The gate's lag, from the ledger and the source.
        newest: The newest batch.
        sample: The newest rate sample: Spark's report of a batch.
        run: The batches of the newest checkpoint.
        lag_now: Lag as the source reports it now, for a gate that plans no batch; else None.
        outage: Outage of the sink that the newest batch waits for; None if it does not wait.
        is_over: Whether the newest batch is a success and no batch follows it.
        moves: Whether the gate processes records: no sink is away, and the query has not ended.
        measured: Change of the lag over the last batches.
        change: ``measured`` if `moves`, else None.
        cost: Learnt cost of a batch; None if the gate has not learnt it.
    """

    history: GateHistory
    now_ms: int
    lag: GateLag
    newest: BatchRecord | None
    sample: RateSample | None
    run: Sequence[BatchRecord]
    lag_now: int | None
    outage: SinkOutage | None
    is_over: bool
    moves: bool
    measured: LagChange | None
    change: LagChange | None
    cost: SourceCost | None

    @classmethod
    def of(cls, history: GateHistory, now_ms: int, lag: GateLag) -> Self:
        """Compute a moment from a gate's history and lag."""
        newest, run = next(iter(history.batches), None), newest_run(history.batches)
        over = newest is not None and is_over(history, newest, now_ms)
        outage, measured = waits_for(history), LagChange.of(run)
        moves = outage is None and not over and not has_ended(history)
        return cls(
            history=history,
            now_ms=now_ms,
            lag=lag,
            newest=newest,
            sample=next(iter(history.samples), None),
            run=run,
            lag_now=lag.source_records if history.is_silent(now_ms) else None,
            outage=outage,
            is_over=over,
            moves=moves,
            measured=measured,
            change=measured if moves else None,
            cost=batch_cost_of(history.gate),
        )

    @property
    def drains(self) -> bool:
        """Whether the gate's lag can fall: `moves` is true, and no operator has paused the gate."""
        limits = self.history.operator_limits
        return self.moves and (limits is None or limits.closed_by is None)

    def reason(self) -> str | None:
        """Return the reason for the newest batch's size, or for its wait."""
        if self.outage is not None:
            return f"{self.outage.awaited} is away" if self.outage.is_certain else IN_DOUBT
        return self.newest.reason if self.newest else None

    def waiting(self) -> int | None:
        """Return the lag before the newest batch, or the lag after this batch if `is_over`."""
        if self.is_over:
            return waiting_behind(self.history, self.lag_now)
        return self.newest.lag if self.newest else None

    def error(self) -> str | None:
        """Return the error of the newest unresolved failed batch; None without one."""
        errors = (
            batch.error
            for batch in self.history.batches
            if batch.status is not Status.SUCCESS
            and batch.resolution is None
            and not batch.interrupted
            and batch.error is not None
        )
        error = next(errors, None)
        return self.history.failed_error if error is None else short_error(error)

    def advice(self) -> tuple[str, ...]:
        """Return remedies for a low rate or small batches; none after the query's end."""
        history = self.history
        if history.gate.ended is not None:
            return ()
        return advice_on(history.gate, history.batches, history.samples, history.fit_counts)

    def run_records(self) -> int | None:
        """Return the number of records of the newest checkpoint's batches; None if not known."""
        has_all = len(self.run) < self.history.look_back
        return sum(batch.planned_records for batch in self.run) if self.run and has_all else None


def _lag(gate: "GateSnapshot") -> str:
    if gate.lag_now is not None:
        return f"{count(gate.lag_now)} now"
    if gate.lag_is_old and gate.lag is None and gate.left_over == 0:
        return f"none {duration(gate.lag_age_ms)} ago"
    if gate.lag_is_old and gate.lag is not None:
        return f"{count(gate.lag)} {duration(gate.lag_age_ms)} ago"
    return _with_arrow(gate.lag_trend, count(gate.lag))


def _short_lag(gate: "GateSnapshot") -> str:
    if gate.lag_now is not None:
        return count(gate.lag_now)
    arrow = f" {ARROWS[gate.lag_trend]}" if gate.lag_trend else ""
    return f"{count(gate.lag)}{arrow}"


def _short_drain(gate: "GateSnapshot") -> str:
    arrow = f"{ARROWS[gate.drain_trend]} " if gate.drain_trend and gate.left_over else ""
    return f"{arrow}{drained_in(gate.drain_s)}"


def _with_arrow(trend: Trend | None, text: str) -> str:
    return text if trend is None else f"{ARROWS[trend]} {trend} {text}"


def _batch(gate: "GateSnapshot") -> str:
    so_far = " so far" if gate.newest is not None and gate.newest.running else ""
    return f"{duration(gate.newest.duration_ms if gate.newest else None)}{so_far}"


def _load(gate: "GateSnapshot") -> float:
    return (gate.newest.duration_ms if gate.newest else 0) / max(gate.interval_ms, 1)


def _most_per_s(gate: GateMoment, *_: object) -> float | None:
    throttle, limit = gate.rate_limit, gate.operator.limit
    rates = [
        gate.rate_per_s,
        None if throttle is None else throttle.rate_per_s,
        None if limit is None else limit.records_per_s,
    ]
    return min((rate for rate in rates if rate is not None), default=None)


def _fixed_s(gate: GateMoment, *_: object) -> float | None:
    cost = batch_cost_of(gate)
    return None if cost is None else cost.fixed_s


def _away_s(gate: GateMoment, _lag: GateLag, now_ms: int) -> float:
    outage = gate.waits if gate.has_query else None
    return max(now_ms - outage.since_ms, 0) / 1000 if outage else 0


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """State of a gate at one moment. ``headrace status --json`` prints one such object per gate.

    Times are milliseconds since the epoch, and rates are records per second. None (``null``) stands
    for a value that is not known, or not known yet.
    """

    gate: str = fact(
        "Name of the gate.",
        lambda m: m.history.gate.name,
        Column("gate", lambda s: s.gate, width=17, sort="name", order=lambda s: s.gate),
    )
    source: str = fact("The kind of source, such as ``kafka``.", lambda m: m.history.gate.source)
    time_ms: int = fact("Time of the snapshot.", lambda m: m.now_ms)
    state: GateState = fact(
        "State of the gate: a value of `GateState`.",
        lambda m: gate_state(m.history, m.measured, m.now_ms, m.lag_now),
        Column("state", lambda s: str(s.state), width=14, sort="urgency"),
    )
    lag: int | None = fact(
        "Records that waited when the last batch was planned. Once the query has ended"
        " or is silent: ``lag_now``, or else ``left_over``. None if the batch left none,"
        " no query runs, and the source does not answer.",
        Moment.waiting,
        Column(
            "lag",
            _lag,
            is_number=True,
            narrow=_short_lag,
            width=12,
            sort="lag",
            order=lambda s: -(s.lag or 0),
        ),
        Metric(
            "lag_records",
            "Records that no batch has begun yet.",
            lambda _gate, lag, *_: lag.records,
        ),
    )
    lag_trend: Trend | None = fact(
        "Direction of the lag: ``falling``, ``steady`` or ``rising``.",
        lambda m: m.change and m.change.lag_trend,
        Column("trend", lambda _s: "", in_table="never"),
    )
    drain_s: float | None = fact(
        "Seconds until no record waits, at the present pace; 0 if none waits, None if never.",
        lambda m: m.change.drain_s if m.change and m.drains else None,
        Column(
            "drained in",
            lambda s: _with_arrow(s.drain_trend, drained_in(s.drain_s)),
            is_number=True,
            in_table="wide",
            narrow=_short_drain,
            sort="drain",
            order=lambda s: (s.drain_s is not None, -(s.drain_s or 0)),
        ),
        Metric(
            "drain_seconds",
            "Time until no record waits, at the pace of the last minutes.",
            lambda _gate, lag, *_: lag.drain_s,
        ),
    )
    rate_per_s: float | None = fact(
        "The rate that the law has learnt, before limits of operators and later stages.",
        lambda m: m.history.gate.rate_per_s,
        Column(
            "rate/s",
            lambda s: count(s.rate_per_s),
            is_number=True,
            width=13,
            sort="rate",
            order=lambda s: -(s.rate_per_s or 0),
        ),
        Metric(
            "rate_limit_records_per_second",
            "Largest rate for which a batch is planned.",
            _most_per_s,
        ),
    )
    processing_rate_per_s: float | None = fact(
        "Rate at which the last reported batch was processed.",
        lambda m: m.sample and m.sample.processing_rate_per_s,
        Column(
            "processed/s",
            lambda s: count(s.processing_rate_per_s),
            is_number=True,
            in_table="never",
            is_beside=True,
        ),
        Metric(
            "capacity_records_per_second",
            "Rate at which the last batch was processed.",
            lambda gate, *_: gate.capacity_per_s,
        ),
    )
    batches: tuple[BatchSnapshot, ...] = fact(
        "The last batches, newest first.",
        lambda m: batches_of(m.history, m.now_ms),
        Column("batch", _batch, is_number=True, width=13, sort="batch", order=lambda s: -_load(s)),
    )
    interval_ms: int = fact(
        "The time that a batch should take.",
        lambda m: m.history.gate.interval_ms,
        Column(
            "interval",
            lambda s: duration(s.interval_ms),
            is_number=True,
            in_table="wide",
            is_beside=True,
        ),
        Metric(
            "batch_interval_seconds",
            "The time that a batch should take.",
            lambda gate, *_: gate.interval_ms / 1000,
        ),
    )
    reason: str | None = fact(
        "Reason for the last batch's size; while the batch waits for its sink, the reason for"
        " the wait.",
        Moment.reason,
        Column("limited by", lambda s: s.operator_limits or s.reason or UNKNOWN, width=14),
    )
    proportional: float | None = fact(
        "Contribution of the law's proportional term to the last rate (records/s).",
        lambda m: m.sample and m.sample.proportional,
    )
    integral: float | None = fact(
        "Contribution of the law's integral term to the last rate (records/s).",
        lambda m: m.sample and m.sample.integral,
    )
    derivative: float | None = fact(
        "Contribution of the law's derivative term to the last rate (records/s).",
        lambda m: m.sample and m.sample.derivative,
    )
    law: str | None = fact(
        "The law in force: ``pid`` or ``learned``.", lambda m: law_of(m.history.gate)
    )
    fixed_ms: float | None = fact(
        "Learnt cost of a batch before its first record (ms).",
        lambda m: m.cost and m.cost.fixed_s * 1000,
        metric=Metric(
            "batch_fixed_cost_seconds", "Time that a batch takes before its first record.", _fixed_s
        ),
    )
    record_us: float | None = fact(
        "Learnt cost of a record (µs).", lambda m: m.cost and m.cost.record_s * 1_000_000
    )
    noise: float | None = fact(
        "Standard deviation of a batch's duration, relative to the duration.",
        lambda m: m.cost and m.cost.noise,
    )
    cost_changed_ms: int | None = fact(
        "Time at which the job's cost was last seen to change.",
        lambda m: m.cost and m.cost.changed_ms,
    )
    lag_age_ms: int | None = fact(
        "Time since the last batch was planned.",
        lambda m: m.newest and max(m.now_ms - m.newest.created_time_ms, 0),
        metric=Metric(
            "lag_age_seconds", "Time since the lag was measured.", lambda _gate, lag, *_: lag.age_s
        ),
    )
    lag_now: int | None = fact(
        "Records that no batch has begun, as the source reports now. The source is"
        " asked if no batch was planned for a while; None otherwise, or if the source"
        " does not answer.",
        lambda m: m.lag_now,
    )
    left_over: int | None = fact(
        "Waiting records that the last batch did not admit.",
        lambda m: m.newest and left_by(m.newest),
    )
    lag_change_per_s: float | None = fact(
        "Change of the lag in a second; above 0 if the lag grows.",
        lambda m: m.change and m.change.lag_change_per_s,
    )
    arrival_rate_per_s: float | None = fact(
        "Rate at which records arrive at the source.",
        lambda m: m.change and m.change.arrival_rate_per_s,
    )
    throughput_per_s: float | None = fact(
        "Rate at which records are admitted.", lambda m: m.change and m.change.throughput_per_s
    )
    drain_trend: Trend | None = fact(
        "Whether ``drain_s`` gets shorter (``falling``) or longer (``rising``).",
        lambda m: drain_trend(m.run) if m.drains else None,
    )
    partitions: tuple[PartitionSnapshot, ...] = fact(
        "Partitions that the last batch reads.",
        lambda m: tuple(map(PartitionSnapshot.of, m.history.ranges)),
    )
    failed: int = fact(
        "Number of failed batches that wait for a backfill, or are in one.",
        lambda m: m.history.unresolved.failed,
    )
    dead: int = fact(
        "Number of dead batches that nobody has dropped. No backfill runs a dead batch.",
        lambda m: m.history.unresolved.dead,
    )
    dead_letters: int = fact(
        "Number of waiting dead letters: records that cannot be processed.",
        lambda m: m.history.unresolved.letters,
    )
    in_progress: int = fact(
        "Number of ``batches`` that are in progress.",
        lambda m: sum(entry.status is Status.IN_PROGRESS for entry in m.history.batches),
    )
    abandoned: int = fact(
        "Number of batches in progress that no process runs. Each fails when its lease ends.",
        lambda m: m.history.abandoned(m.now_ms),
    )
    error: str | None = fact(
        "Error of the newest failed batch of ``batches``, or else of the waiting batches.",
        Moment.error,
    )
    lost_records: int = fact(
        "Offsets that were gone from the source before they were read. Accepted losses"
        " do not count.",
        lambda m: m.history.missed.lost,
    )
    skipped_records: int = fact(
        "Offsets between the ranges that two checkpoints read. Accepted offsets do not count.",
        lambda m: m.history.missed.skipped,
    )
    advice: tuple[str, ...] = fact(
        "Reasons for a rate at its lowest, and remedies, one sentence each.", Moment.advice
    )
    receivers: tuple[ReceiverSnapshot, ...] = fact(
        "Receivers that accept records for the gate.",
        lambda m: tuple(ReceiverSnapshot.of(entry, m.now_ms) for entry in m.history.receivers),
    )
    query: QuerySnapshot | None = fact(
        "The running query, or the last query if it ended without a report; else None.",
        lambda m: QuerySnapshot.of(m.history),
        metric=Metric(
            "query_running",
            "1 while the gate has a running query.",
            lambda gate, *_: gate.has_query,
        ),
    )
    ended_ms: int | None = fact(
        "Time of the last query's end, if it reported one; None while one runs.",
        lambda m: m.history.ended_ms,
    )
    ended_error: str | None = fact(
        "The error that ended the last query; None without one.",
        lambda m: (why := m.history.ended_by(QueryEnd.FAILED)) and reason_first(why),
    )
    stopped_by: str | None = fact(
        "The operator who stopped the last query, and why; None without one.",
        lambda m: m.history.ended_by(QueryEnd.STOPPED),
    )
    run_records: int | None = fact(
        "Records of the newest checkpoint's batches; None if ``batches`` does not have all of"
        " them.",
        Moment.run_records,
    )
    waiting: SinkOutage | None = fact(
        "Outage of the sink that the batch waits for: since when, the number of runs,"
        " the time of the next run, and the handler's error; None if the batch does not"
        " wait.",
        lambda m: m.outage,
        metric=Metric(
            "sink_away_seconds",
            "Time for which the batch has waited for its sink; 0 if it does not wait.",
            _away_s,
        ),
    )
    waits_with: str | None = fact(
        "Another gate of the same query whose sink is away, if the batch waits for that"
        " sink; else None.",
        lambda m: m.history.waits_with,
    )
    isolating: IsolatingSnapshot | None = fact(
        "Progress of the batch that is isolated now; None without one.",
        lambda m: m.history.isolating and IsolatingSnapshot.of(m.history.isolating),
    )
    isolated: IsolatedSnapshot | None = fact(
        "Summary of the last batches that were isolated because the handler raised;"
        " None without one.",
        lambda m: IsolatedSnapshot.among(m.history.batches, m.history.isolated),
    )
    unfit_records: int = fact(
        "Records of the last batches that the schema does not fit, while it does not"
        " fit most records of each batch; else 0.",
        lambda m: m.history.unfit_records,
    )
    operator_limits: str | None = fact(
        "Limits of operators in force, in words: who, why, since when; else None.",
        lambda m: m.history.operator_limits and m.history.operator_limits.describe(),
        metric=Metric(
            "paused",
            "1 while an operator has paused or drained the gate.",
            lambda gate, *_: gate.operator.hold is not None,
        ),
    )
    new_checkpoint: str | None = fact(
        "Position from which the query continued on a new checkpoint, in words, until"
        " its next start; None if it continued its own checkpoint.",
        lambda m: m.history.new_checkpoint,
    )
    ceiling: str | None = fact(
        "The largest batch that the handler takes, in words: the size that failed, and"
        " the size that passed; None while no batch has failed for its size.",
        lambda m: (most := known_ceiling(m.history.gate.size_ceiling)) and most.describe(),
    )
    ceiling_records: int | None = fact(
        "Largest number of records that the ceiling allows for the next batch; None"
        " without a ceiling.",
        lambda m: (most := known_ceiling(m.history.gate.size_ceiling)) and most.records,
        metric=Metric(
            "batch_ceiling_records",
            "The largest batch that the handler takes.",
            lambda gate, *_: gate.ceiling.records if gate.ceiling else None,
        ),
    )
    lag_seconds: float | None = fact(
        "Age of the oldest record that no batch has begun; 0 if no record waits.",
        lambda m: m.lag.seconds,
        metric=Metric(
            "lag_seconds",
            "Age of the oldest record that no batch has begun yet.",
            lambda _gate, lag, *_: lag.seconds,
        ),
    )
    retention_left_s: float | None = fact(
        "Seconds until the source's retention deletes the oldest record that no batch has begun;"
        " 0 if records were deleted. The source is asked if records have waited for a minute.",
        lambda m: m.lag.retention_left_s,
        metric=Metric(
            "retention_remaining_seconds",
            "Time until records are deleted before they are read.",
            lambda _gate, lag, *_: lag.retention_left_s,
        ),
    )
    needs: tuple[Need, ...] = fact(
        "Problems that an operator has to look at, the most urgent first, each with a sentence"
        " and a command.",
        lambda _m: (),  # `take_snapshot` adds the needs, which read a snapshot
    )

    @property
    def newest(self) -> BatchSnapshot | None:
        """The gate's last batch; None before its first batch."""
        return self.batches[0] if self.batches else None

    @property
    def lag_is_old(self) -> bool:
        """Whether the last batch was planned longer than `silence_ms` ago."""
        return self.lag_age_ms is not None and self.lag_age_ms > silence_ms(self.interval_ms)


_FACTS: Final = {entry.name: entry.metadata for entry in fields(GateSnapshot)}
GATE_COLUMNS: Final[Sequence[Column]] = [c for entry in _FACTS.values() if (c := entry["column"])]
GATE_METRICS: Final[Sequence[Metric]] = [m for entry in _FACTS.values() if (m := entry["metric"])]

GateSnapshot.__doc__ = f"{GateSnapshot.__doc__}\n    Attributes:\n" + "".join(
    f"        {name}: {entry['meaning']}\n" for name, entry in _FACTS.items()
)


def without_needs(moment: Moment) -> GateSnapshot:
    """Compute a gate's snapshot whose field ``needs`` is empty."""
    values: dict[str, Any] = {name: entry["value"](moment) for name, entry in _FACTS.items()}
    return GateSnapshot(**values)
