"""Bounds of a read: parse their options, resolve them to offsets, and find a batch's start.

This module computes the start of a batch; ``headrace.gate.control.plan`` computes its end. The
start takes into account new and deleted partitions, positions that the log no longer has, and
topics that were deleted and created again.

A broker's list lacks deleted topics, and also topics that the client may not see. The two cases
look the same. So the unread offsets of a missing topic, up to its last seen end, count as lost at
once. The position is kept: if a topic with the same id returns, the loss is withdrawn, and reading
continues.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headrace.core.options import offsets_by_partition, whole_number
from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.errors import DataLossError, OptionError
from headrace.gate.source.log import Log, Topic
from headrace.gate.source.losses import MissingOffsets
from headrace.gate.source.stream_offset import StreamOffset

LATEST_OFFSET: Final = -1
"""Placeholder in options for the end of the log."""
EARLIEST_OFFSET: Final = -2
"""Placeholder in options for the beginning of the log."""

_LAST: Final = 2**63 - 1
"""Largest possible offset, and largest possible time (ms): both are signed 64-bit numbers."""


class Edge(StrEnum):
    """Bound of a read at the beginning or at the end of each partition's log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Bound of a read at one offset per partition, or at the earliest or latest offset."""

    positions: Positions


@dataclass(frozen=True, slots=True)
class AtTime:
    """Bound of a read at the first record of each partition at or after one time (epoch ms)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Bound of a read at the first record at or after a time (epoch ms), one time per partition."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Start or end of a read, and the name of the option that sets it, for error messages."""

    option: str
    at: Edge | AtOffsets | AtTime | AtTimes


def starting_bound(raw: Mapping[str, str], default: Edge, *, streaming: bool) -> ReadBound:
    """Return the start of a read, from the options by exact name.

    A time for all partitions wins over times per partition, and these win over offsets, as in the
    native connector. OptionError is raised for a bounded read that starts at the latest offset.
    """
    bound = _bound(raw, "starting", default)
    if not streaming and (bound.at is Edge.LATEST or _mentions(bound, LATEST_OFFSET)):
        raise OptionError(
            f"{bound.option} is {raw[bound.option]!r}, which in a bounded read leaves nothing to"
            " read; set it to earliest, to offsets, or set a starting time."
        )
    return bound


def ending_bound(raw: Mapping[str, str]) -> ReadBound:
    """Return the end of a bounded read, from the options by exact name. Default: latest."""
    bound = _bound(raw, "ending", Edge.LATEST)
    if bound.at is Edge.EARLIEST or _mentions(bound, EARLIEST_OFFSET):
        raise OptionError(
            f"{bound.option} is {raw[bound.option]!r}, which leaves nothing to read; set it to"
            " latest, to offsets, or set an ending time."
        )
    return bound


def span_by_options(starting: ReadBound, ending: ReadBound, r: OffsetRange) -> int:
    """Return the size of a range as the native connector computes it, from unresolved bounds.

    The placeholders for the earliest offset (-2) and the latest offset (-1) enter the computation
    as numbers. So the result is the true count only if both bounds are offsets or times.
    """
    return _number(ending, r.topic_partition, r.until) - _number(
        starting, r.topic_partition, r.start
    )


def _number(bound: ReadBound, partition: TopicPartition, offset: int) -> int:
    match bound.at:
        case Edge.EARLIEST:
            return EARLIEST_OFFSET
        case Edge.LATEST:
            return LATEST_OFFSET
        case AtOffsets(positions):
            return positions.get(partition, offset)
        case _:
            return offset


def _bound(raw: Mapping[str, str], side: str, default: Edge) -> ReadBound:
    at_time, at_times, at_offsets = (
        f"{side}Timestamp",
        f"{side}OffsetsByTimestamp",
        f"{side}Offsets",
    )
    if at_time in raw:
        timestamp_ms = whole_number(at_time, raw[at_time], at_least=0)
        _check_time(at_time, timestamp_ms)
        return ReadBound(at_time, AtTime(timestamp_ms))
    if at_times in raw:
        times = offsets_by_partition(at_times, raw[at_times])
        for partition, timestamp_ms in times.items():
            _check_time(at_times, timestamp_ms, f" for {partition}")
        return ReadBound(at_times, AtTimes(times))
    text = raw.get(at_offsets, default).strip()
    if text.lower() in set(Edge):
        return ReadBound(at_offsets, Edge(text.lower()))
    if not text.startswith("{"):
        raise OptionError(
            f"{at_offsets} is {text!r}; it must be earliest, latest, or JSON with an offset for"
            ' each partition, such as {"orders": {"0": 23, "1": -1}}.'
        )
    positions = offsets_by_partition(at_offsets, text)
    for partition, offset in positions.items():
        if not EARLIEST_OFFSET <= offset <= _LAST:
            raise OptionError(
                f"{at_offsets} is {offset} for {partition}; it must be an offset from 0 to 2^63 -"
                " 1, -1 for the latest or -2 for the earliest."
            )
    return ReadBound(at_offsets, AtOffsets(positions))


def _check_time(option: str, timestamp_ms: int, of: str = "") -> None:
    if not 0 <= timestamp_ms <= _LAST:
        raise OptionError(
            f"{option} is {timestamp_ms}{of}; it must be a time in ms since 1970, from 0 to 2^63 -"
            " 1."
        )


def _mentions(bound: ReadBound, offset: int) -> bool:
    return isinstance(bound.at, AtOffsets) and offset in bound.at.positions.values()


def resolve_offsets(
    log: Log,
    bound: ReadBound,
    partitions: Iterable[TopicPartition],
    if_no_record: Callable[[TopicPartition, int], None] | None = None,
) -> Positions:
    """Ask the log for the current offset of a bound in each partition.

    If a partition has no record at or after the bound's time, ``if_no_record`` is called with the
    partition and the time (ms), and may raise. If it returns, the result is the latest offset.
    """
    wanted = list(partitions)
    match bound.at:
        case Edge.EARLIEST:
            return log.earliest(wanted)
        case Edge.LATEST:
            return log.latest(wanted)
        case AtOffsets(positions):
            _require_each(bound.option, positions, wanted)
            return _with_edges(log, {tp: positions[tp] for tp in wanted})
        case AtTime(timestamp_ms):
            return _at_times(log, dict.fromkeys(wanted, timestamp_ms), if_no_record)
        case AtTimes(timestamps_ms):
            _require_each(bound.option, timestamps_ms, wanted)
            return _at_times(log, {tp: timestamps_ms[tp] for tp in wanted}, if_no_record)


def starting_positions(
    log: Log, starting: ReadBound, strategy: str, partitions: Iterable[TopicPartition]
) -> Positions:
    """Return the offset at which a read starts in each partition.

    If a start time is after the last record, ``strategy`` decides: ``latest`` starts at the latest
    offset, and ``error`` raises OptionError.
    """

    def refuse(tp: TopicPartition, timestamp_ms: int) -> None:
        if strategy == "error":
            raise OptionError(
                f"{starting.option} is {timestamp_ms}, and {tp} has no record at or after that"
                " time; choose an earlier time, or set startingOffsetsByTimestampStrategy to"
                " latest."
            )

    return resolve_offsets(log, starting, partitions, refuse)


def bounded_ranges(
    log: Log, starting: ReadBound, ending: ReadBound, strategy: str
) -> list[OffsetRange]:
    """Return the non-empty ranges of a bounded read, one per partition."""
    partitions = log.partitions(log.topics(must_exist=True))
    starts = starting_positions(log, starting, strategy, partitions)
    ends = _readable(log, ending, starts, resolve_offsets(log, ending, partitions))
    ranges = []
    for tp in partitions:
        if starts[tp] > ends[tp]:
            raise OptionError(
                f"{starting.option} begins the read of {tp} at {starts[tp]}, past its end at"
                f" {ends[tp]} ({ending.option}); choose an earlier start or a later end."
            )
        if starts[tp] < ends[tp]:
            ranges.append(tp.range(starts[tp], ends[tp]))
    return ranges


def _readable(log: Log, ending: ReadBound, starts: Positions, ends: Positions) -> Positions:
    """Limit the ends of a read to readable records. Offsets set by options stay unchanged."""
    named = ending.at.positions if isinstance(ending.at, AtOffsets) else {}
    latest_ends = {
        tp: end for tp, end in ends.items() if named.get(tp, LATEST_OFFSET) == LATEST_OFFSET
    }
    readable = log.readable_until(latest_ends)
    return {**ends, **{tp: max(end, min(starts[tp], ends[tp])) for tp, end in readable.items()}}


def _with_edges(log: Log, positions: dict[TopicPartition, int]) -> Positions:
    earliest = log.earliest(tp for tp, o in positions.items() if o == EARLIEST_OFFSET)
    latest = log.latest(tp for tp, o in positions.items() if o == LATEST_OFFSET)
    return {**positions, **earliest, **latest}


def _at_times(
    log: Log,
    timestamps_ms: dict[TopicPartition, int],
    if_no_record: Callable[[TopicPartition, int], None] | None,
) -> Positions:
    offsets = log.at_timestamps(timestamps_ms)
    without = [tp for tp, offset in offsets.items() if offset is None]
    if if_no_record is not None:
        for tp in without:
            if_no_record(tp, timestamps_ms[tp])
    ends = log.latest(without)
    return {tp: ends[tp] if offset is None else offset for tp, offset in offsets.items()}


def _require_each(
    option: str, raw: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
) -> None:
    partitions = set(wanted)
    missing, unknown = partitions - raw.keys(), raw.keys() - partitions
    if missing or unknown:
        defect = f"leaves out {_few(missing)}" if missing else f"names {_few(unknown)}"
        raise OptionError(
            f"{option} {defect}; it must have a value for each partition that is read, and for no"
            " other partition (-1 is the latest offset, -2 the earliest)."
        )


def _few(partitions: Iterable[TopicPartition]) -> str:
    named = sorted(partitions)
    rest = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(map(str, named[:3])) + rest


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """Offsets at which the next batch starts, and the losses before them.

    Attributes:
        current: Next offset to read, for every partition that exists.
        begins: Entries of ``current`` that differ from the previous batch's end.
        topic_ids: Ids of the topics by name, including the topics in ``out_of_sight``.
        losses: Unread offsets that can no longer be read.
        out_of_sight: Next offset to read in topics that are gone, or that the query cannot see now.
            Losses in these topics were reported when the topics disappeared.
        returned: Next offset to read in topics that were missing and are visible again. Their
            records were reported as lost, and are now read after all.
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
    """Return the start of the next batch, from the previous batch's end and the current log.

    A new partition begins at its earliest offset. If the log no longer has a position, the batch
    starts at the next readable offset. The skipped offsets are returned as a loss, which the caller
    handles. A deleted topic is lost up to its last ``seen`` end. Its positions are kept: if a topic
    with the same id returns, for example when a permission is granted again, reading continues from
    them.

    ``cut`` is None for a log that may reuse offsets, as Kafka does after an unclean leader
    election. If ``cut`` is set, a log that ends before a position raises `DataLossError`, because
    new records up to the position would be skipped. ``cut`` is the advice in the message.
    """
    result = StartOffsets(current={}, begins={}, topic_ids=topic_ids_of(topics), losses=[])
    for tp, begin in earliest.items():
        position = start.positions.get(tp)
        same_topic = _same_topic(tp, start, topics)
        if tp in start.out_of_sight and same_topic:
            position = result.returned[tp] = start.out_of_sight[tp]
        if cut is not None and position is not None and same_topic and position > latest[tp]:
            raise DataLossError(
                f"{tp} ends at offset {latest[tp]}, but this query has read it up to {position}:"
                " its last records are gone, for example because an older backup was restored;"
                f" {cut}."
            )
        if position is not None and same_topic is False:
            why = f"{tp.topic} was deleted and created again"
            result.losses.append(_unread(tp, position, seen, why, start))
            moved_to, loss = begin, None
        else:
            moved_to, loss = _place(tp, position, begin, latest[tp], same_topic)
        result.current[tp] = moved_to
        if moved_to != start.positions.get(tp) or start.first:
            result.begins[tp] = moved_to
        if loss is not None:
            result.losses.append(loss)
    for tp, position in {**start.out_of_sight, **start.positions}.items():
        if tp in earliest:
            continue
        if tp in start.positions:
            why = f"{tp} does not exist any more"
            result.losses.append(_unread(tp, position, seen, why, start))
        if tp.topic not in topics:
            result.out_of_sight[tp] = position
            if tp.topic in start.topic_ids:
                result.topic_ids[tp.topic] = start.topic_ids[tp.topic]
    return result


def _unread(
    tp: TopicPartition, position: int, seen: Positions, why: str, start: StreamOffset
) -> MissingOffsets:
    """Return the loss of a deleted partition: its unread offsets up to the last seen end."""
    until = max(position, seen.get(tp, position))
    at_least = ", and had at least these" if until > position else ""
    return MissingOffsets(tp.range(position, until), why + at_least, start.topic_ids.get(tp.topic))


def _place(
    tp: TopicPartition, position: int | None, begin: int, end: int, same_topic: bool | None
) -> tuple[int, MissingOffsets | None]:
    """Return the offset at which reading of a partition continues, and the loss or None."""

    def lost(start: int, until: int, why: str) -> MissingOffsets:
        return MissingOffsets(tp.range(start, until), why)

    if position is None:
        if begin == 0:
            return 0, None
        return begin, lost(0, begin, f"{tp} is new to this query and begins at {begin}")
    if position < begin:
        return begin, lost(position, begin, f"the log of {tp} begins at {begin} now")
    if position > end:
        # An unclean election has cut the same topic: its remaining records were read. Without ids
        # from the brokers, a recreated topic is likelier, and none of its records were read.
        moved_to = end if same_topic else begin
        why = f"the log of {tp} ends at {end} now, before {position}; it is read on from {moved_to}"
        return moved_to, lost(position, position, why)
    return position, None


def _same_topic(
    tp: TopicPartition, start: StreamOffset, topics: Mapping[str, Topic]
) -> bool | None:
    """Return whether a partition's topic has the same id as before; None if an id is unknown."""
    previous, now = start.topic_ids.get(tp.topic), topics[tp.topic].topic_id
    return None if previous is None or now is None else previous == now


def topic_ids_of(topics: Mapping[str, Topic]) -> dict[str, str]:
    """Return the ids of topics by name, without topics whose id is unknown."""
    return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
