"""Where a query goes on: its checkpoint and its ledger are compared once, before its first batch.

A gate's position is kept twice: in Spark's checkpoint and in the ledger. If one of the two is
lost, or is an older copy, the other one knows.

=================== ============================= ==============================================
checkpoint          ledger                        the query
=================== ============================= ==============================================
new                 knows nothing of the gate     begins by ``startingOffsets``
new                 has a history of the gate     goes on from the ledger's position
older               has batches beyond it         is refused; with `headrace adopt` as above
newer               lacks batches of it           goes on; the ranges become one dead batch
of another ledger                                 is refused; with `headrace adopt` as newer
=================== ============================= ==============================================

Everything here is pure: the planner reads both, and writes down what is decided.
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
"""Class of the error of a batch that stands for ranges whose rows a restored ledger lacks."""


@dataclass(frozen=True, slots=True)
class GateMemory:
    """The ledger's knowledge of a gate at its query's start.

    Attributes:
        ledger: The ledger, as messages name it.
        gate_id: The identity of the gate in its ledger.
        checkpoints: One row for each checkpoint and topic.
        last: The newest batch that is not done; None where all are.
        last_ranges: What that batch reads.
        has_asked: Whether there is anything for a start to see: these, or the line of the last one.
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
        """The id of the checkpoint with the newest batch."""
        newest = max(self.checkpoints, key=_age, default=None)
        return None if newest is None else newest.checkpoint_id

    @property
    def interrupted(self) -> Sequence[PlannedRange]:
        """The ranges of the newest batch that is not done."""
        return self.last_ranges if self.last else ()

    def of_topics(self, first: StreamOffset) -> list[CheckpointRecord]:
        """Return the rows of the topics that a query reads; others are left behind."""
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
    """Raise `OptionError` for a checkpoint that was run with another ledger, unless adopted."""
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
    """Return where the ledger stands beyond the checkpoint, if an operator allows to go on there.

    A batch is in the checkpoint before it is in the ledger, so an intact checkpoint is never
    behind. A log that ends before the read offsets was cut, by an unclean election. A partition
    that is newer than the copy of the checkpoint is not in it.

    Raises:
        OptionError: The checkpoint is behind, and nobody has adopted it.
    """
    stands = offset.positions
    behind = {
        tp: until
        for tp, until in known.reached(offset).items()
        # A topic without an id may have been deleted and created again.
        if tp.topic in offset.topic_ids
        and tp not in offset.out_of_sight
        and stands.get(tp, -1) < until <= latest.get(tp, -1)
    }
    if not behind or offset.checkpoint_id in known.adopted:
        return behind
    tp, more = min(behind, key=lambda each: (each not in stands, each)), len(behind) - 1
    at = f"at offset {stands[tp]}" if tp in stands else "at the beginning"
    others = f" (and behind in {more} more)" if more else ""
    onward = json.dumps(nested({**stands, **behind}))
    raise OptionError(
        f"The query's checkpoint stands {at} of {tp}{others}, where the ledger"
        f" has batches of it up to {behind[tp]}, so it is an older copy, or its newest files are"
        " gone, and those records would be processed again as other batches; put back the newest"
        f" copy, or go on where the ledger stands, at {onward}, with a state (if the query has any)"
        f" that lacks those records: `{_adopt(known, offset.checkpoint_id)}`, and start again."
    )


def _adopt(known: GateMemory, which: str) -> str:
    gate, ledger = shlex.quote(known.gate), shlex.quote(known.ledger)
    return f"headrace adopt {gate} {which} --ledger {ledger} --why TEXT"


def continued(first: StreamOffset, known: GateMemory) -> StreamOffset:
    """Return the offset that a lost checkpoint would have now, as the ledger knows it.

    Of each partition it is the end of what the gate has planned there, in its newest checkpoint
    that has read it. A partition that the ledger has never seen is not in it, and begins at its
    earliest offset, as in a query that has its checkpoint. A topic that was made anew keeps the id
    that the ledger knows, so that its unread rest is a loss.

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
    """Describe in a sentence, without its full stop, where a query with a new checkpoint begins."""
    places = [f"{tp} at {at}" for tp, at in sorted(offset.positions.items())]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    runs_first = known.last is not None and interrupted_end(offset, known) is not None
    first = f", after batch {known.last.batch_key[:8]}" if known.last and runs_first else ""
    return (
        "its query began a new checkpoint, and goes on where the ledger says that the last one"
        f" stood: {', '.join(places[:3])}{more}{first}"
    )


def refusal(known: GateMemory) -> str:
    """Return the message for a new checkpoint that is refused."""
    return (
        f"The query has a new checkpoint, and its gate {known.gate!r} has a history in"
        f" {known.ledger}; put the checkpoint back, or set the option {NEW_CHECKPOINT} to continue"
        " (it goes on where the ledger stands; aggregates and joins begin without their state) or"
        " restart (everything is read again by startingOffsets)."
    )


def interrupted_end(offset: StreamOffset, known: GateMemory) -> StreamOffset | None:
    """Return the end of the batch that a lost checkpoint was at, if the batch is not done.

    The checkpoint is gone, or an older copy is in its place. The end has the ranges of the batch,
    and so its key.
    """
    if not known.interrupted or known.last is None:
        return None
    if known.last.checkpoint_id != offset.checkpoint_id:
        return None
    # A backfill runs the batch if the query does not read its topic any more. It also does if Spark
    # ran an old batch once more, from an older copy: later batches lie between it and the offset.
    ends = ((each.offsets.topic_partition, each.offsets.until) for each in known.interrupted)
    if any(offset.positions.get(tp) != until for tp, until in ends):
        return None
    starts = {each.offsets.topic_partition: each.offsets.start for each in known.interrupted}
    return replace(offset, begins={**offset.positions, **starts}, first=False)


def unknown_ranges(
    offset: StreamOffset,
    known: GateMemory,
    earliest: Positions,
    lost: Sequence[OffsetRange],
    gaps: Sequence[OffsetRange] = (),
) -> list[OffsetRange]:
    """Return what a checkpoint has planned up to this offset, and its ledger does not know.

    Spark has committed it, for the offset is the end of a batch that was. Of a partition that the
    ledger does not know at all it is everything that there is before the offset. The gaps are
    between batches that it has: these were planned after an older ledger was back.
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
    """Describe the dead batch that stands for these ranges."""
    return ErrorReport(
        UNKNOWN_OUTCOME,
        f"Spark has committed {sum(each.count for each in ranges):,} records of which this ledger"
        " has no batch, as after it was replaced, or put back from an older copy. Some may only"
        " have been deferred or rejected: compare with the sink, and with `headrace failures` of"
        " the ledger that was there, before you settle it with `headrace drop`.",
        "",
    )


def _age(row: CheckpointRecord) -> tuple[int, bool]:
    """Order rows by their newest batch; a checkpoint that has none yet is the newer one."""
    return row.begins, not row.offsets
