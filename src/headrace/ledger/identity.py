"""The name of a batch: the same ranges always have the same one."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType

from headrace.core.ranges import OffsetRange


def schedule_id(
    gate: str,
    run_id: str,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Name the batch of a gate that reads these ranges.

    A pure function, so that whoever knows what a batch reads knows its row in the ledger: the
    planner from its plan, the listener from the start and end offsets of a progress event. The
    order of the ranges makes no difference, and empty ranges are as if they were not there.

    Args:
        gate: The gate's name.
        run_id: The checkpoint's identity. A fresh checkpoint reads the same offsets again on
            purpose, and that is another batch.
        ranges: What the batch reads.
        topic_ids: Of topics whose id is known, by name. A topic that was deleted and made anew has
            the same offsets once more, and those are another batch.

    Returns:
        32 hexadecimal digits.
    """
    read = sorted((r.topic, r.partition, r.start, r.until) for r in ranges if r.count)
    ids = sorted((topic, topic_ids[topic]) for topic in {r[0] for r in read} & topic_ids.keys())
    named = [gate, run_id, read, ids] if ids else [gate, run_id, read]
    canonical = json.dumps(named, separators=(",", ":"))
    return sha256(canonical.encode("ascii")).hexdigest()[:32]
