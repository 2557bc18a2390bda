"""Consistent state of all gates of a ledger, its changes since the last read, and details."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, case, func, select

from headrace.ledger.batch_rows import (
    UNRESOLVED_COUNTS,
    WAITING_LETTERS,
    batch_from,
    unresolved_from,
)
from headrace.ledger.database import Store
from headrace.ledger.rates import LAST_SAMPLES
from headrace.ledger.receivers import ReceiverRecord, receiver_records
from headrace.ledger.records import BatchRecord, RateSample, Unresolved
from headrace.ledger.tables import (
    NowMs,
    batch_table,
    gate,
    rate,
    receiver,
    repair,
    stage_state,
)
from headrace.ledger.transitions import Status

_PULSE: Final = select(
    gate.c.name,
    gate.c.lost_offsets,
    gate.c.begins,
    gate.c.begun,
    gate.c.reported,
    gate.c.interval_ms,
    gate.c.rate_per_s,
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
    select(func.max(repair.c.repair_id)).scalar_subquery(),
)

_NEWEST: Final = (
    select(batch_table)
    .where(batch_table.c.gate == bindparam("gate"))
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(bindparam("limit"))
)

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
        actions: The number of the newest action of an operator on each gate that had one.
        elsewhere: Another one whenever a receiver or a stage of a flow has reported.
        repaired: The number of the newest action about failures; None before the first.
    """

    gates: Mapping[str, tuple[Any, ...]]
    unresolved: Mapping[str, Unresolved]
    actions: Mapping[str, int]
    elsewhere: tuple[Any, ...]
    repaired: int | None


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
            actions={row.name: row.last_action for row in rows if row.last_action},
            elsewhere=elsewhere[:2],
            repaired=elsewhere[2],
        )

    def newest_batches(
        self, gates: Iterable[str], limit: int
    ) -> Mapping[str, tuple[tuple[BatchRecord, ...], tuple[RateSample, ...]]]:
        """The last batches of the live stream of each gate, and rate samples, newest first."""
        names = list(gates)
        with self._database.reading() as connection:
            found = {}
            for name in names:
                values = {"gate": name, "limit": limit}
                batches = connection.execute(_NEWEST, values).mappings()
                samples = connection.execute(LAST_SAMPLES, values)
                found[name] = (
                    tuple(map(batch_from, batches)),
                    tuple(RateSample(**row._asdict()) for row in samples),
                )
            return found

    def receivers(self) -> tuple[ReceiverRecord, ...]:
        """The receivers of all gates, by journal and lane; also receivers not seen lately."""
        return receiver_records(self._database.rows(_RECEIVERS))

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
