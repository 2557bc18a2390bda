"""Pure function from a stream's position and the cluster's offsets to the next batch's start.

The batch's end is the control law's business (``headrace.control.plan``). This is about the rest: a
partition that is new, one that is gone, a log that no longer holds our position, a topic that was
deleted and created again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.core.ranges import Positions, TopicPartition
from headrace.errors import DataLossError
from headrace.source.log import Topic
from headrace.source.losses import MissingOffsets
from headrace.source.stream_offset import StreamOffset


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """Start of the next batch.

    Attributes:
        current: the next offset to read, for every partition that exists.
        begins: the part of ``current`` that is not where the last batch ended.
        topic_ids: the topics' ids now, and those of the topics that are out of sight.
        losses: offsets that cannot be read any more.
        out_of_sight: the next offset to read in topics that are gone, or that the query may not see
            now. Their losses were reported when they went.
        returned: the positions in topics that were out of sight and are there again: what was
            reported as lost of them is read after all.
    """

    current: dict[TopicPartition, int]
    begins: dict[TopicPartition, int]
    topic_ids: dict[str, str]
    losses: list[MissingOffsets]
    out_of_sight: dict[TopicPartition, int] = field(default_factory=dict)
    returned: dict[TopicPartition, int] = field(default_factory=dict)


def resolve_start_offsets(
    start: StreamOffset,
    topics: Mapping[str, Topic],
    earliest: Positions,
    latest: Positions,
    *,
    seen: Positions = MappingProxyType({}),
    cut: str | None = None,
) -> StartOffsets:
    """Match the last batch's end with the cluster.

    A new partition begins at its earliest offset. A position that the log no longer holds is moved
    to where reading can go on, and the offsets in between are a loss; the caller decides how to
    treat it. A topic that was deleted is lost up to where it was last ``seen``. Its positions are
    kept: a topic with the same id that comes back, as one that the query could not see, goes on
    there.

    If a log that never gives an offset twice ends before a position, ``cut`` says what to do:
    reading on from its end would take new records for those that were read, so it is a
    `DataLossError`. It is None for a log that may, as Kafka does after an unclean election.
    """
    found = StartOffsets(current={}, begins={}, topic_ids=_ids(topics), losses=[])
    for tp, begin in earliest.items():
        position = start.positions.get(tp)
        same_topic = _same_topic(tp, start, topics)
        if tp in start.out_of_sight and same_topic:
            position = found.returned[tp] = start.out_of_sight[tp]
        if cut is not None and position is not None and same_topic and position > latest[tp]:
            raise DataLossError(
                f"{tp} ends at offset {latest[tp]}, but this query has read it up to {position}:"
                f" its last records are gone, as after a backup that was put back; {cut}."
            )
        if position is not None and same_topic is False:
            why = f"{tp.topic} was deleted and created again"
            found.losses.append(_unread(tp, position, seen, why, start))
            moved_to, loss = begin, None
        else:
            moved_to, loss = _place(tp, position, begin, latest[tp], same_topic)
        found.current[tp] = moved_to
        if moved_to != start.positions.get(tp) or start.first:
            found.begins[tp] = moved_to
        if loss is not None:
            found.losses.append(loss)
    for tp, position in {**start.out_of_sight, **start.positions}.items():
        if tp in earliest:
            continue
        if tp in start.positions:
            why = f"{tp} does not exist any more"
            found.losses.append(_unread(tp, position, seen, why, start))
        if tp.topic not in topics:
            found.out_of_sight[tp] = position
            if tp.topic in start.topic_ids:
                found.topic_ids[tp.topic] = start.topic_ids[tp.topic]
    return found


def _unread(
    tp: TopicPartition, position: int, seen: Positions, why: str, start: StreamOffset
) -> MissingOffsets:
    """Return the unread rest of a deleted topic's partition, as far as it was seen."""
    until = max(position, seen.get(tp, position))
    at_least = ", and had at least these" if until > position else ""
    return MissingOffsets(tp.range(position, until), why + at_least, start.topic_ids.get(tp.topic))


def _place(
    tp: TopicPartition, position: int | None, begin: int, end: int, same_topic: bool | None
) -> tuple[int, MissingOffsets | None]:
    """Return the offset to read on from, and the loss."""

    def lost(start: int, until: int, why: str) -> MissingOffsets:
        return MissingOffsets(tp.range(start, until), why)

    if position is None:
        if begin == 0:
            return 0, None
        return begin, lost(0, begin, f"{tp} is new to this query and begins at {begin}")
    if position < begin:
        return begin, lost(position, begin, f"the log of {tp} begins at {begin} now")
    if position > end:
        # The same topic was cut by an unclean election: the remaining records were read. Without
        # ids from the brokers, a topic created again is likelier, and nothing of it was read.
        moved_to = end if same_topic else begin
        why = f"the log of {tp} ends at {end} now, before {position}; it is read on from {moved_to}"
        return moved_to, lost(position, position, why)
    return position, None


def _same_topic(
    tp: TopicPartition, start: StreamOffset, topics: Mapping[str, Topic]
) -> bool | None:
    """Whether the topic is the one read so far; None where its ids are not known."""
    known, now = start.topic_ids.get(tp.topic), topics[tp.topic].topic_id
    return None if known is None or now is None else known == now


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
