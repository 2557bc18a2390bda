"""The options with which ranges of a Kafka stream are read once more."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.control import OffsetRange
from headrace.source.positions import nested

# Of a stream's options, those that say how Kafka is reached and what a record's columns are; where
# to read, and how much, is the ranges' business.
_KEPT: Final = frozenset(
    {
        "headrace.channel",
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
