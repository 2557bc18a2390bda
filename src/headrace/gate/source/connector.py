"""Interface of a kind of source, such as Kafka: its options, its log, and its bounded reads.

Headrace does not store the records of a failed batch. The ledger has the batch's exact offsets,
and the log still has the records, so a later run reads them again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol, cast

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from headrace.core.ranges import OffsetRange, TopicPartition, hulls
from headrace.gate.source.log import ARROW_SCHEMA, Log, as_planned, beginnings, gone
from headrace.gate.source.losses import Losses, OnLoss
from headrace.gate.source.readers import SourceFormat, SourceTask, marked_as_read

if TYPE_CHECKING:
    from headrace.gate.ledger.records import DeadLetter, PlannedRange


class DeadLetterSink(Protocol):
    """Destination of copies of dead letters. A failed copy is logged, and raises no exception."""

    def send(self, letter: "DeadLetter") -> None:
        """Queue a copy of a dead letter. `flush` waits until it is accepted or refused."""

    def flush(self) -> None:
        """Wait until every queued copy has been accepted or refused."""


OF_A_GATE: Final = {"headrace.gate": "gate", "headrace.ledger": "sqlite:///headrace.db"}
"""Placeholder options of a gate and a ledger, for a stream whose options are only checked."""


@dataclass(frozen=True)
class Connector:
    """Kind of source, such as Kafka, as a set of functions.

    Every function raises ``OptionError`` for a wrong option, and ``BrokerError`` or
    ``JournalError`` if the log cannot be read.

    Attributes:
        name: Name of the source in ``Gate.read``.
        is_dense: Whether the log has a record at every offset, without gaps.
        source: Class of Spark's data source. Its ``name()`` is the name of the format.
        check: Function that checks a stream's options on the driver, before a query starts. Raises
            OptionError for a wrong option, SourceError for a missing topic or journal, and
            BrokerError or JournalError for an unreachable log.
        replay_options: Function that returns the options of a bounded read of given ranges. Takes a
            stream's options (case-insensitive names) and the ranges. Raises OptionError if a range
            is empty or two ranges share an offset.
        log: Function that opens the log of a bounded read, from the options of the read.
        located: Function that adds an address, as returned by ``servers`` for an earlier stream, to
            options without an address. Raises OptionError for an option that streams do not have.
        servers: Function that returns the source's address, without secrets, from its options
            (case-insensitive names).
        dead_letter_topic: Function that opens a topic for copies of dead letters, from a stream's
            options and the topic's name. None for a kind of source without topics.
    """

    name: str
    source: type[SourceFormat]
    check: Callable[[Mapping[str, str]], None]
    replay_options: Callable[[Mapping[str, str], Sequence[OffsetRange]], dict[str, str]]
    log: Callable[[Mapping[str, str]], Log]
    servers: Callable[[Mapping[str, str]], str]
    located: Callable[[Mapping[str, str], str | None], dict[str, str]]
    dead_letter_topic: "Callable[[Mapping[str, str], str], DeadLetterSink] | None" = None
    is_dense: bool = False

    @property
    def format(self) -> str:
        """Name of the source for Spark's ``format()``."""
        return self.source.name()

    def gone(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> list[OffsetRange]:
        """Return the chunks of a stream's planned ranges that the log no longer has."""
        with self._log_of_planned(options, ranges) as log:
            return gone(log, ranges)

    def beginnings(
        self, options: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> Mapping[TopicPartition, int]:
        """Return the log's first offset in each existing partition of these ranges."""
        from headrace.gate.ledger.records import PlannedRange  # noqa: PLC0415  (tasks do without the ledger)

        planned = [PlannedRange(offsets) for offsets in ranges]
        with self._log_of_planned(options, planned) as log:
            return beginnings(log, planned)

    def ends(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> Mapping[TopicPartition, int]:
        """Return the offset after the last written record, in each partition that still exists."""
        with self._log_of_planned(options, ranges) as log:
            return log.reached(as_planned(log, ranges))

    def log_of(self, options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Log:
        """Open the log from which these ranges can be read."""
        return self.log(self.replay_options(options, hulls(ranges)))

    def _log_of_planned(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> closing[Log]:
        return closing(self.log_of(options, [planned.offsets for planned in ranges]))


_NEAR: Final = 1_000
"""Maximum gap (in records) across which two wanted ranges are joined: reading the gap is faster
than seeking."""

_MOST_RANGES: Final = 64
"""Approximate maximum number of ranges per partition. To stay below it, distant ranges are
joined."""


def close_ranges(wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Join wanted ranges that are near each other, and return the resulting ranges.

    ::

    >>> far, near = OffsetRange("a", 0, 9_000, 9_001), OffsetRange("a", 0, 17, 18)
    >>> [str(r) for r in close_ranges([far, OffsetRange("a", 0, 0, 1), near])]
    ['a-0 [0, 18)', 'a-0 [9000, 9001)']
    """
    result: list[OffsetRange] = []
    for _, same in groupby(sorted(wanted), lambda offsets: offsets.topic_partition):
        ranges = list(same)
        near = max(_NEAR, (ranges[-1].until - ranges[0].start) // _MOST_RANGES)
        joined = [ranges[0]]
        for offsets in ranges[1:]:
            if offsets.start - joined[-1].until <= near:
                joined[-1] = joined[-1].hull(offsets)
            else:
                joined.append(offsets)
        result += joined
    return result


@dataclass(frozen=True, slots=True)
class _ToldLosses(Losses):
    """Loss policy of a direct read: it calls a function of the caller for each missing range."""

    on_loss: OnLoss | None = None

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Call ``on_loss`` with the missing offsets; raise `DataLossError` if losses are errors."""
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
    """Read ranges in this process. Yield their records with all columns, including headers.

    Args:
        connector: The kind of source.
        options: The stream's options, as its reader received them.
        ranges: The ranges to read.
        topic_ids: Ids of the topics at the time of the plan; a recreated topic is not read.
        on_loss: Function called with offsets that the source no longer has. Default: None, which
            makes missing offsets an error.

    Raises:
        DataLossError, CorruptionError: Records have left the source, or are damaged.
        BrokerError, JournalError: The source cannot be read now; the exception has the note `READ`.
    """
    if not ranges:
        return
    with marked_as_read():
        chosen = connector.replay_options(options, ranges)
        source = connector.source(_as_spark_gives(chosen | {"includeHeaders": "true"}))
        reading = source.reading(tuple(ARROW_SCHEMA.names), streaming=False)
        losses = _ToldLosses(reading.name, fail=on_loss is None, on_loss=on_loss)
        yield from reading.read(SourceTask(ranges, (), losses, topic_ids, {}))


def read_in_process(
    connector: Connector, options: Mapping[str, str], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Plan and run a bounded read in this process, as Spark would. Yield its records.

    Raises:
        OptionError: An option is wrong.
        SourceError, JournalError: The source cannot be read.
    """
    source = connector.source(_as_spark_gives(dict(options)))
    stored = source.schema()
    reader = source.reader(StructType([stored[name] for name in columns]))
    for task in reader.partitions():
        yield from reader.read(task)


def _as_spark_gives(options: dict[str, str]) -> dict[str, str]:
    """Return the options in a dict with case-insensitive names, as Spark passes them."""
    return cast(dict[str, str], CaseInsensitiveDict(options))
