"""A verification as text for the terminal: a verdict, a line for each span, and the findings."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby, islice
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.batches import SHORT, short_error
from headrace.cli.printing import count, line, plural, printable
from headrace.ledger import DEFECTS, Finding, FindingKind, Span, Verdict, Verification

SPANS: Final = 20
"""Lines for spans: beyond it only those of which there is something to say have one."""

SENTENCES: Final = 10
"""Sentences about findings of one kind; beyond it they are counted."""

_COUNTS: Final = ("processed", "open", "dead", "lost", "missing")

PRUNED: Final = (
    "pruned: of these offsets the batches are deleted. None was deleted before it was processed, or"
    " dead and made good, and none that overlaps with another; which batch read what, and when, is"
    " not known any more."
)
_FINE: Final = ("processed", "pruned")
_OF_A_BATCH: Final = (FindingKind.UNEXPLAINED, FindingKind.OPEN, FindingKind.DEAD)

_HEADLINES: Final = {
    Verdict.PROVEN: ("proven", "green"),
    Verdict.OPEN: ("no gap or overlap, but not all is processed yet", "yellow"),
    Verdict.BROKEN: ("BROKEN: gaps, overlaps, or rows that do not agree", "bold red"),
}

_STYLES: Final = {
    **dict.fromkeys(DEFECTS, "bold red"),
    FindingKind.OPEN: "yellow",
    FindingKind.DEAD: "red",
    FindingKind.LOST: "red",
}


def verification_view(
    gate: str, verification: Verification, notes: Sequence[str] = ()
) -> RenderableType:
    """What was found of a gate, and what else is to be said of it."""
    told_last = [Text(printable(each), style="dim") for each in notes]
    found = (verification.spans, verification.findings, verification.contradictions)
    if not any(found):
        return Group(line(f"{gate}: nothing has been read yet"), *told_last)
    words, style = _HEADLINES[verification.verdict]
    gone = _offsets_by_kind(verification.findings)
    told = "".join(
        f", {count(gone[kind])} {kind}"
        for kind in (FindingKind.DEAD, FindingKind.LOST)
        if gone[kind]
    )
    headline = Text(printable(f"{gate}: {words}"), style=style).append(told, style="bold red")
    shown: list[RenderableType] = [headline, Text(), _spans_table(verification.spans)]
    if any(span.pruned for span in verification.spans):
        shown += [Text(), Text(PRUNED, style="dim")]
    if verification.findings:
        shown += [Text(), _findings_table(verification.findings)]
    if verification.contradictions:
        shown += [Text(), _contradictions_table(verification.contradictions)]
    if told_last:
        shown += [Text(), *told_last]
    return Group(*shown)


def _contradictions_table(contradictions: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for each in contradictions:
        table.add_row(Text("disagree", style="bold red"), Text(printable(each)))
    return table


def _offsets_by_kind(findings: Sequence[Finding]) -> Counter[FindingKind]:
    counted: Counter[FindingKind] = Counter()
    for finding in findings:
        counted[finding.kind] += finding.offsets.count
    return counted


def _spans_table(spans: Sequence[Span]) -> Table:
    name_runs = len({span.run_id for span in spans}) > 1
    columns = [*_COUNTS]
    if any(span.pruned for span in spans):
        columns.insert(1, "pruned")
    ids = Counter(topic for topic, _ in {(span.offsets.topic, span.topic_id) for span in spans})
    table = Table(box=None, pad_edge=False, header_style="dim")
    if name_runs:
        table.add_column("run", no_wrap=True)
    table.add_column("read", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)

    def add(run: str, read: str, those: Sequence[Span]) -> None:
        numbers = {name: sum(getattr(span, name) for span in those) for name in columns}
        cells = [
            Text(count(number), style="bold red" if number and name not in _FINE else "")
            for name, number in numbers.items()
        ]
        table.add_row(*([line(run)] if name_runs else []), line(read), *cells)

    shown, others = _divided(spans)
    for span in shown:
        of_id = f" topic id {span.topic_id or 'unknown'}" if ids[span.offsets.topic] > 1 else ""
        add(span.run_id[:SHORT], f"{span.offsets}{of_id}", [span])
    if others:
        add("", f"and {len(others):,} more" if shown else f"{len(others):,} partitions", others)
    return table


def _divided(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """Spans with a line of their own, and those that share one."""
    if len(spans) <= SPANS:
        return list(spans), []
    telling = [span for span in spans if span.processed + span.pruned < span.offsets.count]
    shown = telling[:SPANS]
    return shown, [span for span in spans if span not in shown]


def _findings_table(findings: Sequence[Finding]) -> Table:
    """A sentence for each, the worst first."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for kind, same in groupby(findings, key=lambda finding: finding.kind):
        by_batch: dict[object, list[Finding]] = defaultdict(list)
        for number, finding in enumerate(same):
            by_batch[finding.schedule_id if kind in _OF_A_BATCH else number].append(finding)
        told = [_sentence(each) for each in islice(by_batch.values(), SENTENCES)]
        if len(by_batch) > SENTENCES:
            told.append(f"and {len(by_batch) - SENTENCES:,} more; --json tells them all.")
        for each in told:
            table.add_row(Text(kind, style=_STYLES.get(kind, "dim")), Text(printable(each)))
    return table


def _sentence(findings: Sequence[Finding]) -> str:
    """What was found: one finding, or those of one batch in several partitions."""
    first = findings[0]
    batches = f"batch {_short(first.other)} and batch {_short(first.schedule_id)}"
    runs = f"run {_short(first.other)} and run {_short(first.run_id)}"
    whole = f"batch {_short(first.schedule_id)}"
    match first.kind:
        case FindingKind.GAP:
            told = f"{first.offsets} lies between {batches}, and no batch reads it."
        case FindingKind.MISSING:
            told = (
                f"{first.offsets} was planned by run {_short(first.run_id)}, and no batch has it."
            )
        case FindingKind.UNPLANNED:
            told = (
                f"{first.offsets} is in a batch, and run {_short(first.run_id)} never planned it."
            )
        case FindingKind.OVERLAP:
            told = f"{first.offsets} is read by both {batches}."
        case FindingKind.PARTS if first.other is None:
            told = f"{first.offsets} is in no part of {whole}, which was split."
        case FindingKind.PARTS:
            part = f"part {_short(first.other)} of {whole}"
            told = f"{first.offsets} is in {part}, and in another part too, or not in that batch."
        case FindingKind.UNEXPLAINED:
            told = f"{_batch(findings)} is dead, and nothing says why."
        case FindingKind.OPEN | FindingKind.DEAD:
            why = f": {short_error(first.error)}" if first.error else "."
            told = f"{_batch(findings)} is {first.status}{why}"
        case FindingKind.LOST if first.schedule_id is not None:
            why = f": {first.reason}" if first.reason else ""
            told = f"{first.offsets} was gone when {whole} read it{why}."
        case FindingKind.LOST:
            told = f"{first.offsets} was gone before it was read."
        case FindingKind.SKIPPED:
            told = f"{first.offsets} lies between what {runs} read, and no run reads it."
        case FindingKind.READ_AGAIN:
            told = f"{first.offsets} is read by both {runs}, each with a checkpoint of its own."
    return told


def _batch(findings: Sequence[Finding]) -> str:
    first, *others = findings
    if not others:
        return f"batch {_short(first.schedule_id)} with {first.offsets}"
    records = plural(sum(finding.offsets.count for finding in findings), "offset")
    where = f"{records} in {plural(len(findings), 'partition')}, first {first.offsets},"
    return f"batch {_short(first.schedule_id)} with {where}"


def _short(key: str | None) -> str:
    return "(pruned)" if key is None else key[:SHORT]
