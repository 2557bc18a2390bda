"""The proof that a gate leaves no offset out, from one moment of its ledger.

A run is what one checkpoint reads. The ranges of its batches follow each other from where the
checkpoint began to where it stands; a gap or an overlap between them is a defect.
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
    """No batch reads it, though batches of its run read offsets before and behind it."""
    OVERLAP = "overlap"
    """Two batches of one run read it."""
    MISSING = "missing"
    """Its checkpoint has planned it, before or behind all batches that are there: one is gone."""
    OPEN = "open"
    """It has not been processed yet: ``in_progress``, ``failed`` or ``backfilling``."""
    DEAD = "dead"
    """It cannot be processed; the batch's error says why."""
    REJECTED = "rejected"
    """Its batch is ``success`` without it: the handler rejected it, and a dead letter has it."""
    LOST = "lost"
    """It was gone from the source before it was read, by its batch where one had been planned."""
    SKIPPED = "skipped"
    """It lies between the ranges of two runs, and neither reads it."""
    READ_AGAIN = "read again"
    """Two runs read it: the later one began with a checkpoint of its own."""


_KINDS: Final = tuple(FindingKind)

DEFECTS: Final = frozenset({FindingKind.GAP, FindingKind.OVERLAP, FindingKind.MISSING})
"""Defects, which Headrace never causes, whatever fails: the ledger or the checkpoint is not the one
that the gate has used, or not whole."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be said of a range of one partition.

    Attributes:
        checkpoint_id: Checkpoint; of two, the one that begins at the higher offset. None for a loss
            that is not within what one checkpoint has read.
        batch_key: The batch: of a gap the one behind it, of an overlap the one that begins last;
            None where it was pruned. Of a loss the one that could not read it; None where it was
            gone before one was planned.
        other: The batch before a gap or in an overlap, or the other run; None if pruned or further.
        error: Why a batch is dead or failed, or its handler rejected a record, without the trace.
        topic_id: Tells the topic from one that was recreated under its name, where that is known.
        reason: Why a batch could not read it.
        accepted: Why what was lost or skipped need not be processed, with who says so.
        resolution: Why a dead batch need not be processed, with who says so.
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
        """Whether its batch is open because its query was stopped; its next start runs it."""
        return was_interrupted(self.status, self.error)


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a partition that one run has read, from its first to its last offset.

    Each count is one of offsets; without an overlap they add up to those of ``offsets``.

    Attributes:
        since_ms: When the first of its batches was planned; None where they are all pruned.
        processed: In batches that succeeded, could read them and did not reject them.
        pruned: In batches that are deleted as old: ``success``, or ``dead`` and resolved.
        open: In batches that are not done.
        dead: In batches that are dead, or rejected by the handler.
        lost: Gone before they were read.
        missing: Nobody accounts for them.
        topic_id: Tells the topic from one that was recreated under its name, where that is known.
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
    """There is neither a gap nor an overlap, but some batches are not done."""
    SKIPPED = "skipped"
    """A range between two runs is read by neither, and nobody has accepted that."""
    BROKEN = "broken"
    """There is a defect."""
    EMPTY = "empty"
    """The gate has begun no batch, so there is nothing to prove yet."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Verification of one gate.

    Spans are by run (the earliest first), topic and partition; findings the worst first, then by
    topic, partition, offset and run. A contradiction is a sentence about what the ledger has and
    the checkpoint or the source has not, or the other way round.
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
    """Offsets that a gate will not read, and nobody has accepted. A count is one of offsets."""

    lost: int = 0
    skipped: int = 0
    ranges: tuple[tuple[str | None, OffsetRange], ...] = ()
    """All of it, each with the topic's id."""

    @property
    def offsets(self) -> int:
        """Number of offsets, lost and skipped."""
        return self.lost + self.skipped


# A topic's id, or None, and a partition; a place is those with a checkpoint's id before them.
_Lane = tuple[str | None, TopicPartition]
_Place = tuple[str | None, str | None, TopicPartition]
_Row = Any  # of a statement here: its columns are the names of its labels
_Rows = Iterable[_Row]
_Merged = Mapping[_Lane, Sequence[OffsetRange]]
_Cover = Mapping[TopicPartition, Sequence[OffsetRange]]

_SQL: Final = statements("proof")


class ProofStore(Store):
    """The proof of gates, and what they have missed."""

    def verify(self, gate_name: str) -> Verification:
        """Prove the outcome of everything that a gate has read.

        The right to read is enough. It may be done while the gate runs: all is read as of one
        moment. Memory is taken by spans and findings, not by history.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        with self._database.snapshot() as connection:
            return _proven(connection, {"gate": gate_name})

    def missed(self, gate_name: str) -> Missed:
        """Return the offsets that one gate has missed."""
        return self.all_missed(gate_name).get(gate_name, Missed())

    def all_missed(self, gate_name: str | None = None) -> Mapping[str, Missed]:
        """Return what each gate has missed, or only this one; those that missed none are left out.

        It does not look at the batches, so it takes no longer for a long history.
        """
        losses, runs, known = (
            _by_gate(self._database.rows(_SQL[name], gate=gate_name))
            for name in ("losses", "several_runs", "accepted")
        )
        by_gate = {
            name: _missed_from(losses[name], runs[name], known[name])
            for name in sorted({*losses, *runs})
        }
        return {name: missed for name, missed in by_gate.items() if missed.offsets}


def extended(
    verification: Verification, findings: Iterable[Finding], contradictions: Iterable[str]
) -> Verification:
    """Add the findings of a comparison with something outside of the ledger."""
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
    done = _done_parts(connection, rows)
    for row in rows:
        of_row = _offsets(row)
        left = of_row.subtract(done[row.batch_key].get(of_row.topic_partition, ()))
        passed = of_row.count - sum(piece.count for piece in left)
        own = counts[row.checkpoint_id, _topic_id(row), of_row.topic_partition]
        own["processed"] += passed
        own["dead" if row.status == Status.DEAD else "open"] -= passed
    uneven = _uneven(rows, done)
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
    """Return what is done of batches that are run in parts and are no success, by key."""
    done: dict[str, _Cover] = defaultdict(dict)
    for row in {row.batch_key: row for row in rows}.values():
        if row.progress is not None and row.status != Status.SUCCESS:
            planned = [planned.offsets for planned in ranges_of(connection, row.batch_key)]
            parts = Progress.from_text(row.progress, row.planned_records, row.batch_key)
            done[row.batch_key] = merge(r for part in parts.done for r in part_of(planned, part))
    return done


def _uneven(rows: _Rows, done: Mapping[str, _Cover]) -> Iterator[Finding]:
    """Yield the gaps and overlaps before these ranges, and what of them is not processed."""
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
    """Yield what a checkpoint has planned before and behind all batches that are there."""
    for run in runs:
        cover = [spans[_place(run)].offsets] if _place(run) in spans else []
        for rest in run.offsets.subtract(cover):
            yield Finding(FindingKind.MISSING, rest, run.checkpoint_id, topic_id=run.topic_id)


def _between(runs: Iterable[Span]) -> Iterator[Finding]:
    """Yield the ranges skipped between runs, and the ranges read by two of them."""
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
    """Yield the findings; ranges that losses explain become lost."""
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
    """Yield the losses before or behind all that was planned."""
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
    """Yield what batches that succeeded could not read, or rejected; and count it as that."""
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
    """The same findings; of what was lost or skipped the part that was accepted says so."""
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
    """What each checkpoint has planned, from its first to its last offset in each partition."""
    for row in rows:
        untils = offsets_in(row.until_offsets)
        for partition, start in offsets_in(row.start_offsets).items():
            planned = OffsetRange(row.topic, partition, start, untils[partition])
            yield Span(row.checkpoint_id, planned, since_ms=None, topic_id=_topic_id(row))


def _merged(rows: _Rows) -> _Merged:
    """Ranges by topic id and partition: offsets that several name are there once, in order."""
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
