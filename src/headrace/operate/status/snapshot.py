"""State of a gate at one moment: its facts, each declared once, for people and for programs."""

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
"""Limit of a gate whose batch waits, if its sink may be away, or its handler be wrong."""

ARROWS: Final[Mapping[Trend, str]] = {Trend.FALLING: "↓", Trend.STEADY: "→", Trend.RISING: "↑"}


@dataclass(frozen=True, slots=True)
class Moment:
    """The ledger's records of a gate at one time, and what is worked out of them once.

    Attributes:
        lag: What is known of its lag, from the ledger and its source.
        newest: Its newest batch.
        sample: The newest report of a batch.
        run: The newest batches of one checkpoint.
        lag_now: What the source itself says, of a gate that plans no batch.
        outage: The outage that its batch waits for.
        is_over: Whether no batch follows the newest one.
        moves: Whether records move: none does while a sink is away, or when the query has ended.
        measured: How the lag has changed over its last batches.
        change: How it changes now; None while nothing moves.
        cost: The cost of a batch, as learnt.
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
        """Work it out."""
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
        """Whether what waits gets less by itself: nothing is drained until somebody resumes it."""
        limits = self.history.operator_limits
        return self.moves and (limits is None or limits.closed_by is None)

    def reason(self) -> str | None:
        """Return what limits the gate."""
        if self.outage is not None:
            return f"{self.outage.awaited} is away" if self.outage.is_certain else IN_DOUBT
        return self.newest.reason if self.newest else None

    def waiting(self) -> int | None:
        """Return what waited before the newest batch, or waits behind it if none follows."""
        if self.is_over:
            return waiting_behind(self.history, self.lag_now)
        return self.newest.lag if self.newest else None

    def error(self) -> str | None:
        """Return the error of the newest batch that failed and is not resolved."""
        errors = (
            each.error
            for each in self.history.batches
            if each.status is not Status.SUCCESS
            and each.resolution is None
            and not each.interrupted
            and each.error is not None
        )
        error = next(errors, None)
        return self.history.failed_error if error is None else short_error(error)

    def advice(self) -> tuple[str, ...]:
        """Return what would help a rate at its lowest, while a query runs."""
        known = self.history
        if known.gate.ended is not None:
            return ()
        return advice_on(known.gate, known.batches, known.samples, known.fit_counts)

    def run_records(self) -> int | None:
        """Return the records of its checkpoint's batches; None where there may be more of them."""
        has_all = len(self.run) < self.history.look_back
        return sum(each.planned_records for each in self.run) if self.run and has_all else None


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
    """A gate at one moment. This is the shape of ``headrace status --json``, one object per gate.

    Times are milliseconds since the epoch, rates are records per second. None (``null``) is what is
    not known, or not known yet.
    """

    gate: str = fact(
        "Its name.",
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
        "Records that waited when the last batch was planned; once its query has ended, or is"
        " silent, those that wait now, as the source says, or that batch has left. None where it"
        " left none, no query runs, and the source does not answer.",
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
        "Where the lag goes: ``falling``, ``steady`` or ``rising``.",
        lambda m: m.change and m.change.lag_trend,
        Column("trend", lambda _s: "", in_table="never"),
    )
    drain_s: float | None = fact(
        "Seconds until nothing is left over at this pace; 0 when nothing is, None if never.",
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
            "Time until nothing waits, at the pace of late.",
            lambda _gate, lag, *_: lag.drain_s,
        ),
    )
    rate_per_s: float | None = fact(
        "The rate that its law has learnt; what operators and later stages allow comes on top of"
        " it.",
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
            "rate_limit_records_per_second", "The most that a batch is planned for.", _most_per_s
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
            "How fast the last batch was processed.",
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
        "Reason for the last batch's size; while it waits for its sink, the gate's limit.",
        Moment.reason,
        Column("limited by", lambda s: s.operator_limits or s.reason or UNKNOWN, width=14),
    )
    proportional: float | None = fact(
        "What the law's first term added to the last rate.",
        lambda m: m.sample and m.sample.proportional,
    )
    integral: float | None = fact(
        "The same of its second.", lambda m: m.sample and m.sample.integral
    )
    derivative: float | None = fact(
        "The same of its third.", lambda m: m.sample and m.sample.derivative
    )
    law: str | None = fact(
        "The law in force: ``pid`` or ``learned``.", lambda m: law_of(m.history.gate)
    )
    fixed_ms: float | None = fact(
        "Cost of a batch before its first record (ms), as learnt.",
        lambda m: m.cost and m.cost.fixed_s * 1000,
        metric=Metric(
            "batch_fixed_cost_seconds", "What a batch costs before its first record.", _fixed_s
        ),
    )
    record_us: float | None = fact(
        "Cost of a record (µs), as learnt.", lambda m: m.cost and m.cost.record_s * 1_000_000
    )
    noise: float | None = fact(
        "The standard deviation of a batch's time, as a part of it.",
        lambda m: m.cost and m.cost.noise,
    )
    cost_changed_ms: int | None = fact(
        "Time at which the job's cost was last seen to change.",
        lambda m: m.cost and m.cost.changed_ms,
    )
    lag_age_ms: int | None = fact(
        "Time since that batch was planned.",
        lambda m: m.newest and max(m.now_ms - m.newest.created_time_ms, 0),
        metric=Metric(
            "lag_age_seconds", "Time since the lag was measured.", lambda _gate, lag, *_: lag.age_s
        ),
    )
    lag_now: int | None = fact(
        "Records that no batch has begun yet, now, as the source itself says; asked where no batch"
        " has come for a while, and None otherwise, or where the source does not answer.",
        lambda m: m.lag_now,
    )
    left_over: int | None = fact(
        "Records that this batch left.", lambda m: m.newest and left_by(m.newest)
    )
    lag_change_per_s: float | None = fact(
        "How fast the lag grows; below 0 where it falls.",
        lambda m: m.change and m.change.lag_change_per_s,
    )
    arrival_rate_per_s: float | None = fact(
        "Records that come to the source.", lambda m: m.change and m.change.arrival_rate_per_s
    )
    throughput_per_s: float | None = fact(
        "Records that are admitted.", lambda m: m.change and m.change.throughput_per_s
    )
    drain_trend: Trend | None = fact(
        "Whether that time gets shorter (``falling``) or longer (``rising``).",
        lambda m: drain_trend(m.run) if m.drains else None,
    )
    partitions: tuple[PartitionSnapshot, ...] = fact(
        "Partitions that the last batch reads.",
        lambda m: tuple(map(PartitionSnapshot.of, m.history.ranges)),
    )
    failed: int = fact(
        "Batches that failed and wait for a backfill, or have one.",
        lambda m: m.history.unresolved.failed,
    )
    dead: int = fact(
        "Those that no backfill takes any more, and that nobody has dropped.",
        lambda m: m.history.unresolved.dead,
    )
    dead_letters: int = fact(
        "Records that cannot be processed, and wait for somebody.",
        lambda m: m.history.unresolved.letters,
    )
    in_progress: int = fact(
        "Number of ``batches`` that are in progress.",
        lambda m: sum(each.status is Status.IN_PROGRESS for each in m.history.batches),
    )
    abandoned: int = fact(
        "Those of them that no process runs; they fail when their leases end.",
        lambda m: m.history.abandoned(m.now_ms),
    )
    error: str | None = fact(
        "Error of the newest failed batch of ``batches``, or of those that wait.", Moment.error
    )
    lost_records: int = fact(
        "Offsets that were gone from the source before they were read, but for those that somebody"
        " has accepted.",
        lambda m: m.history.missed.lost,
    )
    skipped_records: int = fact(
        "Offsets between what two of its checkpoints have read, but for those.",
        lambda m: m.history.missed.skipped,
    )
    advice: tuple[str, ...] = fact(
        "Reasons for a rate at its lowest, and remedies, one sentence each.", Moment.advice
    )
    receivers: tuple[ReceiverSnapshot, ...] = fact(
        "Receivers that take in records for it.",
        lambda m: tuple(ReceiverSnapshot.of(each, m.now_ms) for each in m.history.receivers),
    )
    query: QuerySnapshot | None = fact(
        "The query that runs behind it, or ended there without a finish; None where none does.",
        lambda m: QuerySnapshot.of(m.history),
        metric=Metric(
            "query_running",
            "1 while a query stands behind the gate.",
            lambda gate, *_: gate.has_query,
        ),
    )
    ended_ms: int | None = fact(
        "Time of the last query's end, if it reported one; None while one runs.",
        lambda m: m.history.ended_ms,
    )
    ended_error: str | None = fact(
        "The error that ended it; None where it was none.",
        lambda m: (why := m.history.ended_by(QueryEnd.FAILED)) and reason_first(why),
    )
    stopped_by: str | None = fact(
        "Who has stopped it, and why; None where nobody has said so.",
        lambda m: m.history.ended_by(QueryEnd.STOPPED),
    )
    run_records: int | None = fact(
        "Records of the newest checkpoint's batches; None where not all are known here.",
        Moment.run_records,
    )
    waiting: SinkOutage | None = fact(
        "Of the sink that its batch waits for: since when, how often it was run, when it is run"
        " next, and what the handler raised; None where it does not wait.",
        lambda m: m.outage,
        metric=Metric(
            "sink_away_seconds", "For how long its batch has waited for its sink; 0: not.", _away_s
        ),
    )
    waits_with: str | None = fact(
        "The gate of the same query whose sink is away, if its batch waits with that one's; None"
        " where it does not.",
        lambda m: m.history.waits_with,
    )
    isolating: IsolatingSnapshot | None = fact(
        "Progress of the batch that is isolated now; None where none is.",
        lambda m: m.history.isolating and IsolatingSnapshot.of(m.history.isolating),
    )
    isolated: IsolatedSnapshot | None = fact(
        "Those of the last batches in which isolation found bad records, because the handler"
        " raised; None where there is none.",
        lambda m: IsolatedSnapshot.among(m.history.batches, m.history.isolated),
    )
    unfit_records: int = fact(
        "Records of the last batches that the schema does not fit, while it does not fit most of"
        " each; else 0.",
        lambda m: m.history.unfit_records,
    )
    operator_limits: str | None = fact(
        "What operators have put in force, in words: who, why, since when; None if nothing.",
        lambda m: m.history.operator_limits and m.history.operator_limits.describe(),
        metric=Metric(
            "paused",
            "1 while an operator has paused or drained the gate.",
            lambda gate, *_: gate.operator.hold is not None,
        ),
    )
    new_checkpoint: str | None = fact(
        "Where its query went on when it began a new checkpoint, in words, until its next start;"
        " None if it had its checkpoint.",
        lambda m: m.history.new_checkpoint,
    )
    ceiling: str | None = fact(
        "The largest batch that the handler takes, in words: what failed, and what passed; None"
        " while no batch has failed for its size.",
        lambda m: (most := known_ceiling(m.history.gate.size_ceiling)) and most.describe(),
    )
    ceiling_records: int | None = fact(
        "The most records of the next batch by that; None without a ceiling.",
        lambda m: (most := known_ceiling(m.history.gate.size_ceiling)) and most.records,
        metric=Metric(
            "batch_ceiling_records",
            "The largest batch that the handler takes.",
            lambda gate, *_: gate.ceiling.records if gate.ceiling else None,
        ),
    )
    lag_seconds: float | None = fact(
        "Age of the oldest record that no batch has begun; 0 if it is known that none waits.",
        lambda m: m.lag.seconds,
        metric=Metric(
            "lag_seconds",
            "Age of the oldest record that no batch has begun yet.",
            lambda _gate, lag, *_: lag.seconds,
        ),
    )
    retention_left_s: float | None = fact(
        "Seconds until the source deletes that record by its age, as the source itself says; asked"
        " where records have waited for a minute. 0: it has deleted some.",
        lambda m: m.lag.retention_left_s,
        metric=Metric(
            "retention_remaining_seconds",
            "Time until records are deleted before they are read.",
            lambda _gate, lag, *_: lag.retention_left_s,
        ),
    )
    needs: tuple[Need, ...] = fact(
        "What needs somebody, the worst first: a sentence each, and the command that acts.",
        lambda _m: (),  # a need reads a snapshot: see `take_snapshot`
    )

    @property
    def newest(self) -> BatchSnapshot | None:
        """The last batch."""
        return self.batches[0] if self.batches else None

    @property
    def lag_is_old(self) -> bool:
        """Whether batches should have come since the last one was planned."""
        return self.lag_age_ms is not None and self.lag_age_ms > silence_ms(self.interval_ms)


_FACTS: Final = {each.name: each.metadata for each in fields(GateSnapshot)}
GATE_COLUMNS: Final[Sequence[Column]] = [c for each in _FACTS.values() if (c := each["column"])]
GATE_METRICS: Final[Sequence[Metric]] = [m for each in _FACTS.values() if (m := each["metric"])]

GateSnapshot.__doc__ = f"{GateSnapshot.__doc__}\n    Attributes:\n" + "".join(
    f"        {name}: {each['meaning']}\n" for name, each in _FACTS.items()
)


def without_needs(moment: Moment) -> GateSnapshot:
    """Work out a snapshot, without its needs."""
    values: dict[str, Any] = {name: each["value"](moment) for name, each in _FACTS.items()}
    return GateSnapshot(**values)
