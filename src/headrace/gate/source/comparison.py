"""Comparison of a gate's ledger with its query's checkpoint and with its log.

The checkpoint is Spark's own record of a query's planned and committed batches, stored apart from
the ledger. A ledger may be free of inner contradictions and still be wrong: restored from an old
copy, or with all rows changed consistently. Then it contradicts the checkpoint.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, merge, partitions_of
from headrace.errors import OptionError
from headrace.gate.ledger.checkpoints import CheckpointRecord
from headrace.gate.ledger.ledger import Ledger
from headrace.gate.ledger.proof import Finding, FindingKind
from headrace.gate.ledger.records import batch_key
from headrace.gate.source.checkpoint import Checkpoint, PlannedRead
from headrace.gate.source.log import Log, Topic
from headrace.gate.source.stream_offset import StreamOffset


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing a gate's ledger with its query's checkpoint, or with its log.

    Attributes:
        findings: Ranges of committed batches that are missing in the ledger.
        contradictions: Sentences about offsets on which the ledger disagrees with the checkpoint or
            the log.
        notes: Sentences about the scope of the comparison, and about harmless differences.
    """

    findings: tuple[Finding, ...] = ()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def gates_in(checkpoint: Checkpoint) -> list[str]:
    """Return the sorted names of the gates to which a checkpoint's sources belong."""
    gates = {read.end.gate for read in checkpoint.reads()} | {
        source.offset.gate
        for source in checkpoint.planned[checkpoint.newest].sources
        if source.offset is not None
    }
    return sorted(gate for gate in gates if gate is not None)


def refuse_a_stranger(checkpoint: Checkpoint, gates: Collection[str]) -> None:
    """Raise `OptionError` unless a checkpoint belongs to one of these gates."""
    names = gates_in(checkpoint)
    if not set(names) & set(gates):
        named = ", ".join(names) or "none at all"
        raise OptionError(
            f"The checkpoint {checkpoint.path} does not belong to a gate that is verified"
            f" ({', '.join(sorted(gates)) or 'there is none'}); its gates: {named}."
        )


def compare_with_checkpoint(
    ledger: Ledger, gate: str, path: str, known: Sequence[CheckpointRecord]
) -> Comparison:
    """Compare a gate's batches in the ledger with the checkpoint of its query, even while it runs.

    ``known`` contains the ledger's rows of the gate's checkpoints. The caller must read them before
    this call reads the checkpoint.
    """
    # Spark writes a batch's offsets before the batch begins in the ledger. So the ledger, read
    # after the checkpoint, has all batches that the checkpoint has committed; and the checkpoint
    # has all batches in `known`, which was read first.
    checkpoint = Checkpoint.read(path)
    reads = [read for read in checkpoint.reads() if read.end.gate == gate and not read.end.replay]
    names = [record.name for record in ledger.gates.all()]
    findings: list[Finding] = []
    notes: list[str] = []
    unknown = [read for read in reads if read.ranges and not _is_there(ledger, gate, names, read)]
    covers = _covers(ledger, gate, unknown)
    for read in unknown:
        missing = list(_missing(gate, read, covers))
        if read.is_committed:
            findings += missing
        elif missing:
            notes.append(
                f"Batch {read.number} of the checkpoint is planned but not begun; it runs when the"
                " query is started."
            )
    ends = _ends(checkpoint, gate)
    described = [*_compared(checkpoint, reads), *notes, *_left(known, ends)]
    return Comparison(tuple(findings), tuple(_beyond(known, ends)), tuple(described))


def _compared(checkpoint: Checkpoint, reads: Sequence[PlannedRead]) -> Iterator[str]:
    """Yield one sentence that names the compared batches; nothing if there are none."""
    if reads:
        yield (
            f"Batches {reads[0].number} to {reads[-1].number} of the checkpoint {checkpoint.path}"
            " were compared; Spark keeps no other batches."
        )


def _left(known: Sequence[CheckpointRecord], ends: Sequence[StreamOffset]) -> Iterator[str]:
    """Yield one sentence if the gate's newest batch belongs to another checkpoint."""
    newest = max(known, key=lambda record: record.begins, default=None)
    if newest is not None and newest.checkpoint_id not in {end.checkpoint_id for end in ends}:
        yield (
            f"The gate's last batch belongs to another checkpoint, {newest.checkpoint_id}, whose"
            " batches were not compared."
        )


def _ends(checkpoint: Checkpoint, gate: str) -> list[StreamOffset]:
    """Return the offsets at which the newest batch ends, one for each source of this gate."""
    offsets = (source.offset for source in checkpoint.planned[checkpoint.newest].sources)
    return [offset for offset in offsets if offset is not None and offset.gate == gate]


def _is_there(ledger: Ledger, gate: str, gates: Sequence[str], read: PlannedRead) -> bool:
    """Return whether the ledger has the batch of a planned read, under any gate's name."""
    # A batch may have been planned under one name of the gate, and begun under another name.
    for name in (gate, *(other_gate for other_gate in gates if other_gate != gate)):
        key = batch_key(name, read.end.checkpoint_id, read.ranges, read.end.topic_ids)
        if ledger.batches.get(key) is not None:
            return True
    return False


_Place = tuple[str, str | None, TopicPartition]


def _place(read: PlannedRead, offsets: OffsetRange) -> _Place:
    topic_id = read.end.topic_ids.get(offsets.topic)
    return read.end.checkpoint_id, topic_id, offsets.topic_partition


def _covers(
    ledger: Ledger, gate: str, unknown: Sequence[PlannedRead]
) -> Mapping[_Place, Sequence[OffsetRange]]:
    """Return the offsets of the ledger's batches and losses, for the partitions of unknown batches.

    The ledger has no batch with the key of an unknown batch. The batch may have been pruned, or
    replaced by one dead batch after a restore of the ledger. So only its offsets can be compared.
    """
    starts: dict[_Place, int] = {}
    for read in unknown:
        for offsets in read.ranges:
            place = _place(read, offsets)
            starts[place] = min(offsets.start, starts.get(place, offsets.start))
    if not starts:
        return {}
    covers: dict[_Place, list[OffsetRange]] = {place: [] for place in starts}
    for covered in ledger.history.coverage(gate):
        place = covered.checkpoint_id, covered.topic_id, covered.offsets.topic_partition
        if place in starts and covered.offsets.until > starts[place]:
            covers[place].append(covered.offsets)
    for loss in ledger.history.losses(gate):
        for place in starts:
            if place[1:] == (loss.topic_id, loss.offsets.topic_partition):
                covers[place].append(loss.offsets)
    return {place: merge(own).get(place[2], ()) for place, own in covers.items()}


def _missing(
    gate: str, read: PlannedRead, covers: Mapping[_Place, Sequence[OffsetRange]]
) -> Iterator[Finding]:
    key = batch_key(gate, read.end.checkpoint_id, read.ranges, read.end.topic_ids)
    for offsets in read.ranges:
        place = _place(read, offsets)
        for left in offsets.subtract(covers[place]):
            yield Finding(FindingKind.MISSING, left, place[0], key, topic_id=place[1])


def _beyond(known: Sequence[CheckpointRecord], ends: Sequence[StreamOffset]) -> Iterator[str]:
    """Yield a sentence for each range that is planned in the ledger, but not in the checkpoint."""
    by_run = {end.checkpoint_id: end for end in ends}
    for kept in known:
        end = by_run.get(kept.checkpoint_id)
        if end is None or end.topic_ids.get(kept.topic) != kept.topic_id:
            continue
        for tp, reached in sorted(end.positions.items()):
            until = kept.untils.get(tp.partition, 0) if tp.topic == kept.topic else 0
            if until > reached:
                behind = tp.range(reached, until)
                yield (
                    f"The ledger has a batch of {behind}, which the checkpoint has never planned:"
                    " the checkpoint is an older copy, or not the checkpoint that this gate's"
                    " query uses."
                )


def compare_with_log(
    ledger: Ledger,
    gate: str,
    known: Sequence[CheckpointRecord],
    log_of: Callable[[Sequence[OffsetRange]], Log],
) -> Comparison:
    """Compare a gate's planned ranges with the offsets that the log has now. Close the log."""
    hulls = _hulls(known)
    wanted = [offsets for offsets in _one_of_each_partition(hulls) if offsets.count]
    if not wanted:
        return Comparison()
    log = log_of(wanted)
    try:
        topics = log.topics()
        earliest, latest = log.bounds(partitions_of({n: t.partitions for n, t in topics.items()}))
        name = log.name
    finally:
        log.close()
    gone = sorted({offsets.topic for offsets in wanted} - topics.keys())
    notes = [f"{name} has no {topic!r} any more, so that was not compared." for topic in gone]
    return Comparison(
        contradictions=(
            *_planned_beyond(name, hulls, topics, latest),
            *_gone_unread(ledger, gate, name, hulls, topics),
        ),
        notes=(*notes, *_not_read(name, hulls, topics, earliest, latest)),
    )


_Hulls = Mapping[tuple[TopicPartition, str | None], OffsetRange]


def _hulls(known: Sequence[CheckpointRecord]) -> _Hulls:
    """Return the range from the lowest to the highest planned offset, by partition and topic id."""
    hulls: dict[tuple[TopicPartition, str | None], OffsetRange] = {}
    for kept in known:
        for partition, start in kept.starts.items():
            place = TopicPartition(kept.topic, partition), kept.topic_id
            until = kept.untils.get(partition, start)
            hull = hulls.get(place, OffsetRange(kept.topic, partition, start, until))
            hulls[place] = OffsetRange(
                kept.topic, partition, min(hull.start, start), max(hull.until, until)
            )
    return hulls


def _one_of_each_partition(hulls: _Hulls) -> list[OffsetRange]:
    return list({tp: offsets for (tp, _), offsets in sorted(hulls.items(), key=str)}.values())


def _planned_beyond(
    name: str, hulls: _Hulls, topics: Mapping[str, Topic], latest: Positions
) -> Iterator[str]:
    for (tp, topic_id), hull in sorted(hulls.items(), key=str):
        topic = topics.get(tp.topic)
        if topic is None or not topic.may_be(topic_id):
            continue
        end = latest.get(tp)
        if end is None:
            yield f"{name} has no {tp}, and the ledger has batches of {hull}."
        elif end < hull.until:
            yield (
                f"{name} has {tp} up to {end}, and the ledger has batches of {hull}: the log has"
                " lost its last records, or is another log."
            )


def _gone_unread(
    ledger: Ledger, gate: str, name: str, hulls: _Hulls, topics: Mapping[str, Topic]
) -> Iterator[str]:
    """For missing topics, yield a sentence for each unread range that is not counted as lost."""
    gone = {
        (tp, topic_id): hull
        for (tp, topic_id), hull in hulls.items()
        if tp.topic not in topics or not topics[tp.topic].may_be(topic_id)
    }
    if not gone:
        return
    seen, losses = ledger.history.latest_seen(gate), ledger.history.losses(gate)
    for (tp, topic_id), hull in sorted(gone.items(), key=str):
        unread = tp.range(hull.until, max(hull.until, seen.get((tp, topic_id), 0)))
        own = (loss.offsets for loss in losses if loss.topic_id == topic_id)
        counted = merge(own).get(tp, ())
        for offsets in unread.subtract(counted):
            yield (
                f"{name} has no {tp.topic!r} of these batches any more, and no batch has read"
                f" {offsets} and perhaps more; the query counts these offsets as lost when it"
                " starts with failOnDataLoss=false."
            )


def _not_read(
    name: str,
    hulls: _Hulls,
    topics: Mapping[str, Topic],
    earliest: Positions,
    latest: Positions,
) -> Iterator[str]:
    """Yield a sentence for each range of the log that is in no planned batch."""
    for tp in sorted(latest):
        own = [
            hull
            for (place, topic_id), hull in hulls.items()
            if place == tp and topics[tp.topic].may_be(topic_id)
        ]
        begin, end = earliest[tp], latest[tp]
        if not own:
            if begin < end:
                rest = tp.range(begin, end)
                yield f"{name} has {rest}, and no batch has read any of that partition yet."
            continue
        start, until = min(hull.start for hull in own), max(hull.until for hull in own)
        if begin < start:
            before = tp.range(begin, min(start, end))
            yield f"{name} has {before}, which lies before all planned offsets."
        if until < end:
            behind = tp.range(max(until, begin), end)
            yield f"{name} has {behind}, which is not planned yet."
