"""The proof that a gate leaves nothing out: its ranges follow each other, each with its outcome."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, groupby, islice
from typing import Final

from headrace.core.ranges import OffsetRange, RangeSequence, TopicPartition, merge
from headrace.ledger import checkpoints
from headrace.ledger.checkpoints import CoverageTally
from headrace.ledger.error_report import ErrorReport
from headrace.ledger.ledger import Ledger
from headrace.ledger.missed import (
    Accepted,
    Finding,
    FindingKind,
    Ranges,
    Span,
    Verification,
    between_runs,
    merged_by_topic,
    with_acceptance,
)
from headrace.ledger.records import BatchRecord, Covered, Loss, Rejected
from headrace.ledger.transitions import Status


class PartitionCheck:
    """Checks the ranges of one partition that one run has read, one by one.

    Args:
        first: The range that begins first.
    """

    def __init__(self, first: Covered) -> None:
        self.findings: list[Finding] = []
        self._checkpoint_id = first.checkpoint_id
        self._topic_id = first.topic_id
        self._offsets = first.offsets
        self._since_ms: int | None = None
        self._counts: Counter[Status] = Counter()
        self._pruned = 0
        self._batches = RangeSequence()
        self._parents: dict[str, tuple[OffsetRange, RangeSequence]] = {}
        """Batches that were split, and how far their children have come."""

    def add(self, rows: Sequence[Covered]) -> None:
        """Check the ranges that begin at the same offset, which is above the previous one."""
        self._close_parents(rows[0].offsets.start)
        for row in rows:
            if row.has_children and row.batch_key is not None:
                self._parents[row.batch_key] = (row.offsets, RangeSequence(row.offsets.start))
        for row in rows:
            if row.parent is None:
                self._add_batch(row)
            else:
                self._add_child(row, row.parent)
            if not row.has_children:
                self._add_leaf(row)

    def end(self) -> Span:
        """Return the span of everything read."""
        self._close_parents(None)
        processed, dead = self._counts[Status.SUCCESS], self._counts[Status.DEAD]
        return Span(
            checkpoint_id=self._checkpoint_id,
            offsets=self._offsets,
            since_ms=self._since_ms,
            processed=processed,
            open=self._counts.total() - processed - dead,
            dead=dead,
            topic_id=self._topic_id,
            pruned=self._pruned,
        )

    def _add_batch(self, row: Covered) -> None:
        key, before = row.batch_key, self._batches.last
        if gap := self._batches.gap_before(row.offsets):
            self._find(FindingKind.GAP, gap, key, before)
        if shared := self._batches.shared_with(row.offsets):
            self._find(FindingKind.OVERLAP, shared, key, before)
        self._batches.append(row.offsets, key)

    def _add_child(self, row: Covered, parent: str) -> None:
        if parent not in self._parents:
            self._find(FindingKind.CHILDREN, row.offsets, parent, row.batch_key)
            return
        parent_range, children = self._parents[parent]
        if gap := children.gap_before(row.offsets):
            self._find(FindingKind.CHILDREN, gap, parent)
        if shared := children.shared_with(row.offsets):
            self._find(FindingKind.CHILDREN, shared, parent, row.batch_key)
        if parent_range.until < row.offsets.until:
            beyond = replace(row.offsets, start=parent_range.until)
            self._find(FindingKind.CHILDREN, beyond, parent, row.batch_key)
        children.append(row.offsets, row.batch_key)

    def _add_leaf(self, row: Covered) -> None:
        if row.batch_key is None:
            self._pruned += row.offsets.count
        else:
            self._counts[row.status] += row.offsets.count
        if row.status is Status.DEAD:
            self._find(FindingKind.DEAD, row.offsets, row.batch_key, status=row.status)
        elif row.status is not Status.SUCCESS:
            self._find(FindingKind.OPEN, row.offsets, row.batch_key, status=row.status)
        self._offsets = self._offsets.hull(row.offsets)
        if row.created_time_ms is not None:
            self._since_ms = min(row.created_time_ms, self._since_ms or row.created_time_ms)

    def _close_parents(self, start: int | None) -> None:
        """Look at those that end before this offset, or at all that are left."""
        for key, (parent_range, children) in list(self._parents.items()):
            if start is None or parent_range.until <= start:
                if gap := children.gap_before(replace(parent_range, start=parent_range.until)):
                    self._find(FindingKind.CHILDREN, gap, key)
                del self._parents[key]

    def _find(
        self,
        kind: FindingKind,
        offsets: OffsetRange,
        batch_key: str | None,
        other: str | None = None,
        *,
        status: Status | None = None,
    ) -> None:
        self.findings.append(
            Finding(
                kind,
                offsets,
                self._checkpoint_id,
                batch_key,
                other,
                status,
                topic_id=self._topic_id,
            )
        )


_MOST_NAMED: Final = 10
"""Batches that are named; beyond it they are counted."""

_MAY_BE_LOST: Final = (FindingKind.GAP, FindingKind.SKIPPED)

_NOT_PROCESSED: Final = (
    FindingKind.GAP,
    FindingKind.CHILDREN,
    FindingKind.OPEN,
    FindingKind.DEAD,
    FindingKind.LOST,
    FindingKind.REJECTED,
)


def verify(ledger: Ledger, gate_name: str) -> Verification:
    """Prove from a ledger the outcome of everything that a gate has read.

    The right to read is enough. It may be done while the gate runs: the batches are those of one
    moment. Memory is taken by spans and findings, not by history.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    history, tally = ledger.history, CoverageTally()
    before = history.checkpoints(gate_name)
    coverage = tally.of(history.coverage(gate_name))
    misnamed = dict(history.misnamed(gate_name))

    def batch(batch_key: str) -> BatchRecord | None:
        return None if batch_key in misnamed else ledger.batches.get(batch_key)

    found = prove(
        coverage,
        lambda: history.losses(gate_name),
        batch,
        lambda: ledger.dead_letters.rejected(gate_name),
        lambda: ledger.missed.accepted(gate_name),
    )
    after = history.checkpoints(gate_name)
    return extended(
        found,
        checkpoints.mismatches(tally, before, after),
        [*checkpoints.contradictions(tally, before, after), *_some_of(misnamed.values())],
    )


def extended(
    verification: Verification, findings: Iterable[Finding], contradictions: Iterable[str]
) -> Verification:
    """Add the findings of a comparison with something outside of the ledger."""
    return replace(
        verification,
        findings=tuple(sorted((*verification.findings, *findings), key=_severity)),
        contradictions=(*verification.contradictions, *contradictions),
    )


def _some_of(sentences: Collection[str]) -> Iterator[str]:
    """The first sentences about batches, and one about how many more there are."""
    yield from islice(sentences, _MOST_NAMED)
    if len(sentences) > _MOST_NAMED:
        yield f"The rows of {len(sentences) - _MOST_NAMED} batches more cannot be right, either."


def lost_records(losses: Iterable[Loss]) -> int:
    """Count the lost offsets; a batch that was split leaves its losses to its children.

    Offsets that several rows name, as tasks that run at the same time may write them, count once.
    """
    left = _losses_by_topic(loss for loss in losses if not loss.was_split)
    return sum(
        offsets.count for topic in left.values() for same in topic.values() for offsets in same
    )


def prove(
    coverage: Iterable[Covered],
    losses: Callable[[], Iterable[Loss]],
    batch: Callable[[str], BatchRecord | None],
    rejected: Callable[[], Iterable[Rejected]] = tuple,
    accepted: Callable[[], Iterable[Accepted]] = tuple,
) -> Verification:
    """Prove the outcome of these ranges.

    The coverage is all of one gate, with the ranges of a checkpoint and partition together, by
    their starts; a topic that was recreated under its name is another topic. The losses are asked
    for after the last range: a loss is written down before the batch that goes on behind it. So is
    what batches rejected, which counts where its batch is processed, and what was accepted. A batch
    that is dead or open is asked for its error; it is None if it was pruned meanwhile.
    """
    spans: list[Span] = []
    found: list[Finding] = []
    for _, rows in groupby(coverage, key=_place):
        first = next(rows)
        check = PartitionCheck(first)
        for _, tied in groupby(chain([first], rows), key=lambda c: c.offsets.start):
            check.add(list(tied))
        spans.append(check.end())
        found += check.findings
    found += between_runs(spans)
    all_losses = list(losses())
    lost = _losses_by_topic(loss for loss in all_losses if loss.batch_key is None)
    found = [*_explained(found, lost), *_lost_outside(spans, lost)]
    found += _lost_by_batches(spans, found, all_losses)
    found += _rejected(spans, found, rejected())
    found = list(with_acceptance(found, accepted()))
    return Verification(
        spans=tuple(_by_age(_accounted(spans, found))),
        findings=tuple(sorted(_with_errors(found, batch), key=_severity)),
    )


def _losses_by_topic(losses: Iterable[Loss]) -> Ranges:
    return merged_by_topic((loss.topic_id, loss.offsets) for loss in losses)


def _explained(found: Iterable[Finding], lost: Ranges) -> Iterator[Finding]:
    """Yield the findings; ranges that losses explain become lost."""
    for each in found:
        if each.kind not in _MAY_BE_LOST:
            yield each
            continue
        cover = lost.get(each.topic_id, {}).get(each.offsets.topic_partition, ())
        for piece, is_lost in each.offsets.split_by(cover):
            if is_lost:
                checkpoint_id = each.checkpoint_id if each.kind is FindingKind.GAP else None
                yield Finding(FindingKind.LOST, piece, checkpoint_id, topic_id=each.topic_id)
            else:
                yield replace(each, offsets=piece)


def _lost_outside(spans: Iterable[Span], lost: Ranges) -> Iterator[Finding]:
    """Yield the losses before or behind all that was read."""
    read: dict[tuple[str | None, TopicPartition], OffsetRange] = {}
    for span in spans:
        place = span.topic_id, span.offsets.topic_partition
        read[place] = read.get(place, span.offsets).hull(span.offsets)
    for topic_id, of_topic in lost.items():
        for partition, ranges in of_topic.items():
            place = topic_id, partition
            hull = [read[place]] if place in read else []
            for piece, inside in (each for offsets in ranges for each in offsets.split_by(hull)):
                if not inside:
                    yield Finding(FindingKind.LOST, piece, checkpoint_id=None, topic_id=topic_id)


def _lost_by_batches(
    spans: Sequence[Span], found: Iterable[Finding], losses: Iterable[Loss]
) -> Iterator[Finding]:
    """Yield the ranges that batches could not read, of those that count as processed so far."""
    explained: dict[object, list[OffsetRange]] = defaultdict(list)
    for each in found:
        if each.kind in _NOT_PROCESSED:
            explained[_place(each)].append(each.offsets)
    for loss in losses:
        if loss.batch_key is None or loss.was_split:
            continue
        for span in _spans_with(loss, spans):
            read, place = merge([span.offsets]), _place(span)
            for piece, inside in loss.offsets.split_by(read[span.offsets.topic_partition]):
                cover = merge(explained[place]).get(piece.topic_partition, ())
                for rest, is_explained in piece.split_by(cover) if inside else ():
                    if not is_explained:
                        explained[place].append(rest)
                        yield Finding(
                            FindingKind.LOST,
                            rest,
                            span.checkpoint_id,
                            loss.batch_key,
                            topic_id=span.topic_id,
                            reason=loss.reason,
                        )


def _rejected(
    spans: Iterable[Span], found: Iterable[Finding], rejected: Iterable[Rejected]
) -> Iterator[Finding]:
    """Yield the ranges that handlers rejected, of those that count as processed so far."""
    read = {_place(span): span.offsets for span in spans}
    explained: dict[object, list[OffsetRange]] = defaultdict(list)
    for each in found:
        if each.kind in _NOT_PROCESSED:
            explained[_place(each)].append(each.offsets)
    covers = {place: merge(ranges) for place, ranges in explained.items()}
    for by in rejected:
        place = _place(by)
        # A batch that was begun since the ranges were read is not in them.
        inside = by.offsets.intersect(read[place]) if place in read else None
        if inside is None:
            continue
        cover = covers.get(place, {}).get(inside.topic_partition, ())
        for rest in inside.subtract(cover):
            yield Finding(
                FindingKind.REJECTED,
                rest,
                by.checkpoint_id,
                by.batch_key,
                error=by.error,
                topic_id=by.topic_id,
            )


def _spans_with(loss: Loss, spans: Iterable[Span]) -> list[Span]:
    """Return the span of the batch of a loss; if it was pruned, the spans it may have been in."""
    same = [
        span
        for span in spans
        if span.topic_id == loss.topic_id
        and span.offsets.topic_partition == loss.offsets.topic_partition
        and loss.checkpoint_id in {None, span.checkpoint_id}
    ]
    return [span for span in same if span.pruned] or same if loss.checkpoint_id is None else same


def _accounted(spans: Iterable[Span], found: Iterable[Finding]) -> Iterator[Span]:
    """The same spans, with what lies in them but in no leaf, and what leaves have not processed."""
    rejected: Counter[object] = Counter()
    lost: Counter[object] = Counter()
    by_batches: Counter[object] = Counter()
    missing: Counter[object] = Counter()
    for each in found:
        if each.kind is FindingKind.LOST:
            lost[_place(each)] += each.offsets.count
            by_batches[_place(each)] += each.offsets.count if each.batch_key else 0
        elif each.kind is FindingKind.REJECTED:
            rejected[_place(each)] += each.offsets.count
        elif each.kind is FindingKind.GAP or (each.kind is FindingKind.CHILDREN and not each.other):
            missing[_place(each)] += each.offsets.count
    for span in spans:
        place = _place(span)
        of_pruned = min(by_batches[place], span.pruned)
        yield replace(
            span,
            processed=span.processed - by_batches[place] + of_pruned - rejected[place],
            dead=span.dead + rejected[place],
            pruned=span.pruned - of_pruned,
            lost=lost[place],
            missing=missing[place],
        )


def _place(item: Covered | Span | Finding | Rejected) -> tuple[object, ...]:
    """The run, and the partition of the topic that was there at the time."""
    return item.checkpoint_id, item.topic_id, item.offsets.topic_partition


def _by_age(spans: Iterable[Span]) -> list[Span]:
    """By run, the earliest first, which is one that is all pruned; then by topic and partition."""
    listed = list(spans)
    began: dict[str, int] = {}
    for span in listed:
        if span.since_ms is not None:
            began[span.checkpoint_id] = min(
                span.since_ms, began.get(span.checkpoint_id, span.since_ms)
            )
    return sorted(
        listed,
        key=lambda span: (began.get(span.checkpoint_id, 0), span.checkpoint_id, span.offsets),
    )


def _with_errors(
    found: Iterable[Finding], batch: Callable[[str], BatchRecord | None]
) -> Iterator[Finding]:
    @cache  # a batch has a range in each of many partitions
    def error_of(batch_key: str) -> tuple[ErrorReport | None, bool]:
        record = batch(batch_key)
        error = record.error if record is not None else None
        return error and replace(error, trace=""), record is not None

    for each in found:
        if each.status is None or each.batch_key is None:
            yield each
            continue
        error, is_there = error_of(each.batch_key)
        unexplained = each.kind is FindingKind.DEAD and is_there and error is None
        yield replace(each, kind=FindingKind.UNEXPLAINED if unexplained else each.kind, error=error)


_ORDER: Final = {kind: number for number, kind in enumerate(FindingKind)}


def _severity(finding: Finding) -> tuple[int, OffsetRange, str]:
    return _ORDER[finding.kind], finding.offsets, finding.checkpoint_id or ""
