"""Whether the ranges that one run has read of one partition follow each other.

The batches that were not split off others have to, from the first to the last offset; and the parts
of each batch that was split have to, within it. Both together say that the leaves do: what was
really run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from headrace.core.ranges import OffsetRange, RangeSequence
from headrace.ledger.findings import Finding, FindingKind, Span
from headrace.ledger.records import Covered
from headrace.ledger.status import Status


class PartitionCheck:
    """Looks at what one run has read of one partition, range by range.

    Args:
        first: The range that begins first.
    """

    def __init__(self, first: Covered) -> None:
        self.findings: list[Finding] = []
        self._run_id = first.run_id
        self._topic_id = first.topic_id
        self._offsets = first.offsets
        self._since_ms: int | None = None
        self._counts: Counter[Status] = Counter()
        self._pruned = 0
        self._batches = RangeSequence()
        self._wholes: dict[str, tuple[OffsetRange, RangeSequence]] = {}
        """Batches that were split, and how far their parts have come."""

    def take(self, rows: Sequence[Covered]) -> None:
        """Look at the ranges that begin at the same offset, which is above those before."""
        self._close_wholes(rows[0].offsets.start)
        for row in rows:
            if row.has_parts and row.schedule_id is not None:
                self._wholes[row.schedule_id] = (row.offsets, RangeSequence(row.offsets.start))
        for row in rows:
            if row.parent is None:
                self._take_batch(row)
            else:
                self._take_part(row, row.parent)
            if not row.has_parts:
                self._take_leaf(row)

    def end(self) -> Span:
        """What was read, all in all."""
        self._close_wholes(None)
        processed, dead = self._counts[Status.SUCCESS], self._counts[Status.DEAD]
        return Span(
            run_id=self._run_id,
            offsets=self._offsets,
            since_ms=self._since_ms,
            processed=processed,
            open=self._counts.total() - processed - dead,
            dead=dead,
            topic_id=self._topic_id,
            pruned=self._pruned,
        )

    def _take_batch(self, row: Covered) -> None:
        key, before = row.schedule_id, self._batches.last
        if gap := self._batches.gap_before(row.offsets):
            self._find(FindingKind.GAP, gap, key, before)
        if shared := self._batches.shared_with(row.offsets):
            self._find(FindingKind.OVERLAP, shared, key, before)
        self._batches.append(row.offsets, key)

    def _take_part(self, row: Covered, parent: str) -> None:
        if parent not in self._wholes:
            self._find(FindingKind.PARTS, row.offsets, parent, row.schedule_id)
            return
        whole, parts = self._wholes[parent]
        if gap := parts.gap_before(row.offsets):
            self._find(FindingKind.PARTS, gap, parent)
        if shared := parts.shared_with(row.offsets):
            self._find(FindingKind.PARTS, shared, parent, row.schedule_id)
        if whole.until < row.offsets.until:
            beyond = replace(row.offsets, start=whole.until)
            self._find(FindingKind.PARTS, beyond, parent, row.schedule_id)
        parts.append(row.offsets, row.schedule_id)

    def _take_leaf(self, row: Covered) -> None:
        if row.schedule_id is None:
            self._pruned += row.offsets.count
        else:
            self._counts[row.status] += row.offsets.count
        if row.status is Status.DEAD:
            self._find(FindingKind.DEAD, row.offsets, row.schedule_id, status=row.status)
        elif row.status is not Status.SUCCESS:
            self._find(FindingKind.OPEN, row.offsets, row.schedule_id, status=row.status)
        if row.offsets.until > self._offsets.until:
            self._offsets = replace(self._offsets, until=row.offsets.until)
        if row.created_time_ms is not None:
            self._since_ms = min(row.created_time_ms, self._since_ms or row.created_time_ms)

    def _close_wholes(self, start: int | None) -> None:
        """Look at those that end before this offset, or at all that are left."""
        for key, (whole, parts) in list(self._wholes.items()):
            if start is None or whole.until <= start:
                if gap := parts.gap_before(replace(whole, start=whole.until)):
                    self._find(FindingKind.PARTS, gap, key)
                del self._wholes[key]

    def _find(
        self,
        kind: FindingKind,
        offsets: OffsetRange,
        schedule_id: str | None,
        other: str | None = None,
        *,
        status: Status | None = None,
    ) -> None:
        self.findings.append(
            Finding(
                kind,
                offsets,
                self._run_id,
                schedule_id,
                other,
                status,
                topic_id=self._topic_id,
            )
        )
