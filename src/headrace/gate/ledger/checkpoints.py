"""Summary of each checkpoint that the ledger keeps beside its batches.

A history has two ends: ranges that follow each other do not reveal a missing first or newest batch.
So each begin of a batch also updates this summary in its transaction: the checkpoint's start and
end in each partition, and its number of planned offsets. `verify` compares the batches with this
summary, which outlives them.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from headrace.core.ranges import OffsetRange
from headrace.gate.ledger.records import PlannedBatch
from headrace.gate.ledger.statements import execute, offsets_in, offsets_text, statements

Offsets = Mapping[int, int]
"""Offsets by partition."""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A row of ``checkpoint``: the offsets of one topic that one checkpoint has planned.

    Attributes:
        checkpoint_id: The checkpoint's identity.
        topic: The topic.
        topic_id: Id that distinguishes the topic from a recreated topic of the same name; None if
            unknown.
        starts: Start of the first batch, by partition.
        untils: End of the newest batch, by partition.
        offsets: Number of offsets that the batches have planned.
        begins: Number of the gate's requests for a batch at the engine's last request.
    """

    checkpoint_id: str
    topic: str
    topic_id: str | None
    starts: Offsets
    untils: Offsets
    offsets: int
    begins: int


_SQL: Final = statements("history")


def record_plan(connection: Connection, batch: PlannedBatch, batch_key: str) -> None:
    """Add the plan of a batch to its checkpoint, after the batch was counted and inserted."""
    of_batch = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": batch_key}
    for row in planned_rows(batch):
        execute(connection, _SQL["plan"], row | of_batch)


def record_unknown(connection: Connection, batch: PlannedBatch) -> None:
    """Add the plan of a batch to its checkpoint; later batches stay the newest."""
    of_batch = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": None}
    for row in planned_rows(batch):
        stands = offsets_in(execute(connection, _SQL["untils"], row | of_batch).scalar() or "{}")
        untils = offsets_in(row["until_offsets"])
        ends = {
            partition: max(end, stands.get(partition, end)) for partition, end in untils.items()
        }
        values = row | of_batch | {"until_offsets": offsets_text(ends)}
        execute(connection, _SQL["plan"], values)


def record_start(connection: Connection, batch: PlannedBatch) -> None:
    """Record where a checkpoint begins in partitions of which no batch has read anything yet.

    The batch's empty ranges are the starts; known partitions stay unchanged.
    """
    values = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": None}
    for row in planned_rows(batch, empty=True):
        execute(connection, _SQL["start"], row | values)
    advance_position(connection, batch)


def planned_rows(batch: PlannedBatch, *, empty: bool = False) -> list[dict[str, Any]]:
    """Return the plan of a batch for its checkpoint, one row for each topic.

    The rows contain the ranges with offsets, or with ``empty`` only the empty ranges.
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
            "start_offsets": offsets_text({partition: at.start for partition, at in hull.items()}),
            "until_offsets": offsets_text({partition: at.until for partition, at in hull.items()}),
            "offsets": offsets[name, topic_id],
        }
        for (name, topic_id), hull in hulls.items()
    ]


def begin_again(connection: Connection, batch: PlannedBatch, batch_key: str) -> None:
    """Record that the engine has requested a batch once more."""
    values = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "batch": batch_key}
    execute(connection, _SQL["begun_again"], values)


def advance_position(connection: Connection, batch: PlannedBatch) -> None:
    """Advance the gate's position to its checkpoint's end, in every topic with an id."""
    reached = {
        (planned.topic_id, planned.offsets.topic)
        for planned in batch.ranges
        if planned.topic_id is not None
    }
    for topic_id, topic in sorted(reached):  # nearly always a single topic
        row = {
            "topic_id": topic_id,
            "gate": batch.gate,
            "checkpoint_id": batch.checkpoint_id,
            "topic": topic,
        }
        execute(connection, _SQL["advance"], row)


def checkpoint_from(row: Any) -> CheckpointRecord:
    """Return the checkpoint of a row of `checkpoints`."""
    return CheckpointRecord(
        checkpoint_id=row.checkpoint_id,
        topic=row.topic,
        topic_id=row.topic_id or None,
        starts=offsets_in(row.start_offsets),
        untils=offsets_in(row.until_offsets),
        offsets=row.offsets,
        begins=row.begins,
    )
