"""Pruning of segments that nobody needs any more."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.errors import JournalError
from headrace.journal.journal import Journal, SegmentRef

if TYPE_CHECKING:
    from headrace.gate import Ledger, Processed


class KeptReason(StrEnum):
    """Why a lane's first segment that is kept is kept."""

    NEEDED = "needed"
    """A gate has still to read it, or may have to."""
    YOUNG = "young"
    """It is younger than the minimum age."""
    LAST = "last"
    """It is the lane's last segment, which says where the lane goes on."""


@dataclass(frozen=True, slots=True)
class LanePruning:
    """Blocks that a pruning removes from a lane, or would; the lane begins at ``until`` then.

    ``kept`` says why the first of the ``kept_blocks`` is kept; None where there is no block. If it
    is ``needed``, ``needed_by`` is the gate that needs it, with its batch.
    """

    lane: int
    start: int
    until: int
    blocks: int
    records: int
    stored_bytes: int
    kept_blocks: int
    kept_bytes: int
    kept: KeptReason | None
    needed_by: "Processed | None"


def prune(
    journal: Journal,
    ledger: "Ledger",
    min_age_ms: int,
    *,
    now_ms: int,
    only: Collection[int] | None = None,
    without: Collection[str] = (),
    unread: bool = False,
    dry_run: bool = False,
) -> tuple[LanePruning, ...]:
    """Remove a journal's blocks that every gate is through with, and that are old enough.

    The right to read the ledger is enough. It may be done while the journal is written and read,
    and again after a crash at any point. Blocks go from each lane's beginning on: where one is
    kept, all behind it are. `Ledger.processed_until` returns the gates' progress; the ledger does
    not know readers without a gate, or under another ledger.

    Args:
        journal: The journal.
        ledger: The ledger of the gates that read it.
        min_age_ms: Time that a block is kept at least, from when it was written.
        now_ms: The time (ms since the epoch).
        only: The lanes to prune; None for all.
        without: Gates that do not read it any more, and are not asked.
        unread: Whether old blocks are to be removed although no gate has read the journal.
        dry_run: Return what would be removed, and remove nothing.

    Raises:
        JournalError: No gate has read the journal, and ``unread`` is not set; it has not the lanes
            that are named; or it cannot be read or changed.
        LedgerError: The ledger cannot be read.
    """
    lanes = _lanes(journal, only)
    processed = ledger.history.processed_until(journal.id, lanes, without=without)
    if lanes and not processed and not unread:
        raise JournalError(
            f"No gate that counts has read the journal {journal.storage.url}, as far as this "
            "ledger knows, so nothing of it has been processed; name the ledger of the gates that "
            "read it, or add --unread (unread=True) if it is to go unread."
        )
    found = []
    for lane in lanes:
        needs = [each for each in processed if each.partition == lane]
        lane_pruning = _planned(journal, lane, needs, now_ms - min_age_ms)
        if not dry_run:
            # Also if there are none: a crash may have left files of an earlier pruning behind.
            journal.remove_before(lane, lane_pruning.until)
        found.append(lane_pruning)
    return tuple(found)


def _lanes(journal: Journal, only: Collection[int] | None) -> list[int]:
    lanes = journal.lanes()
    if only is None:
        return lanes
    if missing := sorted({*only}.difference(lanes)):
        there = ", ".join(map(str, lanes)) or "none"
        raise JournalError(
            f"The journal {journal.storage.url} has no lane {missing[0]}; it has: {there}."
        )
    return sorted({*only})


def _planned(
    journal: Journal, lane: int, needs: "Iterable[Processed]", before_ms: int
) -> LanePruning:
    """Return the pruning of a lane's segments that were written by ``before_ms``."""
    start, _ = journal.lane_bounds(lane)
    segments = journal.segments(lane)
    least = min(needs, key=lambda each: each.until, default=None)
    count, kept = _removable(segments, least, before_ms)
    removed, rest = segments[:count], segments[count:]
    return LanePruning(
        lane=lane,
        start=start,
        until=rest[0].first if removed else start,
        blocks=sum(segment.blocks for segment in removed),
        records=sum(segment.until - segment.first for segment in removed),
        stored_bytes=sum(segment.stored_bytes for segment in removed),
        kept_blocks=sum(segment.blocks for segment in rest),
        kept_bytes=sum(segment.stored_bytes for segment in rest),
        kept=kept,
        needed_by=least if kept is KeptReason.NEEDED else None,
    )


def _removable(
    segments: Sequence[SegmentRef], least: "Processed | None", before_ms: int
) -> tuple[int, KeptReason | None]:
    """Return the number of a lane's removable first segments, and why the next one is kept."""
    for number, segment in enumerate(segments):
        if least is not None and segment.until > least.until:
            return number, KeptReason.NEEDED
        if segment.written_ms > before_ms:
            return number, KeptReason.YOUNG
        if number == len(segments) - 1:
            return number, KeptReason.LAST
    return 0, None
