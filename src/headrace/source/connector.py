"""What a gate has to know of a kind of source, besides how to plan it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import DataSource

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.ledger import PlannedRange
from headrace.source.log import Log
from headrace.source.replay import beginnings, ends, gone

OF_A_GATE: Final = {"headrace.gate": "gate", "headrace.ledger": "sqlite:///headrace.db"}
"""What a stream also has to have, to check its options where nothing is read with them."""


@dataclass(frozen=True)
class Connector:
    """One kind of source.

    Attributes:
        name: what ``Gate.read`` calls it.
        source: Spark's face of it; its name is the format's.
        check: called with a stream's options on the driver, before a query starts. Raises
            OptionError if one is wrong, SourceError if something that is named does not exist, and
            BrokerError or JournalError where it cannot be reached.
        replay_options: the options of a bounded read of exactly these ranges (at most one of each
            partition, none of them empty), from a stream's options, in any case.
        log: the log of a bounded read with such options.
        located: a stream's options, completed with where the source was if they do not say it
            themselves (see ``servers``). Raises OptionError if one is not a stream's.
        servers: where the source is, without secrets, from its options in any case.
    """

    name: str
    source: type[DataSource]
    check: Callable[[Mapping[str, str]], None]
    replay_options: Callable[[Mapping[str, str], Sequence[OffsetRange]], dict[str, str]]
    log: Callable[[Mapping[str, str]], Log]
    servers: Callable[[Mapping[str, str]], str]
    located: Callable[[Mapping[str, str], str | None], dict[str, str]]

    @property
    def format(self) -> str:
        """What Spark calls it."""
        return self.source.name()

    def gone(self, options: Mapping[str, str], ranges: Sequence[PlannedRange]) -> list[OffsetRange]:
        """What is not there any more of what a stream with these options has planned.

        Raises:
            OptionError: an option is wrong.
            BrokerError: the brokers cannot be reached.
        """
        return gone(self.log_of(options, [planned.offsets for planned in ranges]), ranges)

    def beginnings(
        self, options: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> Mapping[TopicPartition, int]:
        """Where the log begins now in each of these ranges' partitions; of those that there are.

        Raises:
            OptionError: an option is wrong.
            BrokerError: the brokers cannot be reached.
        """
        return beginnings(self.log_of(options, ranges), [PlannedRange(each) for each in ranges])

    def ends(
        self, options: Mapping[str, str], ranges: Sequence[PlannedRange]
    ) -> Mapping[TopicPartition, int]:
        """How far the log is written in each of these ranges' partitions; of those there are.

        Raises:
            OptionError: an option is wrong.
            BrokerError: the brokers cannot be reached.
            JournalError: the journal cannot be read.
        """
        log = self.log_of(options, [planned.offsets for planned in ranges])
        with closing(log):
            return ends(log, ranges)

    def log_of(self, options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Log:
        """The log that these ranges, at most one of each partition, are read from.

        Raises:
            OptionError: an option is wrong.
        """
        return self.log(self.replay_options(options, ranges))
