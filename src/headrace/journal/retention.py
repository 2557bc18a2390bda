"""Pruning: removal of segments that every gate has processed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.errors import JournalError
from headrace.journal.journal import Journal, SegmentRef

if TYPE_CHECKING:
    from headrace.gate import Ledger, Processed


class KeptReason(StrEnum):
    """Reason why pruning keeps the first segment that remains in a lane."""

    NEEDED = "needed"
    """A gate must still read the segment, or may have to read it again."""
    YOUNG = "young"
    """The time since the segment's last write is less than the minimum age."""
    LAST = "last"
    """The segment is the lane's last segment, which records the lane's end."""


@dataclass(frozen=True, slots=True)
class LanePruning:
    """Result of pruning a lane: removed blocks, kept blocks, and why no more were removed.

    The offsets of the removed blocks begin at ``start`` and end before ``until``, the lane's new
    first offset. In a dry run, nothing is removed. ``kept`` is the reason why the first kept block
    is kept, or None if the lane has no segments. If ``kept`` is ``needed``, ``needed_by`` has the
    progress of the gate that needs the first kept block.
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
    """Remove old blocks that every gate has processed; return the removed blocks of each lane.

    Pruning needs only read access to the ledger. Writers and readers may run at the same time.
    After a crash, pruning may run again. Blocks are removed from each lane's start up to the first
    block that must be kept. Only gates in ``ledger`` protect blocks. Readers without a gate, or
    with another ledger, do not.

    Args:
        journal: The journal.
        ledger: The ledger of the gates that read the journal.
        min_age_ms: The minimum time since the last write of a removed block's segment (ms).
        now_ms: The current time (ms since the epoch).
        only: The lanes to prune. Default: all lanes.
        without: Names of gates to ignore, because they no longer read the journal.
        unread: Whether to remove old blocks although no gate has read the journal.
        dry_run: Whether to remove nothing, and to return the blocks that would be removed.

    Raises:
        JournalError: No gate has read the journal and ``unread`` is not set; a lane in ``only``
            does not exist; or the journal cannot be read or changed.
        LedgerError: The ledger cannot be read.
    """
    lanes = _lanes(journal, only)
    processed = ledger.history.processed_until(journal.id, lanes, without=without)
    if lanes and not processed and not unread:
        raise JournalError(
            f"According to this ledger, no gate has read the journal {journal.storage.url} (ignored"
            " gates do not count); use the ledger of the gates that read the journal, or add"
            " --unread (unread=True) to remove records that no gate has read."
        )
    prunings = []
    for lane in lanes:
        needs = [need for need in processed if need.partition == lane]
        lane_pruning = _planned(journal, lane, needs, now_ms - min_age_ms)
        if not dry_run:
            # Also without blocks to remove: a crash may have left files of an earlier pruning.
            journal.remove_before(lane, lane_pruning.until)
        prunings.append(lane_pruning)
    return tuple(prunings)


def _lanes(journal: Journal, only: Collection[int] | None) -> list[int]:
    lanes = journal.lanes()
    if only is None:
        return lanes
    if missing := sorted({*only}.difference(lanes)):
        existing = ", ".join(map(str, lanes)) or "none"
        raise JournalError(
            f"The journal {journal.storage.url} has no lane {missing[0]}; its lanes: {existing}."
        )
    return sorted({*only})


def _planned(
    journal: Journal, lane: int, needs: "Iterable[Processed]", before_ms: int
) -> LanePruning:
    """Return which blocks of a lane can be removed, and why the next block is kept.

    ``needs`` has the gates' progress in this lane. Segments written after ``before_ms`` are kept.
    """
    start, _ = journal.lane_bounds(lane)
    segments = journal.segments(lane)
    least = min(needs, key=lambda need: need.until, default=None)
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
    """Return how many segments can be removed, and why the next segment is kept.

    ``least`` is the progress of the gate that has processed the fewest offsets; None if no gate has
    read the lane.
    """
    for number, segment in enumerate(segments):
        if least is not None and segment.until > least.until:
            return number, KeptReason.NEEDED
        if segment.written_ms > before_ms:
            return number, KeptReason.YOUNG
        if number == len(segments) - 1:
            return number, KeptReason.LAST
    return 0, None
