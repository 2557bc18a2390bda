"""Replay of planned ranges: their end as an offset, and the part of them that still exists."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.errors import SourceError
from headrace.source.log import Log, Topic, declared_lost
from headrace.source.stream_offset import StreamOffset

if TYPE_CHECKING:
    from headrace.ledger import PlannedRange


def replay_end(ranges: "Sequence[PlannedRange]", following: Path) -> dict[str, Any]:
    """The end of a batch of exactly these ranges, for a query that reads batches once more.

    They are at most one of each partition, none empty; ``following`` is the file in which the end
    of the batch after it will be found.
    """
    return StreamOffset(
        positions={each.offsets.topic_partition: each.offsets.until for each in ranges},
        begins={each.offsets.topic_partition: each.offsets.start for each in ranges},
        topic_ids=planned_ids(ranges),
        replay=str(following),
    ).to_json()


def planned_ids(ranges: "Sequence[PlannedRange]") -> dict[str, str]:
    """The ids of these ranges' topics when they were planned, where that is known."""
    return {each.offsets.topic: each.topic_id for each in ranges if each.topic_id is not None}


def next_replay(end: StreamOffset) -> dict[str, Any] | None:
    """The end of the batch that is to be read after this one, once it is requested."""
    try:
        text = Path(end.replay).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return StreamOffset.from_json(json.loads(text)).to_json()
    except (json.JSONDecodeError, AttributeError) as error:
        raise SourceError(
            f"The file {end.replay} is to say what is read again, and does not; start the query"
            " again."
        ) from error


def beginnings(log: Log, ranges: "Sequence[PlannedRange]") -> Positions:
    """Return the first offset of each of these partitions whose topic is as planned."""
    return log.earliest(as_planned(log, ranges))


def gone(log: Log, ranges: "Sequence[PlannedRange]") -> list[OffsetRange]:
    """Return the parts of the ranges that are not in the log any more; all of a missing topic's.

    A topic that was recreated under its name is not the one that was planned. Ranges that were
    declared lost are not in the log any more either, wherever they lie.
    """
    begins = beginnings(log, ranges)
    found: list[OffsetRange] = []
    for planned in ranges:
        offsets = planned.offsets
        begin = begins.get(offsets.topic_partition, offsets.until)
        missing, there = offsets.split_at(begin)
        found += [missing] if missing.count else []
        found += declared_lost(log, [there]) if there.count else []
    return found


def as_planned(log: Log, ranges: "Sequence[PlannedRange]") -> list[TopicPartition]:
    """The partitions of these ranges that are as planned."""
    topics = log.topics()
    return sorted({each.offsets.topic_partition for each in ranges if _is_of(each, topics)})


def _is_of(planned: "PlannedRange", topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(planned.offsets.topic)
    if topic is None or planned.offsets.partition not in topic.partitions:
        return False
    return None in {planned.topic_id, topic.topic_id} or planned.topic_id == topic.topic_id
