"""The rows of batches and their ranges: from and to values, and queries with bound values."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    union_all,
    update,
)

from headrace.gate.ledger.error_report import QUERY_STOPPED
from headrace.gate.ledger.records import (
    DeadLetterStatus,
)
from headrace.gate.ledger.tables import batch_range, batch_table, dead_letter, gate
from headrace.gate.ledger.transitions import Status


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

_counted = update(gate).values(sequence=gate.c.sequence + 1).returning(gate.c.sequence)
NEXT_SEQUENCE: Final = _counted.where(gate.c.name == bindparam("of"))

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
    select(gate.c.name.label("gate"), batch_table.c.status, func.count().label("number"))
    .join_from(gate, batch_table, batch_table.c.gate == gate.c.name)
    .where(unresolved)
    .group_by(gate.c.name, batch_table.c.status)
)

_waits: Final = and_(
    dead_letter.c.gate == gate.c.name, dead_letter.c.status == DeadLetterStatus.WAITING
)

# Counted gate by gate: of a join SQLite would read the index of all dead letters.
WAITING_LETTERS: Final = select(
    gate.c.name.label("gate"),
    select(func.count()).where(_waits).correlate(gate).scalar_subquery().label("number"),
).where(exists().where(_waits))


GATE_OF: Final = select(batch_table.c.gate).where(batch_table.c.batch_key == bindparam("batch"))
