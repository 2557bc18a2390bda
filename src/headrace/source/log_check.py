"""Whether a ledger's batches lie within the log they were read from, and what that has more."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, partitions_of
from headrace.ledger import Kept
from headrace.source.checkpoint_check import Comparison
from headrace.source.log import Log, Topic


def compare(known: Kept | None, log_of: Callable[[Sequence[OffsetRange]], Log]) -> Comparison:
    """Compare what a gate has planned with the log as it is now.

    Args:
        known: What the ledger keeps of the gate.
        log_of: The log that these ranges are read from; it is closed again.

    Raises:
        OptionError: An option of the log is wrong.
        BrokerError: The brokers cannot be reached.
        JournalError: The journal cannot be read.
    """
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
        contradictions=tuple(_beyond(name, hulls, topics, latest)),
        notes=(*notes, *_not_read(name, hulls, topics, earliest, latest)),
    )


_Hulls = Mapping[tuple[TopicPartition, str | None], OffsetRange]


def _hulls(known: Kept | None) -> _Hulls:
    """From the lowest to the highest offset that any checkpoint has planned."""
    found: dict[tuple[TopicPartition, str | None], OffsetRange] = {}
    for kept in known.checkpoints if known else ():
        for partition, start in kept.starts.items():
            place = TopicPartition(kept.topic, partition), kept.topic_id
            until = kept.untils.get(partition, start)
            hull = found.get(place, OffsetRange(kept.topic, partition, start, until))
            found[place] = OffsetRange(
                kept.topic, partition, min(hull.start, start), max(hull.until, until)
            )
    return found


def _one_of_each_partition(hulls: _Hulls) -> list[OffsetRange]:
    return list({tp: offsets for (tp, _), offsets in sorted(hulls.items(), key=str)}.values())


def _is_of(topic_id: str | None, topic: Topic) -> bool:
    return None in {topic_id, topic.topic_id} or topic_id == topic.topic_id


def _beyond(
    name: str, hulls: _Hulls, topics: Mapping[str, Topic], latest: Positions
) -> Iterator[str]:
    for (tp, topic_id), hull in sorted(hulls.items(), key=str):
        topic = topics.get(tp.topic)
        if topic is None or not _is_of(topic_id, topic):
            continue
        end = latest.get(tp)
        if end is None:
            yield f"{name} has no {tp}, and the ledger has batches of {hull}."
        elif end < hull.until:
            yield (
                f"{name} has {tp} up to {end}, and the ledger has batches of {hull}: it was cut, or"
                " is another one."
            )


def _not_read(
    name: str,
    hulls: _Hulls,
    topics: Mapping[str, Topic],
    earliest: Positions,
    latest: Positions,
) -> Iterator[str]:
    """What the log has and no batch reads."""
    for tp in sorted(latest):
        own = [
            hull
            for (place, topic_id), hull in hulls.items()
            if place == tp and _is_of(topic_id, topics[tp.topic])
        ]
        begin, end = earliest[tp], latest[tp]
        if not own:
            if begin < end:
                rest = OffsetRange(tp.topic, tp.partition, begin, end)
                yield f"{name} has {rest}, and no batch has read any of that partition yet."
            continue
        start, until = min(hull.start for hull in own), max(hull.until for hull in own)
        if begin < start:
            before = OffsetRange(tp.topic, tp.partition, begin, min(start, end))
            yield f"{name} has {before}, which lies before all that was planned."
        if until < end:
            behind = OffsetRange(tp.topic, tp.partition, max(until, begin), end)
            yield f"{name} has {behind}, which is not planned yet."
