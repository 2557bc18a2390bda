"""Where a read begins and ends in each partition: what a bound means in a log as it is now."""

from collections.abc import Callable, Iterable, Mapping

from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.errors import OptionError
from headrace.source.bounds import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    Edge,
)
from headrace.source.log import Log


def locate(
    log: Log,
    bound: Bound,
    partitions: Iterable[TopicPartition],
    if_no_record: Callable[[TopicPartition, int], None] | None = None,
) -> Positions:
    """The offset in each partition that a bound means now.

    Args:
        log: the log.
        bound: where.
        partitions: the partitions.
        if_no_record: called with a partition and the time asked for (ms) where no record is at
            or after it; it may raise. The answer is the latest offset then.

    Raises:
        OptionError: a bound with a value for each partition has not one for each.
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
    log: Log, starting: Bound, strategy: str, partitions: Iterable[TopicPartition]
) -> Positions:
    """Where a read begins in each partition.

    Args:
        log: the log.
        starting: where.
        strategy: ``latest``, or ``error`` to refuse a time that no record is at or after.
        partitions: the partitions.

    Raises:
        OptionError: the bound cannot be met.
    """

    def refuse(tp: TopicPartition, timestamp_ms: int) -> None:
        if strategy == "error":
            raise OptionError(
                f"{starting.option} is {timestamp_ms}, and {tp} has no record at or after that"
                " time; choose an earlier one, or set startingOffsetsByTimestampStrategy to latest."
            )

    return locate(log, starting, partitions, refuse)


def bounded_ranges(log: Log, starting: Bound, ending: Bound, strategy: str) -> list[OffsetRange]:
    """What a bounded read reads, empty ranges left out.

    Raises:
        SourceError: a topic does not exist.
        OptionError: a bound cannot be met, or an end lies before its start.
    """
    partitions = log.partitions(log.topics(must_exist=True))
    starts = starting_positions(log, starting, strategy, partitions)
    ends = _decided(log, ending, starts, locate(log, ending, partitions))
    ranges = []
    for tp in partitions:
        if starts[tp] > ends[tp]:
            raise OptionError(
                f"{starting.option} begins the read of {tp} at {starts[tp]}, past its end at"
                f" {ends[tp]} ({ending.option}); choose an earlier start or a later end."
            )
        if starts[tp] < ends[tp]:
            ranges.append(OffsetRange(tp.topic, tp.partition, starts[tp], ends[tp]))
    return ranges


def _decided(log: Log, ending: Bound, starts: Positions, ends: Positions) -> Positions:
    """No further than it is known what is to be read, except where an offset was named."""
    named = ending.at.positions if isinstance(ending.at, AtOffsets) else {}
    found = {tp: end for tp, end in ends.items() if named.get(tp, LATEST_OFFSET) == LATEST_OFFSET}
    decided = log.decided(found)
    return {**ends, **{tp: max(end, min(starts[tp], ends[tp])) for tp, end in decided.items()}}


def _with_edges(log: Log, positions: dict[TopicPartition, int]) -> Positions:
    earliest = log.earliest(tp for tp, o in positions.items() if o == EARLIEST_OFFSET)
    latest = log.latest(tp for tp, o in positions.items() if o == LATEST_OFFSET)
    return {**positions, **earliest, **latest}


def _at_times(
    log: Log,
    timestamps_ms: dict[TopicPartition, int],
    if_no_record: Callable[[TopicPartition, int], None] | None,
) -> Positions:
    found = log.at_timestamps(timestamps_ms)
    without = [tp for tp, offset in found.items() if offset is None]
    if if_no_record is not None:
        for tp in without:
            if_no_record(tp, timestamps_ms[tp])
    ends = log.latest(without)
    return {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}


def _require_each(
    option: str, given: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
) -> None:
    partitions = set(wanted)
    missing, unknown = partitions - given.keys(), given.keys() - partitions
    if missing or unknown:
        said = f"leaves out {_few(missing)}" if missing else f"names {_few(unknown)}"
        raise OptionError(
            f"{option} {said}; it must have a value for each partition that is read, and no other"
            " (-1 is the latest offset, -2 the earliest)."
        )


def _few(partitions: Iterable[TopicPartition]) -> str:
    named = sorted(partitions)
    rest = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return ", ".join(map(str, named[:3])) + rest
