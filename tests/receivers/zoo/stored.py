"""Contents of a journal, read in a process of its own.

``python -m tests.receivers.zoo.stored JOURNAL`` prints the end of its lane and how often each good
record is in it.
"""

import json
import sys
from collections import Counter

import pyarrow.compute as pc
from tests.receivers.zoo.record import PREFIX

from headrace.core.ranges import OffsetRange
from headrace.journal import Journal


def main(url: str) -> None:
    journal = Journal.open(url)
    first, until = journal.lane_bounds(0)
    found = Counter[str]()
    for batch in journal.read(OffsetRange(journal.name, 0, first, until), ["value"]):
        values = batch.column(0)
        good = values.filter(pc.starts_with(values, PREFIX))
        found.update(value.decode() for value in good.to_pylist())
    print(json.dumps({"until": until, "good": found}))


if __name__ == "__main__":
    main(sys.argv[1])
