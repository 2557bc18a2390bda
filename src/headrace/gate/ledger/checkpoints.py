"""Summary of each checkpoint that the ledger keeps beside its batches.

A batch's rows have the ranges that were read. These say, in another row that is written in the same
transaction, where the checkpoint began in each partition, where it stands, and how many offsets it
has planned. They outlive the batches, so that the first and the newest of them cannot disappear in
silence.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    bindparam,
    cast,
    func,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.records import PlannedBatch
from headrace.gate.ledger.statements import offsets_in, offsets_text
from headrace.gate.ledger.tables import checkpoint, gate, lost, position

_Insert = sqlite.Insert | postgresql.Insert

Offsets = Mapping[int, int]
"""By partition."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A row of ``checkpoint``: the offsets of one topic that one checkpoint has planned.

    Attributes:
        checkpoint_id: The checkpoint's identity.
        topic: The topic.
        topic_id: Tells it from one recreated under its name; None where that is not known.
        starts: Start of its first batch, by partition.
        untils: End of its newest batch, by partition.
        offsets: Number of offsets that its batches have planned.
        begins: Number of the gate's requests for a batch when the engine asked for its last one.
    """

    checkpoint_id: str
    topic: str
    topic_id: str | None
    starts: Offsets
    untils: Offsets
    offsets: int
    begins: int


_SUM_OF_LOSSES: Final = (
    select(func.coalesce(func.sum(lost.c.until_offset - lost.c.from_offset), 0))
    .where(lost.c.gate == gate.c.name)
    .correlate(gate)
    .scalar_subquery()
)

CHECKPOINTS: Final = (
    select(checkpoint)
    .where(checkpoint.c.gate == bindparam("gate"))
    .order_by(checkpoint.c.checkpoint_id, checkpoint.c.topic, checkpoint.c.topic_id)
)

_UNTILS: Final = select(checkpoint.c.until_offsets).where(
    *(
        checkpoint.c[name] == bindparam(name)
        for name in ("gate", "checkpoint_id", "topic", "topic_id")
    )
)

_BEGUN_AGAIN: Final = (
    update(checkpoint)
    .where(checkpoint.c.gate == bindparam("of"), checkpoint.c.checkpoint_id == bindparam("run"))
    .values(
        begun=bindparam("batch"),
        begins=select(gate.c.begins).where(gate.c.name == bindparam("of")).scalar_subquery(),
    )
)

COUNT_LOSSES: Final = (
    update(gate).where(gate.c.name == bindparam("of")).values(lost_offsets=_SUM_OF_LOSSES)
)
"""To be run after every change of a gate's losses, in its transaction."""


def record_plan(connection: Connection, batch: PlannedBatch, batch_key: str) -> None:
    """Write down that a batch was planned, right after it was counted and its row inserted."""
    of_batch = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": batch_key}
    for row in planned_rows(batch):
        connection.execute(_upsert_checkpoint(connection.dialect.name), row | of_batch)


def record_unknown(connection: Connection, batch: PlannedBatch) -> None:
    """Write down the plan of a batch that is perhaps before others, which stay the newest."""
    of_batch = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": None}
    for row in planned_rows(batch):
        stands = offsets_in(connection.scalar(_UNTILS, row | of_batch) or "{}")
        untils = offsets_in(row["until_offsets"])
        ends = {each: max(end, stands.get(each, end)) for each, end in untils.items()}
        values = row | of_batch | {"until_offsets": offsets_text(ends)}
        connection.execute(_upsert_checkpoint(connection.dialect.name), values)


def record_start(connection: Connection, batch: PlannedBatch) -> None:
    """Write down where a checkpoint begins in partitions of which no batch has read anything yet.

    These are the empty ranges of a batch; a partition that is known already stays as it is.
    """
    values = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": None}
    for row in planned_rows(batch, empty=True):
        connection.execute(_upsert_start(connection.dialect.name), row | values)
    advance_position(connection, batch)


def planned_rows(batch: PlannedBatch, *, empty: bool = False) -> list[dict[str, Any]]:
    """The plan of a batch for its checkpoint, in a row for each topic: nearly always one.

    Of its ranges with offsets, or of the empty ones alone.
    """
    hulls: dict[tuple[str, str], dict[int, OffsetRange]] = defaultdict(dict)
    offsets: dict[tuple[str, str], int] = defaultdict(int)
    for planned in batch.ranges:
        at, topic = planned.offsets, (planned.offsets.topic, planned.topic_id or "")
        if bool(at.count) != empty:
            hulls[topic][at.partition] = hulls[topic].get(at.partition, at).hull(at)
            offsets[topic] += at.count
    return [
        {
            "topic": name,
            "topic_id": topic_id,
            "start_offsets": offsets_text({each: at.start for each, at in hull.items()}),
            "until_offsets": offsets_text({each: at.until for each, at in hull.items()}),
            "offsets": offsets[name, topic_id],
        }
        for (name, topic_id), hull in hulls.items()
    ]


def begin_again(connection: Connection, batch: PlannedBatch, batch_key: str) -> None:
    """Write down that the engine has asked for a batch once more."""
    values = {"of": batch.gate, "run": batch.checkpoint_id, "batch": batch_key}
    connection.execute(_BEGUN_AGAIN, values)


@cache
def _upsert_checkpoint(dialect: str) -> sqlite.Insert | postgresql.Insert:
    return behind_before(_insert_checkpoint(dialect), _merge(dialect))


@cache
def _upsert_start(dialect: str) -> sqlite.Insert | postgresql.Insert:
    statement, merged = _insert_checkpoint(dialect), _merge(dialect)
    before, now = checkpoint.c, statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(checkpoint.primary_key),
        set_={
            "start_offsets": merged(now.start_offsets, before.start_offsets),
            "until_offsets": merged(now.until_offsets, before.until_offsets),
        },
    )


def _insert_checkpoint(dialect: str) -> sqlite.Insert | postgresql.Insert:
    begins = select(gate.c.begins).where(gate.c.name == bindparam("gate")).scalar_subquery()
    return (sqlite.insert if dialect == "sqlite" else postgresql.insert)(checkpoint).values(
        **{name: bindparam(name) for name in checkpoint.c.keys() if name != "begins"},  # noqa: SIM118
        begins=begins,
    )


def _merge(dialect: str) -> Callable[[ColumnElement[str], ColumnElement[str]], ColumnElement[str]]:
    """Merge two JSON maps of offsets; the second wins."""
    return func.json_patch if dialect == "sqlite" else over


def over(below: ColumnElement[str], above: ColumnElement[str]) -> ColumnElement[str]:
    """Both offsets, and of a partition that is in both what stands above: PostgreSQL's."""
    return cast(cast(below, JSONB).concat(cast(above, JSONB)), Text)


def behind_before(
    statement: _Insert, over: Callable[[ColumnElement[str], ColumnElement[str]], ColumnElement[str]]
) -> _Insert:
    """Have an insert put a batch behind those that its checkpoint has planned before."""
    before, now = checkpoint.c, statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(checkpoint.primary_key),
        set_={
            "start_offsets": over(now.start_offsets, before.start_offsets),
            "until_offsets": over(before.until_offsets, now.until_offsets),
            "offsets": before.offsets + now.offsets,
            "begun": func.coalesce(now.begun, before.begun),
            "begins": now.begins,
        },
    )


def advance_position(connection: Connection, batch: PlannedBatch) -> None:
    """Have a gate go on where its checkpoint stands by now, in whatever has an id."""
    reached = {
        (planned.topic_id, planned.offsets.topic)
        for planned in batch.ranges
        if planned.topic_id is not None
    }
    for topic_id, topic in sorted(reached):  # nearly always one
        row = {
            "topic_id": topic_id,
            "gate": batch.gate,
            "checkpoint_id": batch.checkpoint_id,
            "topic": topic,
        }
        connection.execute(_upsert_position(connection.dialect.name), row)


@cache
def _upsert_position(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Go on where this checkpoint stands, and no more where another one has stopped."""
    reached = select(checkpoint.c.until_offsets).where(
        *(
            checkpoint.c[name] == bindparam(name)
            for name in ("gate", "checkpoint_id", "topic", "topic_id")
        )
    )
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(position).values(
        **{name: bindparam(name) for name in ("topic_id", "gate", "checkpoint_id")},
        until_offsets=reached.scalar_subquery(),
    )
    return instead_of_before(statement)


def instead_of_before(statement: _Insert) -> _Insert:
    """Have an insert replace the position that was there before."""
    now = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=list(position.primary_key),
        set_={"checkpoint_id": now.checkpoint_id, "until_offsets": now.until_offsets},
    )


def checkpoint_from(row: Any) -> CheckpointRecord:
    """Return the checkpoint of a row of `CHECKPOINTS`."""
    return CheckpointRecord(
        checkpoint_id=row.checkpoint_id,
        topic=row.topic,
        topic_id=row.topic_id or None,
        starts=offsets_in(row.start_offsets),
        untils=offsets_in(row.until_offsets),
        offsets=row.offsets,
        begins=row.begins,
    )
