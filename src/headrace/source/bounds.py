"""Where a read begins or ends, as the user wrote it: a word, offsets, or times."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.core.options import offsets_by_partition, whole_number
from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.errors import OptionError

LATEST_OFFSET: Final = -1
"""In an offset's place: the end of the log."""
EARLIEST_OFFSET: Final = -2
"""In an offset's place: the beginning of the log."""


class Edge(StrEnum):
    """The beginning or the end of each partition's log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; ``LATEST_OFFSET`` and ``EARLIEST_OFFSET`` are allowed."""

    positions: Positions


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of each partition at or after a time (ms since the epoch)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same with a time for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read.

    Attributes:
        option: the option that says so, for errors.
        at: where.
    """

    option: str
    at: Edge | AtOffsets | AtTime | AtTimes


def starting_bound(given: Mapping[str, str], default: Edge, *, streaming: bool) -> Bound:
    """Where to begin; the most specific of the three options counts, as in the native connector.

    Args:
        given: the options by their exact names.
        default: where none is given.
        streaming: whether "from now on" has a meaning.

    Raises:
        OptionError: the option that counts is not of its form.
    """
    bound = _bound(given, "starting", default)
    if not streaming and (bound.at is Edge.LATEST or _mentions(bound, LATEST_OFFSET)):
        raise OptionError(
            f"{bound.option} is {given[bound.option]!r}, which in a bounded read leaves nothing to"
            " read; write earliest, offsets or a time."
        )
    return bound


def ending_bound(given: Mapping[str, str]) -> Bound:
    """Where a bounded read ends; the latest offsets unless told otherwise.

    Raises:
        OptionError: the option that counts is not of its form.
    """
    bound = _bound(given, "ending", Edge.LATEST)
    if bound.at is Edge.EARLIEST or _mentions(bound, EARLIEST_OFFSET):
        raise OptionError(
            f"{bound.option} is {given[bound.option]!r}, which leaves nothing to read; write"
            " latest, offsets or a time."
        )
    return bound


def span_by_options(starting: Bound, ending: Bound, r: OffsetRange) -> int:
    """How many offsets the native connector counts in a range before it has looked up its ends.

    Its numbers for the earliest and the latest offset are then taken for offsets, so only where
    offsets or times are named it is the range's own count.
    """
    return _number(ending, r.topic_partition, r.until) - _number(
        starting, r.topic_partition, r.start
    )


def _number(bound: Bound, partition: TopicPartition, offset: int) -> int:
    match bound.at:
        case Edge.EARLIEST:
            return EARLIEST_OFFSET
        case Edge.LATEST:
            return LATEST_OFFSET
        case AtOffsets(positions):
            return positions.get(partition, offset)
        case _:
            return offset


def _bound(given: Mapping[str, str], side: str, default: Edge) -> Bound:
    at_time, at_times, at_offsets = (
        f"{side}Timestamp",
        f"{side}OffsetsByTimestamp",
        f"{side}Offsets",
    )
    if at_time in given:
        return Bound(at_time, AtTime(whole_number(at_time, given[at_time], at_least=0)))
    if at_times in given:
        times = offsets_by_partition(at_times, given[at_times])
        for partition, timestamp_ms in times.items():
            if timestamp_ms < 0:
                raise OptionError(
                    f"{at_times} is {timestamp_ms} for {partition}; it must be a time in ms since"
                    " 1970."
                )
        return Bound(at_times, AtTimes(times))
    text = given.get(at_offsets, default).strip()
    if text.lower() in set(Edge):
        return Bound(at_offsets, Edge(text.lower()))
    if not text.startswith("{"):
        raise OptionError(
            f"{at_offsets} is {text!r}; it must be earliest, latest, or JSON with an offset for"
            ' each partition, such as {"orders": {"0": 23, "1": -1}}.'
        )
    positions = offsets_by_partition(at_offsets, text)
    for partition, offset in positions.items():
        if offset < EARLIEST_OFFSET:
            raise OptionError(
                f"{at_offsets} is {offset} for {partition}; it must be an offset, -1 for the latest"
                " or -2 for the earliest."
            )
    return Bound(at_offsets, AtOffsets(positions))


def _mentions(bound: Bound, offset: int) -> bool:
    return isinstance(bound.at, AtOffsets) and offset in bound.at.positions.values()
