"""Sentences about the findings of ``headrace verify``, and about what it proves."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final

from headrace.gate import Finding, FindingKind
from headrace.operate.status import words as out
from headrace.operate.status.words import SHORT

PROVES: Final = (
    "headrace verify proves, or reports where it is not true, that the batches leave out no"
    " offset between the first and the present position of each checkpoint, that no checkpoint"
    " reads an offset twice, and that each offset is processed or explained."
)
CANNOT: Final = (
    "The ledger alone does not show that it is an older copy, that its rows were edited, or what"
    " the sink contains."
)
ELSEWHERE: Final = "--checkpoint and --source compare it with Spark's checkpoint and the source."

SENTENCES: Final = 10
"""Largest number of sentences about findings of one kind; further findings are counted."""

PRUNED: Final = (
    "pruned: the batches of these offsets are deleted. Each of these batches had been processed,"
    " or was dead and resolved, and overlapped with no other batch. Which batch read which"
    " offsets, and when, is not known any more."
)
_OF_A_BATCH: Final = (
    FindingKind.OPEN,
    FindingKind.DEAD,
    FindingKind.REJECTED,
)


_GONE: Final = (
    FindingKind.DEAD,
    FindingKind.REJECTED,
    FindingKind.LOST,
    FindingKind.SKIPPED,
)


def gone_offsets(findings: Iterable[Finding]) -> tuple[dict[FindingKind, int], int]:
    """Count the offsets that will not be processed.

    Return the counts by kind of finding, and the count of offsets whose loss an operator has
    accepted. The counts by kind do not include accepted offsets.
    """
    counts: Counter[FindingKind] = Counter()
    accepted = 0
    for finding in findings:
        if finding.accepted is None:
            counts[finding.kind] += finding.offsets.count
        else:
            accepted += finding.offsets.count
    return {kind: counts[kind] for kind in _GONE if counts[kind]}, accepted


def finding_sentences(findings: Sequence[Finding]) -> Iterator[tuple[FindingKind, str]]:
    """Yield sentences about findings, in the order of the findings, each with the finding's kind.

    After `SENTENCES` sentences about one kind, a last sentence counts further findings of the kind.
    """
    for kind, same in groupby(findings, key=lambda finding: finding.kind):
        by_batch: dict[object, list[Finding]] = defaultdict(list)
        for number, finding in enumerate(same):
            by_batch[finding.batch_key if kind in _OF_A_BATCH else number].append(finding)
        for group in islice(by_batch.values(), SENTENCES):
            yield kind, _finding_sentence(group)
        if len(by_batch) > SENTENCES:
            yield kind, f"and {len(by_batch) - SENTENCES:,} more; --json tells them all."


def _finding_sentence(findings: Sequence[Finding]) -> str:
    first = findings[0]
    batches = f"batch {_short(first.other)} and batch {_short(first.batch_key)}"
    runs = f"run {_short(first.other)} and run {_short(first.checkpoint_id)}"
    whole = f"batch {_short(first.batch_key)}"
    match first.kind:
        case FindingKind.GAP:
            sentence = f"{first.offsets} lies between {batches}, and no batch reads it."
        case FindingKind.MISSING:
            run = _short(first.checkpoint_id)
            sentence = f"{first.offsets} was planned by run {run}, and no batch has it."
        case FindingKind.OVERLAP if first.other is None:
            sentence = f"{first.offsets} is read by {whole} and by another batch."
        case FindingKind.OVERLAP:
            sentence = f"{first.offsets} is read by both {batches}."
        case FindingKind.OPEN | FindingKind.DEAD | FindingKind.REJECTED:
            sentence = f"{_batch(findings)} is {_state(findings)}"
        case FindingKind.LOST if first.batch_key is not None:
            why = f": {first.reason}" if first.reason else ""
            sentence = f"{first.offsets} was gone when {whole} read it{why}."
        case FindingKind.LOST:
            sentence = f"{first.offsets} was gone before it was read."
        case FindingKind.SKIPPED:
            sentence = f"{first.offsets} lies between what {runs} read, and no run reads it."
        case FindingKind.READ_AGAIN:
            sentence = f"{first.offsets} is read by both {runs}, each with a checkpoint of its own."
    return sentence if first.accepted is None else f"{sentence} Accepted: {first.accepted}"


def _state(findings: Sequence[Finding]) -> str:
    finding = findings[0]
    if finding.interrupted:
        return "interrupted: its query was stopped, and its next start runs it."
    if finding.resolution is not None:
        return f"{finding.status}, and resolved: {finding.resolution.rstrip('.')}."
    why = f": {out.short_error(finding.error)}" if finding.error else "."
    records = "this record" if len(findings) == 1 else "these records; why the first is not"
    return f"{finding.status or f'processed, but not {records}'}{why}"


def _batch(findings: Sequence[Finding]) -> str:
    first, *rest = findings
    if not rest:
        return f"batch {_short(first.batch_key)} with {first.offsets}"
    records = out.plural(sum(finding.offsets.count for finding in findings), "offset")
    partitions = len({finding.offsets.topic_partition for finding in findings})
    ranges = "" if partitions == len(findings) else f"{out.plural(len(findings), 'range')} of "
    where = f"{records} in {ranges}{out.plural(partitions, 'partition')}, first {first.offsets},"
    return f"batch {_short(first.batch_key)} with {where}"


def _short(key: str | None) -> str:
    return "(pruned)" if key is None else key[:SHORT]
