"""The proof that a gate leaves no offset out, from one moment of its ledger.

A run is the batches of one checkpoint. Their ranges follow each other from the checkpoint's start
to its end; a gap or an overlap between them is a defect. The database compares the ranges in window
functions, and all rows are read as of one moment.

Skipped and lost offsets are one account. A skip between two checkpoints follows from their rows, so
nothing is written when it happens. Accepted ranges have a table of their own. So a loss that grows
later is not accepted with its first offsets, and no count of losses changes.
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
    """No batch reads the range, though batches of the same run read offsets before and behind
    it."""
    OVERLAP = "overlap"
    """Two batches of one run read the range."""
    MISSING = "missing"
    """The checkpoint has planned the range before or behind all batches in the ledger: a batch
    is gone."""
    OPEN = "open"
    """The range is not processed yet: ``in_progress``, ``failed`` or ``backfilling``."""
    DEAD = "dead"
    """The range cannot be processed; the batch's error has the reason."""
    REJECTED = "rejected"
    """The batch is ``success`` without the range: the handler rejected the records, and dead
    letters keep them."""
    LOST = "lost"
    """The range was gone from the source before a batch read it."""
    SKIPPED = "skipped"
    """The range lies between the ranges of two runs, and neither reads it."""
    READ_AGAIN = "read again"
    """Two runs read the range: the later run began with a checkpoint of its own."""


_KINDS: Final = tuple(FindingKind)

DEFECTS: Final = frozenset({FindingKind.GAP, FindingKind.OVERLAP, FindingKind.MISSING})
"""Kinds that Headrace never causes, whatever fails. The ledger or the checkpoint is incomplete,
or does not belong to the gate."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about a range of one partition.

    Attributes:
        checkpoint_id: Checkpoint of the range. If there are two, the one that begins at the higher
            offset. None for a loss outside of the ranges of a single checkpoint.
        batch_key: For a gap, the batch behind the gap; for an overlap, the batch that begins later;
            for a loss, the batch that could not read the range. None if the batch was pruned, or
            the range was gone before a batch was planned.
        other: The batch before a gap or in an overlap, or the other run. None if that batch was
            pruned, or is not a neighbour.
        error: Error of a dead, failed or rejected range, without the trace.
        topic_id: Id that distinguishes the topic from a recreated topic of the same name; None if
            unknown.
        reason: Reason why a batch could not read the range.
        accepted: Reason why a lost or skipped range need not be processed, with the operator's
            name.
        resolution: Reason why a dead batch need not be processed, with the operator's name.
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
        """Whether a stop of the query left the batch open; the query's next start runs it."""
        return was_interrupted(self.status, self.error)


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a partition that one run has read, from its first to its last offset.

    Every count is a number of offsets. Without an overlap the counts add up to the count of
    ``offsets``.

    Attributes:
        since_ms: Time of the plan of the run's first batch; None if all batches are pruned.
        processed: In batches that succeeded, without lost and rejected offsets.
        pruned: In batches deleted as old: ``success``, or ``dead`` and resolved.
        open: In unfinished batches.
        dead: In dead batches, or rejected by the handler.
        lost: Gone before a batch read them.
        missing: In no batch.
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
    """Overall result of the findings."""

    PROVEN = "proven"
    """Every offset from the first to the last is processed, or explained as dead or lost."""
    OPEN = "open"
    """There is neither a gap nor an overlap, but some batches are not finished."""
    SKIPPED = "skipped"
    """Neither of two runs reads a range between them, and nobody has accepted the skip."""
    BROKEN = "broken"
    """There is a defect."""
    EMPTY = "empty"
    """The gate has begun no batch, so there is nothing to prove yet."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Verification of one gate.

    Spans are by run (the earliest first), topic and partition. Findings are by kind (the worst
    first), topic, partition, offset and run. A contradiction is a sentence about a difference
    between the ledger and the checkpoint or the source.
    """

    spans: tuple[Span, ...]
    findings: tuple[Finding, ...]
    contradictions: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Overall result of the findings."""
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
    """Offsets that a gate will not read and nobody has accepted. A count is a number of offsets."""

    lost: int = 0
    skipped: int = 0
    ranges: tuple[tuple[str | None, OffsetRange], ...] = ()
    """All missed ranges, each with the topic's id."""

    @property
    def offsets(self) -> int:
        """Number of lost and skipped offsets."""
        return self.lost + self.skipped


# A lane is a topic's id, or None, and a partition; a place is a checkpoint's id and a lane.
_Lane = tuple[str | None, TopicPartition]
_Place = tuple[str | None, str | None, TopicPartition]
_Row = Any  # A row of a statement of this module; its attributes are the statement's labels.
_Rows = Iterable[_Row]
_Merged = Mapping[_Lane, Sequence[OffsetRange]]
_Cover = Mapping[TopicPartition, Sequence[OffsetRange]]

_SQL: Final = statements("proof")


class ProofStore(Store):
    """The proofs of gates, and their missed offsets."""

    def verify(self, gate_name: str) -> Verification:
        """Prove the outcome of every offset that a gate has read.

        The right to read is enough. The gate may run meanwhile: all rows are read as of one moment.
        Memory grows with spans and findings, not with the history.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._database.snapshot() as connection:
            return _proven(connection, {"gate": gate_name})

    def missed(self, gate_name: str) -> Missed:
        """Return the missed offsets of one gate."""
        return self.all_missed(gate_name).get(gate_name, Missed())

    def all_missed(self, gate_name: str | None = None) -> Mapping[str, Missed]:
        """Return the missed offsets of each gate, or of one; gates without any are left out.

        The query does not read batches, so a long history takes no longer.
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
    """Return a verification with the additional findings of a comparison outside of the ledger."""
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
    """Return the finished ranges of unfinished batches that are run in parts, by key."""
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
    """Yield the gaps and overlaps before these ranges, and the ranges' unprocessed offsets."""
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
    """Yield the ranges that a checkpoint planned before and behind all batches of the ledger."""
    for run in runs:
        cover = [spans[_place(run)].offsets] if _place(run) in spans else []
        for rest in run.offsets.subtract(cover):
            yield Finding(FindingKind.MISSING, rest, run.checkpoint_id, topic_id=run.topic_id)


def _between(runs: Iterable[Span]) -> Iterator[Finding]:
    """Yield the ranges skipped between runs, and the ranges read by two runs."""
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
    """Yield the findings; ranges within losses become ``lost``."""
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
    """Yield the losses before or behind all planned ranges."""
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
    """Yield the findings, with the acceptance of accepted lost or skipped ranges."""
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
    """Yield the planned offsets of each checkpoint, from first to last, by partition."""
    for row in rows:
        untils = offsets_in(row.until_offsets)
        for partition, start in offsets_in(row.start_offsets).items():
            planned = OffsetRange(row.topic, partition, start, untils[partition])
            yield Span(row.checkpoint_id, planned, since_ms=None, topic_id=_topic_id(row))


def _merged(rows: _Rows) -> _Merged:
    """Return the merged ranges of the rows, in order, by topic id and partition."""
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
