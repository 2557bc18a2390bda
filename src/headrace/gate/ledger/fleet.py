"""Consistent state of all gates of a ledger, its changes since the last read, and details."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
)

from headrace.gate.ledger.batch_rows import PLANNED_RANGE, UNRESOLVED_COUNTS, WAITING_LETTERS, among
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.rates import SAMPLE
from headrace.gate.ledger.receivers import ReceiverRecord, receiver_records
from headrace.gate.ledger.records import (
    BatchRecord,
    PlannedRange,
    RateSample,
    Unresolved,
    batch_from,
    range_from,
    unresolved_from,
)
from headrace.gate.ledger.tables import (
    NowMs,
    action,
    batch_range,
    batch_table,
    dead_letter,
    gate,
    lost,
    rate,
    receiver,
    stage_state,
)
from headrace.gate.ledger.transitions import Status

_PULSE: Final = select(
    gate.c.name,
    gate.c.lost_offsets,
    gate.c.begins,
    gate.c.begun,
    gate.c.reported,
    gate.c.interval_ms,
    gate.c.rate_per_s,
    gate.c.size_ceiling,
    gate.c.query_owner,
    (gate.c.query_until_ms > NowMs()).label("query_lives"),
    gate.c.query_checkpoint,
    gate.c.ended_ms,
    gate.c.last_action,
    gate.c.sink_outage,
    batch_table.c.status,
    batch_table.c.last_call,
).outerjoin_from(gate, batch_table, batch_table.c.batch_key == gate.c.begun)

_ELSEWHERE: Final = select(
    select(func.max(receiver.c.seen_ms)).scalar_subquery(),
    select(func.max(stage_state.c.written_ms)).scalar_subquery(),
    select(func.max(action.c.action_id)).scalar_subquery(),
)

Names = Collection[str] | None
"""Names of gates; None for all of them."""


def _newest_of_each(table: Table, time: str, columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
    """The newest rows of each gate, as many as ``skip`` and one more: a walk of its index."""
    earlier = table.alias()
    times = select(earlier.c[time]).where(earlier.c.gate == gate.c.name)
    times = times.order_by(earlier.c[time].desc()).limit(1).offset(bindparam("skip"))
    # Below all where a gate has fewer.
    oldest = func.coalesce(times.correlate(gate).scalar_subquery(), -1)
    of_gate = and_(table.c.gate == gate.c.name, table.c[time] >= oldest)
    newest_first = gate.c.name, table.c[time].desc()
    return select(*columns).join_from(gate, table, of_gate).order_by(*newest_first)


_NEWEST: Final = _newest_of_each(batch_table, "created_time_ms", list(batch_table.c))
_NEWEST_SAMPLES: Final = _newest_of_each(rate, "time_ms", SAMPLE).order_by(rate.c.rate_id.desc())

_NEWEST_RANGES: Final = (
    select(gate.c.name, *PLANNED_RANGE)
    .join_from(gate, batch_range, batch_range.c.batch_key == gate.c.begun)
    .order_by(gate.c.name, batch_range.c.topic, batch_range.c.partition, batch_range.c.start_offset)
)

_IN_PARTS: Final = (
    select(batch_table)
    .where(batch_table.c.status.in_([Status.IN_PROGRESS, Status.BACKFILLING]))
    .where(batch_table.c.progress.is_not(None))
)

_has_lost = select(lost.c.gate).where(lost.c.gate == gate.c.name).exists()
_has_letters = select(dead_letter.c.gate).where(dead_letter.c.gate == gate.c.name).exists()
_WITH_DETAILS: Final = select(gate.c.name).where(or_(_has_lost, _has_letters))

_RECEIVERS: Final = select(receiver).order_by(
    receiver.c.journal, receiver.c.lane, receiver.c.gate, receiver.c.owner
)

_bucket = bindparam("bucket_ms", type_=BigInteger)
_since = bindparam("since_ms", type_=BigInteger)
_until = bindparam("until_ms", type_=BigInteger)
# `//` divides whole numbers on both databases.
_created_bucket = batch_table.c.created_time_ms // _bucket * _bucket
_sample_bucket = rate.c.time_ms // _bucket * _bucket

_SERIES: Final = (
    select(
        func.min(batch_table.c.created_time_ms).label("time_ms"),
        func.max(batch_table.c.lag).label("lag"),
        func.max(batch_table.c.end_time_ms - batch_table.c.created_time_ms).label("duration_ms"),
        func.sum(func.coalesce(batch_table.c.records, batch_table.c.planned_records)).label(
            "records"
        ),
        func.min(batch_table.c.rate_per_s).label("rate_per_s"),
        func.sum(case((batch_table.c.status.in_([Status.FAILED, Status.DEAD]), 1), else_=0)).label(
            "failed"
        ),
        func.min(batch_table.c.checkpoint_id).label("checkpoint_id"),
        func.count().label("batches"),
    )
    .where(batch_table.c.gate == bindparam("gate"))
    .where(batch_table.c.created_time_ms >= _since, batch_table.c.created_time_ms < _until)
    .group_by(_created_bucket)
    .order_by(func.min(batch_table.c.created_time_ms))
)

_SAMPLES: Final = (
    select(
        func.min(rate.c.time_ms).label("time_ms"),
        func.avg(rate.c.processing_rate_per_s).label("capacity_per_s"),
        func.max(rate.c.processing_delay_ms).label("duration_ms"),
    )
    .where(rate.c.gate == bindparam("gate"))
    .where(rate.c.time_ms >= _since, rate.c.time_ms < _until)
    .group_by(_sample_bucket)
    .order_by(func.min(rate.c.time_ms))
)

_OLDEST: Final = select(func.min(batch_table.c.created_time_ms)).where(
    batch_table.c.gate == bindparam("gate"), batch_table.c.created_time_ms >= _since
)


@dataclass(frozen=True, slots=True)
class Pulse:
    """State of all gates that is compared with the previous one, to see what has changed.

    Attributes:
        gates: Value of each gate, by name, that differs whenever something about the gate has
            changed.
        unresolved: Unresolved failures of each gate; gates with none are left out.
        elsewhere: Another one whenever a receiver or a stage of a flow has reported.
        acted: The number of the newest action of an operator; None before the first.
    """

    gates: Mapping[str, tuple[Any, ...]]
    unresolved: Mapping[str, Unresolved]
    elsewhere: tuple[Any, ...]
    acted: int | None


@dataclass(frozen=True, slots=True)
class IsolationProgress:
    """Progress of an isolation.

    Attributes:
        batch_key: The batch.
        records: The offsets in it.
        runs: How often the handler was called with its parts so far.
        left: Offsets of it that are not done.
    """

    batch_key: str
    records: int
    runs: int
    left: int


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Activity of a gate in one time bucket.

    Attributes:
        time_ms: When the first batch of it was planned (ms since the epoch).
        lag: The highest lag of its batches; None where none was known.
        duration_ms: Longest duration of a batch; None if none has ended.
        rate_per_s: The lowest rate that was in force; None where there was none.
        capacity_per_s: Processing rate (records/s); None if none was reported.
        checkpoint_id: The identity of their checkpoint; of several, one.
    """

    time_ms: int
    lag: int | None
    duration_ms: int | None
    records: int
    rate_per_s: float | None
    capacity_per_s: float | None
    failed: int
    checkpoint_id: str
    batches: int


class FleetStore(Store):
    """All gates of a ledger, and the history of one, at the cost of the displayed part."""

    def pulse(self) -> Pulse:
        """Read the pulse of all gates: four statements, however many gates there are."""
        rows = self._database.rows(_PULSE)
        elsewhere = tuple(self._database.rows(_ELSEWHERE)[0])
        return Pulse(
            gates={row.name: tuple(row) for row in rows},
            unresolved=unresolved_from(
                self._database.rows(UNRESOLVED_COUNTS), self._database.rows(WAITING_LETTERS)
            ),
            elsewhere=elsewhere[:2],
            acted=elsewhere[2],
        )

    def newest_batches(
        self, names: Names, limit: int
    ) -> Mapping[str, tuple[tuple[BatchRecord, ...], tuple[RateSample, ...]]]:
        """The last batches of the live stream of each gate, and rate samples, newest first.

        Two statements, however many gates there are; those without a batch are left out.
        """
        batches: dict[str, list[BatchRecord]] = defaultdict(list)
        samples: dict[str, list[RateSample]] = defaultdict(list)
        for row in self._database.rows(among(_NEWEST, gate.c.name, names), skip=limit - 1):
            batches[row.gate].append(batch_from(row._mapping))
        for row in self._database.rows(among(_NEWEST_SAMPLES, gate.c.name, names), skip=limit - 1):
            samples[row.gate].append(RateSample(**row._asdict()))
        return {
            name: (tuple(found[:limit]), tuple(samples[name][:limit]))
            for name, found in batches.items()
        }

    def newest_ranges(self, names: Names) -> Mapping[str, tuple[PlannedRange, ...]]:
        """The ranges of each gate's newest batch, by topic, partition and offset."""
        found: dict[str, list[PlannedRange]] = defaultdict(list)
        for row in self._database.rows(among(_NEWEST_RANGES, gate.c.name, names)):
            found[row.name].append(range_from(row[1:]))
        return {name: tuple(ranges) for name, ranges in found.items()}

    def unresolved(self, names: Names) -> Mapping[str, Unresolved]:
        """Count the unresolved batches and records of each gate that has some."""
        batches, letters = (
            self._database.rows(among(counts, gate.c.name, names))
            for counts in (UNRESOLVED_COUNTS, WAITING_LETTERS)
        )
        return unresolved_from(batches, letters)

    def isolating(self, names: Names) -> Mapping[str, IsolationProgress]:
        """The newest batch of each gate that is run in parts now, live or in a backfill.

        A batch that a crash has left so counts too, until it is taken over.
        """
        # Of a join SQLite would read all batches.
        known = among(select(gate.c.name), gate.c.name, names)
        rows = self._database.rows(_IN_PARTS.where(batch_table.c.gate.in_(known)))
        found = [batch_from(row._mapping) for row in rows]
        return {
            each.gate: IsolationProgress(
                each.batch_key, each.planned_records, each.parts.runs, each.records_left
            )
            for each in sorted(found, key=lambda batch: batch.created_time_ms)
        }

    def with_details(self, names: Names) -> set[str]:
        """Gates that have ever lost a record, or kept a dead letter."""
        return {row.name for row in self._database.rows(among(_WITH_DETAILS, gate.c.name, names))}

    def receivers(self, names: Names = None) -> tuple[ReceiverRecord, ...]:
        """The receivers of gates, by journal and lane; also receivers not seen lately."""
        return receiver_records(self._database.rows(among(_RECEIVERS, receiver.c.gate, names)))

    def series(
        self, gate_name: str, since_ms: int, until_ms: int, bucket_ms: int
    ) -> tuple[SeriesPoint, ...]:
        """Return a gate's activity between two times, oldest first; one point per used bucket.

        Args:
            gate_name: The gate.
            since_ms: Start (ms since the epoch).
            until_ms: End, excluded.
            bucket_ms: Length of a bucket (ms); 1 gives each batch a point of its own.
        """
        values = {
            "gate": gate_name,
            "since_ms": since_ms,
            "until_ms": until_ms,
            "bucket_ms": bucket_ms,
        }
        sampled = {
            row.time_ms // bucket_ms * bucket_ms: row
            for row in self._database.rows(_SAMPLES, **values)
        }
        points = []
        buckets = sorted(sampled)
        place = 0
        for row in self._database.rows(_SERIES, **values):
            # A sample is written when its batch has ended: the first one from then on is the
            # batch's own, or one of the same stretch.
            while place < len(buckets) and buckets[place] < row.time_ms // bucket_ms * bucket_ms:
                place += 1
            sample = sampled[buckets[place]] if place < len(buckets) else None
            durations = [row.duration_ms, None if sample is None else sample.duration_ms]
            known = [each for each in durations if each is not None]
            points.append(
                SeriesPoint(
                    time_ms=row.time_ms,
                    lag=row.lag,
                    duration_ms=max(known) if known and row.duration_ms is not None else None,
                    records=int(row.records),
                    rate_per_s=row.rate_per_s,
                    capacity_per_s=None if sample is None else sample.capacity_per_s,
                    failed=int(row.failed),
                    checkpoint_id=row.checkpoint_id,
                    batches=row.batches,
                )
            )
        return tuple(points)

    def oldest_ms(self, gate_name: str, since_ms: int = 0) -> int | None:
        """When the oldest batch of a gate since then was planned; None where there is none."""
        oldest: int | None = self._database.scalar(_OLDEST, gate=gate_name, since_ms=since_ms)
        return oldest
