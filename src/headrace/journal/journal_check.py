"""Verification of a journal: reading every block, and checking that no offsets are missing.

`journal_repair` repairs the defects.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Final

import pyarrow as pa

from headrace.errors import CorruptionError
from headrace.journal.frame import Frames, Place, check_segment, later_headers, salvaged
from headrace.journal.journal import Journal
from headrace.journal.lane import Lane, LaneIndex
from headrace.journal.layout import IDENTITY, LOST, UNNAMED, is_foreign, lane_of
from headrace.journal.records import SCHEMA
from headrace.journal.storage import as_journal_error


class JournalFindingKind(StrEnum):
    """Kinds of findings in a journal's files, the worst first."""

    DAMAGED = "damaged"
    """The file's bytes have changed since they were written, or belong in another file."""
    GAP = "gap"
    """Offsets of the lane that no file contains."""
    OVERLAP = "overlap"
    """A segment that begins before the end of the previous file. The finding's offsets are only the
    segment's offsets after that end."""
    MIXED = "mixed"
    """A block that was not written after the block that now precedes it, because blocks of two
    copies of the lane are mixed. `repair` cannot decide between the copies."""
    LOST = "lost"
    """Offsets that a repair has declared lost."""
    FOREIGN = "foreign"
    """A file or folder that does not belong to a journal, and is never read."""


DEFECTS: Final = (
    JournalFindingKind.DAMAGED,
    JournalFindingKind.GAP,
    JournalFindingKind.OVERLAP,
    JournalFindingKind.MIXED,
)
"""Kinds of findings that make a journal incomplete. `repair` repairs all kinds except ``mixed``."""


@dataclass(frozen=True, slots=True)
class JournalFinding:
    """Finding of `verify`: a defect, a declared loss, or a foreign file.

    Attributes:
        kind: The kind of finding.
        path: The path of the file within the journal; for a gap, the path of the missing file.
        lane: The number of the lane; None for a file outside lanes.
        first: The first affected offset; None for a foreign file.
        until: The offset after the last affected offset; None for a foreign file, or if the lane's
            end is unknown.
        reason: A description of the finding, as a sentence.
    """

    kind: JournalFindingKind
    path: str
    lane: int | None
    first: int | None
    until: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """Summary of a verified lane: bounds, number of valid blocks, and number of their records."""

    lane: int
    start: int
    until: int
    blocks: int
    records: int


@dataclass(frozen=True, slots=True)
class JournalVerification:
    """Result of `verify`: a summary of each lane, and all findings."""

    lanes: tuple[LaneSummary, ...]
    findings: tuple[JournalFinding, ...]

    @property
    def whole(self) -> bool:
        """Whether the journal has no defects. Offsets that were declared lost are not defects."""
        return not any(finding.kind in DEFECTS for finding in self.findings)


def verify(journal: Journal, reached: Mapping[int, int] | None = None) -> JournalVerification:
    """Read and check every block of a journal, without changing anything.

    Writers, readers and pruning may run at the same time: a check uses a snapshot of each lane.

    Args:
        journal: The journal.
        reached: For each lane, the highest offset that a reader has reached. A lane that ends
            before that offset has a gap.

    Raises:
        JournalError: The storage fails.
    """
    lanes: list[LaneSummary] = []
    with as_journal_error(f"The journal {journal.storage.url} cannot be verified"):
        findings = list(_foreign_in_root(journal))
        for lane in known_lanes(journal, reached):
            files = Lane(journal.storage, journal.identity, lane)
            checked = check_lane(files, (reached or {}).get(lane, 0))
            lanes.append(checked.summary)
            findings += checked.findings
    return JournalVerification(tuple(lanes), tuple(findings))


def known_lanes(journal: Journal, reached: Mapping[int, int] | None) -> list[int]:
    """Return the numbers of all lanes that exist or are keys of ``reached``, ascending."""
    return sorted({*journal.lanes(), *(reached or ())})


@dataclass(frozen=True, slots=True)
class LaneCheck:
    """Result of `check_lane`: the lane's summary and its findings."""

    summary: LaneSummary
    findings: list[JournalFinding]


def check_lane(lane: Lane, reached: int = 0) -> LaneCheck:
    """Read and check every block of a lane; return its summary and its findings.

    A lane that ends before offset ``reached`` has a gap. Foreign files come first in the findings.
    All other findings are sorted by offset.
    """
    names = lane.storage.names(lane.folder)
    walk = _Walk(lane, LaneIndex.of(names))
    walk.findings += [
        _foreign(f"{lane.folder}/{name}", lane.lane) for name in sorted(filter(is_foreign, names))
    ]
    walk.run()
    if walk.at is not None and walk.at < reached:
        walk.gap(reached)
    until = walk.at if walk.at is not None else walk.index.firsts[-1]
    summary = LaneSummary(lane.lane, walk.index.start, until, walk.blocks, walk.records)
    return LaneCheck(summary, walk.findings)


class _Walk:
    """Check of one lane in progress: the current offset and the findings so far.

    ``at`` is the current offset; None after a damaged last file whose end offset is unknown.
    ``checksum`` is the checksum of the previous block, or 0 if unknown.
    """

    def __init__(self, lane: Lane, index: LaneIndex) -> None:
        self.lane = lane
        self.index = index
        self.at: int | None = index.start
        self.checksum = self.lost_until = 0
        self.blocks = self.records = 0
        self.findings: list[JournalFinding] = []

    def run(self) -> None:
        """Check the lane from its start to its end."""
        pieces = self.index.pieces
        following = [first for first, _ in pieces[1:]]
        for (first, kind), stop in zip_longest(pieces, following):
            if self.at is not None and first > self.at:
                self.gap(first)
            try:
                self._loss(first, stop) if kind == LOST else self._segment(first, stop)
            except FileNotFoundError:  # pruned since the lane was listed
                self._reach(stop if stop is not None else first, 0)

    def gap(self, until: int) -> None:
        """Record a gap from the current offset to ``until``."""
        gap = f"No file has the offsets [{self.at}, {until}) of lane {self.lane.lane}."
        self._note(JournalFindingKind.GAP, self.lane.path(self.at or 0), self.at or 0, until, gap)
        self._reach(until, 0)

    def _note(
        self, kind: JournalFindingKind, path: str, first: int, until: int | None, reason: str
    ) -> None:
        self.findings.append(JournalFinding(kind, path, self.lane.lane, first, until, reason))

    def _reach(self, until: int | None, checksum: int) -> None:
        self.at = until if until is None or self.at is None else max(self.at, until)
        self.checksum = checksum

    def _loss(self, first: int, stop: int | None) -> None:
        path = self.lane.path(first, LOST)
        try:
            lost = self.lane.lost(first)
        except CorruptionError as error:
            reason, until = str(error), stop
            if stop is None:
                reason += self._request_for_end()
            self._note(JournalFindingKind.DAMAGED, path, first, until, reason)
        else:
            until = self.lost_until = lost.until
            self._note(JournalFindingKind.LOST, path, first, until, lost.reason)
        self._reach(until, 0)

    def _request_for_end(self) -> str:
        """Return a sentence that asks the user for an offset after the lane's unknown end."""
        return (
            " No other file shows where the lane ended, so give `headrace journal repair` --reached"
            f" {self.lane.lane}:OFFSET with an offset that the lane had not reached."
        )

    def _segment(self, first: int, stop: int | None) -> None:
        """Check the segment that begins at ``first``, up to offset ``stop``.

        ``stop`` is the first offset of the next file; None if the segment is the last file.
        """
        path = self.lane.path(first)
        data = self.lane.storage.read(path).to_pybytes()
        begin = self.at if self.at is not None else first
        place = self.lane.place(first)
        if first < begin:
            if first >= self.lost_until:
                self._overlap(path, data, place, stop)
                return
            if stop is not None and stop <= begin:
                return  # the whole segment was declared lost
        can_tear = stop is None and self.lane.storage.appends
        checked = check_segment(data, place, is_last=can_tear)
        known = len(self.findings)
        for row in salvaged(data, place):
            start = row.range_of(0)[0]
            if start > checked.frames.until and not checked.defect:
                break
            is_cut_off = int(row.places[0]) > checked.frames.end and (stop is None or start < stop)
            if is_cut_off and start == self.at and len(self.findings) == known:
                self._damage(path, start)  # readers do not come behind the bytes before it
            self._row(path, data, row, stop)
        end = self._claimed_end(data, checked.frames, stop) if checked.defect else self.at
        if end is None or (self.at is not None and self.at < end):
            self._damage(path, end)
        elif checked.defect and stop is None and len(self.findings) == known:
            self._damage(path, None)  # whole frames of another place say nothing of this one

    def _overlap(self, path: str, data: bytes, place: Place, stop: int | None) -> None:
        """Record that a segment begins before the current offset. Continue at the segment's end."""
        at = self.at or 0
        end = check_segment(data, place, is_last=True).frames.until
        until = max(at, end if stop is None else min(end, stop))
        twice = f"It begins at {place.first}, but the file before it ends at {at}."
        self._note(JournalFindingKind.OVERLAP, path, at, until, twice)
        self._reach(until, self.checksum if until == at else 0)

    def _damage(self, path: str, until: int | None) -> None:
        at = self.at or 0
        reason = f"{self.lane.shown(path)} (offset {at} of lane {self.lane.lane}) is damaged."
        if until is None:
            reason += self._request_for_end()
        self._note(JournalFindingKind.DAMAGED, path, at, until, reason)
        self._reach(until, 0)

    def _row(self, path: str, data: bytes, row: Frames, stop: int | None) -> None:
        """Check the consecutive frames ``row`` of a segment, up to offset ``stop``."""
        for number in range(len(row)):
            first, until = row.range_of(number)
            if stop is not None and first >= stop:
                return  # the next piece has this offset
            if self.at is not None and until <= self.at:
                continue  # declared lost
            if self.at is not None and first > self.at:
                self._damage(path, first)
            previous = int(row.rows["previous"][number])
            if 0 not in (self.checksum, previous) and previous != self.checksum:
                mixed = (
                    "The block before it is not the block after which it was written, so blocks of"
                    " two copies of the lane are mixed; restore the files of one copy."
                )
                self._note(JournalFindingKind.MIXED, path, first, until, mixed)
            try:
                at = int(row.places[number])
                frame = pa.py_buffer(data).slice(at, row.end_of(number) - at)
                self.lane.decoded(self.index.segment_of(first) or 0, first, frame, SCHEMA.names)
            except CorruptionError as error:
                self._note(JournalFindingKind.DAMAGED, path, first, until, str(error))
                self._reach(until, 0)
                continue
            self.blocks += 1
            self.records += until - first
            self._reach(until, int(row.rows["checksum"][number]))

    def _claimed_end(self, data: bytes, found: Frames, stop: int | None) -> int | None:
        """Return the end offset of a damaged segment; None if it is unknown.

        The end is ``stop``, the first offset of the next file. If ``stop`` is None, the end is the
        highest offset in the headers after the damage.
        """
        if stop is not None:
            return stop
        place = found.follows
        claims = [
            max(header.until, header.synced)
            for header in later_headers(data, found.end)
            if (header.journal_id, header.lane) == (place.journal_id, place.lane)
        ]
        return max(claims, default=None)


def _foreign_in_root(journal: Journal) -> Iterator[JournalFinding]:
    names = {*journal.storage.names(""), *journal.storage.folders()}
    for name in sorted(names):
        ours = name == IDENTITY or name.endswith(UNNAMED)
        if not ours and lane_of(name) is None:
            yield _foreign(name, None)


def _foreign(path: str, lane: int | None) -> JournalFinding:
    return JournalFinding(
        JournalFindingKind.FOREIGN, path, lane, None, None, "A journal has no such file."
    )
