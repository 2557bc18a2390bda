"""What the ledger keeps of each checkpoint beside its batches: what they are checked against.

A batch's rows say what was read. These say, in another row that is written in the same transaction,
where the checkpoint began in each partition, where it stands, and how many offsets it has planned.
They outlive the batches, so that the first and the newest of them cannot disappear in silence.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
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

from headrace.errors import LedgerError
from headrace.ledger.base import Base
from headrace.ledger.records import PlannedBatch
from headrace.ledger.tables import checkpoint, control, gate, lost, position, pruned

Offsets = Mapping[int, int]
"""By partition."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A row of ``checkpoint``: what one checkpoint has planned of one topic.

    Attributes:
        run_id: The checkpoint's identity.
        topic: The topic.
        topic_id: Tells it from one made anew under its name; None where that is not known.
        starts: Where its first batch began, by partition.
        untils: Where its newest batch ended, by partition.
        offsets: How many its batches have planned.
        begun: The batch that the engine asked for last.
        begins: How often the gate had been asked for a batch by then.
        position: Where the gate goes on in the topic, of the checkpoint that is named first; None
            where nothing is kept of that.
    """

    run_id: str
    topic: str
    topic_id: str | None
    starts: Offsets
    untils: Offsets
    offsets: int
    begun: str | None
    begins: int
    position: tuple[str, Offsets] | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a ledger keeps of one gate beside its batches, at one moment.

    Attributes:
        begun: The batch that the engine asked for last.
        begins: How often it has asked for any.
        lost_offsets: How many offsets were counted as lost.
        losses: How many offsets the losses that are there come to.
        checkpoints: By checkpoint and topic.
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

# One statement, and so of one moment.
_KEPT: Final = (
    select(
        gate.c.begun.label("gate_begun"),
        gate.c.begins.label("gate_begins"),
        gate.c.lost_offsets,
        cast(_SUM_OF_LOSSES, BigInteger).label("losses"),
        *checkpoint.c["run_id", "topic", "topic_id", "start_offsets", "until_offsets", "offsets"],
        checkpoint.c.begun,
        checkpoint.c.begins,
        position.c.run_id.label("position_run_id"),
        position.c.until_offsets.label("position_offsets"),
    )
    .outerjoin_from(gate, checkpoint, checkpoint.c.gate == gate.c.name)
    .outerjoin(
        position,
        and_(position.c.gate == checkpoint.c.gate, position.c.topic_id == checkpoint.c.topic_id),
    )
    .where(gate.c.name == bindparam("gate"))
    .order_by(checkpoint.c.run_id, checkpoint.c.topic, checkpoint.c.topic_id)
)

_BEGUN_AGAIN: Final = (
    update(checkpoint)
    .where(checkpoint.c.gate == bindparam("of"), checkpoint.c.run_id == bindparam("run"))
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
    *[select(each.c.gate) for each in (control, checkpoint, pruned, lost, position)]
).subquery()
_UNDECLARED: Final = select(_named.c.gate).where(_named.c.gate.not_in(select(gate.c.name)))


class Checkpoints(Base):
    """What is kept beside the batches."""

    def kept(self, gate_name: str) -> Kept | None:
        """What the ledger keeps of a gate beside its batches; None where it has no such gate.

        Raises:
            LedgerError: The ledger cannot be read, or what it keeps has been damaged.
        """
        rows = self._database.read(
            lambda connection: connection.execute(_KEPT, {"gate": gate_name}).all()
        )
        if not rows:
            return None
        try:
            found = [_record_from(row) for row in rows if row.run_id is not None]
        except (AttributeError, TypeError, ValueError) as error:
            raise LedgerError(
                f"What the ledger {self._database.name} keeps of the checkpoints of gate "
                f"{gate_name!r} cannot be read, so it was changed or damaged; restore the ledger "
                "from a copy."
            ) from error
        first = rows[0]
        return Kept(
            first.gate_begun, first.gate_begins, first.lost_offsets, first.losses, tuple(found)
        )

    def undeclared_gates(self) -> tuple[str, ...]:
        """Gates of which there are rows, but not the row that declares them: it was deleted."""
        return self._database.read(
            lambda connection: tuple(sorted(connection.scalars(_UNDECLARED)))
        )


def plan_on(connection: Connection, batch: PlannedBatch, schedule_id: str) -> None:
    """Write down that a batch was planned, right after it was counted and its row inserted."""
    starts: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    untils: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    offsets: dict[tuple[str, str], int] = defaultdict(int)
    for planned in batch.ranges:
        at, topic = planned.offsets, (planned.offsets.topic, planned.topic_id or "")
        if at.count:
            of_topic = starts[topic], untils[topic]
            of_topic[0][at.partition] = min(at.start, of_topic[0].get(at.partition, at.start))
            of_topic[1][at.partition] = max(at.until, of_topic[1].get(at.partition, at.until))
            offsets[topic] += at.count
    for (name, topic_id), count in offsets.items():  # nearly always one
        row = {
            "gate": batch.gate,
            "run_id": batch.run_id,
            "topic": name,
            "topic_id": topic_id,
            "start_offsets": _as_text(starts[name, topic_id]),
            "until_offsets": _as_text(untils[name, topic_id]),
            "offsets": count,
            "begun": schedule_id,
        }
        connection.execute(_planning_on(connection.dialect.name), row)


def begin_again(connection: Connection, batch: PlannedBatch, schedule_id: str) -> None:
    """Write down that the engine has asked for a batch once more."""
    values = {"of": batch.gate, "run": batch.run_id, "batch": schedule_id}
    connection.execute(_BEGUN_AGAIN, values)


@cache
def _planning_on(dialect: str) -> sqlite.Insert | postgresql.Insert:
    """Put a batch behind those that its checkpoint has planned before."""
    is_sqlite = dialect == "sqlite"
    begins = select(gate.c.begins).where(gate.c.name == bindparam("gate")).scalar_subquery()
    statement = (sqlite.insert if is_sqlite else postgresql.insert)(checkpoint).values(
        **{name: bindparam(name) for name in checkpoint.c.keys() if name != "begins"},  # noqa: SIM118
        begins=begins,
    )
    before, now = checkpoint.c, statement.excluded

    def over(below: ColumnElement[str], above: ColumnElement[str]) -> ColumnElement[str]:
        """Both, and of a partition that is in both what stands above."""
        if is_sqlite:
            return func.json_patch(below, above)
        return cast(cast(below, JSONB).concat(cast(above, JSONB)), Text)

    return statement.on_conflict_do_update(
        index_elements=list(checkpoint.primary_key),
        set_={
            "start_offsets": over(now.start_offsets, before.start_offsets),
            "until_offsets": over(before.until_offsets, now.until_offsets),
            "offsets": before.offsets + now.offsets,
            "begun": now.begun,
            "begins": now.begins,
        },
    )


def _record_from(row: Any) -> CheckpointRecord:
    placed = None
    if row.position_run_id is not None:
        placed = row.position_run_id, _offsets_in(row.position_offsets)
    return CheckpointRecord(
        run_id=row.run_id,
        topic=row.topic,
        topic_id=row.topic_id or None,
        starts=_offsets_in(row.start_offsets),
        untils=_offsets_in(row.until_offsets),
        offsets=row.offsets,
        begun=row.begun,
        begins=row.begins,
        position=placed,
    )


def _offsets_in(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}


def _as_text(offsets: Offsets) -> str:
    return json.dumps(offsets, separators=(",", ":"))
