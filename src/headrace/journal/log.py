"""A journal as a log: its lanes are the partitions of one topic."""

import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, partitions_of
from headrace.errors import NoJournalError, SourceError
from headrace.journal.blocks import LaneLook
from headrace.journal.faults import told
from headrace.journal.journal import Journal
from headrace.journal.options import JournalOptions
from headrace.journal.reading import hold_to
from headrace.journal.seeking import ahead, first_at
from headrace.journal.spare import SpareWatch, settled
from headrace.source.log import Topic
from headrace.source.positions import Checksums, ChecksumsBefore

if TYPE_CHECKING:
    from headrace.core.clock import Clock


class JournalLog:
    """The `headrace.source.log.Log` of one source; nothing is read before the first question.

    Every method raises ``JournalError`` where the journal cannot be read.

    Args:
        options: The source's.
        clock: The time. A bounded read waits a second for a last block that has no name.
    """

    name = "The journal"
    source = "journal"

    def __init__(self, options: JournalOptions, clock: "Clock" = time) -> None:
        self.servers = options.path
        self._options = options
        self._clock = clock
        self._watch = SpareWatch(clock)
        self._looks: dict[TopicPartition, LaneLook] = {}

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
        journal = self._open()
        return {tp: journal.look(tp.partition).index.start for tp in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.log.Log.latest`."""
        return self.bounds(partitions)[1]

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """See `headrace.source.log.Log.bounds`.

        A stream goes on without a last block that has lost its name: it reads it later.

        Raises:
            CorruptionError: A bounded read would leave it out.
        """
        journal, looks = self._open(), self._looks
        for tp in (wanted := list(partitions)):
            if self._options.streaming:
                looks[tp] = journal.look(tp.partition)
                self._watch.note(tp, looks[tp])
            else:
                looks[tp] = settled(journal, tp.partition, self._clock)
        return {tp: looks[tp].index.start for tp in wanted}, {
            tp: looks[tp].end.until for tp in wanted
        }

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        """See `headrace.source.log.Log.reached`."""
        journal = self._open()
        return {tp: journal.look(tp.partition).end.reached for tp in partitions}

    def checksums(self, positions: Positions) -> Checksums:
        """Those of the blocks that have the records before; it costs a header within a lane."""
        with told(f"The journal {self.servers} cannot be read"):
            found = {
                tp: self._looks[tp].checksum_before(position)
                for tp, position in positions.items()
                if tp in self._looks
            }
        return {tp: checksum for tp, checksum in found.items() if checksum}

    def hold_to(self, after: ChecksumsBefore) -> None:
        """See `headrace.source.log.Log.hold_to`; here, of lanes that end at the offset."""
        for (tp, offset), checksum in after.items():
            look = self._looks.get(tp)
            if look is not None and look.end.until == offset:
                hold_to(look.files, offset, look.end.checksum, checksum)

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
