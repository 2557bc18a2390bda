"""The name of a batch: the same ranges always have the same one."""

import json
from collections.abc import Iterable
from hashlib import sha256

from headgate.control.ranges import OffsetRange


def schedule_id(gate: str, run_id: str, ranges: Iterable[OffsetRange]) -> str:
    """Name the batch of a gate that reads these ranges.

    A pure function, so that whoever knows what a batch reads knows its row in the ledger: the
    planner from its plan, the listener from the start and end offsets of a progress event. The
    order of the ranges makes no difference, and empty ranges are as if they were not there.

    Args:
        gate: The gate's name.
        run_id: The checkpoint's identity. A fresh checkpoint reads the same offsets again on
            purpose, and that is another batch.
        ranges: What the batch reads.

    Returns:
        32 hexadecimal digits.
    """
    read = sorted((r.topic, r.partition, r.start, r.until) for r in ranges if r.count)
    canonical = json.dumps([gate, run_id, read], separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()[:32]
