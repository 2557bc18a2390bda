"""Interface of a kind of source for a gate, besides its planning."""

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
    """Copies dead letters of the ledger elsewhere; failures are logged, and stop nothing."""

    def send(self, letter: "DeadLetter") -> None:
        """Queue a dead letter; `flush` waits for its outcome."""

    def flush(self) -> None:
        """Return when each that was queued has been taken, or refused."""


OF_A_GATE: Final = {"headrace.gate": "gate", "headrace.ledger": "sqlite:///headrace.db"}
"""Options that a stream also needs, to check its options where nothing is read with them."""


@dataclass(frozen=True)
class Connector:
    """One kind of source.

    Every method raises ``OptionError`` where an option is wrong, and ``BrokerError`` or
    ``JournalError`` where the log cannot be read.

    Attributes:
        name: name of the source in ``Gate.read``.
        is_dense: whether it has a record at each offset that is read.
        source: Spark's face of it; its name is the format's.
        check: called with a stream's options on the driver, before a query starts. Raises
            OptionError if one is wrong, SourceError if something that is named does not exist, and
            BrokerError or JournalError where it cannot be reached.
        replay_options: the options of a bounded read of exactly these ranges, from a stream's
            options, in any case. Raises OptionError if a range is empty or two share an offset.
        log: the log of a bounded read with such options.
        located: a stream's options, completed with where the source was if they do not say it
            themselves (see ``servers``). Raises OptionError if one is not a stream's.
        servers: address of the source, without secrets, from its options in any case.
        dead_letter_topic: opens the topic of a name, from a stream's options; None for a kind of
            source that has no topics.
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
        """Return the ranges that a stream with these options has planned, and that are gone."""
        with self._log_of_planned(options, ranges) as log:
            return gone(log, ranges)

    def beginnings(
        self, options: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> Mapping[TopicPartition, int]:
        """Return the log's first offset in each of these ranges' existing partitions."""
        from headrace.gate.ledger.records import PlannedRange  # noqa: PLC0415  (tasks do without the ledger)

        planned = [PlannedRange(each) for each in ranges]
        with self._log_of_planned(options, planned) as log:
            return beginnings(log, planned)

    def ends(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> Mapping[TopicPartition, int]:
        """Return the log's written end in each of these ranges' existing partitions."""
        with self._log_of_planned(options, ranges) as log:
            return log.reached(as_planned(log, ranges))

    def log_of(self, options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Log:
        """Return the log that these ranges are read from."""
        return self.log(self.replay_options(options, hulls(ranges)))

    def _log_of_planned(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> closing[Log]:
        return closing(self.log_of(options, [planned.offsets for planned in ranges]))


_NEAR: Final = 1_000
"""Records between two that are wanted, which are read sooner than a reader is moved past them."""

_MOST_RANGES: Final = 64
"""Approximate number of ranges read per partition, however far apart the wanted offsets are."""


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
        """Report the loss to the caller, or raise `DataLossError` without one."""
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
        ranges: the ranges to read.
        topic_ids: ids of the topics when the ranges were planned: a topic that was recreated since
            then is not read.
        on_loss: is told of offsets that have left the source. Default: None, they are an error.

    Raises:
        DataLossError, CorruptionError: records have left the source, or are damaged.
        BrokerError, JournalError: it cannot be read now; with the note that it was being read.
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
    """Read what a bounded read with these options reads, planned as in Spark, in this process.

    Raises:
        OptionError: An option is wrong.
        SourceError, JournalError: It cannot be read.
    """
    source = connector.source(_as_spark_gives(dict(options)))
    stored = source.schema()
    reader = source.reader(StructType([stored[name] for name in columns]))
    for task in reader.partitions():
        yield from reader.read(task)


def _as_spark_gives(options: dict[str, str]) -> dict[str, str]:
    """Options whose names are the same in any case."""
    return cast(dict[str, str], CaseInsensitiveDict(options))
