"""The proof that a journal is whole: every block is read, and each begins where one ends."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from headrace.errors import CorruptionError
from headrace.journal.block import MAX_RECORDS
from headrace.journal.blocks import LaneFiles
from headrace.journal.faults import told
from headrace.journal.index import LaneIndex
from headrace.journal.journal import Journal
from headrace.journal.marks import is_noted, nothing_left
from headrace.journal.names import (
    BLOCK,
    END,
    IDENTITY,
    file_name,
    is_foreign,
    is_staged_folder,
    is_temporary,
    lane_of,
    written_lane,
)


class FindingKind(StrEnum):
    """What may be found of a journal's files, the worst first."""

    DAMAGED = "damaged"
    """A file is not what was written, or not under its own name."""
    GAP = "gap"
    """No file has these offsets."""
    OVERLAP = "overlap"
    """A file has offsets that the one before it has; ``first`` and ``until`` are of its others."""
    UNFINISHED = "unfinished"
    """A block is still there although it was declared lost: a repair was cut short."""
    SPARE = "spare"
    """A lane's last block has no name but its mark's: it is read when the lane is opened to be
    written, or repaired."""
    LOST = "lost"
    """These offsets were declared lost by a repair."""
    FOREIGN = "foreign"
    """A file or folder that no journal makes; it is never read."""


DEFECTS: Final = (
    FindingKind.DAMAGED,
    FindingKind.GAP,
    FindingKind.OVERLAP,
    FindingKind.UNFINISHED,
)
"""What stops a reader, and what `repair` is for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found.

    Attributes:
        kind: What.
        path: The file's, within the journal; for a gap, that of the file which is missing.
        lane: Which; None for what is in no lane.
        first: The first offset concerned; None for what has none.
        until: The one after the last. Where a lane's last block can say nothing of itself, the
            highest that it may have reached; None where nothing is left that would say it.
        reason: What is wrong with it, as a sentence.
    """

    kind: FindingKind
    path: str
    lane: int | None
    first: int | None
    until: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """A lane: its bounds, its blocks that are whole, and their records."""

    lane: int
    start: int
    until: int
    blocks: int
    records: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of a journal."""

    lanes: tuple[LaneSummary, ...]
    findings: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        """Whether everything can be read that was not declared lost."""
        return not any(finding.kind in DEFECTS for finding in self.findings)


def verify(journal: Journal, reached: Mapping[int, int] | None = None) -> Verification:
    """Read every block of a journal; nothing is changed.

    It may be done while the journal is written, read and pruned: each lane is looked at as it was
    at one moment.

    Args:
        journal: Which.
        reached: Offsets that lanes are known to have reached, from whoever has read them.

    Raises:
        JournalError: The storage fails.
    """
    lanes: list[LaneSummary] = []
    with told(f"The journal {journal.storage.url} cannot be verified"):
        findings = list(_foreign_in_root(journal))
        for lane in known_lanes(journal, reached):
            files = LaneFiles(journal.storage, journal.identity, lane)
            summary, found = check_lane(files, (reached or {}).get(lane, 0))
            lanes.append(summary)
            findings += found
    return Verification(tuple(lanes), tuple(findings))


def known_lanes(journal: Journal, reached: Mapping[int, int] | None) -> list[int]:
    """The lanes that are there, or that were.

    Raises:
        JournalError: The journal cannot be read.
    """
    return sorted({*journal.lanes(), *journal.written_lanes(), *(reached or ())})


def check_lane(files: LaneFiles, reached: int = 0) -> tuple[LaneSummary, list[Finding]]:
    """Read every block of a lane; what is found comes by offset, what is foreign first.

    Args:
        files: The lane's.
        reached: An offset that it is known to have reached, beside what its mark says.

    Raises:
        OSError: The storage fails.
    """
    names = set(files.storage.names(files.folder))
    index = LaneIndex.of(names)
    found = [
        _foreign(f"{files.folder}/{name}", files.lane) for name in sorted(filter(is_foreign, names))
    ]
    at, blocks, records = index.start, 0, 0
    firsts = index.firsts.tolist()
    for first, following in zip_longest(firsts, firsts[1:]):
        path = f"{files.folder}/{index.file_at(first)}"
        look = _look(files, first, following, lost=first in index.lost)
        if first > at:
            gap = f"No file has the offsets [{at}, {first}) of lane {files.lane}."
            found.append(Finding(FindingKind.GAP, files.path(at), files.lane, at, first, gap))
        if first < at:
            # Of the offsets that only this file has, those are meant that no later file has.
            until = max(at, min(look.until, following or look.until))
            twice = f"It begins at {first}, but the file before it ends at {at}."
            found.append(Finding(FindingKind.OVERLAP, path, files.lane, at, until, twice))
            at = until
            continue
        if look.kind is not None:
            found.append(Finding(look.kind, path, files.lane, first, look.until, look.reason))
        if look.kind is FindingKind.LOST and file_name(first, BLOCK) in names:
            left = "It was declared lost, but is still there."
            block = files.path(first)
            found.append(Finding(FindingKind.UNFINISHED, block, files.lane, first, first, left))
        blocks, records, at = blocks + look.blocks, records + look.records, max(at, look.until)
    found += _beyond(files, max(index.mark, reached), at)
    return LaneSummary(files.lane, index.start, at, blocks, records), found


def _beyond(files: LaneFiles, mark: int, end: int) -> Iterator[Finding]:
    """What is gone of a lane's end."""
    if mark == end == 0 and is_noted(files):
        gone = nothing_left(files)
        yield Finding(FindingKind.GAP, files.path(0), files.lane, 0, None, gone)
    if mark <= end:
        return
    now = files.index()
    if now.last is not None and now.last >= end and files.last_end(now) >= mark:
        return  # it was written while it was looked at
    spare = files.spare(mark)
    is_left = spare is not None and spare.first >= end
    until = spare.first if spare is not None and is_left else mark
    if end < until:
        gone = (
            f"The lane had reached offset {mark}, and no file has the offsets [{end}, {until}) of"
            f" lane {files.lane}."
        )
        yield Finding(FindingKind.GAP, files.path(end), files.lane, end, until, gone)
    if is_left:
        left = "Of the block only the lane's mark is left; `repair` gives it its name again."
        path = files.path(mark, END)
        yield Finding(FindingKind.SPARE, path, files.lane, until, mark, left)


@dataclass(frozen=True, slots=True)
class _Look:
    """What there is to say of one file by itself."""

    until: int
    blocks: int = 0
    records: int = 0
    kind: FindingKind | None = None
    reason: str = ""


def _look(files: LaneFiles, first: int, following: int | None, *, lost: bool) -> _Look:
    try:
        if lost:
            word = files.lost(first)
            return _Look(word.until, kind=FindingKind.LOST, reason=word.reason)
        header, _ = files.records(first)
    except CorruptionError as error:
        until = following
        if until is None and not lost:
            until = files.claimed_end(first)
        return _Look(until or first + MAX_RECORDS, kind=FindingKind.DAMAGED, reason=str(error))
    except FileNotFoundError:  # pruned since the lane was listed
        return _Look(first if following is None else following)
    return _Look(header.until, 1, header.count)


def _foreign_in_root(journal: Journal) -> Iterator[Finding]:
    names = {*journal.storage.names(""), *journal.storage.folders()}
    for name in sorted(names):
        ours = name == IDENTITY or is_temporary(name) or is_staged_folder(name)
        if not ours and lane_of(name) is None and written_lane(name) is None:
            yield _foreign(name, None)


def _foreign(path: str, lane: int | None) -> Finding:
    return Finding(FindingKind.FOREIGN, path, lane, None, None, "A journal has no such file.")
