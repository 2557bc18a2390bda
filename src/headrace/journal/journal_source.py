"""``format("headrace-journal")``: the Spark data source, for streaming and bounded reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NoReturn

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.gate import (
    OF_A_GATE,
    RECORDS_WORTH_A_TASK,
    Connector,
    Log,
    SourceFormat,
    SourceOptions,
    SourceTask,
    pack,
)
from headrace.journal.journal import Journal
from headrace.journal.journal_log import JournalLog
from headrace.journal.journal_options import FORMAT, JournalOptions, parse_options, replay_options


def cut_at_blocks(
    ranges: Sequence[OffsetRange],
    firsts: Callable[[OffsetRange], Sequence[int]],
    parallelism: int,
) -> list[OffsetRange]:
    """Split ranges into chunks for tasks, at the boundaries of blocks.

    A journal may have a single lane, so one lane's records are split among up to ``parallelism``
    tasks. Fewer tasks are used if a task would have too few records to be worth its start. A block
    is split only where a range begins or ends within it, so no two tasks read the same block.
    ``firsts`` returns the first offsets of the blocks in a range, ascending. It is not called if
    one task is enough.

    >>> range_ = OffsetRange("a", 0, 10_000, 250_000)
    >>> [str(r) for r in cut_at_blocks([range_], lambda r: range(0, 400_000, 30_000), 4)]
    ['a-0 [10000, 90000)', 'a-0 [90000, 150000)', 'a-0 [150000, 210000)', 'a-0 [210000, 250000)']
    """
    total = sum(r.count for r in ranges)
    tasks = min(parallelism, -(-total // RECORDS_WORTH_A_TASK))
    if tasks <= 1:
        return list(ranges)
    return [
        chunk for r in ranges for chunk in r.chunks(max(1, tasks * r.count // total), at=firsts(r))
    ]


class JournalSource(SourceFormat):
    """Spark data source that reads a journal under a gate."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reading(self, columns: tuple[str, ...], *, streaming: bool) -> "JournalReading":
        """Return the reader for these columns, as in `SourceFormat.reading`."""
        options = parse_options(dict(self.options), streaming=streaming)
        return JournalReading(options, columns, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise OptionError: only receivers write to a journal."""
        raise OptionError(
            f"A DataFrame cannot be written to {FORMAT}; append records with `headrace receive` or"
            " headrace.journal.Journal.writer."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise OptionError, as `writer` does."""
        self.writer(schema, overwrite)


class JournalReading:
    """Access to a journal for a source's planner and tasks.

    It implements `headrace.gate.source.readers.Reading`.
    """

    name = "the journal"

    def __init__(self, options: JournalOptions, columns: tuple[str, ...], parallelism: int) -> None:
        self._options = options
        self._columns = columns
        self._parallelism = parallelism

    @property
    def options(self) -> SourceOptions:
        """Checked options that all kinds of sources have."""
        return self._options.shared

    def log(self) -> JournalLog:
        """Return the journal's log for the planner."""
        return JournalLog(self._options)

    def packed(self, ranges: Sequence[OffsetRange], log: Log) -> list[tuple[OffsetRange, ...]]:
        """Return the ranges of each task. Blocks are split only if options set size or count."""
        minimum, most = self.options.min_partitions, self.options.max_records_per_partition
        chunks = ranges
        if ranges and minimum is None and most is None:
            assert isinstance(log, JournalLog)  # noqa: S101
            chunks = cut_at_blocks(ranges, log.firsts, self._parallelism)
        return pack(
            chunks, self._parallelism, min_partitions=minimum, max_records_per_partition=most
        )

    def read(self, task: SourceTask) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task; called in a Spark worker.

        Raise CorruptionError if a block is damaged. Raise DataLossError if records are lost. But if
        ``failOnDataLoss`` is false, record the loss and continue.
        """
        journal, on_loss = self._journal(), task.losses.pass_over
        for range_ in task.ranges:
            if task.topic_ids.get(range_.topic, journal.id) != journal.id:
                on_loss(range_, "the journal was recreated since the batch was planned")
            else:
                after = task.after.get((range_.topic_partition, range_.start), 0)
                yield from journal.read(range_, self._columns, on_loss=on_loss, after=after)

    def _journal(self) -> Journal:
        return Journal.open(self._options.path)


def _check(options: Mapping[str, str]) -> None:
    JournalLog(parse_options(options, streaming=True)).topics(must_exist=True)


def _bounded_log(options: Mapping[str, str]) -> JournalLog:
    return JournalLog(parse_options(options, streaming=False))


def _servers(options: Mapping[str, str]) -> str:
    lowered = {name.lower(): value for name, value in options.items()}
    return lowered["path"]


def _located(options: Mapping[str, str], path: str | None) -> dict[str, str]:
    complete = dict(options)
    if "path" not in {name.lower() for name in options} and path is not None:
        complete["path"] = path
    parse_options(OF_A_GATE | complete, streaming=True)
    return complete


JOURNAL: Final = Connector(
    "journal",
    JournalSource,
    _check,
    replay_options,
    _bounded_log,
    _servers,
    _located,
    is_dense=True,
)
