"""The repair of a journal that is not whole, which deletes no record.

A damaged or missing block is restored from its second copy. A block without one is declared lost by
a file that says which offsets and why: readers skip and count them, and no offset is used twice.
The damaged block is set aside under another name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headrace.journal.journal import Journal
from headrace.journal.journal_check import (
    DEFECTS,
    JournalFinding,
    JournalFindingKind,
    check_lane,
    known_lanes,
)
from headrace.journal.lane_files import LaneFiles, Lost
from headrace.journal.lane_mark import restore
from headrace.journal.names import BLOCK, LOST, file_name
from headrace.journal.second_copies import Copy, remake_copy, restore_block
from headrace.journal.storage import as_journal_error

_DAMAGED: Final = "What declared these offsets lost was damaged, and with it the reason."


def repair(
    journal: Journal, reached: Mapping[int, int] | None = None
) -> tuple[JournalFinding, ...]:
    """Restore blocks with a second copy, and declare the others lost; return the mended findings.

    `restored_records` and `lost_records` count the records of either kind. Second copies that are
    damaged are made again. Each lane is verified under its writer's lock first. After a crash it
    may be run again. It leaves alone a lane that has lost all its files unless its reached offset
    is known, a damaged declaration at a lane's end, and mixed blocks of two copies of a lane, of
    which the right ones are unknown.

    Args:
        journal: The journal.
        reached: Offsets that lanes are known to have reached, from whoever has read them.

    Raises:
        JournalError: A lane is being written: stop its writer first; or the storage fails.
    """
    repaired: list[JournalFinding] = []
    with as_journal_error(f"The journal {journal.storage.url} cannot be repaired"):
        for lane in known_lanes(journal, reached):
            files = LaneFiles(journal.storage, journal.identity, lane)
            journal.storage.create_folder(files.folder)
            with journal.storage.lock(files.folder):
                while found := _repaired(files, (reached or {}).get(lane, 0)):
                    repaired += found
    return tuple(repaired)


def restored_records(mended: Iterable[JournalFinding]) -> int:
    """Count the records that a repair has restored."""
    kinds = (JournalFindingKind.RESTORED, JournalFindingKind.SPARE)
    return sum(_count(finding) for finding in mended if finding.kind in kinds)


def lost_records(mended: Iterable[JournalFinding]) -> int:
    """Count the offsets that a repair has declared lost."""
    kinds = (JournalFindingKind.DAMAGED, JournalFindingKind.GAP, JournalFindingKind.OVERLAP)
    return sum(_count(finding) for finding in mended if finding.kind in kinds)


def _count(finding: JournalFinding) -> int:
    return (finding.until or 0) - (finding.first or 0)


def _repaired(files: LaneFiles, reached: int) -> list[JournalFinding]:
    """Repair visible damage; behind a file that was damaged itself there may be more.

    Blocks with a copy are restored first, so that none of them is declared lost.
    """
    checked = check_lane(files, reached)
    for copy in checked.copies:
        restore_block(files, copy)
    if checked.copies:
        return [_restored(files, copy) for copy in checked.copies]
    mended = [done for each in checked.findings if (done := _repair(files, each)) is not None]
    if mended:
        return mended
    for damaged in checked.damaged:  # now that its blocks are what they can be
        remake_copy(files, damaged)
    return [each for each in checked.findings if each.kind is JournalFindingKind.COPY]


def _restored(files: LaneFiles, copy: Copy) -> JournalFinding:
    path, why = files.path(copy.first), f"It was restored from {copy.path}."
    return JournalFinding(
        JournalFindingKind.RESTORED, path, files.lane, copy.first, copy.until, why
    )


def _repair(files: LaneFiles, finding: JournalFinding) -> JournalFinding | None:
    """Repair one thing; returns it if that is possible, with the offsets that are lost by it."""
    first, until = finding.first, finding.until
    if finding.kind is JournalFindingKind.COPY:
        return None
    if finding.kind is JournalFindingKind.SPARE and until is not None:
        restore(files, until)
        return finding
    if finding.kind not in DEFECTS or finding.kind is JournalFindingKind.MIXED or until is None:
        return None
    is_gone, reason = finding.kind is JournalFindingKind.GAP, finding.reason
    if finding.kind is JournalFindingKind.DAMAGED and finding.path.endswith(f".{LOST}"):
        # The damaged declaration has the name of the new one. A crash between leaves a gap.
        files.set_aside(finding.path)
        if file_name(first or 0, BLOCK) in files.storage.names(files.folder):
            return replace(finding, until=first)  # the next round says what there is of the block
        is_gone, reason = True, _DAMAGED
    if first is not None and first < until:
        lost = Lost(first, until, reason)
        # First the declaration, then the block: of both, the declaration counts.
        files.storage.put(files.path(first, LOST), [lost.encode()])
    if not is_gone:
        files.set_aside(finding.path)
    return finding
