"""Findings of a gate's verification, as values. A count is one of offsets."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.core.ranges import OffsetRange
from headrace.ledger.error_report import ErrorReport
from headrace.ledger.records import was_interrupted
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
        checkpoint_id: The run.
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
