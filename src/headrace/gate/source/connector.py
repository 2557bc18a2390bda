"""Interface of a kind of source for a gate, besides its planning.

A failed batch is read again, not stored: the ledger has its exact offsets, and the log has the
records. So deferring costs nothing, and a later run processes the planned records.
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
    """Sink for copies of dead letters; failures are logged, and stop nothing."""

    def send(self, letter: "DeadLetter") -> None:
        """Queue a dead letter; `flush` waits for its outcome."""

    def flush(self) -> None:
        """Return when every queued dead letter has been accepted or refused."""


OF_A_GATE: Final = {"headrace.gate": "gate", "headrace.ledger": "sqlite:///headrace.db"}
"""Options that complete a stream's options for a check without reading."""


@dataclass(frozen=True)
class Connector:
    """One kind of source.

    Every method raises ``OptionError`` for a wrong option, and ``BrokerError`` or ``JournalError``
    if the log cannot be read.

    Attributes:
        name: Name of the source in ``Gate.read``.
        is_dense: Whether every offset that is read has a record.
        source: Spark's data source; its name is the format's name.
        check: Called with a stream's options on the driver, before a query starts. Raises
            OptionError for a wrong option, SourceError for a missing topic or journal, and
            BrokerError or JournalError if it cannot be reached.
        replay_options: Options of a bounded read of exactly these ranges, from a stream's options,
            in any case. Raises OptionError if a range is empty or two ranges share an offset.
        log: The log of a bounded read with such options.
        located: A stream's options, completed with the source's earlier address (see ``servers``)
            if they lack one. Raises OptionError for an option that is not a stream's.
        servers: Address of the source, without secrets, from its options in any case.
        dead_letter_topic: Opens the topic of a name, from a stream's options; None for a kind of
            source without topics.
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
        """Name of the format in Spark."""
        return self.source.name()

    def gone(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> list[OffsetRange]:
        """Return the planned ranges of a stream with these options that are gone from the log."""
        with self._log_of_planned(options, ranges) as log:
            return gone(log, ranges)

    def beginnings(
        self, options: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> Mapping[TopicPartition, int]:
        """Return the log's first offset in each of these ranges' existing partitions."""
        from headrace.gate.ledger.records import PlannedRange  # noqa: PLC0415  (tasks do without the ledger)

        planned = [PlannedRange(offsets) for offsets in ranges]
        with self._log_of_planned(options, planned) as log:
            return beginnings(log, planned)

    def ends(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> Mapping[TopicPartition, int]:
        """Return the log's written end in each of these ranges' existing partitions."""
        with self._log_of_planned(options, ranges) as log:
            return log.reached(as_planned(log, ranges))

    def log_of(self, options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Log:
        """Return the log from which these ranges are read."""
        return self.log(self.replay_options(options, hulls(ranges)))

    def _log_of_planned(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> closing[Log]:
        return closing(self.log_of(options, [planned.offsets for planned in ranges]))


_NEAR: Final = 1_000
"""Maximum gap between two wanted ranges that are read as one (records): reading the gap is
faster than seeking."""

_MOST_RANGES: Final = 64
"""Approximate maximum number of ranges per partition, however far apart the wanted offsets are."""


def close_ranges(wanted: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return ranges that cover the wanted ranges, with near ones joined.

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
    """Policy that reports losses to the caller, who decides which of them matter."""

    on_loss: OnLoss | None = None

    def pass_over(self, missing: OffsetRange, why: str) -> None:
        """Report the loss to the caller; without a caller's function, raise `DataLossError`."""
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
    """Yield the records of these ranges with all columns of the source, including headers.

    Args:
        connector: The kind of source.
        options: The stream's options, as its reader received them.
        ranges: The ranges to read.
        topic_ids: Ids of the topics at the time of the plan; a recreated topic is not read.
        on_loss: Called with offsets that have left the source. Default: None, missing offsets are
            an error.

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
    """Yield the records of a bounded read with these options, planned as in Spark.

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
    """Return the options with case-insensitive names, as Spark passes them."""
    return cast(dict[str, str], CaseInsensitiveDict(options))
