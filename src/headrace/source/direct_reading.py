"""Reads a few records of a source in this process, without a job of Spark's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict

from headrace.core.ranges import OffsetRange
from headrace.source.connector import Connector
from headrace.source.losses import Losses, OnLoss
from headrace.source.readers import SourceTask, marked_as_read

_NEAR: Final = 1_000
"""Records between two that are wanted, which are read sooner than a reader is moved past them."""

_MOST_RANGES: Final = 64
"""About so many ranges of one partition are read, however far apart what is wanted lies."""


def close_ranges(wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The ranges in which all of these lie, with whatever is between near ones.

    ::

    >>> far, near = OffsetRange("a", 0, 9_000, 9_001), OffsetRange("a", 0, 17, 18)
    >>> [str(r) for r in close_ranges([far, OffsetRange("a", 0, 0, 1), near])]
    ['a-0 [0, 18)', 'a-0 [9000, 9001)']
    """
    found: list[OffsetRange] = []
    for _, same in groupby(sorted(wanted), lambda each: each.topic_partition):
        ranges = list(same)
        near = max(_NEAR, (ranges[-1].until - ranges[0].start) // _MOST_RANGES)
        joined = [ranges[0]]
        for each in ranges[1:]:
            if each.start - joined[-1].until <= near:
                joined[-1] = joined[-1].hull(each)
            else:
                joined.append(each)
        found += joined
    return found


@dataclass(frozen=True, slots=True)
class _ToldLosses(Losses):
    """Losses that the caller is told of, who knows which of them matter."""

    on_loss: OnLoss | None = None

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Tell the caller, or raise `DataLossError` where there is nobody to be told."""
        self.refuse([missing], why)
        if self.on_loss is not None:
            self.on_loss(missing, why)


def read_directly(
    connector: Connector,
    options: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    topic_ids: Mapping[str, str],
    on_loss: OnLoss | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of these ranges, with all columns that the sources have, headers too.

    Args:
        connector: the kind of source.
        options: the stream's, as its reader received them.
        ranges: what is read.
        topic_ids: of the topics when the ranges were planned: of one that was recreated since then
            nothing is read.
        on_loss: is told of offsets that have left the source. Default: None, they are an error.

    Raises:
        DataLossError, CorruptionError: records have left the source, or are damaged.
        BrokerError, JournalError: it cannot be read now; with the note that it was being read.
    """
    if not ranges:
        return
    with marked_as_read():
        hulls = {each.topic_partition: each for each in ranges}
        chosen = connector.replay_options(options, list(hulls.values()))
        source = connector.source(_as_spark_gives(chosen | {"includeHeaders": "true"}))
        reading = source.reading(source.schema(), streaming=False)
        losses = _ToldLosses(reading.name, fail=on_loss is None, on_loss=on_loss)
        yield from reading.read(SourceTask(ranges, (), losses, topic_ids, {}))


def _as_spark_gives(options: dict[str, str]) -> dict[str, str]:
    """Options whose names are the same in any case."""
    return cast(dict[str, str], CaseInsensitiveDict(options))
