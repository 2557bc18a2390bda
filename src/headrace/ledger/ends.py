"""Whether a gate's batches agree with what the ledger keeps of them in other rows.

Ranges that follow each other prove nothing of what came before the first, or behind the last one.
What each checkpoint has planned is kept beside its batches: where it began, where it stands, and
how many offsets lie between, losses left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from headrace.core.ranges import OffsetRange
from headrace.ledger.checkpoints import CheckpointRecord, Kept
from headrace.ledger.findings import Finding, FindingKind
from headrace.ledger.records import Covered

Topic = tuple[str, str, str | None]
"""The checkpoint, the topic, and the topic's id."""


class Tally:
    """What the batches come to, counted on the way to whoever looks at each of them."""

    def __init__(self) -> None:
        self.hulls: dict[Topic, dict[int, OffsetRange]] = defaultdict(dict)
        """From the first to the last offset that a batch reads, by partition."""
        self.offsets: dict[Topic, int] = defaultdict(int)
        """How many offsets the batches have, parts not counted."""

    def of(self, coverage: Iterable[Covered]) -> Iterator[Covered]:
        """The same ranges, counted."""
        for each in coverage:
            if each.parent is None:
                self._count(each)
            yield each

    def _count(self, each: Covered) -> None:
        at, topic = each.offsets, (each.run_id, each.offsets.topic, each.topic_id)
        self.offsets[topic] += at.count
        hulls = self.hulls[topic]
        hull = hulls.get(at.partition, at)
        start, until = min(hull.start, at.start), max(hull.until, at.until)
        if (start, until) != (hull.start, hull.until) or hull is at:
            hulls[at.partition] = replace(at, start=start, until=until)


def unlike(tally: Tally, before: Kept | None, after: Kept | None) -> list[Finding]:
    """Ranges that were planned and that no batch has, or the other way round.

    Args:
        tally: Of the batches.
        before: What was kept before these were read.
        after: What was kept after that: a gate that runs has planned more meanwhile.
    """
    least, most = _by_topic(before), _by_topic(after)
    found: list[Finding] = []
    for topic in sorted({*most, *tally.hulls}, key=lambda topic: (*topic[:2], topic[2] or "")):
        hulls = tally.hulls.get(topic, {})
        found += _unlike(topic, hulls, least.get(topic), most.get(topic))
    return found


def contradictions(tally: Tally, before: Kept | None, after: Kept | None) -> list[str]:
    """What else the ledger's rows say against each other, a sentence each."""
    if after is None:
        return ["The row that declares the gate is not there, but others of the gate are."]
    found: list[str] = []
    least = _by_topic(before)
    for topic, kept in _by_topic(after).items():
        known = least[topic].offsets if topic in least else 0
        counted = tally.offsets.get(topic, 0)
        if kept.starts.keys() != kept.untils.keys():
            found.append(
                f"Checkpoint {kept.run_id} has begun in other partitions of {kept.topic} than it "
                "has reached."
            )
        if not known <= counted <= kept.offsets:
            found.append(
                f"Checkpoint {kept.run_id} has planned {kept.offsets} offsets of {kept.topic}, and "
                f"its batches have {counted}."
            )
    if after.losses != after.lost_offsets:
        found.append(
            f"{after.lost_offsets} offsets were counted as lost, and the losses that are there "
            f"have {after.losses}."
        )
    return [*found, *_about_begins(after), *_about_positions(after)]


def _by_topic(kept: Kept | None) -> dict[Topic, CheckpointRecord]:
    records = () if kept is None else kept.checkpoints
    return {(each.run_id, each.topic, each.topic_id): each for each in records}


def _unlike(
    topic: Topic,
    hulls: Mapping[int, OffsetRange],
    least: CheckpointRecord | None,
    most: CheckpointRecord | None,
) -> Iterator[Finding]:
    """Of one checkpoint and topic."""
    run_id, name, topic_id = topic

    def finding(kind: FindingKind, partition: int, start: int, until: int) -> Iterator[Finding]:
        if start < until:
            offsets = OffsetRange(name, partition, start, until)
            yield Finding(kind, offsets, run_id, topic_id=topic_id)

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


def _about_begins(kept: Kept) -> Iterator[str]:
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


def _about_positions(kept: Kept) -> Iterator[str]:
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
        if position not in [(each.run_id, each.untils) for each in records]:
            yield (
                f"The gate goes on in the topic with the id {topic_id} where no checkpoint of it "
                "stands."
            )
