"""Read ranges of a stream once more: as a bounded read, with the stream's own connection."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from headgate.control import OffsetRange, TopicPartition
from headgate.kafka.lookup import Lookup
from headgate.kafka.options import parse_options
from headgate.kafka.positions import nested

# Of a stream's options, those that say how Kafka is reached and what a record's columns are; where
# to read, and how much, is the ranges' business.
_KEPT: Final = frozenset(
    {
        "includeheaders",
        "groupidprefix",
        "minpartitions",
        "maxrecordsperpartition",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    }
)


def replay_options(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """The options of a bounded read of exactly these ranges.

    Offsets that are gone are an error, whatever the stream's ``failOnDataLoss``: nothing of a batch
    that is run again may disappear.

    Args:
        options: the stream's, in any case.
        ranges: at most one of each partition, none of them empty.
    """
    kept = {
        name: value
        for name, value in options.items()
        if name.lower() in _KEPT or name.lower().startswith("kafka.")
    }
    starts = nested({r.topic_partition: r.start for r in ranges})
    ends = nested({r.topic_partition: r.until for r in ranges})
    partitions = {topic: sorted(map(int, offsets)) for topic, offsets in starts.items()}
    return {
        **kept,
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
    }


def earliest(
    options: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> Mapping[TopicPartition, int]:
    """Where the log begins now in each of these ranges' partitions; of those that there are.

    Raises:
        OptionError: an option is wrong.
        BrokerError: the brokers cannot be reached.
    """
    parsed = parse_options(replay_options(options, ranges), streaming=False)
    lookup = Lookup(
        parsed.client, parsed.fetch_offset_retries, parsed.fetch_offset_retry_interval_ms
    )
    topics = lookup.topics({r.topic for r in ranges})
    there = {
        r.topic_partition
        for r in ranges
        if r.topic in topics and r.partition in topics[r.topic].partitions
    }
    return lookup.earliest(sorted(there))


def gone(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Those parts of the ranges that are not in Kafka any more, and whole ranges of no topic.

    Raises:
        OptionError: an option is wrong.
        BrokerError: the brokers cannot be reached.
    """
    begins = earliest(options, ranges)
    return [missing for r in ranges if (missing := _gone(r, begins)) is not None]


def _gone(r: OffsetRange, begins: Mapping[TopicPartition, int]) -> OffsetRange | None:
    begin = begins.get(r.topic_partition, r.until)
    if begin <= r.start:
        return None
    return OffsetRange(r.topic, r.partition, r.start, min(begin, r.until))
