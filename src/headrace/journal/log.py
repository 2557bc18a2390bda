"""A journal as a log: its lanes are the partitions of one topic."""

import math
from collections.abc import Iterable, Mapping

from headrace.control.ranges import OffsetRange, TopicPartition
from headrace.errors import NoJournalError, SourceError
from headrace.journal.journal import Journal
from headrace.journal.options import JournalOptions
from headrace.journal.seeking import ahead, first_at
from headrace.source.log import Topic
from headrace.source.positions import Positions, partitions_of


class JournalLog:
    """The `headrace.source.log.Log` of one source; nothing is read before the first question.

    Every method raises ``JournalError`` where the journal cannot be read.
    """

    name = "The journal"
    source = "journal"

    def __init__(self, options: JournalOptions) -> None:
        self.servers = options.path
        self._options = options

    @property
    def cut(self) -> str:
        """See `headrace.source.log.Log.cut`."""
        return (
            f"put them back, or declare the offsets lost with `headrace journal repair"
            f" {self.servers}` and --reached LANE:OFFSET, the offset being the one that was read up"
            " to"
        )

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        """The journal, with its lanes; see `headrace.source.log.Log.topics`."""
        journal = self._find()
        if journal is None:
            if must_exist:
                raise SourceError(
                    f"There is no journal at {self.servers} (path); start a receiver that writes"
                    " it, or correct the path."
                )
            return {}
        lanes = tuple(journal.lanes())
        wanted = self._options.lanes
        missing = sorted(set(wanted or ()) - set(lanes))
        if missing and must_exist:
            raise SourceError(
                f"The journal at {self.servers} has no lane {missing[0]} (lanes); it has"
                f" {', '.join(map(str, lanes)) or 'none'}."
            )
        chosen = lanes if wanted is None else tuple(lane for lane in wanted if lane in lanes)
        return {journal.name: Topic(journal.id, chosen)}

    def partitions(self, topics: Mapping[str, Topic]) -> list[TopicPartition]:
        """See `headrace.source.log.Log.partitions`."""
        return partitions_of({name: topic.partitions for name, topic in topics.items()})

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.log.Log.earliest`."""
        return self.bounds(partitions)[0]

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.log.Log.latest`."""
        return self.bounds(partitions)[1]

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """See `headrace.source.log.Log.bounds`."""
        journal = self._open()
        found = {tp: journal.lane_bounds(tp.partition) for tp in partitions}
        earliest = {tp: start for tp, (start, _) in found.items()}
        latest = {tp: end for tp, (_, end) in found.items()}
        return earliest, latest

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """The first offset of the first block with a record at or after the time (ms)."""
        journal = self._open()
        return {tp: first_at(journal, tp.partition, ms) for tp, ms in timestamps_ms.items()}

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """The mean over the records that fit into ``maxBytesPerTrigger``, as headers tell it."""
        journal = self._open()
        behind = [tp for tp, end in latest.items() if current[tp] < end]
        most_bytes = (self._options.shared.limits.max_bytes or math.inf) / max(1, len(behind))
        found = [ahead(journal, tp.partition, current[tp], most_bytes) for tp in behind]
        records = sum(each.records for each in found)
        return {journal.name: sum(each.bytes for each in found) / records} if records else {}

    def lost(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """What a repair has declared lost of these ranges."""
        journal = self._open()
        return [
            OffsetRange(r.topic, r.partition, max(r.start, lost.first), min(r.until, lost.until))
            for r in ranges
            for lost in journal.lost(r.partition)
            if lost.first < r.until and r.start < lost.until
        ]

    def decided(self, latest: Positions) -> Positions:
        """All of it: what is in a journal is to be read."""
        return latest

    def left_out(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def processed(self, positions: Positions) -> None:
        """Nothing: what may be pruned the ledger tells."""

    def close(self) -> None:
        """Nothing: it holds nothing open."""

    def _find(self) -> Journal | None:
        try:
            return Journal.open(self._options.path)
        except NoJournalError:
            return None

    def _open(self) -> Journal:
        return Journal.open(self._options.path)
