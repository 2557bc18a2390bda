"""Statements over the ledger's whole history, and the pruning of old history. Values are bound."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from headrace.gate.ledger.batch_rows import letter_waits
from headrace.gate.ledger.database import Database, insert_rows
from headrace.gate.ledger.metric_rows import count_pruned
from headrace.gate.ledger.statements import Values
from headrace.gate.ledger.tables import batch_range, batch_table, gate, pruned, rate
from headrace.gate.ledger.transitions import Status

_dropped = and_(batch_table.c.status == Status.DEAD, batch_table.c.resolution.is_not(None))
CLOSED: Final = and_(or_(batch_table.c.status == Status.SUCCESS, _dropped), ~letter_waits)
"""Nobody needs the ranges of the batch any more, nor one of its dead letters."""

_range = (
    batch_range.c.topic,
    func.coalesce(batch_range.c.topic_id, "").label("topic_id"),
    *batch_range.c["partition", "start_offset", "until_offset"],
)
_pruned_range = pruned.c[
    "checkpoint_id", "topic", "topic_id", "partition", "start_offset", "until_offset"
]

_own_ranges = (
    select(
        batch_table.c.checkpoint_id,
        *_range,
        batch_table.c.batch_key,
        batch_table.c.status,
        batch_table.c.created_time_ms,
    )
    .join(batch_range, batch_range.c.batch_key == batch_table.c.batch_key)
    .where(batch_table.c.gate == bindparam("gate"))
)

_pruned_ranges = select(
    *_pruned_range,
    cast(null(), Text),
    literal(Status.SUCCESS.value, Text),
    cast(null(), BigInteger),
).where(pruned.c.gate == bindparam("gate"))

COVERED: Final = union_all(_own_ranges, _pruned_ranges)
"""Each range of a gate's batches."""

COVERAGE: Final = COVERED.order_by(
    "checkpoint_id", "topic", "topic_id", "partition", "start_offset"
)

LOCK_GATE: Final = (
    select(gate.c.name).where(gate.c.name == bindparam("gate")).with_for_update(key_share=True)
)

_newest_batch = (
    select(batch_table.c.batch_key)
    .where(batch_table.c.gate == bindparam("gate"))
    .order_by(batch_table.c.created_time_ms.desc())
    .limit(1)
    .scalar_subquery()
)

# Batches that can be deleted as far as their own row says, from one time on. A batch is created
# before it ends: the created time serves the index, the end time decides.
OLD_BATCHES: Final = (
    select(batch_table.c.batch_key, batch_table.c.created_time_ms)
    .where(batch_table.c.gate == bindparam("gate"))
    .where(CLOSED)
    .where(batch_table.c.created_time_ms > bindparam("after_ms"))
    .where(batch_table.c.created_time_ms < bindparam("before_ms"))
    .where(batch_table.c.end_time_ms < bindparam("before_ms"))
    .where(batch_table.c.batch_key != _newest_batch)
    .order_by(batch_table.c.created_time_ms)
    .limit(bindparam("limit"))
)

_keys: Final[BindParameter[Any]] = bindparam("keys", [""], expanding=True)

OLD_RANGES: Final = (
    select(
        batch_table.c.batch_key,
        batch_table.c.checkpoint_id,
        *_range,
    )
    .join(batch_range, batch_range.c.batch_key == batch_table.c.batch_key)
    .where(batch_table.c.batch_key.in_(_keys))
)

PRUNED_RANGES: Final = select(*_pruned_range).where(pruned.c.gate == bindparam("gate"))
FORGET_PRUNED_RANGES: Final = delete(pruned).where(pruned.c.gate == bindparam("gate"))

# Their ranges and dead letters go with them, by the foreign keys.
DELETE_BATCHES: Final = delete(batch_table).where(batch_table.c.batch_key.in_(_keys))

DELETE_OLD_RATES: Final = delete(rate).where(
    rate.c.rate_id.in_(
        select(rate.c.rate_id)
        .where(rate.c.gate == bindparam("gate"), rate.c.time_ms < bindparam("before_ms"))
        .limit(bindparam("limit"))
    )
)

ROWS_AT_ONCE: Final = 100
"""Batches, or rate samples, that one transaction deletes: some 10 ms. And keys in one statement, of
which each database has a limit of its own, far above this."""

_BEFORE_ALL_MS: Final = -(2**63)


def prune_batches(database: Database, gate: str, before_ms: int, at_once: int) -> int:
    """Delete the old batches of a gate, some at a time; how many."""
    deleted, after_ms = 0, _BEFORE_ALL_MS
    while True:
        old = {"gate": gate, "before_ms": before_ms, "after_ms": after_ms, "limit": at_once}
        count, last_ms = database.write(partial(_prune_some, old))
        deleted += count
        if last_ms is None:
            return deleted
        after_ms = last_ms


def _prune_some(old: Values, connection: Connection) -> tuple[int, int | None]:
    """Delete some batches; how many, and when the last one was created if there may be more."""
    connection.execute(LOCK_GATE, {"gate": old["gate"]})
    found = connection.execute(OLD_BATCHES, old).all()
    last_ms = found[-1].created_time_ms if len(found) == old["limit"] else None
    keys = [row.batch_key for row in found]
    known = connection.execute(PRUNED_RANGES, {"gate": old["gate"]}).all()
    own = [(*row, key) for key, *row in connection.execute(OLD_RANGES, {"keys": keys})]
    read_twice = _read_twice([*((*row, None) for row in known), *own])
    closed = [key for key in keys if key not in read_twice]
    if closed:
        _remember(
            connection, old["gate"], [*known, *(r for *r, key in own if key not in read_twice)]
        )
        count_pruned(connection, old["gate"], closed)
        connection.execute(DELETE_BATCHES, {"keys": closed})
    return len(closed), last_ms


def some_at_once(keys: Sequence[str], at_once: int) -> Iterator[Sequence[str]]:
    """All of them, so many at a time."""
    for first in range(0, len(keys), at_once):
        yield keys[first : first + at_once]


def _read_twice(ranges: Iterable[tuple[Any, ...]]) -> set[str]:
    """The batches that overlap with another one, or a pruned one (None)."""
    found: set[str | None] = set()
    at: list[Any] = []
    reached, last = 0, None
    for *place, start, until, batch in sorted(ranges, key=lambda each: each[:-1]):
        if place != at:
            at, reached, last = place, start, None
        if start < reached:
            found |= {batch, last}
        if until > reached:
            reached, last = until, batch
    return {batch for batch in found if batch is not None}


def _remember(connection: Connection, gate: str, ranges: Iterable[Sequence[Any]]) -> None:
    """Keep that these ranges, all that there are, have been read."""
    rows: list[Values] = []
    at = None
    for *place, start, until in sorted(map(tuple, ranges)):
        if place == at and start == rows[-1]["until_offset"]:
            rows[-1]["until_offset"] = until
            continue
        at = place
        checkpoint_id, topic, topic_id, partition = place
        rows.append(
            {
                "gate": gate,
                "checkpoint_id": checkpoint_id,
                "topic": topic,
                "topic_id": topic_id,
                "partition": partition,
                "start_offset": start,
                "until_offset": until,
            }
        )
    connection.execute(FORGET_PRUNED_RANGES, {"gate": gate})
    insert_rows(connection, pruned, rows)


def prune_rates(database: Database, gate: str, before_ms: int, at_once: int) -> int:
    """Delete the old rate samples of a gate, some at a time; how many."""
    deleted = 0
    values = {"gate": gate, "before_ms": before_ms, "limit": at_once}
    while True:
        step = database.change(DELETE_OLD_RATES, values)
        deleted += step
        if step < at_once:
            return deleted
