"""What a gate has to know of a kind of source, besides how to plan it."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.core.ranges import OffsetRange, Positions, TopicPartition
from headrace.errors import SourceError
from headrace.source.log import Log, Topic
from headrace.source.readers import SourceFormat
from headrace.source.stream_offset import StreamOffset

if TYPE_CHECKING:
    from headrace.ledger import DeadLetter, PlannedRange


class DeadLetterSink(Protocol):
    """Copies dead letters of the ledger elsewhere; what fails is logged, and stops nothing."""

    def send(self, letter: "DeadLetter") -> None:
        """Queue a dead letter; `flush` waits for its outcome."""

    def flush(self) -> None:
        """Return when each that was queued has been taken, or refused."""


def replay_end(ranges: "Sequence[PlannedRange]", following: Path) -> dict[str, Any]:
    """The end of a batch of exactly these ranges, for a query that reads batches once more.

    They are at most one of each partition, none empty; ``following`` is the file in which the end
    of the batch after it will be found.
    """
    return StreamOffset(
        positions={each.offsets.topic_partition: each.offsets.until for each in ranges},
        begins={each.offsets.topic_partition: each.offsets.start for each in ranges},
        topic_ids=planned_ids(ranges),
        replay=str(following),
    ).to_json()


def planned_ids(ranges: "Sequence[PlannedRange]") -> dict[str, str]:
    """The ids of these ranges' topics when they were planned, where that is known."""
    return {each.offsets.topic: each.topic_id for each in ranges if each.topic_id is not None}


def next_replay(end: StreamOffset) -> dict[str, Any] | None:
    """The end of the batch that is to be read after this one, once somebody has asked for it."""
    try:
        text = Path(end.replay).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        return StreamOffset.from_json(json.loads(text)).to_json()
    except (json.JSONDecodeError, AttributeError) as error:
        raise SourceError(
            f"The file {end.replay} is to say what is read again, and does not; start the query"
            " again."
        ) from error


def beginnings(log: Log, ranges: "Sequence[PlannedRange]") -> Positions:
    """Where each of these partitions begins now, of those that are as planned."""
    return log.earliest(_there(log, ranges))


def gone(log: Log, ranges: "Sequence[PlannedRange]") -> list[OffsetRange]:
    """Those parts of the ranges that are not in the log any more, and whole ranges of no topic.

    A topic that was recreated under its name is not the one that was planned. Neither is what was
    declared lost in the log any more, wherever it lies.
    """
    begins = beginnings(log, ranges)
    found: list[OffsetRange] = []
    for planned in ranges:
        offsets = planned.offsets
        begin = begins.get(offsets.topic_partition, offsets.until)
        missing, there = offsets.split_at(begin)
        found += [missing] if missing.count else []
        found += log.lost([there]) if there.count else []
    return found


def _there(log: Log, ranges: "Sequence[PlannedRange]") -> list[TopicPartition]:
    """The partitions of these ranges that are as planned."""
    topics = log.topics()
    return sorted({each.offsets.topic_partition for each in ranges if _is_of(each, topics)})


def _is_of(planned: "PlannedRange", topics: Mapping[str, Topic]) -> bool:
    topic = topics.get(planned.offsets.topic)
    if topic is None or planned.offsets.partition not in topic.partitions:
        return False
    return None in {planned.topic_id, topic.topic_id} or planned.topic_id == topic.topic_id


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
            return log.reached(_there(log, ranges))

    def log_of(self, options: Mapping[str, str], ranges: Sequence[OffsetRange]) -> Log:
        """The log that these ranges, at most one of each partition, are read from."""
        return self.log(self.replay_options(options, ranges))

    def _log_of_planned(
        self, options: Mapping[str, str], ranges: "Sequence[PlannedRange]"
    ) -> closing[Log]:
        return closing(self.log_of(options, [planned.offsets for planned in ranges]))
