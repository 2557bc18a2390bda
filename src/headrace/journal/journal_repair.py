"""Repair of an incomplete journal, which deletes no record.

A loss is always explicit: nothing skips a damaged block by itself. `repair` writes a file that
declares damaged or missing offsets lost, with the reason. These offsets are never used again.
Readers stop at lost offsets or count them, as ``failOnDataLoss`` says. Damaged bytes stay in their
file, and valid blocks after them are copied into a new segment.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from headrace.journal.frame import salvaged
from headrace.journal.journal import Journal
from headrace.journal.journal_check import (
    DEFECTS,
    JournalFinding,
    JournalFindingKind,
    check_lane,
    known_lanes,
)
from headrace.journal.lane import Lane, Lost
from headrace.journal.layout import LOST, SEGMENT, corrupt_name, file_name, parsed
from headrace.journal.storage import as_journal_error

_DAMAGED: Final = "What declared these offsets lost was damaged, and with it the reason."


def repair(
    journal: Journal, reached: Mapping[int, int] | None = None
) -> tuple[JournalFinding, ...]:
    """Declare damaged and missing blocks lost; return the repaired findings.

    Each lane is verified first, under its writer's lock. `lost_records` counts the lost records of
    the findings. A repair may run again after a crash. Not repaired are a lane with an unknown end
    and no offset in ``reached``, and mixed blocks of two copies of a lane.

    Args:
        journal: The journal.
        reached: Highest offset that any reader has reported for each lane.

    Raises:
        JournalError: A lane has a running writer, which must stop first, or the storage fails.
    """
    repaired: list[JournalFinding] = []
    with as_journal_error(f"The journal {journal.storage.url} cannot be repaired"):
        for lane in known_lanes(journal, reached):
            files = Lane(journal.storage, journal.identity, lane)
            journal.storage.create_folder(files.folder)
            with journal.storage.lock(files.folder):
                reached_offset = (reached or {}).get(lane, 0)
                findings = check_lane(files, reached_offset).findings
                repaired += [
                    repaired_finding
                    for finding in findings
                    if (repaired_finding := _repair(files, finding, reached_offset)) is not None
                ]
    return tuple(repaired)


def lost_records(findings: Iterable[JournalFinding]) -> int:
    """Return the number of lost offsets in the findings of `verify` or `repair`."""
    kinds = (JournalFindingKind.DAMAGED, JournalFindingKind.GAP, JournalFindingKind.OVERLAP)
    counted = [
        finding for finding in findings if finding.kind in kinds and finding.until is not None
    ]
    return sum(max(0, (finding.until or 0) - (finding.first or 0)) for finding in counted)


def _repair(lane: Lane, finding: JournalFinding, reached: int) -> JournalFinding | None:
    """Repair one finding; return it with the lost offsets, or None if it cannot be repaired."""
    first, until, reason = finding.first, finding.until, finding.reason
    if finding.kind not in DEFECTS or finding.kind is JournalFindingKind.MIXED or first is None:
        return None
    is_end_known = until is not None
    until = reached if until is None else until
    if finding.path.endswith(f".{LOST}"):
        if not until:
            return None
        # The new declaration needs the damaged one's name. A crash in between leaves a gap.
        lane.set_aside(finding.path)
        reason = _DAMAGED
    elif finding.kind is not JournalFindingKind.OVERLAP:
        if until < first or (until == first and not is_end_known):
            return None
        _keep_behind(lane, finding.path, until)
    if first < until:
        lane.storage.put(lane.path(first, LOST), [Lost(first, until, reason).encode()])
    if finding.kind is JournalFindingKind.OVERLAP:
        lane.set_aside(finding.path)
    return replace(finding, until=until)


def _keep_behind(lane: Lane, path: str, until: int) -> None:
    """Copy the valid blocks after damaged bytes into a new segment.

    The copy precedes the declaration of the loss: otherwise, after a crash in between, a writer
    would append at the loss's end.
    """
    piece = parsed(path.rpartition("/")[2])
    index = lane.index()
    if piece is None or piece[1] != SEGMENT or piece[0] not in index.segments:
        return
    if until in index.segments:
        return
    data = lane.storage.read(path).to_pybytes()
    for row in salvaged(data, lane.place(piece[0])):
        number = row.holding(until)
        if number is not None and row.range_of(number)[0] == until:
            begin = int(row.places[number])
            aside = f"{lane.folder}/{corrupt_name(file_name(until, SEGMENT))}"
            lane.storage.put(aside, [data[begin : row.end]])
            lane.storage.set_aside(aside, lane.path(until))  # atomic, unlike `put`
            return
