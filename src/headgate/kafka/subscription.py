"""What a source reads: its topics and partitions, and where to begin and end in each."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headgate.control.ranges import OffsetRange, TopicPartition
from headgate.errors import OptionError, SourceError
from headgate.kafka.bounds import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    AtTimes,
    Bound,
    Edge,
)
from headgate.kafka.lookup import Lookup, Topic
from headgate.kafka.positions import partitions_of
from headgate.kafka.values import partitions_by_topic


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics or partitions; one of the three is given.

    Attributes:
        option: the option that says so, for errors.
        topics: named topics.
        pattern: the topics in whose name it is found.
        partitions: named partitions.
    """

    option: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """Read ``subscribe``, ``subscribePattern`` or ``assign``.

    Raises:
        OptionError: none or more than one of them is given, or it is not of its form.
    """
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        who = f"{' and '.join(chosen)} say" if chosen else "Nothing says"
        raise OptionError(
            f"{who} which topics to read; give exactly one of subscribe, subscribePattern and"
            " assign."
        )
    option, text = chosen[0], given[chosen[0]]
    match option:
        case "subscribe":
            topics = tuple(dict.fromkeys(name for t in text.split(",") if (name := t.strip())))
            if not topics:
                raise OptionError(f"subscribe is {text!r}; name one topic, or several with commas.")
            return Subscription(option, topics=topics)
        case "subscribePattern":
            return Subscription(option, pattern=_pattern(text))
        case _:
            return Subscription(option, partitions=tuple(partitions_by_topic(option, text)))


def _pattern(text: str) -> re.Pattern[str]:
    if not text.strip():
        raise OptionError("subscribePattern is empty; write a regular expression of topic names.")
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(
            f"subscribePattern is {text!r}; it must be a regular expression, and this is not:"
            f" {error}."
        ) from error


class Cluster:
    """A subscription, matched with what the cluster has now.

    Every method raises ``BrokerError`` where the cluster cannot be reached.

    Args:
        subscription: what to read.
        lookup: asks the cluster.
    """

    def __init__(self, subscription: Subscription, lookup: Lookup) -> None:
        self._subscription = subscription
        self._lookup = lookup

    def topics(self, *, must_exist: bool = False) -> dict[str, Topic]:
        """The topics that exist now.

        Raises:
            SourceError: ``must_exist`` is set, and a named topic or partition is not there.
        """
        wanted = self._subscription
        if wanted.pattern is not None:
            return self._lookup.matching(wanted.pattern)
        names = wanted.topics or tuple(dict.fromkeys(tp.topic for tp in wanted.partitions))
        found = self._lookup.topics(names)
        if must_exist:
            missing: list[str] = [repr(name) for name in names if name not in found]
            missing += [
                str(tp)
                for tp in wanted.partitions
                if tp.topic in found and tp.partition not in found[tp.topic].partitions
            ]
            if missing:
                raise SourceError(
                    f"Kafka has no {' and no '.join(missing)} ({wanted.option}); make it, or"
                    " correct the name."
                )
        return found

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """Those partitions of the topics that are read."""
        existing = partitions_of({name: topic.partitions for name, topic in topics.items()})
        if not self._subscription.partitions:
            return existing
        assigned = set(self._subscription.partitions)
        return [tp for tp in existing if tp in assigned]

    def locate(
        self,
        bound: Bound,
        partitions: Iterable[TopicPartition],
        if_no_record: Callable[[TopicPartition, int], None] | None = None,
    ) -> dict[TopicPartition, int]:
        """The offset in each partition that a bound means now.

        Args:
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
                return self._lookup.earliest(wanted)
            case Edge.LATEST:
                return self._lookup.latest(wanted)
            case AtOffsets(positions):
                _require_each(bound.option, positions, wanted)
                return self._with_edges({tp: positions[tp] for tp in wanted})
            case AtTime(timestamp_ms):
                return self._at_times(dict.fromkeys(wanted, timestamp_ms), if_no_record)
            case AtTimes(timestamps_ms):
                _require_each(bound.option, timestamps_ms, wanted)
                return self._at_times({tp: timestamps_ms[tp] for tp in wanted}, if_no_record)

    def _with_edges(self, positions: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        earliest = self._lookup.earliest(tp for tp, o in positions.items() if o == EARLIEST_OFFSET)
        latest = self._lookup.latest(tp for tp, o in positions.items() if o == LATEST_OFFSET)
        return positions | earliest | latest

    def _at_times(
        self,
        timestamps_ms: dict[TopicPartition, int],
        if_no_record: Callable[[TopicPartition, int], None] | None,
    ) -> dict[TopicPartition, int]:
        found = self._lookup.at_timestamps(timestamps_ms)
        without = [tp for tp, offset in found.items() if offset is None]
        if if_no_record is not None:
            for tp in without:
                if_no_record(tp, timestamps_ms[tp])
        ends = self._lookup.latest(without)
        return {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}


def starting_positions(
    cluster: Cluster, starting: Bound, strategy: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where a read begins in each partition.

    Args:
        cluster: the cluster.
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

    return cluster.locate(starting, partitions, refuse)


def bounded_ranges(
    cluster: Cluster, starting: Bound, ending: Bound, strategy: str
) -> list[OffsetRange]:
    """What a bounded read reads, empty ranges left out.

    Raises:
        SourceError: a topic does not exist.
        OptionError: a bound cannot be met, or an end lies before its start.
    """
    partitions = cluster.partitions(cluster.topics(must_exist=True))
    starts = starting_positions(cluster, starting, strategy, partitions)
    ends = cluster.locate(ending, partitions)
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
