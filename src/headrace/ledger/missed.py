"""Findings of a verification: offsets lost, skipped or disordered, and their acceptance.

Lost offsets were gone from the source before they were read. Skipped offsets lie between the ranges
of two checkpoints, as after a start with a new checkpoint and ``startingOffsets=latest``.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from sqlalchemy import Boolean, Connection, Row, and_, bindparam, exists, insert, or_, select

from headrace.core.ranges import OffsetRange, RangeSequence, TopicPartition, merge
from headrace.errors import OptionError
from headrace.ledger.batch_rows import has_children, offset_range, offsets_in
from headrace.ledger.database import Store
from headrace.ledger.error_report import ErrorReport, storable
from headrace.ledger.records import was_interrupted
from headrace.ledger.repairs import RepairKind, repair_row
from headrace.ledger.tables import accepted, checkpoint, lost, repair
from headrace.ledger.transitions import Status


class FindingKind(StrEnum):
    """Kinds of findings about a range, the worst first."""

    GAP = "gap"
    """No batch reads it, though batches of its run read offsets before and behind it."""
    OVERLAP = "overlap"
    """Two batches of one run read it."""
    CHILDREN = "children"
    """The children of a batch that was split leave it out, or read it without having to."""
    MISSING = "missing"
    """Its checkpoint has planned it, before or behind all batches that are there: one is gone."""
    UNPLANNED = "unplanned"
    """A batch has it, and its checkpoint has never planned it."""
    UNEXPLAINED = "unexplained"
    """Its batch is ``dead``, and nothing says why."""
    OPEN = "open"
    """It has not been processed yet: ``in_progress``, ``failed`` or ``backfilling``."""
    DEAD = "dead"
    """It cannot be processed; the batch's error says why."""
    REJECTED = "rejected"
    """Its batch is ``success`` without it: the handler rejected it, and a dead letter has it."""
    LOST = "lost"
    """It was gone from the source before it was read, and counted as lost; by its batch, where one
    had been planned."""
    SKIPPED = "skipped"
    """It lies between the ranges of two runs, and neither reads it."""
    READ_AGAIN = "read again"
    """Two runs read it: the later one began with a checkpoint of its own."""


DEFECTS: Final = frozenset(
    {
        FindingKind.GAP,
        FindingKind.OVERLAP,
        FindingKind.CHILDREN,
        FindingKind.MISSING,
        FindingKind.UNPLANNED,
        FindingKind.UNEXPLAINED,
    }
)
"""Defects, which Headrace never causes, whatever fails; something else changed the ledger or the
source."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be said of a range of one partition.

    Attributes:
        kind: Kind of finding.
        offsets: Range of the finding.
        checkpoint_id: Checkpoint; of two, the one that begins at the higher offset. None for a loss
            that is not within what one checkpoint has read.
        batch_key: The batch: of a gap the one behind it, of an overlap the one that begins last,
            of children the one that was split; None where it was pruned. Of a loss the one that
            could not read it; None where it was gone before one was planned.
        other: For a gap the batch before it, for an overlap the other batch, for children the one
            that reads the range (None if none does), for ``read again`` the other run.
        status: Status of an open batch.
        error: Why a batch is dead, or failed last, or why its handler rejected a record, without
            the trace.
        topic_id: Tells the topic from one that was recreated under its name, where that is known.
        reason: Why a batch could not read it.
        accepted: Why what was lost or skipped need not be processed, with who says so; None where
            nobody does.
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

    @property
    def interrupted(self) -> bool:
        """Whether its batch is open because its query was stopped; its next start runs it."""
        return was_interrupted(self.status, self.error)


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a partition that one run has read, from its first to its last offset.

    Without an overlap, the counts add up to those of ``offsets``.

    Attributes:
        offsets: Range from the first to the last.
        since_ms: When the first of its batches was planned; None where they are all pruned.
        processed: Number in batches that succeeded, could read them and did not reject them; they
            had as many records or fewer.
        pruned: Number in batches that are deleted as old. Each was ``success``, or ``dead`` and
            resolved; no overlap is deleted, and what lies between them is missing here too.
        open: Number in batches that are not done.
        dead: Number in batches that are dead, or rejected by the handler.
        lost: Number that were gone before they were read.
        missing: Number that nobody accounts for.
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
    """Verification of one gate from the ledger.

    Spans are by run (the earliest first), topic and partition; findings the worst first, then by
    run, topic, partition and offset. A contradiction is a sentence about other rows that contradict
    each other.
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
        if any(each.kind is FindingKind.SKIPPED and not each.accepted for each in self.findings):
            return Verdict.SKIPPED
        return Verdict.OPEN if FindingKind.OPEN in kinds else Verdict.PROVEN


Ranges = Mapping[str | None, Mapping[TopicPartition, tuple[OffsetRange, ...]]]
"""Without overlaps and in order, by the topic's id; None where that is not known."""

_OTHER: Final = checkpoint.alias()
_EVERY: Final = bindparam("every", type_=Boolean)

# With one run only, nothing can be skipped between runs.
_SEVERAL_RUNS: Final = (
    select(checkpoint)
    .where(or_(_EVERY, checkpoint.c.gate == bindparam("gate")))
    .where(
        exists().where(
            and_(
                _OTHER.c.gate == checkpoint.c.gate,
                _OTHER.c.topic == checkpoint.c.topic,
                _OTHER.c.topic_id == checkpoint.c.topic_id,
                _OTHER.c.checkpoint_id != checkpoint.c.checkpoint_id,
            )
        )
    )
)

_LOST: Final = select(lost).where(
    or_(_EVERY, lost.c.gate == bindparam("gate")), ~has_children(lost.c.batch_key)
)

_ACCEPTED: Final = (
    select(accepted)
    .where(or_(_EVERY, accepted.c.gate == bindparam("gate")))
    .order_by(accepted.c.time_ms, accepted.c.from_offset)
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A row of ``accepted``: lost or skipped offsets that need not be processed.

    Attributes:
        offsets: The range.
        topic_id: Tells the topic from one that was recreated under its name, where that is known.
        why: The reason in the words of who accepts it, with their name.
    """

    offsets: OffsetRange
    topic_id: str | None
    why: str


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


class MissedStore(Store):
    """Offsets that gates have lost or skipped, and their acceptances."""

    def of(self, gate_name: str) -> Missed:
        """Return the offsets that one gate has missed."""
        return self._missed(gate_name).get(gate_name, Missed())

    def all(self) -> Mapping[str, Missed]:
        """Return the offsets that each gate has missed; gates that missed none are left out."""
        return self._missed(None)

    def accepted(self, gate_name: str) -> tuple[Accepted, ...]:
        """Return the ranges accepted for one gate, oldest first."""
        rows = self._database.rows(_ACCEPTED, every=False, gate=gate_name)
        return tuple(map(_accepted_from, rows))

    def accept(self, gate_name: str, records: int, by: str, why: str) -> Missed:
        """Accept that a gate's missed offsets need not be processed; return them.

        Args:
            gate_name: The gate.
            records: Number of offsets, as they were shown: only those are accepted.
            by: The person who accepts it.
            why: The reason, in their words.

        Raises:
            OptionError: It has missed another number of offsets, or none; or the name or the reason
                is empty, or too long.
            LedgerError: The gate is not declared.
        """
        missed = self.of(gate_name)
        if records != missed.offsets:
            raise OptionError(
                f"Gate {gate_name!r} has missed {missed.offsets:,} offsets that nobody has accepted"
                f" ({missed.lost:,} lost, {missed.skipped:,} skipped), and not {records:,}; see"
                f" what they are with `headrace verify --gate {gate_name}`, and name that number."
            )
        if not records:
            return missed
        target = f"{records:,} offsets that were lost or skipped"
        row = repair_row(gate_name, RepairKind.ACCEPT, target, by=by, why=why, now_ms=self._clock())
        rows = [
            {
                "gate": gate_name,
                "topic": offsets.topic,
                "topic_id": topic_id or "",
                "partition": offsets.partition,
                "from_offset": offsets.start,
                "until_offset": offsets.until,
                "time_ms": row["time_ms"],
                "why": storable(f"{row['why'].strip()} ({row['by_whom']})"),
            }
            for topic_id, offsets in missed.ranges
        ]
        statement = self._database.insert(accepted)
        further = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=list(accepted.primary_key),
            set_={name: further[name] for name in ("until_offset", "time_ms", "why")},
        )

        def accept(connection: Connection) -> None:
            self._insert_under(gate_name, connection, statement, rows)
            outcome = {"outcome": f"{records:,} accepted"}
            self._insert_under(gate_name, connection, insert(repair), row | outcome)

        self._database.write(accept)
        return missed

    def _missed(self, gate_name: str | None) -> Mapping[str, Missed]:
        which = {"every": gate_name is None, "gate": gate_name}
        lost_rows = _by_gate(self._database.rows(_LOST, **which))
        run_rows = _by_gate(self._database.rows(_SEVERAL_RUNS, **which))
        accepted_rows = _by_gate(self._database.rows(_ACCEPTED, **which))
        found = {
            name: _missed_by_one(
                lost_rows.get(name, ()), run_rows.get(name, ()), accepted_rows.get(name, ())
            )
            for name in sorted({*lost_rows, *run_rows})
        }
        return {name: missed for name, missed in found.items() if missed.offsets}


def between_runs(runs: Iterable[Span]) -> Iterator[Finding]:
    """Yield the ranges skipped between runs, and the ranges read by two of them."""
    by_offset = sorted(runs, key=lambda run: (run.topic_id or "", run.offsets))
    for (topic_id, _), same in groupby(
        by_offset, key=lambda run: (run.topic_id, run.offsets.topic_partition)
    ):
        so_far = RangeSequence()
        for run in same:
            for kind, offsets in (
                (FindingKind.SKIPPED, so_far.gap_before(run.offsets)),
                (FindingKind.READ_AGAIN, so_far.shared_with(run.offsets)),
            ):
                if offsets:
                    yield Finding(
                        kind, offsets, run.checkpoint_id, other=so_far.last, topic_id=topic_id
                    )
            so_far.append(run.offsets, run.checkpoint_id)


def with_acceptance(found: Iterable[Finding], those: Iterable[Accepted]) -> Iterator[Finding]:
    """The same findings; of what was lost or skipped the part that was accepted says so."""
    by_partition: dict[object, list[Accepted]] = defaultdict(list)
    for each in those:
        by_partition[each.topic_id, each.offsets.topic_partition].append(each)
    for finding in found:
        left = [finding]
        if finding.kind in {FindingKind.LOST, FindingKind.SKIPPED}:
            for each in by_partition[finding.topic_id, finding.offsets.topic_partition]:
                left = [piece for part in left for piece in _split(part, each)]
        yield from left


def _split(finding: Finding, by: Accepted) -> Iterator[Finding]:
    for piece, inside in finding.offsets.split_by([by.offsets]):
        why = by.why if inside and finding.accepted is None else finding.accepted
        yield replace(finding, offsets=piece, accepted=why)


def _missed_by_one(
    lost_rows: Iterable[Row[Any]], run_rows: Iterable[Row[Any]], accepted_rows: Iterable[Row[Any]]
) -> Missed:
    losses = [(row, row.topic_id or None, _offsets_from(row, "a loss")) for row in lost_rows]
    gone = merged_by_topic((topic_id, offsets) for _, topic_id, offsets in losses)
    unplanned = merged_by_topic(
        (topic_id, offsets) for row, topic_id, offsets in losses if not row.batch_key
    )
    rows = map(_accepted_from, accepted_rows)
    known = merged_by_topic((each.topic_id, each.offsets) for each in rows)
    lost_ranges = [
        (topic_id, left)
        for topic_id, partitions in gone.items()
        for ranges in partitions.values()
        for offsets in ranges
        for left in _without(offsets, topic_id, known)
    ]
    skipped = [
        (each.topic_id, left)
        for each in between_runs(_runs_from(run_rows))
        if each.kind is FindingKind.SKIPPED
        for part in _without(each.offsets, each.topic_id, unplanned)
        for left in _without(part, each.topic_id, known)
    ]
    return Missed(
        sum(offsets.count for _, offsets in lost_ranges),
        sum(offsets.count for _, offsets in skipped),
        (*lost_ranges, *skipped),
    )


def merged_by_topic(ranges: Iterable[tuple[str | None, OffsetRange]]) -> Ranges:
    """Ranges with the topics' ids, merged: offsets that several name are there once."""
    found: dict[str | None, list[OffsetRange]] = defaultdict(list)
    for topic_id, offsets in ranges:
        found[topic_id].append(offsets)
    return {
        topic_id: {tp: tuple(own) for tp, own in merge(those).items()}
        for topic_id, those in found.items()
    }


def _without(offsets: OffsetRange, topic_id: str | None, cover: Ranges) -> list[OffsetRange]:
    return offsets.subtract(cover.get(topic_id, {}).get(offsets.topic_partition, ()))


def _runs_from(rows: Iterable[Row[Any]]) -> Iterator[Span]:
    for row in rows:
        untils = offsets_in(row.until_offsets)
        for partition, start in offsets_in(row.start_offsets).items():
            until = max(start, untils.get(partition, start))
            read = OffsetRange(row.topic, partition, start, until)
            yield Span(row.checkpoint_id, read, since_ms=None, topic_id=row.topic_id or None)


def _accepted_from(row: Row[Any]) -> Accepted:
    whose = f"what was accepted of gate {row.gate!r}"
    return Accepted(_offsets_from(row, whose), row.topic_id or None, row.why)


def _offsets_from(row: Row[Any], whose: str) -> OffsetRange:
    return offset_range(whose, row.topic, row.partition, row.from_offset, row.until_offset)


def _by_gate(rows: Iterable[Row[Any]]) -> Mapping[str, list[Row[Any]]]:
    found: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        found[row.gate].append(row)
    return found
