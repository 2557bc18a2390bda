"""Metrics of all gates at once: a few statements, however many gates there are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    or_,
    select,
    text,
)

from headrace.gate.ledger.batch_rows import WAITING_LETTERS
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.statements import Values
from headrace.gate.ledger.tables import (
    NowMs,
    action,
    batch_range,
    batch_table,
    checkpoint,
    gate,
    rate,
)
from headrace.gate.ledger.transitions import Status

BUCKETS_MS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
"""The upper bounds of a batch's duration that are told apart (ms); longer ones are one bucket."""

_OPEN: Final = (Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING)


@dataclass(frozen=True, slots=True)
class GateNow:
    """A gate and its newest batch, at one moment. Times are ms since the epoch.

    Attributes:
        position: Number of offsets that the newest batch's checkpoint has planned so far.
        capacity_per_s: Processing rate of the last reported batch.
        limit_per_s: The rate cap in force, of a later stage or an operator, the lower one.
        held: Whether an operator has paused it, or has it drain.
        has_query: Whether a query stands behind it.
        pruned_totals: Counts of deleted batches kept by `count_pruned`, as text.
        created_ms: When the newest batch was planned; it and all that follows is None without one.
    """

    name: str
    source: str
    interval_ms: int
    rate_per_s: float | None
    batch_cost: str | None
    size_ceiling: str | None
    lost_offsets: int
    pruned_totals: str | None
    held: bool
    sink_outage: str | None
    has_query: bool
    capacity_per_s: float | None
    limit_per_s: float | None
    position: int | None
    checkpoint_id: str | None
    created_ms: int | None
    ended_ms: int | None
    status: str | None
    lag: int | None
    planned: int | None


@dataclass(frozen=True, slots=True)
class OpenBatches:
    """The batches of a gate that have one status: how many, and since when (ms)."""

    gate: str
    status: Status
    number: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class BatchCount:
    """Batches of a gate that have these values in common.

    Attributes:
        is_old: Whether they were created before the bound that was asked for.
        bucket: The place in `BUCKETS_MS` of how long they took; -1 for those that say nothing.
        number: Number of batches.
        records: Their records, or offsets where these were not counted.
        letters: Those of them that are dead letters.
        retries: Number of their repeated runs.
        duration_ms: Total duration, if the bucket is not -1.
    """

    gate: str
    is_old: bool
    status: str
    reason: str
    bucket: int
    number: int
    records: int
    letters: int
    retries: int
    duration_ms: int

    @property
    def sums(self) -> "Sums":
        """What is added up."""
        return self.number, self.records, self.letters, self.retries, self.duration_ms


_limit_action = action.alias("limit_action")
_throttle = case((gate.c.throttle_until_ms > NowMs(), gate.c.throttle_per_s))
_operator = case(
    (
        or_(_limit_action.c.until_ms.is_(None), _limit_action.c.until_ms > NowMs()),
        _limit_action.c.records_per_s,
    )
)

_GATES: Final = (
    select(
        gate.c.name,
        gate.c.source,
        gate.c.interval_ms,
        gate.c.rate_per_s,
        gate.c.batch_cost,
        gate.c.size_ceiling,
        gate.c.lost_offsets,
        gate.c.pruned_totals,
        gate.c.hold_action.is_not(None).label("held"),
        gate.c.sink_outage,
        and_(gate.c.query_owner.is_not(None), gate.c.query_until_ms > NowMs()).label("has_query"),
        select(rate.c.processing_rate_per_s)
        .where(rate.c.gate == gate.c.name)
        .order_by(rate.c.time_ms.desc())
        .limit(1)
        .scalar_subquery()
        .label("capacity_per_s"),
        case(
            (_throttle.is_(None), _operator),
            (_operator.is_(None), _throttle),
            (_throttle < _operator, _throttle),
            else_=_operator,
        ).label("limit_per_s"),
        # PostgreSQL adds whole numbers up to a decimal.
        select(cast(func.sum(checkpoint.c.offsets), BigInteger))
        .where(
            checkpoint.c.gate == gate.c.name,
            checkpoint.c.checkpoint_id == batch_table.c.checkpoint_id,
        )
        .scalar_subquery()
        .label("position"),
        batch_table.c.checkpoint_id,
        batch_table.c.created_time_ms,
        batch_table.c.end_time_ms,
        batch_table.c.status,
        batch_table.c.lag,
        batch_table.c.planned_records,
    )
    .outerjoin_from(gate, batch_table, batch_table.c.batch_key == gate.c.begun)
    .outerjoin(_limit_action, _limit_action.c.action_id == gate.c.limit_action)
    .order_by(gate.c.name)
)

_OPEN_BATCHES: Final = (
    select(
        batch_table.c.gate,
        batch_table.c.status,
        func.count(),
        func.min(batch_table.c.created_time_ms),
    )
    .join_from(gate, batch_table, batch_table.c.gate == gate.c.name)
    .where(batch_table.c.status.in_(_OPEN))
    .group_by(batch_table.c.gate, batch_table.c.status)
)

_PARTITIONS: Final = (
    select(
        gate.c.name,
        *batch_range.c["topic", "partition", "until_offset", "latest_offset", "topic_id"],
    )
    .join_from(gate, batch_range, batch_range.c.batch_key == gate.c.begun)
    .order_by(gate.c.name, batch_range.c.topic, batch_range.c.partition)
)

_duration = "c.end_time_ms - coalesce(c.start_time_ms, c.created_time_ms)"
_bucket = " ".join(
    f"WHEN {_duration} <= {most} THEN {place}" for place, most in enumerate(BUCKETS_MS)
)
_COUNTED: Final = f"""
    c.status, c.reason,
    CASE WHEN c.status <> 'success' OR c.end_time_ms IS NULL THEN -1
        {_bucket} ELSE {len(BUCKETS_MS)} END AS bucket,
    count(*), sum(coalesce(c.records, c.planned_records)),
    sum((SELECT count(*) FROM dead_letter AS d WHERE d.batch_key = c.batch_key)),
    sum(CASE WHEN c.attempts > 1 THEN c.attempts - 1 ELSE 0 END), sum(coalesce({_duration}, 0))
"""  # noqa: S608  (constants alone)
_GROUPED: Final = f"""
    SELECT c.gate, c.created_time_ms < {{cut}} AS is_old, {_COUNTED}
    FROM {{bounds}} JOIN batch AS c ON c.gate = {{gate}} AND c.created_time_ms >= {{least}}
    GROUP BY 1, 2, 3, 4, 5
"""  # noqa: S608  (constants alone)
_COUNT_KEYS: Final = text(
    f"SELECT {_COUNTED} FROM batch AS c WHERE c.batch_key IN :keys GROUP BY 1, 2, 3"  # noqa: S608
).bindparams(bindparam("keys", expanding=True))
_COUNTS: Final = {
    True: _GROUPED.format(
        bounds="json_each(:bounds) AS bound CROSS",
        gate="json_extract(bound.value, '$[0]')",
        least="json_extract(bound.value, '$[1]')",
        cut="json_extract(bound.value, '$[2]')",
    ),
    False: _GROUPED.format(
        bounds="jsonb_array_elements(CAST(:bounds AS jsonb)) AS bound(value)",
        gate="(bound.value ->> 0)",
        least="CAST(bound.value ->> 1 AS bigint)",
        cut="CAST(bound.value ->> 2 AS bigint)",
    ),
}
"""By whether the database is SQLite. Bounds are ``[gate, least, cut]`` each."""

# Newest first: the records that were planned from a batch on, itself included.
_planned_since = func.sum(batch_table.c.planned_records).over(
    order_by=batch_table.c.created_time_ms.desc(), rows=(None, 0)
)
_backlog = (
    select(
        batch_table.c.created_time_ms.label("created_ms"),
        batch_table.c.lag.label("lag"),
        _planned_since.label("planned"),
    )
    .where(batch_table.c.gate == bindparam("gate", type_=Text))
    .where(batch_table.c.checkpoint_id == bindparam("checkpoint_id", type_=Text))
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(bindparam("limit"))
    .subquery()
)
_NEWEST_AT: Final = select(
    func.max(case((_backlog.c.lag <= _backlog.c.planned, _backlog.c.created_ms))),
    func.min(_backlog.c.created_ms),
)


class MetricStore(Store):
    """Read-only queries for metrics."""

    def gates(self) -> tuple[GateNow, ...]:
        """All gates, by name, each with its newest batch."""
        rows: Sequence[Any] = self._database.rows(_GATES)
        return tuple(GateNow(*row) for row in rows)

    def open_batches(self) -> tuple[OpenBatches, ...]:
        """The batches that are not done, by gate and status."""
        rows: Sequence[Any] = self._database.rows(_OPEN_BATCHES)
        return tuple(OpenBatches(row[0], Status(row[1]), row[2], row[3]) for row in rows)

    def waiting_letters(self) -> Mapping[str, int]:
        """Count the waiting dead letters of each gate that has some."""
        return {row.name: row.number for row in self._database.rows(WAITING_LETTERS)}

    def counts(self, bounds: Sequence[tuple[str, int, int]]) -> tuple[BatchCount, ...]:
        """Count each gate's batches created at a time or later, by their values.

        ``bounds`` are the gates, each with that time, and the one before which they are old (ms).
        """
        statement = text(_COUNTS[self._database.is_sqlite])
        values: Values = {"bounds": json.dumps(bounds)}
        return tuple(_count_from(row) for row in self._database.rows(statement, **values))

    def partitions(self) -> Sequence[Any]:
        """The partitions that each gate's newest batch reads.

        Rows of gate, topic, partition, up to where it reads, where the log ended, and topic id.
        """
        return self._database.rows(_PARTITIONS)

    def newest_at_ms(self, gate_name: str, checkpoint_id: str, limit: int) -> tuple[int, bool]:
        """When the offset at which a gate goes on reading was the newest, as batches saw it (ms).

        It is the time of the last batch that was planned when no more was there than has been
        planned since. With False where none of the last ``limit`` batches of the checkpoint was:
        it was at that time or earlier.
        """
        values = {"gate": gate_name, "checkpoint_id": checkpoint_id, "limit": limit}
        row: Any = self._database.rows(_NEWEST_AT, **values)[0]
        found, oldest = row
        return (found, True) if found is not None else (oldest or 0, False)


def count_pruned(connection: Connection, gate_name: str, keys: Sequence[str]) -> None:
    """Keep the counts of these batches in a gate's row, before they are deleted.

    So the totals of a gate never fall, which a monitoring system would take for a restart.
    """
    values = {"of": gate_name, "keys": list(keys)}
    known = pruned_counts(connection.scalar(_PRUNED, {"of": gate_name}))
    for row in connection.execute(_COUNT_KEYS, values):
        found = _count_from((gate_name, True, *row))
        kind = (found.status, found.reason, found.bucket)
        before = known.get(kind, NO_SUMS)
        known[kind] = tuple(one + other for one, other in zip(before, found.sums, strict=True))
    totals = json.dumps([[*kind, *sums] for kind, sums in known.items()], separators=(",", ":"))
    connection.execute(_KEEP_PRUNED, {"of": gate_name, "totals": totals})


Sums = tuple[int, ...]
"""Number, records, dead letters, retries and duration (ms) of a `BatchCount`."""

NO_SUMS: Final[Sums] = (0, 0, 0, 0, 0)


def pruned_counts(totals: str | None) -> dict[tuple[Any, ...], Sums]:
    """The sums of deleted batches, by status, reason and bucket."""
    return {tuple(row[:3]): tuple(row[3:]) for row in json.loads(totals or "[]")}


def _count_from(row: Any) -> BatchCount:
    gate_name, is_old, status, reason, bucket, *sums = row
    counts = (int(number or 0) for number in sums)
    return BatchCount(gate_name, bool(is_old), status, reason, bucket, *counts)


_PRUNED: Final = select(gate.c.pruned_totals).where(gate.c.name == bindparam("of"))
_KEEP_PRUNED: Final = (
    gate.update().where(gate.c.name == bindparam("of")).values(pruned_totals=bindparam("totals"))
)
