"""The proof that a gate leaves no offset out, from one consistent snapshot of its ledger.

A run is all batches of one checkpoint. Their ranges must follow each other from the checkpoint's
start to its end; a gap or an overlap between them is a defect. The database compares the ranges in
window functions, and all rows are read in one snapshot.

Each loss is a row of the ledger. A skip between two checkpoints has no row: it is computed from the
rows of the checkpoints. The ranges that operators have accepted are rows of another table. So an
acceptance changes no count of losses. If a loss grows later, its new offsets are not accepted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Connection

from headrace.core.ranges import OffsetRange, RangeSequence, TopicPartition, merge
from headrace.gate.control.parts import Progress, ranges_of as part_of
from headrace.gate.ledger.batches import ranges_of
from headrace.gate.ledger.database import Store
from headrace.gate.ledger.dead_letters import rejected_ranges
from headrace.gate.ledger.error_report import ErrorReport
from headrace.gate.ledger.records import Rejected, was_interrupted
from headrace.gate.ledger.statements import execute, offsets_in, statements
from headrace.gate.ledger.transitions import Status


class FindingKind(StrEnum):
    """Kinds of findings about a range, the worst first."""

    GAP = "gap"
    """No batch reads the range, although batches of the same checkpoint read offsets before and
    after it."""
    OVERLAP = "overlap"
    """Two batches of one checkpoint read the range."""
    MISSING = "missing"
    """The checkpoint has planned the range, but the range is before or after all batches of the
    checkpoint in the ledger. So the ledger has lost a batch."""
    OPEN = "open"
    """The range is not processed yet; its batch is ``in_progress``, ``failed`` or
    ``backfilling``."""
    DEAD = "dead"
    """The range cannot be processed; the error of its ``dead`` batch gives the reason."""
    REJECTED = "rejected"
    """The range's batch is a ``success``, but the handler rejected these records; they are dead
    letters."""
    LOST = "lost"
    """The range was gone from the source before a batch read it."""
    SKIPPED = "skipped"
    """The range lies between the ranges of two checkpoints, and no batch of either checkpoint reads
    the range."""
    READ_AGAIN = "read again"
    """Batches of two checkpoints read the range, because the later query started with a new
    checkpoint."""


_KINDS: Final = tuple(FindingKind)

DEFECTS: Final = frozenset({FindingKind.GAP, FindingKind.OVERLAP, FindingKind.MISSING})
"""Kinds of findings that Headrace never causes, whatever fails. They mean that the ledger or the
checkpoint is incomplete, or belongs to another gate."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a verification for a range of one partition.

    Attributes:
        checkpoint_id: Id of the checkpoint that planned the range. If the range is skipped or read
            again, id of the checkpoint that begins at the higher offset. None for a loss outside of
            all batches and gaps.
        batch_key: Key of the batch that planned the range. For a gap or an overlap, key of the
            batch that begins at the higher offset; for a loss, key of the batch that could not read
            the range. None if there is no such batch, or its row was pruned.
        other: For a gap or an overlap, key of the batch that begins at the lower offset. If the
            range is skipped or read again, id of the checkpoint that begins at the lower offset.
            None if that batch was pruned, or is not directly before the batch in ``batch_key``.
        error: Error of a dead, failed or rejected range, without the trace.
        topic_id: Id that distinguishes the topic from a recreated topic of the same name; None if
            unknown.
        reason: Reason why a batch could not read a lost range.
        accepted: Reason why a lost or skipped range need not be processed, with the operator's
            name; None if nobody has accepted the range.
        resolution: Reason why a dead batch need not be processed, with the operator's name; None if
            nobody has dropped the batch.
    """

    kind: FindingKind
    offsets: OffsetRange
    checkpoint_id: str | None
    batch_key: str | None = None
    other: str | None = None
    status: Status | None = None
    error: ErrorReport | None = None
    topic_id: str | None = None
    reason: str | None = None
    accepted: str | None = None
    resolution: str | None = None

    @property
    def interrupted(self) -> bool:
        """Whether the batch is open because its query was stopped; the next start runs it again."""
        return was_interrupted(self.status, self.error)


@dataclass(frozen=True, slots=True)
class Span:
    """Range of one partition from the first to the last offset in one checkpoint's batches.

    Every count is a number of offsets. If no batches overlap, the counts add up to the number of
    offsets in ``offsets``.

    Attributes:
        since_ms: Time at which the checkpoint's first batch was planned; None if all batches are
            pruned.
        processed: Offsets of successful batches, without lost and rejected offsets.
        pruned: Offsets of batches whose rows were deleted as old: ``success``, or ``dead`` and
            resolved.
        open: Offsets of unfinished batches.
        dead: Offsets of dead batches, and records rejected by the handler.
        lost: Offsets that were gone from the source before a batch read them.
        missing: Offsets that no batch reads.
        topic_id: Id that distinguishes the topic from a recreated topic of the same name; None if
            unknown.
    """

    checkpoint_id: str
    offsets: OffsetRange
    since_ms: int | None
    processed: int = 0
    open: int = 0
    dead: int = 0
    lost: int = 0
    missing: int = 0
    topic_id: str | None = None
    pruned: int = 0


class Verdict(StrEnum):
    """Overall result of a gate's verification."""

    PROVEN = "proven"
    """Every offset from the first to the last is processed, dead or lost, and all dead and lost
    offsets are recorded."""
    OPEN = "open"
    """No range is missing or overlaps another, but some batches are not finished."""
    SKIPPED = "skipped"
    """A range between two checkpoints was read by no batch, and nobody has accepted the skip."""
    BROKEN = "broken"
    """The ledger has a gap, an overlap or a missing range, or contradicts the checkpoint or the
    source."""
    EMPTY = "empty"
    """The gate has begun no batch, so there is nothing to prove yet."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Spans and findings of one gate's verification.

    Spans are ordered by run (the earliest first), topic and partition. Findings are ordered by kind
    (the worst first), topic, partition, offset and run. A contradiction is a sentence about a
    difference between the ledger and the checkpoint or the source.
    """

    spans: tuple[Span, ...]
    findings: tuple[Finding, ...]
    contradictions: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Overall result of all findings and contradictions."""
        kinds = {finding.kind for finding in self.findings}
        if kinds & DEFECTS or self.contradictions:
            return Verdict.BROKEN
        if not (self.spans or self.findings):
            return Verdict.EMPTY
        if any(it.kind is FindingKind.SKIPPED and not it.accepted for it in self.findings):
            return Verdict.SKIPPED
        return Verdict.OPEN if FindingKind.OPEN in kinds else Verdict.PROVEN


@dataclass(frozen=True, slots=True)
class Missed:
    """Lost and skipped offsets of a gate that no operator has accepted. Counts are in offsets."""

    lost: int = 0
    skipped: int = 0
    ranges: tuple[tuple[str | None, OffsetRange], ...] = ()
    """All missed ranges, each with its topic's id (None if unknown)."""

    @property
    def offsets(self) -> int:
        """Number of lost and skipped offsets."""
        return self.lost + self.skipped


# Keys of dictionaries: a topic's id (None if unknown) and a partition; the same with a checkpoint.
_Lane = tuple[str | None, TopicPartition]
_Place = tuple[str | None, str | None, TopicPartition]
_Row = Any  # A row of a statement of this module; its attributes are the statement's labels.
_Rows = Iterable[_Row]
_Merged = Mapping[_Lane, Sequence[OffsetRange]]
_Cover = Mapping[TopicPartition, Sequence[OffsetRange]]

_SQL: Final = statements("proof")


class ProofStore(Store):
    """Verifications of gates, and the offsets that gates have missed."""

    def verify(self, gate_name: str) -> Verification:
        """Check every offset that a gate has planned; return its spans and findings.

        Read permission on the database is enough. The gate may run during the check, because all
        rows are read in one snapshot. Memory grows with the number of spans and findings, not with
        the number of batches.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._database.snapshot() as connection:
            return _proven(connection, {"gate": gate_name})

    def missed(self, gate_name: str) -> Missed:
        """Return the lost and skipped offsets of one gate that nobody has accepted."""
        return self.all_missed(gate_name).get(gate_name, Missed())

    def all_missed(self, gate_name: str | None = None) -> Mapping[str, Missed]:
        """Return, by gate, the missed offsets of ``gate_name`` or of all gates.

        Gates without missed offsets have no entry. The query does not read batches, so its time
        does not grow with their number.
        """
        losses, runs, acceptances = (
            _by_gate(self._database.rows(_SQL[name], gate=gate_name))
            for name in ("losses", "several_runs", "accepted")
        )
        by_gate = {
            name: _missed_from(losses[name], runs[name], acceptances[name])
            for name in sorted({*losses, *runs})
        }
        return {name: missed for name, missed in by_gate.items() if missed.offsets}


def extended(
    verification: Verification, findings: Iterable[Finding], contradictions: Iterable[str]
) -> Verification:
    """Add findings and contradictions to a verification; findings stay sorted by severity."""
    return replace(
        verification,
        findings=tuple(sorted((*verification.findings, *findings), key=_severity)),
        contradictions=(*verification.contradictions, *contradictions),
    )


def _proven(connection: Connection, values: Mapping[str, Any]) -> Verification:
    spans: dict[_Place, Span] = {}
    counts: dict[_Place, Counter[str]] = {}
    for row in execute(connection, _SQL["spans"], values):
        span = Span(row.checkpoint_id, _offsets(row), row.since_ms, topic_id=_topic_id(row))
        spans[_place(span)] = span
        counts[_place(span)] = Counter(
            {name: getattr(row, name) for name in ("processed", "pruned", "open", "dead")}
        )
    runs = list(_runs(execute(connection, _SQL["runs"], values)))
    losses = execute(connection, _SQL["losses"], values).all()
    unread = _merged(row for row in losses if not row.batch_key)
    rows = execute(connection, _SQL["uneven"], values).all()
    finished = _done_parts(connection, rows)
    for row in rows:
        of_row = _offsets(row)
        left = of_row.subtract(finished[row.batch_key].get(of_row.topic_partition, ()))
        passed = of_row.count - sum(piece.count for piece in left)
        own = counts[row.checkpoint_id, _topic_id(row), of_row.topic_partition]
        own["processed"] += passed
        own["dead" if row.status == Status.DEAD else "open"] -= passed
    uneven = _uneven(rows, finished)
    findings = list(_explained([*uneven, *_ends(runs, spans), *_between(runs)], unread))
    for finding in findings:
        if finding.kind is FindingKind.GAP:
            counts[_place(finding)]["missing"] += finding.offsets.count
        elif finding.kind is FindingKind.LOST and finding.checkpoint_id is not None:
            counts[_place(finding)]["lost"] += finding.offsets.count
    findings += _lost_outside(runs, unread)
    rejected = rejected_ranges(connection, values["gate"])
    findings += _not_processed((row for row in losses if row.batch_key), rejected, counts)
    acceptances = execute(connection, _SQL["accepted"], values).all()
    return Verification(
        tuple(replace(span, **dict[str, Any](counts[place])) for place, span in spans.items()),
        tuple(sorted(_with_acceptance(findings, acceptances), key=_severity)),
    )


def _done_parts(connection: Connection, rows: _Rows) -> Mapping[str, _Cover]:
    """Return, by batch key, the finished ranges of the unfinished batches that run in parts."""
    finished: dict[str, _Cover] = defaultdict(dict)
    for row in {row.batch_key: row for row in rows}.values():
        if row.progress is not None and row.status != Status.SUCCESS:
            planned = [planned.offsets for planned in ranges_of(connection, row.batch_key)]
            parts = Progress.from_text(row.progress, row.planned_records, row.batch_key)
            finished[row.batch_key] = merge(
                r for part in parts.done for r in part_of(planned, part)
            )
    return finished


def _uneven(rows: _Rows, done: Mapping[str, _Cover]) -> Iterator[Finding]:
    """Yield the gap or overlap before each row's range, and the range's unprocessed offsets."""
    for row in rows:
        offsets, reached = _offsets(row), row.reached
        it = Finding(FindingKind.OPEN, offsets, row.checkpoint_id, row.batch_key)
        it = replace(it, topic_id=_topic_id(row))
        if reached is not None and reached != offsets.start:
            is_gap = reached < offsets.start
            kind = FindingKind.GAP if is_gap else FindingKind.OVERLAP
            shared = (offsets.start, min(offsets.until, reached))
            between = (reached, offsets.start) if is_gap else shared
            is_neighbour = row.before_until >= min(reached, offsets.start + 1)
            yield replace(
                it,
                kind=kind,
                offsets=offsets.topic_partition.range(*between),
                other=row.before_key if is_neighbour else None,
            )
        if row.status != Status.SUCCESS:
            kind = FindingKind.DEAD if row.status == Status.DEAD else FindingKind.OPEN
            error = row.error_class and ErrorReport(row.error_class, row.error_message, "")
            it = replace(it, kind=kind, status=Status(row.status), error=error)
            it = replace(it, resolution=row.resolution)
            for left in offsets.subtract(done[row.batch_key].get(offsets.topic_partition, ())):
                yield replace(it, offsets=left)


def _ends(runs: Iterable[Span], spans: Mapping[_Place, Span]) -> Iterator[Finding]:
    """Yield planned ranges that lie before or after all batches of their checkpoint."""
    for run in runs:
        cover = [spans[_place(run)].offsets] if _place(run) in spans else []
        for rest in run.offsets.subtract(cover):
            yield Finding(FindingKind.MISSING, rest, run.checkpoint_id, topic_id=run.topic_id)


def _between(runs: Iterable[Span]) -> Iterator[Finding]:
    """Yield the ranges skipped between two checkpoints, and the ranges read by both."""
    by_offset = sorted(runs, key=lambda run: (run.topic_id or "", run.offsets))
    for (topic_id, _), same in groupby(by_offset, key=_lane):
        so_far = RangeSequence()
        for run in same:
            for kind, offsets in (
                (FindingKind.SKIPPED, so_far.gap_before(run.offsets)),
                (FindingKind.READ_AGAIN, so_far.shared_with(run.offsets)),
            ):
                if offsets and offsets.count:
                    yield Finding(
                        kind, offsets, run.checkpoint_id, other=so_far.last, topic_id=topic_id
                    )
            so_far.append(run.offsets, run.checkpoint_id)


def _explained(findings: Iterable[Finding], unread: _Merged) -> Iterator[Finding]:
    """Yield the findings; lost offsets in gaps, skips and missing ranges become `LOST` findings."""
    for finding in findings:
        is_gap = finding.kind is FindingKind.GAP
        if not is_gap and finding.kind not in {FindingKind.MISSING, FindingKind.SKIPPED}:
            yield finding
            continue
        for piece, is_lost in finding.offsets.split_by(unread.get(_lane(finding), ())):
            if is_lost:
                run = finding.checkpoint_id if is_gap else None
                yield Finding(FindingKind.LOST, piece, run, topic_id=finding.topic_id)
            else:
                yield replace(finding, offsets=piece)


def _lost_outside(runs: Iterable[Span], unread: _Merged) -> Iterator[Finding]:
    """Yield the losses before or after all planned ranges of their partition."""
    planned: dict[_Lane, OffsetRange] = {}
    for run in runs:
        planned[_lane(run)] = planned.get(_lane(run), run.offsets).hull(run.offsets)
    for lane, ranges in unread.items():
        hull = [planned[lane]] if lane in planned else []
        for rest in (rest for offsets in ranges for rest in offsets.subtract(hull)):
            yield Finding(FindingKind.LOST, rest, None, topic_id=lane[0])


def _not_processed(
    losses: _Rows, rejected: Iterable[Rejected], counts: Mapping[_Place, Counter[str]]
) -> Iterator[Finding]:
    """Yield the lost and rejected ranges of successful batches, and update the counts."""
    seen: dict[_Place, list[OffsetRange]] = defaultdict(list)
    for row in losses:
        it = Finding(FindingKind.LOST, _offsets(row), row.checkpoint_id, row.batch_key)
        it = replace(it, topic_id=_topic_id(row), reason=row.reason)
        place = _place(it)
        for rest in it.offsets.subtract(merge(seen[place]).get(place[2], ())):
            seen[place].append(rest)
            before = "pruned" if row.is_pruned else "processed"
            counts[place].update({before: -rest.count, "lost": rest.count})
            yield replace(it, offsets=rest)
    for letters in rejected:
        it = Finding(
            *(FindingKind.REJECTED, letters.offsets, letters.checkpoint_id, letters.batch_key),
            error=letters.error,
            topic_id=letters.topic_id,
        )
        counts[_place(it)].update({"processed": -it.offsets.count, "dead": it.offsets.count})
        yield it


def _with_acceptance(findings: Iterable[Finding], acceptances: _Rows) -> Iterator[Finding]:
    """Yield all findings; lost and skipped ranges get the reason of their acceptance, if any."""
    by_lane: dict[_Lane, list[_Row]] = defaultdict(list)
    for row in acceptances:
        by_lane[_topic_id(row), _offsets(row).topic_partition].append(row)
    for finding in findings:
        pieces = [finding]
        if finding.kind in {FindingKind.LOST, FindingKind.SKIPPED}:
            for row in by_lane[_lane(finding)]:
                pieces = [
                    replace(piece, offsets=part, accepted=why)
                    for piece in pieces
                    for part, inside in piece.offsets.split_by([_offsets(row)])
                    for why in [piece.accepted or (row.why if inside else None)]
                ]
        yield from pieces


def _missed_from(losses: Sequence[_Row], runs: _Rows, acceptances: _Rows) -> Missed:
    unread = _merged(row for row in losses if not row.batch_key)
    gone = [
        Finding(FindingKind.LOST, offsets, None, topic_id=topic_id)
        for (topic_id, _), ranges in _merged(losses).items()
        for offsets in ranges
    ]
    between = _explained(_between(_runs(runs)), unread)
    skipped = [it for it in between if it.kind is FindingKind.SKIPPED]
    left = [it for it in _with_acceptance([*gone, *skipped], acceptances) if not it.accepted]
    lost_count, skipped_count = (
        sum(it.offsets.count for it in left if it.kind is kind)
        for kind in (FindingKind.LOST, FindingKind.SKIPPED)
    )
    return Missed(lost_count, skipped_count, tuple((it.topic_id, it.offsets) for it in left))


def _runs(rows: _Rows) -> Iterator[Span]:
    """Yield the range that each checkpoint has planned in each partition."""
    for row in rows:
        untils = offsets_in(row.until_offsets)
        for partition, start in offsets_in(row.start_offsets).items():
            planned = OffsetRange(row.topic, partition, start, untils[partition])
            yield Span(row.checkpoint_id, planned, since_ms=None, topic_id=_topic_id(row))


def _merged(rows: _Rows) -> _Merged:
    """Return the sorted, merged ranges of the rows, by topic id and partition."""
    by_topic: dict[str | None, list[OffsetRange]] = defaultdict(list)
    for row in rows:
        by_topic[_topic_id(row)].append(_offsets(row))
    return {
        (topic_id, partition): own
        for topic_id, ranges in by_topic.items()
        for partition, own in merge(ranges).items()
    }


def _offsets(row: _Row) -> OffsetRange:
    return OffsetRange(row.topic, row.partition, row.start_offset, row.until_offset)


def _topic_id(row: _Row) -> str | None:
    return row.topic_id or None


def _lane(item: Span | Finding) -> _Lane:
    return item.topic_id, item.offsets.topic_partition


def _place(item: Span | Finding) -> _Place:
    return item.checkpoint_id, item.topic_id, item.offsets.topic_partition


def _severity(finding: Finding) -> tuple[int, OffsetRange, str]:
    return _KINDS.index(finding.kind), finding.offsets, finding.checkpoint_id or ""


def _by_gate(rows: _Rows) -> Mapping[str, list[_Row]]:
    by_gate: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        by_gate[row.gate].append(row)
    return by_gate
