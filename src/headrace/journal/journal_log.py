"""A journal as a `Log` for the planner: one topic, with the lanes as partitions.

The journal's name and id are the topic's name and id. So offsets, batch keys, the ledger, failure
policies, backfill and `headrace verify` use the same code for journals as for Kafka.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.core.ranges import OffsetRange, Positions, TopicPartition, partitions_of
from headrace.errors import NoJournalError, SourceError
from headrace.gate import Checksums, ChecksumsBefore, Topic
from headrace.journal.journal import Journal
from headrace.journal.journal_options import JournalOptions
from headrace.journal.lane import LaneLook, Lost
from headrace.journal.reading import check_unchanged
from headrace.journal.storage import as_journal_error

_MOST_SEGMENTS: Final = 64
"""Maximum number of segments that one estimate reads, because each read from an object store costs
a request."""


class Ahead(NamedTuple):
    """Estimate for the next records of a lane: their number, and their total size (bytes)."""

    records: float
    bytes: float


def ahead(journal: Journal, lane: int, offset: int, most_bytes: float) -> Ahead:
    """Estimate how many records from ``offset`` on have a total size of ``most_bytes``.

    The estimate reads only headers. Within the last block, it uses the block's mean record size. It
    ends early at the lane's end, or after 64 segments. Offsets that were declared lost have no
    records.
    """
    records, taken_bytes = 0.0, 0.0
    with journal.lane_files(lane) as files:
        index = files.index()
        start = index.segment_of(offset) or 0
        for segment in [first for first in index.segments if first >= start][:_MOST_SEGMENTS]:
            rows = files.frames_of(index, segment).rows
            firsts, counts = rows["first"], rows["count"].astype(np.int64)
            here = firsts + counts - np.maximum(firsts, offset)
            kept = here > 0
            mean_bytes = rows["raw_bytes"][kept] / counts[kept]
            ends = taken_bytes + np.cumsum(here[kept] * mean_bytes)
            whole = int(np.searchsorted(ends, most_bytes, side="left"))
            records += float(here[kept][:whole].sum())
            taken_bytes = float(ends[whole - 1]) if whole else taken_bytes
            if whole < len(ends):
                most = (most_bytes - taken_bytes) / float(mean_bytes[whole])
                return Ahead(records + most, most_bytes)
    return Ahead(records, taken_bytes)


def first_at(journal: Journal, lane: int, timestamp_ms: int) -> int | None:
    """Return the first offset with a timestamp (ms) of ``timestamp_ms`` or later.

    Return None if all records are older. The search is binary. It relies on ascending timestamps:
    receivers set them to the time of arrival. If a receiver's clock was set back, the result may be
    later than the first such offset. A search in n segments lists the lane, and reads the headers
    of log2(n) segments and one block.
    """
    with journal.lane_files(lane) as files:
        index = files.index()

        def latest_ms(segment: int) -> int:
            frames = files.frames_of(index, segment)
            return frames.latest_ms if len(frames) else timestamp_ms

        place = bisect_left(index.segments, timestamp_ms, key=latest_ms)
        for segment in index.segments[place:]:
            frames = files.frames_of(index, segment)
            for number in np.flatnonzero(frames.rows["latest_ms"] >= timestamp_ms).tolist():
                first, _ = frames.range_of(number)
                _, _, batch = files.read_run(segment, frames, number, number + 1, ["timestamp"])
                times = np.asarray(batch.column("timestamp").cast(pa.int64()))
                return first + int(np.argmax(times >= timestamp_ms))
    return None


class JournalLog:
    """The `headrace.gate.source.log.Log` of a journal. No file stays open between two calls.

    The log of a stream reads the lanes again at each call. The log of a bounded read takes one
    snapshot of each lane and keeps it. Every method raises ``JournalError`` if the journal cannot
    be read.
    """

    name = "The journal"
    source = "journal"

    def __init__(self, options: JournalOptions) -> None:
        self.servers = options.path
        self._options = options
        self._looks: dict[TopicPartition, LaneLook] = {}

    @property
    def cut(self) -> str:
        return (
            f"put them back, or declare the offsets lost with `headrace journal repair"
            f" {self.servers}` and --reached LANE:OFFSET, where OFFSET is the end of the records"
            " that were read"
        )

    def topics(self, *, must_exist: bool = False) -> Mapping[str, Topic]:
        """Return the journal's name with its id and lanes; empty if the journal does not exist.

        With ``must_exist``, raise SourceError if the journal, or a lane of the option ``lanes``,
        does not exist.
        """
        journal = self._find()
        if journal is None:
            if must_exist:
                raise SourceError(
                    f"There is no journal at {self.servers} (option path); start the journal's"
                    " receiver, or correct the path."
                )
            return {}
        lanes = tuple(journal.lanes())
        wanted = self._options.lanes
        missing = sorted(set(wanted or ()) - set(lanes))
        if missing and must_exist:
            raise SourceError(
                f"The journal at {self.servers} has no lane {missing[0]} (option lanes); its lanes:"
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
        looks = {tp: self._look(tp) for tp in partitions}
        self._looks |= looks
        return {tp: look.index.start for tp, look in looks.items()}, {
            tp: look.end.until for tp, look in looks.items()
        }

    def _look(self, tp: TopicPartition) -> LaneLook:
        """Return a lane's snapshot: a new one for a stream, a cached one for a bounded read."""
        if self._options.streaming:
            return self._checked(tp)
        if tp not in self._looks:
            self._looks[tp] = self._checked(tp)
        return self._looks[tp]

    def _checked(self, tp: TopicPartition) -> LaneLook:
        look = self._open().look(tp.partition)
        with as_journal_error(f"The journal {self.servers} cannot be read"):
            look.lane.check_end(look.index)
        return look

    def firsts(self, range_: OffsetRange) -> Sequence[int]:
        """Return the first offsets of the blocks within a range, ascending."""
        with self._open().lane_files(range_.partition) as lane:
            return lane.firsts_within(range_.start, range_.until)

    def reached(self, partitions: Iterable[TopicPartition]) -> Positions:
        journal = self._open()
        return {tp: journal.look(tp.partition).end.until for tp in partitions}

    def checksums(self, positions: Positions) -> Checksums:
        """Return, for each position, the checksum of the block that has the preceding record.

        Positions without such a block are not in the result. The call reads one header per lane.
        """
        with as_journal_error(f"The journal {self.servers} cannot be read"):
            checksums = {
                tp: self._looks[tp].checksum_before(position)
                for tp, position in positions.items()
                if tp in self._looks
            }
        return {tp: checksum for tp, checksum in checksums.items() if checksum}

    def check_continues(self, after: ChecksumsBefore) -> None:
        for (tp, offset), checksum in after.items():
            look = self._looks.get(tp)
            if look is not None and look.end.until == offset:
                check_unchanged(look.lane, offset, look.end.checksum, checksum)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int | None]:
        """Return, for each lane, the first offset with a timestamp at or after the lane's limit.

        ``timestamps_ms`` has the limit of each lane (ms since the epoch). The offset is None if all
        records of the lane are older.
        """
        journal = self._open()
        return {tp: first_at(journal, tp.partition, ms) for tp, ms in timestamps_ms.items()}

    def sizes(self, current: Positions, latest: Positions) -> Mapping[str, float]:
        """Return the mean size of the next records (bytes), with the journal's name as key.

        The mean is an estimate from headers, over the next ``maxBytesPerTrigger`` bytes of records.
        The result is empty if no records wait.
        """
        journal = self._open()
        behind = [tp for tp, end in latest.items() if current[tp] < end]
        most_bytes = (self._options.shared.limits.max_bytes or math.inf) / max(1, len(behind))
        estimates = [ahead(journal, tp.partition, current[tp], most_bytes) for tp in behind]
        records = sum(estimate.records for estimate in estimates)
        return (
            {journal.name: sum(estimate.bytes for estimate in estimates) / records}
            if records
            else {}
        )

    def lost(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the sub-ranges of ``ranges`` that a repair has declared lost."""
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
        """Return ``latest``: every record in a journal can be read."""
        return latest

    def aborted(self, ranges: Iterable[OffsetRange]) -> tuple[str, ...]:
        return ()

    def processed(self, positions: Positions) -> None:
        """Do nothing: `prune` reads the processed offsets from the ledger."""

    def close(self) -> None:
        """Do nothing: a `Journal` keeps no open files."""

    def _find(self) -> Journal | None:
        try:
            return Journal.open(self._options.path)
        except NoJournalError:
            return None

    def _open(self) -> Journal:
        return Journal.open(self._options.path)
