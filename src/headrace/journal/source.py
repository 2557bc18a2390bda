"""``format("headrace-journal")``: Spark's face of the source, streaming and bounded."""

from collections.abc import Iterator, Sequence
from typing import NoReturn

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.core.ranges import OffsetRange
from headrace.errors import OptionError
from headrace.journal.journal import Journal
from headrace.journal.log import JournalLog
from headrace.journal.options import FORMAT, JournalOptions, parse_options
from headrace.journal.packing import cut_at_blocks
from headrace.source.options import SourceOptions
from headrace.source.packing import pack
from headrace.source.readers import SourceFormat, SourceTask, chosen_columns


class JournalSource(SourceFormat):
    """A journal, read under a gate."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reading(self, schema: StructType, *, streaming: bool) -> "JournalReading":
        """See `SourceFormat.reading`."""
        options = parse_options(dict(self.options), streaming=streaming)
        return JournalReading(options, chosen_columns(FORMAT, schema), self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse: a journal is written by receivers and by flows.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"{FORMAT} cannot be written with a DataFrame's writer; have `headrace receive` or"
            " headrace.journal.Journal.writer append records, or a flow write a channel."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse, as `writer` does.

        Raises:
            OptionError: always.
        """
        self.writer(schema, overwrite)


class JournalReading:
    """How a journal is read; see `headrace.source.readers.Reading`."""

    name = "the journal"

    def __init__(self, options: JournalOptions, columns: tuple[str, ...], parallelism: int) -> None:
        self._options = options
        self._columns = columns
        self._parallelism = parallelism

    @property
    def options(self) -> SourceOptions:
        """Those that every source has."""
        return self._options.shared

    def log(self) -> JournalLog:
        """What is read, to plan by."""
        return JournalLog(self._options)

    def packed(self, ranges: Sequence[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
        """What each task reads of these ranges: whole blocks, but at the ends of a range.

        Raises:
            JournalError: the journal cannot be read.
        """
        minimum, most = self.options.min_partitions, self.options.max_records_per_partition
        pieces = ranges
        if ranges and minimum is None and most is None:
            journal = self._journal()
            firsts = {r.partition: journal.firsts(r.partition) for r in ranges}
            pieces = cut_at_blocks(ranges, firsts, self._parallelism)
        return pack(
            pieces, self._parallelism, min_partitions=minimum, max_records_per_partition=most
        )

    def read(self, task: SourceTask) -> Iterator[pa.RecordBatch]:
        """The records of one task, in a Spark worker; nothing is ever left out of a journal.

        Raises:
            CorruptionError: a block is damaged.
            DataLossError: records are lost, and that is not passed over.
        """
        journal, on_loss = self._journal(), task.losses.pass_over
        for each in task.ranges:
            if task.topic_ids.get(each.topic, journal.id) != journal.id:
                on_loss(each, "the journal was made anew since the batch was planned")
            else:
                after = task.after.get((each.topic_partition, each.start), 0)
                yield from journal.read(each, self._columns, on_loss=on_loss, after=after)

    def _journal(self) -> Journal:
        return Journal.open(self._options.path)
