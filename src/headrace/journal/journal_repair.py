"""Repair of a damaged or incomplete journal, without deleting a record.

Readers never skip a damaged block: they fail. `repair` writes a file that declares the damaged or
missing offsets lost, with the reason. No later record gets these offsets. The option
``failOnDataLoss`` decides whether a reader fails at lost offsets or records the loss and continues.
Damaged bytes stay in their file. Valid blocks after the damage are copied into a new segment.
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

_DAMAGED: Final = "The file that declared these offsets lost, with the reason, was damaged."


def repair(
    journal: Journal, reached: Mapping[int, int] | None = None
) -> tuple[JournalFinding, ...]:
    """Declare damaged and missing blocks lost; return the repaired findings.

    Each lane is verified first, under its writer's lock. After a crash, the repair can run again.
    Two defects are not repaired: mixed blocks of two copies of a lane, and damage with an unknown
    end if ``reached`` lacks the lane. `lost_records` counts the lost offsets of the result.

    Args:
        journal: The journal.
        reached: For each lane, the highest offset that a reader has reached. A lane that ends
            before that offset has a gap.

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
    """Return the number of damaged and missing offsets in the findings of `verify` or `repair`.

    Findings with an unknown end are not counted.
    """
    kinds = (JournalFindingKind.DAMAGED, JournalFindingKind.GAP, JournalFindingKind.OVERLAP)
    counted = [
        finding for finding in findings if finding.kind in kinds and finding.until is not None
    ]
    return sum(max(0, (finding.until or 0) - (finding.first or 0)) for finding in counted)


def _repair(lane: Lane, finding: JournalFinding, reached: int) -> JournalFinding | None:
    """Repair one finding; return it with its end offset, or None if it is not repaired."""
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
    """Copy a segment's valid blocks from offset ``until`` on into a new segment.

    The copy must precede the declaration of the loss. In the other order, a crash between the two
    steps would let a writer append new records at ``until``.
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
