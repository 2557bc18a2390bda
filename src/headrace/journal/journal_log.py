"""A journal as a log: its lanes are the partitions of one topic.

Only a lane's mark may have its last block still. A writer that is about to name the block leaves
that for some milliseconds; a power failure, until the lane is opened to be written: those records
were never acknowledged. A damaged file system leaves it for good, of records that were. So no
reader uses such a block, and callers that can wait do.
"""

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, partitions_of
from headrace.errors import CorruptionError, NoJournalError, SourceError
from headrace.gate import Checksums, ChecksumsBefore, Topic
from headrace.journal.journal import Journal
from headrace.journal.journal_options import JournalOptions
from headrace.journal.lane_files import LaneLook, Lost
from headrace.journal.reading import check_unchanged
from headrace.journal.storage import as_journal_error

if TYPE_CHECKING:
    from headrace.core.timing import Clock

_MOST_HEADERS: Final = 64
"""So many blocks are looked at in one answer; on an object store each is a request."""


class Ahead(NamedTuple):
    """Records that come next: how many, and their bytes."""

    records: float
    bytes: float


def ahead(journal: Journal, lane: int, offset: int, most_bytes: float) -> Ahead:
    """Estimate the records from an offset on that have so many bytes together, by the headers.

    In a block that is not taken whole, records count as if all had its mean size. It stops at the
    lane's end, and after 64 blocks. Offsets that were declared lost have no records.
    """
    records, taken_bytes, at = 0.0, 0.0, offset
    with journal.lane_files(lane) as files:
        index = files.index()
        start = index.holding(offset)
        firsts = [first for first in index.firsts.tolist() if start is None or first >= start]
        for first in islice((each for each in firsts if each not in index.lost), _MOST_HEADERS):
            if first < at and first != start:  # it was packed since the lane was listed
                continue
            header = files.held(index, first, files.header)
            mean_bytes = header.raw_bytes / header.count
            here: float = header.until - max(first, at)
            at = header.until
            if mean_bytes:
                here = min(here, (most_bytes - taken_bytes) / mean_bytes)
            records, taken_bytes = records + here, taken_bytes + here * mean_bytes
            if taken_bytes >= most_bytes:
                break
    return Ahead(records, taken_bytes)


def first_at(journal: Journal, lane: int, timestamp_ms: int) -> int | None:
    """The first offset with a record of this time (ms) or later.

    None where all records are older. A receiver gives records the time at which they came, so that
    blocks follow each other in time; where its clock was set back in between, the answer is in one
    of the blocks at which they reach the time asked for. It costs a listing, a header for each
    halving of the lane, and a block.
    """
    with journal.lane_files(lane) as files:
        index = files.index()
        firsts = [first for first in index.firsts.tolist() if first not in index.lost]

        def latest_ms(first: int) -> int:
            return files.held(index, first, files.header).latest_ms

        def first_row(first: int, until: int | None) -> int:
            times = files.block(first, ["timestamp"], until)[1].column("timestamp")
            return first + int(np.argmax(np.asarray(times.cast(pa.int64())) >= timestamp_ms))

        place = bisect_left(firsts, timestamp_ms, key=latest_ms)
        if place == len(firsts):
            return None
        return max(index.start, files.held(index, firsts[place], first_row))


_LOG: Final = logging.getLogger("headrace.journal")

_LOOKS: Final = 5
_PAUSE_S: Final = 0.2
_LONG_S: Final = 5.0


def settled(journal: Journal, lane: int, clock: "Clock" = time) -> LaneLook:
    """Return a lane's bounds once its last block has its name; it waits a second for that.

    Raises CorruptionError where the block has lost its name.
    """
    look = journal.look(lane)
    if not look.end.has_spare:
        return look
    for _ in pauses(clock):
        look = journal.look(lane)
        if not look.end.has_spare:
            return look
    raise CorruptionError(look.files.without_name(look.end))


def pauses(clock: "Clock") -> Iterator[None]:
    """Wait a little before each of some further looks at a block without a name."""
    for _ in range(_LOOKS):
        clock.sleep(_PAUSE_S)
        yield


class JournalLog:
    """The `headrace.gate.source.log.Log` of one source; nothing is read before the first question.

    Every method raises ``JournalError`` where the journal cannot be read. A bounded read waits a
    second for a last block that has no name, and lists each lane once: names of 100 000 blocks take
    0.08 s.
    """

    name = "The journal"
    source = "journal"

    def __init__(self, options: JournalOptions, clock: "Clock" = time) -> None:
        self.servers = options.path
        self._options = options
        self._clock = clock
        self._spares: dict[TopicPartition, tuple[int, float]] = {}
        self._looks: dict[TopicPartition, LaneLook] = {}

    @property
    def cut(self) -> str:
        return (
            f"put them back, or declare the offsets lost with `headrace journal repair"
            f" {self.servers}` and --reached LANE:OFFSET, the offset being the one that was read up"
            " to"
        )

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        """The journal, with its lanes."""
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
        return partitions_of({name: topic.partitions for name, topic in topics.items()})

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return {tp: self._look(tp).index.start for tp in partitions}

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        return self.bounds(partitions)[1]

    def bounds(self, partitions: Iterable[TopicPartition]) -> tuple[Positions, Positions]:
        """A stream goes on without a last block that has lost its name: it reads it later.

        Raises:
            CorruptionError: A bounded read would leave it out.
        """
        looks = {tp: self._look(tp) for tp in partitions}
        for tp, look in looks.items():
            if self._options.streaming:
                self._note_spare(tp, look)
            elif look.end.has_spare:
                looks[tp] = settled(self._open(), tp.partition, self._clock)
        self._looks |= looks
        return {tp: look.index.start for tp, look in looks.items()}, {
            tp: look.end.until for tp, look in looks.items()
        }

    def _look(self, tp: TopicPartition) -> LaneLook:
        """Look at a lane: now for a stream, once for a bounded read."""
        if self._options.streaming:
            return self._open().look(tp.partition)
        if tp not in self._looks:
            self._looks[tp] = self._open().look(tp.partition)
        return self._looks[tp]

    def firsts(self, tp: TopicPartition) -> list[int]:
        """Return the starts of a lane's blocks and losses, ascending, of the last look at it."""
        look = self._looks.get(tp) or self._look(tp)
        firsts: list[int] = look.index.firsts.tolist()
        return firsts

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        journal = self._open()
        return {tp: journal.look(tp.partition).end.reached for tp in partitions}

    def checksums(self, positions: Positions) -> Checksums:
        """Return the checksums of the blocks before the positions; in a lane it reads a header."""
        with as_journal_error(f"The journal {self.servers} cannot be read"):
            found = {
                tp: self._looks[tp].checksum_before(position)
                for tp, position in positions.items()
                if tp in self._looks
            }
        return {tp: checksum for tp, checksum in found.items() if checksum}

    def check_continues(self, after: ChecksumsBefore) -> None:
        for (tp, offset), checksum in after.items():
            look = self._looks.get(tp)
            if look is not None and look.end.until == offset:
                check_unchanged(look.files, offset, look.end.checksum, checksum)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """The first offset with a record at or after the time (ms)."""
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
        """Return the ranges among these that a repair has declared lost."""
        return [
            shared
            for r in ranges
            for lost in self._lost(r.topic_partition)
            if (shared := r.intersect(r.topic_partition.range(lost.first, lost.until)))
        ]

    def _lost(self, tp: TopicPartition) -> list[Lost]:
        if self._options.streaming:
            return self._open().lost(tp.partition)
        with as_journal_error(f"The journal {self.servers} cannot be read"):
            return self._look(tp).lost()

    def readable_until(self, latest: Positions) -> Positions:
        """All of it: every record in a journal can be read."""
        return latest

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        return ()

    def processed(self, positions: Positions) -> None:
        """Does nothing: the ledger knows which blocks may be pruned."""

    def close(self) -> None:
        """Nothing: it holds nothing open."""

    def _note_spare(self, lane: TopicPartition, look: LaneLook) -> None:
        """Log, once, that a lane's last block has had no name for five seconds."""
        end, now_s = look.end, self._clock.monotonic()
        if not end.has_spare:
            self._spares.pop(lane, None)
            return
        spare_until, since_s = self._spares.get(lane, (end.spare_until, now_s))
        if spare_until != end.spare_until:
            since_s = now_s
        if now_s - since_s >= _LONG_S:
            since_s = math.inf
            without_name = look.files.without_name(end)
            _LOG.warning("%s Until then the query goes on without them.", without_name)
        self._spares[lane] = end.spare_until, since_s

    def _find(self) -> Journal | None:
        try:
            return Journal.open(self._options.path)
        except NoJournalError:
            return None

    def _open(self) -> Journal:
        return Journal.open(self._options.path)
