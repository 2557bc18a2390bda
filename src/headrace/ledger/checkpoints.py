"""Summary of each checkpoint that the ledger keeps beside its batches, and their comparison.

A batch's rows have the ranges that were read. These say, in another row that is written in the same
transaction, where the checkpoint began in each partition, where it stands, and how many offsets it
has planned. They outlive the batches, so that the first and the newest of them cannot disappear in
silence.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Text,
    and_,
    bindparam,
    cast,
    func,
    select,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB

from headrace.core.ranges import OffsetRange
from headrace.ledger.batch_rows import offsets_in, offsets_text, whole_number
from headrace.ledger.missed import Finding, FindingKind
from headrace.ledger.records import Covered, PlannedBatch
from headrace.ledger.tables import batch_table, checkpoint, gate, lost, position, pruned

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
        begun: The batch that the engine asked for last.
        begins: Number of the gate's requests for a batch by then.
        position: Checkpoint of the gate's position in the topic, and its offsets by partition; None
            if none is kept.
    """

    checkpoint_id: str
    topic: str
    topic_id: str | None
    starts: Offsets
    untils: Offsets
    offsets: int
    begun: str | None
    begins: int
    position: tuple[str, Offsets] | None


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """Consistent summary of one gate that the ledger keeps beside its batches.

    Attributes:
        begun: The batch that the engine asked for last.
        begins: Number of its requests for a batch.
        lost_offsets: Number of offsets that were counted as lost.
        losses: Number of offsets of the losses that still have a row.
        checkpoints: Checkpoints, by their id and topic.
    """

    begun: str | None
    begins: int
    lost_offsets: int
    losses: int
    checkpoints: tuple[CheckpointRecord, ...]


_SUM_OF_LOSSES: Final = (
    select(func.coalesce(func.sum(lost.c.until_offset - lost.c.from_offset), 0))
    .where(lost.c.gate == gate.c.name)
    .correlate(gate)
    .scalar_subquery()
)

# One statement, for a consistent read.
CHECKPOINTS: Final = (
    select(
        gate.c.begun.label("gate_begun"),
        gate.c.begins.label("gate_begins"),
        gate.c.lost_offsets,
        cast(_SUM_OF_LOSSES, BigInteger).label("losses"),
        *checkpoint.c[
            "checkpoint_id", "topic", "topic_id", "start_offsets", "until_offsets", "offsets"
        ],
        checkpoint.c.begun,
        checkpoint.c.begins,
        position.c.checkpoint_id.label("position_checkpoint_id"),
        position.c.until_offsets.label("position_offsets"),
    )
    .outerjoin_from(gate, checkpoint, checkpoint.c.gate == gate.c.name)
    .outerjoin(
        position,
        and_(position.c.gate == checkpoint.c.gate, position.c.topic_id == checkpoint.c.topic_id),
    )
    .where(gate.c.name == bindparam("gate"))
    .order_by(checkpoint.c.checkpoint_id, checkpoint.c.topic, checkpoint.c.topic_id)
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

_named = union(
    *[select(each.c.gate) for each in (batch_table, checkpoint, pruned, lost, position)]
).subquery()

UNDECLARED_GATES: Final = select(_named.c.gate).where(_named.c.gate.not_in(select(gate.c.name)))


def record_plan(connection: Connection, batch: PlannedBatch, batch_key: str | None) -> None:
    """Write down that a batch was planned, right after it was counted and its row inserted."""
    of_batch = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": batch_key}
    for row in planned_rows(batch):
        connection.execute(_upsert_checkpoint(connection.dialect.name), row | of_batch)


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
    """Return the checkpoint of a row of `CHECKPOINTS`.

    Raises:
        LedgerError: One of its numbers is none.
    """
    placed = None
    if row.position_checkpoint_id is not None:
        placed = row.position_checkpoint_id, offsets_in(row.position_offsets)
    return CheckpointRecord(
        checkpoint_id=row.checkpoint_id,
        topic=row.topic,
        topic_id=row.topic_id or None,
        starts=offsets_in(row.start_offsets),
        untils=offsets_in(row.until_offsets),
        offsets=whole_number(row.offsets, f"The offsets of checkpoint {row.checkpoint_id}"),
        begun=row.begun,
        begins=whole_number(row.begins, f"The begins of checkpoint {row.checkpoint_id}"),
        position=placed,
    )


CheckpointTopic = tuple[str, str, str | None]
"""The checkpoint, the topic, and the topic's id."""


class CoverageTally:
    """Totals of the batches, counted while the caller iterates over them."""

    def __init__(self) -> None:
        self.hulls: dict[CheckpointTopic, dict[int, OffsetRange]] = defaultdict(dict)
        """From the first to the last offset that a batch reads, by partition."""
        self.offsets: dict[CheckpointTopic, int] = defaultdict(int)
        """How many offsets the batches have, children not counted."""

    def of(self, coverage: Iterable[Covered]) -> Iterator[Covered]:
        """The same ranges, counted."""
        for each in coverage:
            if each.parent is None:
                self._count(each)
            yield each

    def _count(self, each: Covered) -> None:
        at, topic = each.offsets, (each.checkpoint_id, each.offsets.topic, each.topic_id)
        self.offsets[topic] += at.count
        hulls = self.hulls[topic]
        hulls[at.partition] = hulls.get(at.partition, at).hull(at)


def mismatches(
    tally: CoverageTally, before: CheckpointSummary | None, after: CheckpointSummary | None
) -> list[Finding]:
    """Ranges that were planned and that no batch has, or the other way round.

    A gate that runs plans more meanwhile: the summary from before its batches were read is the
    least, the summary from after that is the most.
    """
    least, most = _checkpoints_by_topic(before), _checkpoints_by_topic(after)
    found: list[Finding] = []
    for topic in sorted({*most, *tally.hulls}, key=lambda topic: (*topic[:2], topic[2] or "")):
        hulls = tally.hulls.get(topic, {})
        found += _mismatches(topic, hulls, least.get(topic), most.get(topic))
    return found


def contradictions(
    tally: CoverageTally, before: CheckpointSummary | None, after: CheckpointSummary | None
) -> list[str]:
    """Describe each further contradiction between the ledger's rows in a sentence."""
    if after is None:
        return ["The row that declares the gate is not there, but others of the gate are."]
    found: list[str] = []
    least = _checkpoints_by_topic(before)
    for topic, kept in _checkpoints_by_topic(after).items():
        known = least[topic].offsets if topic in least else 0
        counted = tally.offsets.get(topic, 0)
        if kept.starts.keys() != kept.untils.keys():
            found.append(
                f"Checkpoint {kept.checkpoint_id} has begun in other partitions of {kept.topic} "
                "than it has reached."
            )
        if not known <= counted <= kept.offsets:
            found.append(
                f"Checkpoint {kept.checkpoint_id} has planned {kept.offsets} offsets of "
                f"{kept.topic}, and its batches have {counted}."
            )
    if after.losses != after.lost_offsets:
        found.append(
            f"{after.lost_offsets} offsets were counted as lost, and the losses that are there "
            f"have {after.losses}."
        )
    return [*found, *_about_begins(after), *_about_positions(after)]


def _checkpoints_by_topic(
    kept: CheckpointSummary | None,
) -> dict[CheckpointTopic, CheckpointRecord]:
    records = () if kept is None else kept.checkpoints
    return {(each.checkpoint_id, each.topic, each.topic_id): each for each in records}


def _mismatches(
    topic: CheckpointTopic,
    hulls: Mapping[int, OffsetRange],
    least: CheckpointRecord | None,
    most: CheckpointRecord | None,
) -> Iterator[Finding]:
    """Yield the differences between the batches and the summary of one checkpoint and topic."""
    checkpoint_id, name, topic_id = topic

    def finding(kind: FindingKind, partition: int, start: int, until: int) -> Iterator[Finding]:
        if start < until:
            offsets = OffsetRange(name, partition, start, until)
            yield Finding(kind, offsets, checkpoint_id, topic_id=topic_id)

    starts = most.starts if most else {}
    for partition in sorted({*starts, *(most.untils if most else {}), *hulls}):
        start, hull = starts.get(partition), hulls.get(partition)
        planned = least.untils.get(partition) if least else None
        reached = most.untils.get(partition) if most else None
        if hull is None:
            if start is not None and planned is not None:
                yield from finding(FindingKind.MISSING, partition, start, planned)
        elif start is None or reached is None:
            yield from finding(FindingKind.UNPLANNED, partition, hull.start, hull.until)
        else:
            yield from finding(FindingKind.MISSING, partition, start, hull.start)
            yield from finding(FindingKind.UNPLANNED, partition, hull.start, start)
            if planned is not None:
                yield from finding(FindingKind.MISSING, partition, hull.until, planned)
            yield from finding(FindingKind.UNPLANNED, partition, reached, hull.until)


def _about_begins(kept: CheckpointSummary) -> Iterator[str]:
    """Whether the gate's last batch is one of a checkpoint's."""
    newest = max((each.begins for each in kept.checkpoints), default=None)
    if newest is None:
        if kept.begins:
            yield f"The gate was asked for {kept.begins} batches, and no checkpoint has any."
        return
    if newest != kept.begins:
        yield (
            f"The gate was asked for {kept.begins} batches, and its checkpoints for {newest}, "
            "repeated ones counted."
        )
    elif kept.begun not in {each.begun for each in kept.checkpoints if each.begins == newest}:
        yield f"The gate's last batch is {kept.begun}, which is the last of no checkpoint."


def _about_positions(kept: CheckpointSummary) -> Iterator[str]:
    """Whether the gate goes on where its newest checkpoint stands."""
    by_topic_id: dict[str, list[CheckpointRecord]] = defaultdict(list)
    for each in kept.checkpoints:
        if each.topic_id is not None:
            by_topic_id[each.topic_id].append(each)
    for topic_id, records in by_topic_id.items():
        position = records[0].position
        if position is None:
            yield f"Nothing says where the gate goes on in the topic with the id {topic_id}."
            continue
        if position not in [(each.checkpoint_id, each.untils) for each in records]:
            yield (
                f"The gate goes on in the topic with the id {topic_id} where no checkpoint of it "
                "stands."
            )
