"""The rows of batches and their ranges: from and to values, and queries with bound values."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    union_all,
    update,
)

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger import transitions
from headrace.gate.ledger.error_report import QUERY_STOPPED, ErrorReport
from headrace.gate.ledger.records import (
    BatchRecord,
    DeadLetterStatus,
    PlannedBatch,
    PlannedRange,
    Unresolved,
)
from headrace.gate.ledger.tables import batch_range, batch_table, dead_letter, gate, has_run_out
from headrace.gate.ledger.transitions import PLANNED, Status

Values = dict[str, Any]


def control_row(batch: PlannedBatch, batch_key: str, created_ms: int, call_id: str) -> Values:
    """The row of a batch that begins for the first time, by a call of this name."""
    return {
        "batch_key": batch_key,
        "gate": batch.gate,
        "checkpoint_id": batch.checkpoint_id,
        "status": PLANNED.after,
        "attempts": PLANNED.attempts,
        "created_time_ms": created_ms,
        "reason": batch.reason,
        "planned_records": batch.records,
        "planned_bytes": batch.bytes,
        "lag": batch.lag,
        "rate_per_s": batch.rate_per_s,
        "last_call": call_id,
    }


def failure_rows(batch: PlannedBatch, batch_key: str) -> list[Values]:
    """One row for each range of a batch that has offsets."""
    return [
        {
            "batch_key": batch_key,
            "topic": planned.offsets.topic,
            "partition": planned.offsets.partition,
            "start_offset": planned.offsets.start,
            "until_offset": planned.offsets.until,
            "bootstrap_servers": batch.bootstrap_servers,
            "latest_offset": planned.latest,
            "reason": planned.reason,
            "topic_id": planned.topic_id,
        }
        for planned in batch.ranges
        if planned.offsets.count
    ]


def error_values(error: ErrorReport | None) -> Values:
    """The columns of ``batch`` that describe why a batch failed; None clears them."""
    return {
        "error_class": error and error.error_class,
        "error_message": error and error.message,
        "error_trace": error and error.trace,
    }


def batch_from(row: Mapping[Any, Any]) -> BatchRecord:
    """The batch that a row of ``batch`` describes."""
    values = dict(row)
    error = [values.pop(name, None) for name in error_values(None)]
    del values["last_call"]  # between the ledger's calls only
    values["status"] = Status(values["status"])
    return BatchRecord(**values, error=None if error[0] is None else ErrorReport(*error))


def offsets_in(text: str) -> dict[int, int]:
    """Offsets by partition, as the ledger keeps them."""
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


def offsets_text(offsets: Mapping[int, int]) -> str:
    """The opposite of `offsets_in`."""
    return json.dumps(offsets, separators=(",", ":"))


def range_from(row: Sequence[Any]) -> PlannedRange:
    """The range that a row of ``batch_range`` describes."""
    topic, partition, start, until, latest, reason, topic_id = row
    return PlannedRange(OffsetRange(topic, partition, start, until), latest, reason, topic_id)


def among(
    statement: Select[Any], column: ColumnElement[str], names: Collection[str] | None
) -> Select[Any]:
    """The rows of these gates alone; of all where no names are given."""
    return statement if names is None else statement.where(column.in_(list(names)))


_AT_ONCE: Final = 400
"""Queries of one statement: SQLite combines 500 at most."""


def rows_of(connection: Connection, queries: Sequence[Select[Any]]) -> Iterator[Any]:
    """Yield the rows of several queries, without an order, as mappings.

    Each gate and status has an index with its own order; there is none over all of them. So each is
    queried separately, with the limit of the whole.
    """
    for first in range(0, len(queries), _AT_ONCE):
        some = [select(query.subquery()) for query in queries[first : first + _AT_ONCE]]
        yield from connection.execute(union_all(*some)).mappings()


def created_within(
    created_ms: Column[int], since_ms: int | None, until_ms: int | None
) -> Iterator[ColumnElement[bool]]:
    """Whether a row is from this time or later, and from before that one; None does not matter."""
    if since_ms is not None:
        yield created_ms >= since_ms
    if until_ms is not None:
        yield created_ms < until_ms


def is_error(error_class: Column[str], name: str) -> ColumnElement[bool]:
    """Whether an exception is of this class, named with its module or without."""
    return or_(error_class == name, error_class.endswith(f".{name}", autoescape=True))


BATCH: Final = select(batch_table).where(batch_table.c.batch_key == bindparam("batch_key"))

PLANNED_RANGE: Final = batch_range.c[
    "topic",
    "partition",
    "start_offset",
    "until_offset",
    "latest_offset",
    "reason",
    "topic_id",
]
"""Columns that `range_from` reads."""

RANGES: Final = (
    select(*PLANNED_RANGE)
    .where(batch_range.c.batch_key == bindparam("batch_key"))
    .order_by(batch_range.c.topic, batch_range.c.partition, batch_range.c.start_offset)
)

_now_ms = bindparam("now_ms", type_=BigInteger)
_newest_ms = func.max(batch_table.c.created_time_ms)
ABOVE_NEWEST: Final = (
    select(case((_newest_ms >= _now_ms, _newest_ms + 1), else_=_now_ms))
    .where(batch_table.c.gate == bindparam("of"))
    .scalar_subquery()
)
"""Now, or right after the newest batch of the gate if the clock was set back."""

_query = bindparam("query", type_=Text)

# Idempotent: a retried call does not count its batch twice.
COUNT_BEGIN: Final = (
    update(gate)
    .where(gate.c.name == bindparam("of"))
    .where(or_(_query.is_(None), gate.c.query_owner == _query))
    .where(
        ~exists()
        .where(batch_table.c.batch_key == bindparam("batch"))
        .where(batch_table.c.last_call == bindparam("call"))
    )
    .values(
        begun=bindparam("batch"),
        begins=gate.c.begins + 1,
        query_checkpoint_id=case(
            (_query.is_(None), gate.c.query_checkpoint_id), else_=bindparam("by_checkpoint")
        ),
    )
)

_counted = update(gate).values(sequence=gate.c.sequence + 1).returning(gate.c.sequence)
NEXT_SEQUENCE: Final = _counted.where(gate.c.name == bindparam("of"))

# For a batch that can be attached. Lock order: gate row, then batch row. Otherwise two transactions
# can deadlock.
NEXT_SEQUENCE_OF: Final = _counted.where(
    gate.c.name == select(batch_table.c.gate).where(transitions.ATTACHABLE).scalar_subquery()
)

ATTACH_AND_RETURN: Final = transitions.ATTACH.returning(*batch_table.c)

KEEP_ERROR: Final = (
    update(batch_table)
    .where(batch_table.c.batch_key == bindparam("batch"), batch_table.c.status == Status.SUCCESS)
    .values({name: bindparam(name) for name in error_values(None)})
)

letter_waits = exists().where(
    dead_letter.c.batch_key == batch_table.c.batch_key,
    dead_letter.c.status == DeadLetterStatus.WAITING,
)

interrupted: Final = and_(
    batch_table.c.status == Status.FAILED,
    func.coalesce(batch_table.c.error_class, "") == QUERY_STOPPED,
)

unresolved: Final = and_(
    batch_table.c.status.in_([Status.FAILED, Status.BACKFILLING, Status.DEAD]),
    batch_table.c.resolution.is_(None),
    ~interrupted,
)
"""A batch has failed and is not done with; its dead letters count apart."""

UNRESOLVED_COUNTS: Final = (
    select(gate.c.name, batch_table.c.status, func.count().label("number"))
    .join_from(gate, batch_table, batch_table.c.gate == gate.c.name)
    .where(unresolved)
    .group_by(gate.c.name, batch_table.c.status)
)

_waits: Final = and_(
    dead_letter.c.gate == gate.c.name, dead_letter.c.status == DeadLetterStatus.WAITING
)

# Counted gate by gate: of a join SQLite would read the index of all dead letters.
WAITING_LETTERS: Final = select(
    gate.c.name,
    select(func.count()).where(_waits).correlate(gate).scalar_subquery().label("number"),
).where(exists().where(_waits))


def unresolved_from(batches: Iterable[Any], letters: Iterable[Any]) -> dict[str, Unresolved]:
    """The numbers of each gate that has some, from the rows of these two statements."""
    counts: dict[str, dict[str, int]] = {}
    for row in batches:
        counts.setdefault(row.name, {})[row.status] = row.number
    waiting = {row.name: row.number for row in letters}
    return {
        name: Unresolved(
            failed=found.get(Status.FAILED, 0) + found.get(Status.BACKFILLING, 0),
            dead=found.get(Status.DEAD, 0),
            letters=waiting.get(name, 0),
        )
        for name in counts.keys() | waiting.keys()
        for found in [counts.get(name, {})]
    }


# The next start of the query did not run them.
LEAVE_INTERRUPTED: Final = (
    update(batch_table)
    .where(batch_table.c.gate == bindparam("of"), interrupted)
    .where(batch_table.c.batch_key != bindparam("but"))
    .values({name: bindparam(name) for name in error_values(None) if name != "error_trace"})
)

_nobody_runs_it = or_(
    has_run_out(),
    and_(batch_table.c.owner.is_(None), batch_table.c.created_time_ms < bindparam("before_ms")),
)

_resolved_by_this = and_(
    batch_table.c.status == Status.FAILED, batch_table.c.last_call == bindparam("call")
)

# Includes batches that the same call has resolved already, in case it is retried. No ORDER BY:
# SQLite would scan all batches in that order instead of those of these states.
LEFT_BEHIND: Final = (
    select(batch_table.c.created_time_ms, batch_table.c.batch_key)
    .where(batch_table.c.gate == bindparam("gate"))
    .where(batch_table.c.batch_key != bindparam("but"))
    .where(batch_table.c.status.in_([Status.IN_PROGRESS, Status.FAILED]))
    .where(
        or_(_resolved_by_this, and_(batch_table.c.status == Status.IN_PROGRESS, _nobody_runs_it))
    )
)

OPEN_OF_OTHERS: Final = (
    select(batch_table)
    .where(batch_table.c.gate == bindparam("of"))
    .where(batch_table.c.checkpoint_id != bindparam("by_checkpoint"))
    .where(batch_table.c.status.in_([Status.IN_PROGRESS, Status.FAILED, Status.BACKFILLING]))
)
"""Open batches of a gate, but for those of one checkpoint; without an order, as `LEFT_BEHIND`."""

GATE_OF: Final = select(batch_table.c.gate).where(batch_table.c.batch_key == bindparam("batch"))
