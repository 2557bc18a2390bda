"""The repair of a journal that is not whole, which deletes no record.

Damaged or missing offsets are declared lost by a file that says which and why: readers skip and
count them, and no offset is used twice. The damaged bytes stay where they are, before that file;
whole blocks behind them are put into a segment of their own.
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
    """Declare damaged and missing blocks lost; return the mended findings.

    `lost_records` counts what is lost by it. Each lane is verified under its writer's lock first.
    After a crash it may be run again. It leaves alone a lane of which nothing says how far it went
    unless its reached offset is known, and mixed blocks of two copies of a lane, of which the right
    ones are unknown.

    Args:
        journal: The journal.
        reached: Offsets that lanes are known to have reached, from whoever has read them.

    Raises:
        JournalError: A lane is being written: stop its writer first; or the storage fails.
    """
    repaired: list[JournalFinding] = []
    with as_journal_error(f"The journal {journal.storage.url} cannot be repaired"):
        for lane in known_lanes(journal, reached):
            files = Lane(journal.storage, journal.identity, lane)
            journal.storage.create_folder(files.folder)
            with journal.storage.lock(files.folder):
                reached_offset = (reached or {}).get(lane, 0)
                found = check_lane(files, reached_offset).findings
                repaired += [
                    done
                    for each in found
                    if (done := _repair(files, each, reached_offset)) is not None
                ]
    return tuple(repaired)


def lost_records(findings: Iterable[JournalFinding]) -> int:
    """Count the offsets that a repair has declared lost, or would, by the findings of either."""
    kinds = (JournalFindingKind.DAMAGED, JournalFindingKind.GAP, JournalFindingKind.OVERLAP)
    counted = [each for each in findings if each.kind in kinds and each.until is not None]
    return sum(max(0, (each.until or 0) - (each.first or 0)) for each in counted)


def _repair(lane: Lane, finding: JournalFinding, reached: int) -> JournalFinding | None:
    """Repair one thing; returns it if that is possible, with the offsets that are lost by it."""
    first, until, reason = finding.first, finding.until, finding.reason
    if finding.kind not in DEFECTS or finding.kind is JournalFindingKind.MIXED or first is None:
        return None
    until = max(until or 0, reached) if until is None else until
    if finding.path.endswith(f".{LOST}"):
        if not until:
            return None
        # The damaged declaration has the name of the new one. A crash between leaves a gap.
        lane.set_aside(finding.path)
        reason = _DAMAGED
    elif finding.kind is not JournalFindingKind.OVERLAP:
        if until <= first:
            return None
        _keep_behind(lane, finding.path, until)
    if first < until:
        lane.storage.put(lane.path(first, LOST), [Lost(first, until, reason).encode()])
    if finding.kind is JournalFindingKind.OVERLAP:
        lane.set_aside(finding.path)
    return replace(finding, until=until)


def _keep_behind(lane: Lane, path: str, until: int) -> None:
    """Put the whole blocks behind a damaged place into a segment of their own.

    It comes before the declaration of the loss, or a writer would begin where that ends.
    """
    known = parsed(path.rpartition("/")[2])
    index = lane.index()
    if known is None or known[1] != SEGMENT or known[0] not in index.segments:
        return
    if until in index.segments:
        return
    data = lane.storage.read(path).to_pybytes()
    for row in salvaged(data, lane.place(known[0])):
        number = row.holding(until)
        if number is not None and row.range_of(number)[0] == until:
            begin = int(row.places[number])
            aside = f"{lane.folder}/{corrupt_name(file_name(until, SEGMENT))}"
            lane.storage.put(aside, [data[begin : row.end]])
            lane.storage.set_aside(aside, lane.path(until))  # whole, or not there
            return
