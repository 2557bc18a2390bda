"""What a gate has to know of a kind of source, besides how to plan it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace.core.ranges import OffsetRange, TopicPartition
from headrace.source.log import Log
from headrace.source.readers import SourceFormat
from headrace.source.replay import as_planned, beginnings, gone

if TYPE_CHECKING:
    from headrace.ledger import DeadLetter, PlannedRange


class DeadLetterSink(Protocol):
    """Copies dead letters of the ledger elsewhere; what fails is logged, and stops nothing."""

    def send(self, letter: "DeadLetter") -> None:
        """Queue a dead letter; `flush` waits for its outcome."""

    def flush(self) -> None:
        """Return when each that was queued has been taken, or refused."""


OF_A_GATE: Final = {"headrace.gate": "gate", "headrace.ledger": "sqlite:///headrace.db"}
"""What a stream also has to have, to check its options where nothing is read with them."""


@dataclass(frozen=True)
class Connector:
    """One kind of source.

    Every method raises ``OptionError`` where an option is wrong, and ``BrokerError`` or
    ``JournalError`` where the log cannot be read.

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

    @property
    def format(self) -> str:
        """What Spark calls it."""
        return self.source.name()

    def gone(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> list[OffsetRange]:
        """What is not there any more of what a stream with these options has planned."""
        with self._log_of_planned(options, ranges) as log:
            return gone(log, ranges)

    def beginnings(
        self, options: Mapping[str, str], ranges: Sequence[OffsetRange]
    ) -> Mapping[TopicPartition, int]:
        """Where the log begins now in each of these ranges' partitions; of those that there are."""
        from headrace.ledger import PlannedRange  # noqa: PLC0415  (tasks do without the ledger)

        planned = [PlannedRange(each) for each in ranges]
        with self._log_of_planned(options, planned) as log:
            return beginnings(log, planned)

    def ends(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> Mapping[TopicPartition, int]:
        """How far the log is written in each of these ranges' partitions; of those there are."""
        with self._log_of_planned(options, ranges) as log:
            return log.reached(as_planned(log, ranges))

    def log_of(self, options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Log:
        """The log that these ranges, at most one of each partition, are read from."""
        return self.log(self.replay_options(options, ranges))

    def _log_of_planned(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> closing[Log]:
        return closing(self.log_of(options, [planned.offsets for planned in ranges]))
