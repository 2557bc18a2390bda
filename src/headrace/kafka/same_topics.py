"""A task reads the topics that its batch was planned of, and none recreated under their names.

A topic that is deleted and recreated has the same offsets once more. Brokers tell the two apart by
an id, which a fetch does not show to its reader; so the reader asks for it, before and after.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import pyarrow as pa

from headrace.core.ranges import OffsetRange
from headrace.errors import DataLossError
from headrace.kafka.consumers import ClientConfig
from headrace.kafka.lookup import Lookup
from headrace.source.losses import OnLoss

Read = Callable[[Sequence[OffsetRange]], Iterator[pa.RecordBatch]]

_WHY = "its topic was deleted and recreated since the batch was planned"


def read_same_topics(
    client: ClientConfig,
    planned_ids: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    on_loss: OnLoss,
    read: Read,
) -> Iterator[pa.RecordBatch]:
    """What ``read`` reads of the ranges, each of the topic that was planned.

    Of a topic that is not among ``planned_ids`` nobody can tell. ``on_loss`` is called with each
    range of a topic that was recreated.

    Raises:
        DataLossError: A topic was recreated while it was read, and what was read may be of either.
    """
    recreated = _recreated(client, planned_ids, ranges)
    for each in ranges:
        if each.topic in recreated:
            on_loss(each, _WHY)
    there = [each for each in ranges if each.topic not in recreated]
    yield from read(there)
    if meanwhile := sorted(_recreated(client, planned_ids, there)):
        raise DataLossError(
            f"The topic {meanwhile[0]} was deleted and recreated while a batch of it was read, so"
            " what was read may be of either; start the query again, which sees what is gone."
        )


def _recreated(
    client: ClientConfig, planned_ids: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> set[str]:
    """The topics with another id now; one that is not there is the reader's to see."""
    names = {each.topic for each in ranges} & planned_ids.keys()
    if not names:
        return set()
    found = _lookup(json.dumps(dict(client), sort_keys=True)).topics(names)
    return {
        name
        for name, topic in found.items()
        if topic.topic_id is not None and topic.topic_id != planned_ids[name]
    }


@lru_cache(maxsize=8)
def _lookup(client: str) -> Lookup:
    """One for each configuration in a worker: opening one costs a connection."""
    return Lookup(json.loads(client), retries=0, retry_interval_ms=0)
