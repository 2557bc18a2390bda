"""Summary of each checkpoint: its start, its end and its number of planned offsets.

From the ranges of batches alone, nobody can see that the first or the newest batch is missing. So
the transaction that begins a batch also updates the summary of its checkpoint in each partition.
`verify` compares the batches with the summary, which is kept after the batches are pruned.
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
    """A row of ``checkpoint``: the offsets of one topic that a checkpoint has planned.

    Attributes:
        checkpoint_id: Id of the checkpoint.
        topic: Name of the topic.
        topic_id: Id that distinguishes the topic from a recreated topic of the same name; None if
            unknown.
        starts: Start offset of the checkpoint's first batch, by partition.
        untils: End offset of the checkpoint's newest batch, by partition.
        offsets: Number of offsets that the checkpoint's batches have planned.
        begins: Number of batches that Spark had requested from the gate when it last requested a
            batch of this checkpoint.
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
    """Add a new batch's plan to the summary of its checkpoint.

    The caller must first count the batch and insert its row.
    """
    of_batch = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": batch_key}
    for row in planned_rows(batch):
        execute(connection, _SQL["plan"], row | of_batch)


def record_unknown(connection: Connection, batch: PlannedBatch) -> None:
    """Add a batch from `BatchStore.add_unknown` to the summary of its checkpoint.

    The end offsets in the summary never decrease.
    """
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
    """Record the start offsets of a checkpoint in partitions that no batch has read yet.

    The empty ranges of ``batch`` are the start offsets. Partitions that the checkpoint already has
    are not changed.
    """
    values = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "begun": None}
    for row in planned_rows(batch, empty=True):
        execute(connection, _SQL["start"], row | values)
    advance_position(connection, batch)


def planned_rows(batch: PlannedBatch, *, empty: bool = False) -> list[dict[str, Any]]:
    """Return a row for each topic with the start offsets, end offsets and offset count of a batch.

    Empty ranges are left out; with ``empty``, only the empty ranges are included.
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
    """Record in a checkpoint's summary that Spark has requested a batch again."""
    values = {"gate": batch.gate, "checkpoint_id": batch.checkpoint_id, "batch": batch_key}
    execute(connection, _SQL["begun_again"], values)


def advance_position(connection: Connection, batch: PlannedBatch) -> None:
    """Set a gate's position to the end of a batch's checkpoint, in every topic with a known id."""
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
    """Convert a row of `checkpoints` to a `CheckpointRecord`."""
    return CheckpointRecord(
        checkpoint_id=row.checkpoint_id,
        topic=row.topic,
        topic_id=row.topic_id or None,
        starts=offsets_in(row.start_offsets),
        untils=offsets_in(row.until_offsets),
        offsets=row.offsets,
        begins=row.begins,
    )
