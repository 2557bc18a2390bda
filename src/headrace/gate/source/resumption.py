"""Start of a query: its checkpoint and its ledger are compared once, before its first batch.

A gate's position is kept twice: in Spark's checkpoint and in the ledger. If one of the two is lost,
or is an older copy, the other has the position.

=================== ============================= ==============================================
checkpoint          ledger                        the query
=================== ============================= ==============================================
new                 has no history of the gate    begins by ``startingOffsets``
new                 has a history of the gate     continues from the ledger's position
older               has batches beyond it         is refused; with `headrace adopt` as above
newer               lacks batches of it           continues; the ranges become one dead batch
of another ledger   any                           is refused; with `headrace adopt` as newer
=================== ============================= ==============================================

A new checkpoint takes over the id and the position of the last one. So an interrupted batch keeps
its key and its place in the order. Ranges that an older ledger lacks become one dead batch. Spark
commits a batch whether it succeeded or was deferred, so rows with ``success`` would claim an
unknown outcome. The number of planned offsets in the checkpoint reveals a missing row even where
positions do not: after a loss, or in a partition without records. Later batches may have been
planned on an older ledger. So the missing ranges are all gaps of the proof, not only the ranges
behind the newest batch.

All functions are pure: the planner reads both sides, and writes the decision.
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
"""Error class of a dead batch that replaces the missing rows of a restored ledger."""


@dataclass(frozen=True, slots=True)
class GateMemory:
    """The ledger's knowledge of a gate at its query's start.

    Attributes:
        ledger: The ledger's name in messages.
        gate_id: The identity of the gate in its ledger.
        checkpoints: One row for each checkpoint and topic.
        last: The newest unfinished batch; None if all batches are finished.
        last_ranges: The ranges of that batch.
        has_asked: Whether a start must see any actions: `adopt`, `restart` or `continued`.
        adopted: The ids that operators allow for this start, by `headrace adopt`.
        restarted_by: The operator who has set `headrace restart` for this start; None for nobody.
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
        """Ranges of the newest unfinished batch."""
        return self.last_ranges if self.last else ()

    def of_topics(self, first: StreamOffset) -> list[CheckpointRecord]:
        """Return the rows of the topics that a query reads; other topics are ignored."""
        topics = {tp.topic for tp in first.positions}
        return [row for row in self.checkpoints if row.topic in topics]

    def planned(self, checkpoint_id: str) -> int:
        """Return the number of offsets that the batches of a checkpoint have planned."""
        return sum(row.offsets for row in self.checkpoints if row.checkpoint_id == checkpoint_id)

    def reached(self, offset: StreamOffset) -> dict[TopicPartition, int]:
        """Return the end of this checkpoint's batches, in topics with the ids of the offset."""
        return {
            TopicPartition(row.topic, partition): until
            for row in self.checkpoints
            if row.checkpoint_id == offset.checkpoint_id
            and row.topic_id == offset.topic_ids.get(row.topic)
            for partition, until in row.untils.items()
        }


def refuse_another_ledger(offset: StreamOffset, known: GateMemory) -> None:
    """Raise `OptionError` for a checkpoint of another ledger, unless an operator adopted it."""
    if not offset.gate_id or offset.gate_id == known.gate_id or offset.gate_id in known.adopted:
        return
    raise OptionError(
        f"The query's checkpoint was run with another ledger, in which the gate {known.gate!r} has"
        f" the id {offset.gate_id}; in {known.ledger} it has the id {known.gate_id}, so what was"
        " deferred there would never run. Give the gate the ledger that it had, or allow this one:"
        f" `{_adopt(known, offset.gate_id)}`, and start again."
    )


def refuse_an_older_checkpoint(
    offset: StreamOffset, known: GateMemory, latest: Positions
) -> Positions:
    """Return the ledger's positions beyond the checkpoint, if an operator has adopted it.

    A batch is in the checkpoint before it is in the ledger, so an intact checkpoint is never
    behind. If a log ends before the read offsets, an unclean election has cut the log. A copy of
    the checkpoint lacks partitions that are newer than the copy.

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
    more_partitions = f" (and behind in {more} more)" if more else ""
    onward = json.dumps(nested({**stands, **behind}))
    raise OptionError(
        f"The query's checkpoint stands {at} of {tp}{more_partitions}, where the ledger"
        f" has batches of it up to {behind[tp]}, so it is an older copy, or its newest files are"
        " gone, and those records would be processed again as other batches; put back the newest"
        f" copy, or go on where the ledger stands, at {onward}, with a state (if the query has any)"
        f" that lacks those records: `{_adopt(known, offset.checkpoint_id)}`, and start again."
    )


def _adopt(known: GateMemory, which: str) -> str:
    gate, ledger = shlex.quote(known.gate), shlex.quote(known.ledger)
    return f"headrace adopt {gate} {which} --ledger {ledger} --why TEXT"


def continued(first: StreamOffset, known: GateMemory) -> StreamOffset:
    """Return the offset that a lost checkpoint would have now, according to the ledger.

    In each partition this is the end of the gate's plans in its newest checkpoint that has read the
    partition. A partition that the ledger has never seen is left out and begins at its earliest
    offset, as in a query with its checkpoint. A recreated topic keeps its old id from the ledger,
    so that its unread rest counts as a loss.

    Args:
        first: The first offset of the new checkpoint.
        known: A history with a checkpoint.
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
    """Return a sentence, without its full stop, about where a new checkpoint begins."""
    places = [f"{tp} at {at}" for tp, at in sorted(offset.positions.items())]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    runs_first = known.last is not None and interrupted_end(offset, known) is not None
    first = f", after batch {known.last.batch_key[:8]}" if known.last and runs_first else ""
    return (
        "its query began a new checkpoint, and goes on where the ledger says that the last one"
        f" stood: {', '.join(places[:3])}{more}{first}"
    )


def refusal(known: GateMemory) -> str:
    """Return the message for a refused new checkpoint."""
    return (
        f"The query has a new checkpoint, and its gate {known.gate!r} has a history in"
        f" {known.ledger}; put the checkpoint back, or set the option {NEW_CHECKPOINT} to continue"
        " (it goes on where the ledger stands; aggregates and joins begin without their state) or"
        " restart (everything is read again by startingOffsets)."
    )


def interrupted_end(offset: StreamOffset, known: GateMemory) -> StreamOffset | None:
    """Return the end of an unfinished batch that a lost or older checkpoint had planned, or None.

    The end has the ranges of the batch, and so the batch keeps its key.
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
    """Return the ranges that a checkpoint has planned up to this offset and its ledger lacks.

    Spark has committed the ranges, because the offset is the end of a committed batch. In a
    partition that the ledger does not know at all, the ranges are all existing offsets before the
    offset. ``gaps`` lie between batches that were planned after an older ledger was restored.
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
    """Return the error of the dead batch that replaces these ranges."""
    return ErrorReport(
        UNKNOWN_OUTCOME,
        f"Spark has committed {sum(offsets.count for offsets in ranges):,} records of which this"
        " ledger has no batch, as after it was replaced, or put back from an older copy. Some may"
        " only have been deferred or rejected: compare with the sink, and with `headrace failures`"
        " of the ledger that was there, before you settle it with `headrace drop`.",
        "",
    )


def _age(row: CheckpointRecord) -> tuple[int, bool]:
    """Return a sort key by the newest batch; a checkpoint without a batch yet is newer."""
    return row.begins, not row.offsets
