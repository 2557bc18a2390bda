"""The begin of a batch that is new, in one statement of PostgreSQL.

A statement sees the database as it was when it began, even where it has waited for a row since. So
it changes the gate's row first, and only where nobody has begun a batch of the gate meanwhile.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    CTE,
    Connection,
    FromClause,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    column,
    exists,
    func,
    select,
    true,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import ARRAY

from headrace.ledger import batch_rows, checkpoints
from headrace.ledger.records import PlannedBatch
from headrace.ledger.tables import batch_range, batch_table, checkpoint, gate, position

_NEW_BATCH: Final = (
    *("batch_key", "gate", "checkpoint_id", "status", "attempts", "reason"),
    *("planned_records", "planned_bytes", "lag", "rate_per_s", "last_call"),
)
_RANGE: Final = [
    each.name for each in batch_range.c if each.name not in {"failure_id", "batch_key"}
]
_PLANNED: Final = ("topic", "topic_id", "start_offsets", "until_offsets", "offsets")
"""The columns of a checkpoint that each topic of a batch has of its own."""


def _arrays(table: Table, names: Sequence[str]) -> FromClause:
    """Rows of which each column is bound as one array, named ``range_topic`` or so."""
    arrays = [bindparam(f"{table.name}_{name}", type_=ARRAY(table.c[name].type)) for name in names]
    return func.unnest(*arrays).table_valued(*map(column, names)).render_derived()


def _bound(table: Table, *names: str) -> list[Any]:
    return [cast(bindparam(f"new_{name}"), table.c[name].type) for name in names]


def _begin() -> Select[Any]:
    as_it_was = select(gate.c.begins).where(gate.c.name == bindparam("of")).scalar_subquery()
    counted = (
        batch_rows.COUNT_BEGIN.where(gate.c.begins == as_it_was)
        .where(~exists().where(batch_table.c.batch_key == bindparam("batch")))
        .returning(gate.c.begins)
        .cte("counted")
    )
    batches = postgresql.insert(batch_table).from_select(
        [*_NEW_BATCH, "created_time_ms"],
        select(*_bound(batch_table, *_NEW_BATCH), batch_rows.ABOVE_NEWEST).select_from(counted),
        include_defaults=False,
    )
    new = batches.returning(batch_table.c.created_time_ms).cte("new")
    read = _arrays(batch_range, _RANGE)
    ranges = postgresql.insert(batch_range).from_select(
        ["batch_key", *_RANGE],
        select(*_bound(batch_table, "batch_key"), *read.c).select_from(read.join(counted, true())),
        include_defaults=False,
    )
    return (
        select(new.c.created_time_ms)
        .add_cte(ranges.cte("ranges"))
        .add_cte(_advance_position(_put_behind(counted)))
    )


def _put_behind(counted: CTE) -> CTE:
    planned = _arrays(checkpoint, _PLANNED)
    rows = postgresql.insert(checkpoint).from_select(
        ["gate", "checkpoint_id", "begun", "begins", *_PLANNED],
        select(
            *_bound(checkpoint, "gate", "checkpoint_id"),
            bindparam("batch", type_=Text),
            counted.c.begins,
            *planned.c,
        ).select_from(planned.join(counted, true())),
        include_defaults=False,
    )
    return (
        checkpoints.behind_before(rows, checkpoints.over)
        .returning(checkpoint.c.topic_id, checkpoint.c.until_offsets)
        .cte("planned")
    )


def _advance_position(planned: CTE) -> CTE:
    rows = postgresql.insert(position).from_select(
        ["topic_id", "gate", "checkpoint_id", "until_offsets"],
        select(
            planned.c.topic_id,
            *_bound(checkpoint, "gate", "checkpoint_id"),
            planned.c.until_offsets,
        ).where(planned.c.topic_id != ""),
        include_defaults=False,
    )
    return checkpoints.instead_of_before(rows).cte("advanced")


_BEGIN: Final = _begin()


def begin(
    connection: Connection, batch: PlannedBatch, row: Mapping[str, Any], count: Mapping[str, Any]
) -> int | None:
    """Write a batch that is new, its ranges and what its checkpoint has planned; when it was made.

    None, and nothing is changed, where it is there already, or the gate is not, or is another
    query's, or another batch was begun meanwhile.

    Args:
        connection: One statement is executed on it.
        batch: The plan.
        row: The values of its row.
        count: The values of `COUNT_BEGIN`.
    """
    ranges = batch_rows.failure_rows(batch, row["batch_key"])
    planned = checkpoints.planned_rows(batch)
    topic_ids = [topic["topic_id"] for topic in planned if topic["topic_id"]]
    if len(set(topic_ids)) < len(topic_ids):
        return None  # one position for two names of a topic, which one statement cannot write twice
    created_ms: int | None = connection.scalar(
        _BEGIN,
        {
            **{f"new_{name}": value for name, value in row.items()},
            **count,
            **_columns(batch_range, _RANGE, ranges),
            **_columns(checkpoint, _PLANNED, planned),
        },
    )
    return created_ms


def _columns(
    table: Table, names: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> dict[str, list[Any]]:
    return {f"{table.name}_{name}": [row[name] for row in rows] for name in names}
