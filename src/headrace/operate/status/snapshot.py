"""Snapshot of a gate at one moment, from the ledger's records, for people and for ``--json``."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from headrace.core.timing import GATE_LEASE_MS
from headrace.gate import (
    FAILS_AS_A_WHOLE,
    BatchRecord,
    ErrorReport,
    GateQuery,
    GateRecord,
    Loss,
    PlannedRange,
    QueryEnd,
    ReceiverRecord,
    SinkOutage,
    Status,
    known_ceiling,
    lost_records,
)
from headrace.operate.status.lags import GateLag
from headrace.operate.status.states import (
    GateHistory,
    GateState,
    Need,
    ReceiverState,
    batch_time_ms,
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
    count,
    planned_or_counted,
    plural,
    reason_first,
    short_error,
    status_word,
)

IN_DOUBT: Final = "no part of its batch passes"
"""Reason for a waiting batch, if either the sink is away or the handler is wrong."""


MANY: Final = 10
"""Number of isolated batches among a gate's last batches above which a snapshot has advice."""

_REASON_LENGTH: Final = 70
"""Largest number of characters that a sentence quotes of an exception's message."""


@dataclass(frozen=True, slots=True)
class ReceiverSnapshot:
    """A receiver at one moment. A lane has one receiver.

    Attributes:
        journal: The journal's name.
        lane: The receiver's lane.
        state: State of the receiver: a value of `ReceiverState`.
        limit_per_s: Largest rate that the receiver admits (records/s); None is no limit.
        records_per_s: Records made durable per second, lately.
        records: Records made durable since the receiver's start.
        bytes: Size of the keys, values and headers of ``records``.
        buffered_bytes: Memory of the records that are not durable yet.
        waiting_records: Buffered records that wait for the limit.
        refusing: Reason, other than the limit, for which all senders wait; None without one.
        rejected: Number of rejected requests and senders, by kind.
        started_ms: Time of the receiver's start (ms since the epoch).
        seen_ms: Time of the receiver's last heartbeat (ms since the epoch).
    """

    journal: str
    lane: int
    state: ReceiverState
    limit_per_s: float | None
    records_per_s: float
    records: int
    bytes: int
    buffered_bytes: int
    waiting_records: int
    refusing: str | None
    rejected: Mapping[str, int]
    started_ms: int
    seen_ms: int

    @classmethod
    def of(cls, record: ReceiverRecord, now_ms: int) -> Self:
        """Compute a receiver's snapshot from its record in the ledger."""
        if not record.is_present(now_ms):
            state = ReceiverState.SILENT
        elif record.refusing is not None:
            state = ReceiverState.REFUSING
        elif record.waiting_records:
            state = ReceiverState.LIMITED
        else:
            state = ReceiverState.RECEIVING if record.records_per_s else ReceiverState.IDLE
        same = {name: getattr(record, name) for name in cls.__slots__ if name != "state"}
        return cls(state=state, **same)


@dataclass(frozen=True, slots=True)
class BatchSnapshot:
    """A batch at one moment.

    Attributes:
        id: The batch's number in Spark; None before its first run.
        status: Status in the ledger, or ``interrupted`` if the query was stopped during the batch.
        records: Number of records, or of offsets while the records have not been counted.
        duration_ms: Duration of the batch, or time since its start while it runs. Includes
            planning and commit once Spark has reported the batch.
        planned_ms: Time of the plan (ms since the epoch).
        lost: Number of offsets that were gone from the source when the batch read them.
        key: Batch key, with which `headrace batches` shows the batch in full.
    """

    id: int | None
    status: str
    records: int
    duration_ms: int
    planned_ms: int
    lost: int = 0
    key: str = ""

    @property
    def running(self) -> bool:
        """Whether the batch has not ended."""
        return self.status in (Status.IN_PROGRESS, Status.BACKFILLING)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition of the last batch: its lag at the plan, and the number of admitted records.

    ``lag`` and ``reason`` are None for a batch that was planned before a restart.
    """

    topic: str
    partition: int
    lag: int | None
    admitted: int
    reason: str | None

    @property
    def left(self) -> int | None:
        """Number of waiting records that the batch did not admit; None if not known."""
        return None if self.lag is None else max(self.lag - self.admitted, 0)


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """The query of a gate."""

    program: str
    """The query's process and machine."""
    checkpoint: str | None
    """Path of the query's checkpoint; None if the program has not reported it."""
    since_ms: int
    """Time at which the query claimed the gate (ms since the epoch)."""
    ended_ms: int | None = None
    """Time of the query's last sign of life, if it ended without a report; None while it runs."""


@dataclass(frozen=True, slots=True)
class IsolatingSnapshot:
    """Progress of an isolation.

    Attributes:
        batch_key: Key of the batch.
        records: Number of the batch's offsets.
        runs: Number of handler calls with parts of the batch so far.
        left: Number of offsets that are not done.
    """

    batch_key: str
    records: int
    runs: int
    left: int

    @classmethod
    def of(cls, batch: BatchRecord) -> Self:
        """Return the progress of a batch that is run in parts."""
        return cls(batch.batch_key, batch.planned_records, batch.parts.runs, batch.records_left)


@dataclass(frozen=True, slots=True)
class IsolatedSnapshot:
    """Summary of the isolations among a gate's last batches.

    The handler raised either on single records, or on whole batches of which all parts pass.
    """

    batches: int
    """Number of isolated batches."""
    of: int
    """Number of the last batches that were examined."""
    error: str
    """The handler's last error: the beginning of the message, and the class."""

    @classmethod
    def among(
        cls, batches: Sequence[BatchRecord], isolated: Mapping[str, ErrorReport]
    ) -> Self | None:
        """Summarize the isolations among a gate's last batches; None if none was isolated."""
        number = sum(batch.batch_key in isolated for batch in batches)
        wholes = [
            batch.error for batch in batches if batch.error is not None and batch.error.is_of_whole
        ]
        if len(wholes) > number:
            error, number = wholes[0], len(wholes)
        elif not isolated:
            return None
        else:
            error = next(iter(isolated.values()))
        reason = error.message.strip().partition("\n")[0]
        most = _REASON_LENGTH + (
            len(FAILS_AS_A_WHOLE) if reason.startswith(FAILS_AS_A_WHOLE) else 0
        )
        if len(reason) > most:
            error = replace(error, message=f"{reason[: most - 1].rstrip()}…")
        return cls(number, len(batches), short_error(error)) if number else None

    @property
    def is_of_wholes(self) -> bool:
        """Whether the batches fail as a whole while all of their parts pass."""
        return self.error.startswith(FAILS_AS_A_WHOLE)

    @property
    def advice(self) -> str | None:
        """Advice for finding bad records at less cost; None for `MANY` isolated batches or less."""
        if self.batches <= MANY:
            return None
        if self.is_of_wholes:
            return (
                f"{count(self.batches)} of the last {plural(self.of, 'batch')} were run in parts:"
                f" {self.error.rstrip('.')}; correct what its records do to each other, such as one"
                " key twice."
            )
        return (
            f"The handler raised on single records in {count(self.batches)} of the last"
            f" {plural(self.of, 'batch')} (last {self.error.rstrip('.')}), and is run many times"
            " to find them: have it batch.reject them, or decode at the source with"
            " gate.read(..., decode=...), as docs/failures.md says."
        )


@dataclass(frozen=True, slots=True)
class GateSnapshot:
    """A gate at one moment. ``headrace status --json`` prints one such object per gate.

    Times are milliseconds since the epoch, rates are records per second. None (``null``) stands for
    a value that is not known, or not known yet.

    Attributes:
        gate: Name of the gate.
        source: The kind of source, such as ``kafka``.
        time_ms: Time of the snapshot.
        interval_ms: The time that a batch should take.
        state: State of the gate: a value of `GateState`.
        reason: Reason for the last batch's size; while the batch waits for its sink, that reason.
        rate_per_s: The rate that the law has learnt, before limits of operators and later stages.
        processing_rate_per_s: Rate at which the last reported batch was processed.
        proportional, integral, derivative: Contributions of the law's terms to the last rate.
        law: The law in force: ``pid`` or ``learned``.
        fixed_ms: Learnt cost of a batch before its first record (ms).
        record_us: Learnt cost of a record (µs).
        noise: Standard deviation of a batch's duration, relative to the duration.
        cost_changed_ms: Time at which the job's cost was last seen to change.
        lag: Records that waited when the last batch was planned. Once the query has ended or is
            silent: ``lag_now``, or else ``left_over``. None if the batch left none, no query runs,
            and the source does not answer.
        lag_age_ms: Time since the last batch was planned.
        lag_now: Records that no batch has begun, as the source reports now. The source is asked if
            no batch was planned for a while; None otherwise, or if the source does not answer.
        left_over: Waiting records that the last batch did not admit.
        lag_change_per_s, lag_trend: Change of the lag: ``falling``, ``steady`` or ``rising``.
        arrival_rate_per_s: Rate at which records arrive at the source.
        throughput_per_s: Rate at which records are admitted.
        drain_s: Seconds until no record waits at this pace; 0 if none waits, None if never.
        drain_trend: Whether ``drain_s`` gets shorter (``falling``) or longer (``rising``).
        batches: The last batches, newest first.
        partitions: Partitions that the last batch reads.
        failed: Number of failed batches that wait for a backfill, or are in one.
        dead: Number of dead batches that nobody has dropped; no backfill runs them.
        dead_letters: Number of waiting dead letters: records that cannot be processed.
        in_progress: Number of ``batches`` that are in progress.
        abandoned: Number of batches in progress that no process runs. Each fails when its lease
            ends.
        error: Error of the newest failed batch of ``batches``, or else of the waiting batches.
        lost_records: Offsets that were gone from the source before they were read. Accepted
            losses do not count.
        skipped_records: Offsets between the ranges that two checkpoints read. Accepted offsets do
            not count.
        advice: Reasons for a rate at its lowest, and remedies, one sentence each.
        receivers: Receivers that accept records for the gate.
        query: The running query, or the last one if it ended without a report; else None.
        ended_ms: Time of the last query's end, if it reported one; None while one runs.
        ended_error: The error that ended the last query; None without one.
        stopped_by: The operator who stopped the last query, and why; None without one.
        run_records: Records of the newest checkpoint's batches; None if ``batches`` lacks some.
        waiting: Outage of the sink that the batch waits for: since when, the number of runs, the
            time of the next run, and the handler's error; None if the batch does not wait.
        waits_with: Another gate of the same query whose sink is away, if the batch waits for that
            sink; else None.
        isolating: Progress of the batch that is isolated now; None without one.
        isolated: Summary of the last batches that were isolated because the handler raised; None
            without one.
        unfit_records: Records of the last batches that the schema does not fit, while it does not
            fit most records of each batch; else 0.
        operator_limits: Limits of operators in force, in words: who, why, since when; else None.
        new_checkpoint: Position from which the query continued on a new checkpoint, in words, until
            its next start; None if it continued its own checkpoint.
        ceiling: The largest batch that the handler takes, in words: the size that failed, and the
            size that passed; None while no batch has failed for its size.
        ceiling_records: Largest number of records that the ceiling allows for the next batch; None
            without a ceiling.
        lag_seconds: Age of the oldest record that no batch has begun; 0 if no record waits.
        retention_left_s: Seconds until the source's retention deletes the oldest such record; 0 if
            records were deleted. The source is asked if records have waited for a minute.
        needs: Needs, the most urgent first: each with a sentence and a command.
    """

    gate: str
    source: str
    time_ms: int
    interval_ms: int
    state: GateState
    reason: str | None
    rate_per_s: float | None
    processing_rate_per_s: float | None
    proportional: float | None
    integral: float | None
    derivative: float | None
    law: str | None
    fixed_ms: float | None
    record_us: float | None
    noise: float | None
    cost_changed_ms: int | None
    lag: int | None
    lag_age_ms: int | None
    lag_now: int | None
    left_over: int | None
    lag_change_per_s: float | None
    lag_trend: Trend | None
    arrival_rate_per_s: float | None
    throughput_per_s: float | None
    drain_s: float | None
    drain_trend: Trend | None
    batches: tuple[BatchSnapshot, ...]
    partitions: tuple[PartitionSnapshot, ...]
    failed: int
    dead: int
    dead_letters: int
    in_progress: int
    error: str | None
    lost_records: int
    skipped_records: int
    advice: tuple[str, ...]
    receivers: tuple[ReceiverSnapshot, ...]
    query: QuerySnapshot | None
    ended_ms: int | None
    ended_error: str | None
    stopped_by: str | None
    run_records: int | None
    waiting: SinkOutage | None
    isolating: IsolatingSnapshot | None
    operator_limits: str | None
    lag_seconds: float | None = None
    retention_left_s: float | None = None
    ceiling: str | None = None
    ceiling_records: int | None = None
    isolated: IsolatedSnapshot | None = None
    unfit_records: int = 0
    new_checkpoint: str | None = None
    abandoned: int = 0
    waits_with: str | None = None
    needs: tuple[Need, ...] = ()

    @property
    def newest(self) -> BatchSnapshot | None:
        """The last batch; None without one."""
        return self.batches[0] if self.batches else None

    @property
    def lag_is_old(self) -> bool:
        """Whether the last batch was planned longer than `silence_ms` ago."""
        return self.lag_age_ms is not None and self.lag_age_ms > silence_ms(self.interval_ms)


def without_needs(history: GateHistory, now_ms: int, lag: GateLag | None = None) -> GateSnapshot:
    """Compute a gate's snapshot, without its needs, from its history and its lag."""
    snapshot = _snapshot(history, now_ms, lag or GateLag())
    if (outage := snapshot.waiting) is not None:
        # While the batch waits, a trend or a rate of the past would mislead.
        snapshot = replace(
            snapshot,
            reason=f"{outage.awaited} is away" if outage.is_certain else IN_DOUBT,
            drain_s=None,
            drain_trend=None,
            lag_trend=None,
            lag_change_per_s=None,
            throughput_per_s=None,
            arrival_rate_per_s=None,
        )
    if history.operator_limits is not None and history.operator_limits.closed_by is not None:
        # A paused gate admits nothing, so the lag is not drained until an operator resumes it.
        snapshot = replace(snapshot, drain_s=None, drain_trend=None)
    return snapshot


_TERMS: Final = ("processing_rate_per_s", "proportional", "integral", "derivative")
_MOVES: Final = (
    "lag_change_per_s",
    "lag_trend",
    "arrival_rate_per_s",
    "throughput_per_s",
    "drain_s",
)


def _snapshot(history: GateHistory, now_ms: int, lag: GateLag) -> GateSnapshot:
    gate, batches, samples = history.gate, history.batches, history.samples
    newest, sample = next(iter(batches), None), next(iter(samples), None)
    run = newest_run(batches)
    change = LagChange.of(run)
    over = newest is not None and is_over(history, newest, now_ms)
    moves = not over and not has_ended(history)
    lag_now = lag.source_records if history.is_silent(now_ms) else None
    return GateSnapshot(
        gate=gate.name,
        source=gate.source,
        time_ms=now_ms,
        interval_ms=gate.interval_ms,
        state=gate_state(history, change, now_ms, lag_now),
        rate_per_s=gate.rate_per_s,
        law=law_of(gate),
        **_cost(gate),
        lag_age_ms=max(now_ms - newest.created_time_ms, 0) if newest else None,
        lag_now=lag_now,
        left_over=left_by(newest) if newest else None,
        drain_trend=drain_trend(run) if moves else None,
        batches=_batches(history, now_ms),
        partitions=tuple(map(_partition, history.ranges)),
        failed=history.unresolved.failed,
        dead=history.unresolved.dead,
        dead_letters=history.unresolved.letters,
        in_progress=sum(batch.status is Status.IN_PROGRESS for batch in batches),
        abandoned=history.abandoned(now_ms),
        error=_error(batches) or history.failed_error,
        lost_records=history.missed.lost,
        skipped_records=history.missed.skipped,
        advice=advice_on(gate, batches, samples, history.fit_counts) if gate.ended is None else (),
        receivers=tuple(ReceiverSnapshot.of(receiver, now_ms) for receiver in history.receivers),
        query=_query(history.query or history.gone, ended=history.query is None),
        **_end(history),
        run_records=_run_records(run, history.look_back),
        **_waits(history),
        isolating=None if history.isolating is None else IsolatingSnapshot.of(history.isolating),
        isolated=IsolatedSnapshot.among(batches, history.isolated),
        unfit_records=history.unfit_records,
        new_checkpoint=history.new_checkpoint,
        operator_limits=history.operator_limits.describe() if history.operator_limits else None,
        **_ceiling(gate),
        lag_seconds=lag.seconds,
        retention_left_s=lag.retention_left_s,
        lag=waiting_behind(history, lag_now) if over else newest.lag if newest else None,
        **_values(newest, "reason"),
        **_values(sample, *_TERMS),
        **_values(change if moves else None, *_MOVES),
    )


def _waits(history: GateHistory) -> dict[str, Any]:
    return {"waiting": waits_for(history), "waits_with": history.waits_with}


def _end(history: GateHistory) -> dict[str, Any]:
    ended_by = history.ended_by(QueryEnd.FAILED)
    return {
        "ended_ms": history.ended_ms,
        "ended_error": ended_by and reason_first(ended_by),
        "stopped_by": history.ended_by(QueryEnd.STOPPED),
    }


def _ceiling(gate: GateRecord) -> dict[str, Any]:
    ceiling = known_ceiling(gate.size_ceiling)
    return {
        "ceiling": ceiling.describe() if ceiling else None,
        "ceiling_records": ceiling.records if ceiling else None,
    }


def _cost(gate: GateRecord) -> dict[str, Any]:
    cost = batch_cost_of(gate)
    return {
        "fixed_ms": cost.fixed_s * 1000 if cost else None,
        "record_us": cost.record_s * 1_000_000 if cost else None,
        "noise": cost.noise if cost else None,
        "cost_changed_ms": cost.changed_ms if cost else None,
    }


def _run_records(run: Sequence[BatchRecord], look_back: int) -> int | None:
    """Return the records of all batches of a checkpoint; None if some may not have been read."""
    has_all = len(run) < look_back
    return sum(batch.planned_records for batch in run) if run and has_all else None


def _query(query: GateQuery | None, *, ended: bool) -> QuerySnapshot | None:
    if query is None:
        return None
    ended_ms = query.until_ms - GATE_LEASE_MS if ended else None
    return QuerySnapshot(query.described, query.checkpoint, query.since_ms, ended_ms)


def _values(source: object | None, *names: str) -> dict[str, Any]:
    return {name: None if source is None else getattr(source, name) for name in names}


def _batches(history: GateHistory, now_ms: int) -> tuple[BatchSnapshot, ...]:
    reported = {
        sample.batch_key: sample.processing_delay_ms
        for sample in history.samples
        if sample.batch_key
    }
    lost: dict[str | None, list[Loss]] = defaultdict(list)
    for loss in history.losses:
        lost[loss.batch_key].append(loss)
    return tuple(
        BatchSnapshot(
            id=batch.query_batch_id,
            status=status_word(batch),
            records=planned_or_counted(batch),
            duration_ms=batch_time_ms(batch, reported, now_ms),
            planned_ms=batch.created_time_ms,
            lost=lost_records(lost[batch.batch_key]),
            key=batch.batch_key,
        )
        for batch in history.batches
    )


def _partition(planned: PlannedRange) -> PartitionSnapshot:
    offsets = planned.offsets
    lag = None if planned.latest is None else max(planned.latest - offsets.start, 0)
    return PartitionSnapshot(offsets.topic, offsets.partition, lag, offsets.count, planned.reason)


def _error(batches: Sequence[BatchRecord]) -> str | None:
    open_ones = (b for b in batches if b.status is not Status.SUCCESS and b.resolution is None)
    failed = (b for b in open_ones if not b.interrupted)
    error = next((batch.error for batch in failed if batch.error is not None), None)
    return None if error is None else short_error(error)
