"""Read ranges of a stream once more: as a bounded read, with the stream's own connection."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headgate.control import OffsetRange, TopicPartition
from headgate.errors import SourceError
from headgate.kafka.lookup import Lookup, Topic
from headgate.kafka.options import parse_options
from headgate.kafka.positions import StreamOffset, nested
from headgate.ledger import PlannedRange

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


def replay_end(ranges: Sequence[OffsetRange], following: Path) -> dict[str, Any]:
    """The end of a batch of exactly these ranges, for a query that reads batches once more.

    Args:
        ranges: at most one of each partition, none of them empty.
        following: the file in which the end of the batch after it will be found.
    """
    return StreamOffset(
        positions={r.topic_partition: r.until for r in ranges},
        begins={r.topic_partition: r.start for r in ranges},
        replay=str(following),
    ).to_json()


def next_replay(end: StreamOffset) -> dict[str, Any] | None:
    """The end of the batch that is to be read after this one, once somebody has asked for it.

    Raises:
        SourceError: the file has something else in it.
    """
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


def earliest(
    options: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> Mapping[TopicPartition, int]:
    """Where the log begins now in each of these ranges' partitions; of those that there are.

    Raises:
        OptionError: an option is wrong.
        BrokerError: the brokers cannot be reached.
    """
    return _beginnings(options, [PlannedRange(r) for r in ranges])


def gone(options: Mapping[str, str], ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
    """Those parts of the ranges that are not in Kafka any more, and whole ranges of no topic.

    A topic that was made anew under its name is not the one that was planned.

    Raises:
        OptionError: an option is wrong.
        BrokerError: the brokers cannot be reached.
    """
    begins = _beginnings(options, ranges)
    found = (_gone(planned.offsets, begins) for planned in ranges)
    return [missing for missing in found if missing is not None]


def _beginnings(
    options: Mapping[str, str], ranges: Sequence[PlannedRange]
) -> Mapping[TopicPartition, int]:
    """Where the log begins in each of these partitions, of those that are as planned."""
    parsed = parse_options(
        replay_options(options, [planned.offsets for planned in ranges]), streaming=False
    )
    lookup = Lookup(
        parsed.client, parsed.fetch_offset_retries, parsed.fetch_offset_retry_interval_ms
    )
    topics = lookup.topics({planned.offsets.topic for planned in ranges})
    there = {each.offsets.topic_partition for each in ranges if _is_of(each, topics)}
    return lookup.earliest(sorted(there))


def _is_of(planned: PlannedRange, topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(planned.offsets.topic)
    if topic is None or planned.offsets.partition not in topic.partitions:
        return False
    return None in {planned.topic_id, topic.topic_id} or planned.topic_id == topic.topic_id


def _gone(r: OffsetRange, begins: Mapping[TopicPartition, int]) -> OffsetRange | None:
    begin = begins.get(r.topic_partition, r.until)
    if begin <= r.start:
        return None
    return OffsetRange(r.topic, r.partition, r.start, min(begin, r.until))
