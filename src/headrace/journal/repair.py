"""Making a journal readable again, without deleting anything.

What cannot be read is declared lost by a file that says which offsets and why: readers pass over
them and count them, and no offset is used twice. The block itself is set aside under another name.
What is gone from a lane's end is known by its mark, and is declared lost in the same way.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.journal.blocks import LaneFiles, Lost
from headrace.journal.faults import told
from headrace.journal.journal import Journal
from headrace.journal.marks import restore
from headrace.journal.names import BLOCK, LOST, corrupt_name, file_name
from headrace.journal.verify import DEFECTS, Finding, FindingKind, check_lane, known_lanes

_DAMAGED_WORD: Final = "What declared these offsets lost was damaged, and with it the reason."


def repair(journal: Journal, reached: Mapping[int, int] | None = None) -> tuple[Finding, ...]:
    """Declare lost what cannot be read; answers what was found and is mended by it.

    Each lane is verified under its writer's lock first, and only what is found is mended. After a
    crash it may be run again. A lane of which nothing is left stays as it is unless it is known
    what it had reached, and so does a damaged file that declared a loss at a lane's end. Blocks of
    two copies of a lane stay as well, for nobody knows which are the right ones.

    Args:
        journal: Which.
        reached: Offsets that lanes are known to have reached, from whoever has read them.

    Raises:
        JournalError: A lane is being written: stop its writer first; or the storage fails.
    """
    mended: list[Finding] = []
    with told(f"The journal {journal.storage.url} cannot be repaired"):
        for lane in known_lanes(journal, reached):
            files = LaneFiles(journal.storage, journal.identity, lane)
            journal.storage.create_folder(files.folder)
            with journal.storage.lock(files.folder):
                while found := _round(files, (reached or {}).get(lane, 0)):
                    mended += found
    return tuple(mended)


def _round(files: LaneFiles, reached: int) -> list[Finding]:
    """Mend what is to be seen; behind a file that was damaged itself there may be more."""
    _, findings = check_lane(files, reached)
    return [finding for finding in findings if _mended(files, finding)]


def _mended(files: LaneFiles, finding: Finding) -> bool:
    """Mend one thing; answers whether it could be."""
    first, until = finding.first, finding.until
    if finding.kind is FindingKind.SPARE and until is not None:
        restore(files, until)
        return True
    if finding.kind not in DEFECTS or finding.kind is FindingKind.MIXED or until is None:
        return False
    if finding.kind is FindingKind.DAMAGED and finding.path.endswith(f".{LOST}"):
        # It has the name itself that the new word is to have. What a crash between leaves is a gap.
        _set_aside(files, finding.path)
        if file_name(finding.first or 0, BLOCK) in files.storage.names(files.folder):
            return True  # the next round says what there is to say of the block
        finding = replace(finding, kind=FindingKind.GAP, reason=_DAMAGED_WORD)
    if first is not None and first < until:
        lost = Lost(first, until, finding.reason)
        # First the word, then the block: a crash between leaves both, and the word counts.
        files.storage.put(files.path(first, LOST), [lost.encode()])
    if finding.kind is not FindingKind.GAP:
        _set_aside(files, finding.path)
    return True


def _set_aside(files: LaneFiles, path: str) -> None:
    folder, _, name = path.rpartition("/")
    files.storage.set_aside(path, f"{folder}/{corrupt_name(name)}")
