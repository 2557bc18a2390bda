"""The check that a journal is whole: every block is read, and each must begin where one ends.

A pack stands in the place of its blocks, as a reader has it. `journal_repair` mends the findings.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from headrace.errors import CorruptionError
from headrace.journal.block import MAX_RECORDS
from headrace.journal.journal import Journal
from headrace.journal.journal_log import pauses
from headrace.journal.lane_files import LaneEnd, LaneFiles, LaneIndex
from headrace.journal.lane_mark import is_noted, nothing_left
from headrace.journal.names import (
    BLOCK,
    END,
    IDENTITY,
    file_name,
    is_foreign,
    is_temporary,
    lane_of,
    written_lane,
)
from headrace.journal.records import SCHEMA
from headrace.journal.storage import as_journal_error

if TYPE_CHECKING:
    from headrace.core.timing import Clock


class JournalFindingKind(StrEnum):
    """Kinds of findings in a journal's files, the worst first."""

    DAMAGED = "damaged"
    """A file is not as it was written, or not under its own name."""
    GAP = "gap"
    """No file has these offsets."""
    OVERLAP = "overlap"
    """A file has offsets that the one before it has; ``first`` and ``until`` are of its others."""
    UNFINISHED = "unfinished"
    """A block is still there although it was declared lost: a repair was interrupted."""
    SPARE = "spare"
    """A lane's last block has lost its name, and only the lane's mark has it: nobody reads it until
    the lane is opened to be written, or repaired."""
    MIXED = "mixed"
    """A block was written behind another one than the file before it: blocks of two copies of the
    lane are mixed. No `repair` knows which are the right ones."""
    LOST = "lost"
    """These offsets were declared lost by a repair."""
    FOREIGN = "foreign"
    """A file or folder that no journal makes; it is never read."""


DEFECTS: Final = (
    JournalFindingKind.DAMAGED,
    JournalFindingKind.GAP,
    JournalFindingKind.OVERLAP,
    JournalFindingKind.UNFINISHED,
    JournalFindingKind.SPARE,
    JournalFindingKind.MIXED,
)
"""Findings of a journal that is not whole; `repair` mends all but the last."""


@dataclass(frozen=True, slots=True)
class JournalFinding:
    """Something found.

    Attributes:
        kind: Kind of finding.
        path: The file's, within the journal; for a gap, that of the file which is missing.
        lane: Lane; None for a file that is in no lane.
        first: The first offset concerned; None for what has none.
        until: The one after the last. Where a lane's last block can say nothing of itself, the
            mark, or the highest that it may have reached; None where nothing says how far it went.
        reason: Description of the defect, as a sentence.
    """

    kind: JournalFindingKind
    path: str
    lane: int | None
    first: int | None
    until: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """A lane: its bounds, its blocks and packs that are whole, and their records."""

    lane: int
    start: int
    until: int
    blocks: int
    records: int


@dataclass(frozen=True, slots=True)
class JournalVerification:
    """Findings of a journal."""

    lanes: tuple[LaneSummary, ...]
    findings: tuple[JournalFinding, ...]

    @property
    def whole(self) -> bool:
        """Whether all blocks are as written, but for declared losses."""
        return not any(finding.kind in DEFECTS for finding in self.findings)


def verify(
    journal: Journal, reached: Mapping[int, int] | None = None, *, clock: "Clock" = time
) -> JournalVerification:
    """Read every block of a journal; nothing is changed.

    It may be done while the journal is written, read and pruned: each lane is read as of one
    moment.

    Args:
        journal: The journal.
        reached: Offsets that lanes are known to have reached, from whoever has read them.
        clock: To wait a second for a last block whose writer is about to name it.

    Raises:
        JournalError: The storage fails.
    """
    lanes: list[LaneSummary] = []
    with as_journal_error(f"The journal {journal.storage.url} cannot be verified"):
        findings = list(_foreign_in_root(journal))
        for lane in known_lanes(journal, reached):
            files = LaneFiles(journal.storage, journal.identity, lane)
            checked = check_lane(files, (reached or {}).get(lane, 0), clock)
            lanes.append(checked.summary)
            findings += checked.findings
    return JournalVerification(tuple(lanes), tuple(findings))


def known_lanes(journal: Journal, reached: Mapping[int, int] | None) -> list[int]:
    """The lanes that are there, or that were."""
    return sorted({*journal.lanes(), *journal.written_lanes(), *(reached or ())})


@dataclass(frozen=True, slots=True)
class LaneCheck:
    """Findings of a lane."""

    summary: LaneSummary
    findings: list[JournalFinding]


def check_lane(files: LaneFiles, reached: int = 0, clock: "Clock | None" = None) -> LaneCheck:
    """Read every block of a lane; findings are by offset, foreign files first.

    The lane has reached ``reached`` at least. The clock is that of ``verify``; None if the lane
    cannot be written meanwhile.
    """
    names = set(files.names())
    index = LaneIndex.of(names)
    found = [
        _foreign(f"{files.folder}/{name}", files.lane) for name in sorted(filter(is_foreign, names))
    ]
    firsts = index.firsts.tolist()
    at = min([index.start, *firsts[:1]])  # a pack may begin below the start
    blocks, records, checksum, packed_until = 0, 0, 0, 0
    mark, is_open = max(index.mark, reached), False
    for first, following in zip_longest(firsts, firsts[1:]):
        if first < packed_until:
            continue  # it was packed since the lane was listed
        path = files.path_at(index, first)
        look = _look(files, index, first, following, mark)
        end = first if look.until is None else look.until
        if first > at:
            gap = f"No file has the offsets [{at}, {first}) of lane {files.lane}."
            found.append(
                JournalFinding(JournalFindingKind.GAP, files.path(at), files.lane, at, first, gap)
            )
            checksum = 0
        if first < at:
            # Report only offsets of this file that no later file has.
            until = max(at, min(end, following or end))
            twice = f"It begins at {first}, but the file before it ends at {at}."
            found.append(
                JournalFinding(JournalFindingKind.OVERLAP, path, files.lane, at, until, twice)
            )
            at, checksum = until, checksum if until == at else 0
            continue
        found += _said_of(files, index, names, look, checksum)
        blocks, records = blocks + look.blocks, records + look.records
        packed_until, at = look.packed_until, max(at, end)
        checksum, is_open = look.checksum, look.until is None
    if not is_open:
        found += _beyond(files, mark, at, clock)
    return LaneCheck(LaneSummary(files.lane, index.start, at, blocks, records), found)


def _said_of(
    files: LaneFiles, index: LaneIndex, names: set[str], look: "_Look", before: int
) -> Iterator[JournalFinding]:
    """Yield the findings of one file in its place, behind a block with a checksum (0: unknown)."""
    first, path = look.first, files.path_at(index, look.first)
    if 0 not in (before, look.previous) and look.previous != before:
        mixed = (
            "It was written behind another block than the one before it, so blocks of two copies"
            " of the lane are mixed; put back those of one copy."
        )
        yield JournalFinding(JournalFindingKind.MIXED, path, files.lane, first, look.until, mixed)
    if look.kind is not None:
        yield JournalFinding(look.kind, path, files.lane, first, look.until, look.reason)
    pack_until = index.packs.get(first)
    if look.kind is JournalFindingKind.LOST and (pack_until or file_name(first, BLOCK) in names):
        left, path = "It was declared lost, but is still there.", files.path_of(first, pack_until)
        yield JournalFinding(JournalFindingKind.UNFINISHED, path, files.lane, first, first, left)


def _beyond(
    files: LaneFiles, mark: int, end: int, clock: "Clock | None"
) -> Iterator[JournalFinding]:
    """Yield the losses at a lane's end."""
    if mark == end == 0 and is_noted(files):
        gone = nothing_left(files)
        yield JournalFinding(JournalFindingKind.GAP, files.path(0), files.lane, 0, None, gone)
    if mark <= end or _goes_on(files, mark, end):
        return
    spare = files.spare(mark)
    is_left = spare is not None and spare.first >= end
    if is_left and clock is not None and any(_goes_on(files, mark, end) for _ in pauses(clock)):
        return
    until = spare.first if spare is not None and is_left else mark
    if end < until:
        gone = (
            f"The lane had reached offset {mark}, and no file has the offsets [{end}, {until}) of"
            f" lane {files.lane}."
        )
        yield JournalFinding(JournalFindingKind.GAP, files.path(end), files.lane, end, until, gone)
    if is_left:
        path, left = files.path(mark, END), files.without_name(LaneEnd(until, spare_until=mark))
        yield JournalFinding(JournalFindingKind.SPARE, path, files.lane, until, mark, left)


def _goes_on(files: LaneFiles, mark: int, end: int) -> bool:
    """Whether a lane that was seen to end has its files up to the mark by now."""
    now = files.index()
    return now.last is not None and now.last >= end and files.last_end(now).until >= mark


@dataclass(frozen=True, slots=True)
class _Look:
    """Findings of one file by itself; None or 0 where it is unknown.

    ``checksum`` is its own as a block, if it is whole; ``previous`` that of the block that it was
    written behind; ``packed_until`` the end of a pack that was made since the lane was listed.
    """

    first: int
    until: int | None
    blocks: int = 0
    records: int = 0
    kind: JournalFindingKind | None = None
    reason: str = ""
    checksum: int = 0
    previous: int = 0
    packed_until: int = 0


def _look(
    files: LaneFiles, index: LaneIndex, first: int, following: int | None, mark: int
) -> _Look:
    lost = first in index.lost

    def whole(begin: int, pack_until: int | None) -> _Look:
        header, _ = files.block(begin, SCHEMA.names, pack_until)
        return _Look(
            first,
            header.until,
            1,
            header.until - max(first, index.start),
            checksum=header.checksum,
            previous=files.checksum_before(header, pack_until, first),
            packed_until=pack_until or 0,
        )

    try:
        if lost:
            loss = files.lost(first)
            return _Look(first, loss.until, kind=JournalFindingKind.LOST, reason=loss.reason)
        return files.held(index, first, whole)
    except CorruptionError as error:
        reason = str(error)
        if lost:
            until = _lost_until(files, first, following, mark)
            if until is None:
                reason += (
                    " Nothing else says where the lane ended, so give `headrace journal repair`"
                    f" --reached {files.lane}:OFFSET with an offset that the lane had not reached."
                )
        else:
            until = index.packs.get(first) or following or files.claimed_end(first)
            # The last file's own mark, or one of files behind it that are gone as well.
            until = until or (mark if mark > first else first + MAX_RECORDS)
        return _Look(first, until, kind=JournalFindingKind.DAMAGED, reason=reason)
    except FileNotFoundError:  # pruned since the lane was listed
        return _Look(first, first if following is None else following)


def _lost_until(files: LaneFiles, first: int, following: int | None, mark: int) -> int | None:
    """Return the end of a loss whose declaration is damaged; None if nothing else says so."""
    if following is not None:
        return following
    unknown = None
    with suppress(FileNotFoundError):
        mark = max(mark, files.claimed_end(first) or 0)
        unknown = first + MAX_RECORDS
    return mark if mark > first else unknown


def _foreign_in_root(journal: Journal) -> Iterator[JournalFinding]:
    names = {*journal.storage.names(""), *journal.storage.folders()}
    for name in sorted(names):
        ours = name == IDENTITY or is_temporary(name)
        if not ours and lane_of(name) is None and written_lane(name) is None:
            yield _foreign(name, None)


def _foreign(path: str, lane: int | None) -> JournalFinding:
    return JournalFinding(
        JournalFindingKind.FOREIGN, path, lane, None, None, "A journal has no such file."
    )
