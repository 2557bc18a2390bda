"""Making a journal readable again, without deleting anything.

What cannot be read is declared lost by a file that says which offsets and why: readers pass over
them and count them, and no offset is used twice. The block itself is set aside under another name.
What is gone from a lane's end is known by its mark, and is declared lost in the same way.
"""

from collections.abc import Mapping

from headrace.journal.blocks import LaneFiles, Lost
from headrace.journal.faults import told
from headrace.journal.journal import Journal
from headrace.journal.marks import restore
from headrace.journal.names import BLOCK, LOST, corrupt_name
from headrace.journal.verify import DEFECTS, Finding, FindingKind, check_lane, known_lanes


def repair(journal: Journal, reached: Mapping[int, int] | None = None) -> tuple[Finding, ...]:
    """Declare lost what cannot be read; answers what was found and is mended by it.

    Each lane is verified under its writer's lock first, and only what is found is mended. After a
    crash it may be run again. A file that declares a loss and is damaged itself is left as it is,
    and so is a lane of which nothing is left, unless it is known what it had reached.

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
                _, findings = check_lane(files, (reached or {}).get(lane, 0))
                mended += [finding for finding in findings if _mended(files, finding)]
    return tuple(mended)


def _mended(files: LaneFiles, finding: Finding) -> bool:
    """Mend one thing; answers whether it could be."""
    first, until = finding.first, finding.until
    if finding.kind is FindingKind.SPARE and until is not None:
        restore(files, until)
        return True
    is_block = finding.path.endswith(f".{BLOCK}")
    nobody_knows = finding.kind is FindingKind.GAP and until is None
    if (
        nobody_knows
        or finding.kind not in DEFECTS
        or (finding.kind is FindingKind.DAMAGED and not is_block)
    ):
        return False
    if first is not None and until is not None and first < until:
        lost = Lost(first, until, finding.reason)
        # First the word, then the block: a crash between leaves both, and the word counts.
        files.storage.put(files.path(first, LOST), [lost.encode()])
    if finding.kind is not FindingKind.GAP:
        folder, _, name = finding.path.rpartition("/")
        files.storage.set_aside(finding.path, f"{folder}/{corrupt_name(name)}")
    return True
