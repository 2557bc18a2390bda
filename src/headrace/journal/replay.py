"""The options with which ranges of a stream over a journal are read once more."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.core.ranges import OffsetRange, nested

# Of a stream's options, those that say where the journal is and how tasks are made of it.
_KEPT: Final = frozenset({"path", "includeheaders", "minpartitions", "maxrecordsperpartition"})


def replay_options(options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """The options of a bounded read of exactly these ranges.

    Offsets that are gone are an error, whatever the stream's ``failOnDataLoss``: nothing of a batch
    that is run again may disappear.

    Args:
        options: the stream's, in any case.
        ranges: at most one of each lane, none of them empty.
    """
    kept = {name: value for name, value in options.items() if name.lower() in _KEPT}
    return {
        **kept,
        "lanes": ",".join(str(r.partition) for r in ranges),
        "startingOffsets": json.dumps(nested({r.topic_partition: r.start for r in ranges})),
        "endingOffsets": json.dumps(nested({r.topic_partition: r.until for r in ranges})),
        "failOnDataLoss": "true",
    }
