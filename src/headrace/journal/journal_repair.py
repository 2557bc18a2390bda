"""The repair of a journal that is not whole, which deletes no record.

A damaged or missing block or pack is declared lost by a file that says which offsets and why:
readers skip and count them, and no offset is used twice. A damaged file is set aside under another
name; where a crash has left the blocks of a damaged pack, these are read again in its place.
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
from headrace.journal.names import BLOCK, LOST, file_name, packed
from headrace.journal.storage import as_journal_error

_DAMAGED: Final = "What declared these offsets lost was damaged, and with it the reason."


def repair(
    journal: Journal, reached: Mapping[int, int] | None = None
) -> tuple[JournalFinding, ...]:
    """Declare damaged and missing blocks lost; return the mended findings.

    `lost_records` counts what is lost by it. A last block whose only name is the lane's mark gets
    its own back. Each lane is verified under its writer's lock first. After a crash it
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


def lost_records(findings: Iterable[JournalFinding]) -> int:
    """Count the offsets that a repair has declared lost, or would, by the findings of either."""
    kinds = (JournalFindingKind.DAMAGED, JournalFindingKind.GAP, JournalFindingKind.OVERLAP)
    counted = [each for each in findings if each.kind in kinds and each.until is not None]
    return sum(max(0, (each.until or 0) - (each.first or 0)) for each in counted)


def _repaired(files: LaneFiles, reached: int) -> list[JournalFinding]:
    """Repair visible damage; behind a file that was damaged itself there may be more."""
    findings = check_lane(files, reached).findings
    return [done for each in findings if (done := _repair(files, each)) is not None]


def _repair(files: LaneFiles, finding: JournalFinding) -> JournalFinding | None:
    """Repair one thing; returns it if that is possible, with the offsets that are lost by it."""
    first, until = finding.first, finding.until
    if finding.kind is JournalFindingKind.SPARE and until is not None:
        restore(files, until)
        return finding
    if finding.kind not in DEFECTS or finding.kind is JournalFindingKind.MIXED or until is None:
        return None
    is_gone, reason = finding.kind is JournalFindingKind.GAP, finding.reason
    pack = packed(finding.path.rpartition("/")[2])
    if finding.kind is JournalFindingKind.DAMAGED and pack and files.index().left_within(*pack):
        files.set_aside(finding.path)
        return replace(finding, until=first)  # the next round says what there is of its blocks
    if finding.kind is JournalFindingKind.DAMAGED and finding.path.endswith(f".{LOST}"):
        # The damaged declaration has the name of the new one. A crash between leaves a gap.
        files.set_aside(finding.path)
        if file_name(first or 0, BLOCK) in files.names() or first in files.index().packs:
            return replace(finding, until=first)  # the next round says what there is of the block
        is_gone, reason = True, _DAMAGED
    if first is not None and first < until:
        lost = Lost(first, until, reason)
        # First the declaration, then the block: of both, the declaration counts.
        files.storage.put(files.path(first, LOST), [lost.encode()])
    if not is_gone:
        files.set_aside(finding.path)
    return finding
