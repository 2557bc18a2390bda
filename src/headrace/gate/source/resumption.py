"""Start of a query: compare its checkpoint with its ledger once, before its first batch.

Spark's checkpoint and the ledger both hold a gate's position. If one of them is lost, or is an
older copy, the position is taken from the other.

=================== ============================= ==============================================
checkpoint          ledger                        the query
=================== ============================= ==============================================
new                 has no history of the gate    begins by ``startingOffsets``
new                 has a history of the gate     continues from the ledger's position
older               has batches beyond it         is refused; with `headrace adopt` as above
newer               lacks batches of it           continues; the ranges become one dead batch
of another ledger   any                           is refused; with `headrace adopt` as newer
=================== ============================= ==============================================

A new checkpoint takes over the id and the position of the previous checkpoint. So an interrupted
batch keeps its key and its place in the order.

Ranges that an older ledger lacks become one dead batch. They do not become ``success``, because
Spark also commits batches that were deferred. The checkpoint counts the offsets that it has
planned. This count reveals a missing row even if positions do not: after a loss, or in a partition
without records. After a restore of the ledger, later batches may have been planned already. So all
gaps that `verify` finds are added, not only the ranges after the newest batch.

All functions are pure: the planner reads checkpoint and ledger, and writes the result.
"""

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, merge, nested
from headrace.errors import OptionError
from headrace.gate.ledger.checkpoints import CheckpointRecord
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.records import BatchRecord, PlannedRange
from headrace.gate.source.source_options import NEW_CHECKPOINT
from headrace.gate.source.stream_offset import StreamOffset

UNKNOWN_OUTCOME: Final = "headrace.LedgerRestored"
"""Name of the error of a dead batch that replaces the missing rows of a restored ledger."""


@dataclass(frozen=True, slots=True)
class GateMemory:
    """A gate's history in the ledger, read when its query starts.

    Attributes:
        ledger: URL of the ledger without secrets, for messages.
        gate_id: Id of the gate in this ledger.
        checkpoints: One row for each checkpoint and topic.
        last: The newest unfinished batch; None if all batches are finished.
        last_ranges: Ranges of the batch ``last``.
        has_asked: Whether the ledger has an action `adopt`, `restart` or `continued` for this
            start.
        adopted: Ids of checkpoints and gates that operators allow with `headrace adopt`.
        restarted_by: Operator who requested `headrace restart` for this start; None without a
            request.
    """

    ledger: str
    gate: str
    gate_id: str
    checkpoints: Sequence[CheckpointRecord] = ()
    last: BatchRecord | None = None
    last_ranges: Sequence[PlannedRange] = ()
    has_asked: bool = False
    adopted: frozenset[str] = frozenset()
    restarted_by: str | None = None

    @property
    def newest_checkpoint(self) -> str | None:
        """Id of the checkpoint with the newest batch."""
        newest = max(self.checkpoints, key=_age, default=None)
        return None if newest is None else newest.checkpoint_id

    @property
    def interrupted(self) -> Sequence[PlannedRange]:
        """Ranges of the newest unfinished batch; empty if all batches are finished."""
        return self.last_ranges if self.last else ()

    def of_topics(self, first: StreamOffset) -> list[CheckpointRecord]:
        """Return the checkpoint rows of the topics in an offset."""
        topics = {tp.topic for tp in first.positions}
        return [row for row in self.checkpoints if row.topic in topics]

    def planned(self, checkpoint_id: str) -> int:
        """Return the number of offsets that the ledger's batches of a checkpoint have planned."""
        return sum(row.offsets for row in self.checkpoints if row.checkpoint_id == checkpoint_id)

    def reached(self, offset: StreamOffset) -> dict[TopicPartition, int]:
        """Return where the checkpoint's batches end in each partition, for unchanged topics."""
        return {
            TopicPartition(row.topic, partition): until
            for row in self.checkpoints
            if row.checkpoint_id == offset.checkpoint_id
            and row.topic_id == offset.topic_ids.get(row.topic)
            for partition, until in row.untils.items()
        }


def refuse_another_ledger(offset: StreamOffset, known: GateMemory) -> None:
    """Raise `OptionError` for a checkpoint of another ledger, unless an operator has adopted it."""
    if not offset.gate_id or offset.gate_id == known.gate_id or offset.gate_id in known.adopted:
        return
    raise OptionError(
        "The query's checkpoint belongs to another ledger, whose deferred batches would never run"
        f" (the id of gate {known.gate!r} is {offset.gate_id} in the checkpoint, {known.gate_id} in"
        f" {known.ledger}); give the gate its earlier ledger, or allow this ledger with"
        f" `{_adopt(known, offset.gate_id)}`, and start again."
    )


def refuse_an_older_checkpoint(
    offset: StreamOffset, known: GateMemory, latest: Positions
) -> Positions:
    """Return the ledger's positions that are beyond the checkpoint; empty if there are none.

    A batch is written to the checkpoint before the ledger, so an intact checkpoint is never behind
    the ledger. A copy of the checkpoint may also lack partitions that are newer than the copy.
    Positions beyond the log's end do not count, because an unclean leader election has removed the
    records before them.

    OptionError is raised if the checkpoint is behind, and no operator has adopted it.
    """
    stands = offset.positions
    behind = {
        tp: until
        for tp, until in known.reached(offset).items()
        # A topic without an id may have been recreated.
        if tp.topic in offset.topic_ids
        and tp not in offset.out_of_sight
        and stands.get(tp, -1) < until <= latest.get(tp, -1)
    }
    if not behind or offset.checkpoint_id in known.adopted:
        return behind
    tp, more = (
        min(behind, key=lambda candidate: (candidate not in stands, candidate)),
        len(behind) - 1,
    )
    at = f"at offset {stands[tp]}" if tp in stands else "at the beginning"
    more_partitions = f" (and is behind in {more} more)" if more else ""
    onward = json.dumps(nested({**stands, **behind}))
    raise OptionError(
        f"The query's checkpoint is {at} of {tp}{more_partitions}, but the ledger has batches up to"
        f" offset {behind[tp]}. So the checkpoint is an older copy, or lacks its newest files, and"
        " records would be processed again as other batches; restore the newest copy. Or continue"
        f" at the ledger's position, {onward}, by `{_adopt(known, offset.checkpoint_id)}`, and"
        " start again; the query's state, if any, then lacks those records."
    )


def _adopt(known: GateMemory, which: str) -> str:
    gate, ledger = shlex.quote(known.gate), shlex.quote(known.ledger)
    return f"headrace adopt {gate} {which} --ledger {ledger} --why TEXT"


def continued(first: StreamOffset, known: GateMemory) -> StreamOffset:
    """Return the offset from which a new checkpoint continues, from the ledger's history.

    In each partition, this is the end of the last checkpoint that has read the partition. A
    partition that is new to the ledger is left out, so it begins at its earliest offset. A
    recreated topic keeps its old id from the ledger, so that its unread records count as a loss.

    Args:
        first: The first offset of the new checkpoint.
        known: The gate's history; it must have at least one checkpoint.
    """
    by_topic: dict[str, list[CheckpointRecord]] = defaultdict(list)
    for row in sorted(known.of_topics(first), key=_age):
        by_topic[row.topic].append(row)
    positions, ids = dict[TopicPartition, int](), dict(first.topic_ids)
    for topic, rows in by_topic.items():
        topic_id = rows[-1].topic_id
        if topic_id is not None:
            ids[topic] = topic_id
        for row in rows:
            if row.topic_id == topic_id:
                positions |= {TopicPartition(topic, p): at for p, at in row.untils.items()}
    newest = known.newest_checkpoint or first.checkpoint_id
    return replace(
        first,
        positions=positions,
        topic_ids=ids,
        checkpoint_id=newest,
        after={
            tp: crc for tp, crc in first.after.items() if positions.get(tp) == first.positions[tp]
        },
        gate_id=known.gate_id,
        planned=known.planned(newest),
    )


def going_on(offset: StreamOffset, known: GateMemory) -> str:
    """Return a sentence, without its full stop, that says where a new checkpoint begins."""
    places = [f"{tp} at {at}" for tp, at in sorted(offset.positions.items())]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    runs_first = known.last is not None and interrupted_end(offset, known) is not None
    first = f", after batch {known.last.batch_key[:8]}" if known.last and runs_first else ""
    return (
        "its query began a new checkpoint, and goes on where the ledger says that the last one"
        f" stood: {', '.join(places[:3])}{more}{first}"
    )


def refusal(known: GateMemory) -> str:
    """Return the error message for a new checkpoint that the gate's options do not allow."""
    return (
        f"The query has a new checkpoint, and its gate {known.gate!r} has a history in"
        f" {known.ledger}; put the checkpoint back, or set the option {NEW_CHECKPOINT} to continue"
        " (it goes on where the ledger stands; aggregates and joins begin without their state) or"
        " restart (everything is read again by startingOffsets)."
    )


def interrupted_end(offset: StreamOffset, known: GateMemory) -> StreamOffset | None:
    """Return the end of the unfinished batch that must run first, or None.

    A lost or older checkpoint had planned the batch. A batch with the same end has the same ranges,
    and so the same key.
    """
    if not known.interrupted or known.last is None:
        return None
    if known.last.checkpoint_id != offset.checkpoint_id:
        return None
    # A backfill runs the batch instead if the query no longer reads its topic, or if Spark repeated
    # an old batch from an older copy: then later batches lie between the batch and the offset.
    ends = (
        (planned_range.offsets.topic_partition, planned_range.offsets.until)
        for planned_range in known.interrupted
    )
    if any(offset.positions.get(tp) != until for tp, until in ends):
        return None
    starts = {
        planned_range.offsets.topic_partition: planned_range.offsets.start
        for planned_range in known.interrupted
    }
    return replace(offset, begins={**offset.positions, **starts}, first=False)


def unknown_ranges(
    offset: StreamOffset,
    known: GateMemory,
    earliest: Positions,
    lost: Sequence[OffsetRange],
    gaps: Sequence[OffsetRange] = (),
) -> list[OffsetRange]:
    """Return the ranges that a checkpoint has planned up to its offset, but the ledger lacks.

    Spark has committed these ranges, because the offset is the end of a committed batch. In a
    partition without batches in the ledger, all existing records before the offset are missing.
    ``gaps`` are ranges missing between the ledger's batches, if the gate ran on after a restore of
    the ledger.
    """
    if offset.planned <= known.planned(offset.checkpoint_id):
        return []
    reached, explained = known.reached(offset), merge(lost)
    behind = [
        rest
        for tp, position in sorted(offset.positions.items())
        if (start := reached.get(tp, earliest.get(tp, position))) < position
        for rest in tp.range(start, position).subtract(explained.get(tp, ()))
    ]
    return [*gaps, *behind]


def unknown_outcome(ranges: Sequence[OffsetRange]) -> ErrorReport:
    """Return the error of a dead batch for ranges that the ledger lacked."""
    return ErrorReport(
        UNKNOWN_OUTCOME,
        f"Spark has committed {sum(offsets.count for offsets in ranges):,} records of which this"
        " ledger has no batch, as after it was replaced, or put back from an older copy. Some may"
        " only have been deferred or rejected: compare with the sink, and with `headrace failures`"
        " of the ledger that was there, before you settle it with `headrace drop`.",
        "",
    )


def _age(row: CheckpointRecord) -> tuple[int, bool]:
    """Return a key that sorts by newest batch; on a tie, a checkpoint without offsets is last."""
    return row.begins, not row.offsets
