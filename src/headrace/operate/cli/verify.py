"""``headrace verify``: proves that the gates of a ledger leave out no offset.

The command prints a verdict, a line for each span (range of offsets that a run of a query has
read), and the findings.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.errors import OptionError
from headrace.gate import (
    DEFECTS,
    CheckpointRecord,
    Finding,
    FindingKind,
    Ledger,
    Span,
    Verdict,
    Verification,
    extended,
    redact_url,
)
from headrace.operate.cli import printing as out, shared_options as opt
from headrace.operate.cli.exits import ExitStatus
from headrace.operate.status import words
from headrace.operate.status.findings import (
    CANNOT,
    ELSEWHERE,
    PROVES,
    PRUNED,
    finding_sentences,
    gone_offsets,
)
from headrace.operate.status.sources import source_access
from headrace.operate.status.words import SHORT

if TYPE_CHECKING:
    from headrace.gate import Comparison

_EXIT_STATUS: Final = {
    Verdict.PROVEN: ExitStatus.DONE,
    Verdict.EMPTY: ExitStatus.DONE,
    Verdict.OPEN: ExitStatus.OPEN,
    Verdict.SKIPPED: ExitStatus.BROKEN,
    Verdict.BROKEN: ExitStatus.BROKEN,
}

_WORST: Final = (Verdict.BROKEN, Verdict.SKIPPED, Verdict.OPEN)

SPANS: Final = 20
"""If there are more spans (ranges of offsets) than this, only spans with unprocessed offsets are
listed."""

_COUNTS: Final = ("processed", "open", "dead", "lost", "missing")

_FINE: Final = ("processed", "pruned")
_HEADLINES: Final = {
    Verdict.PROVEN: ("proven", "green"),
    Verdict.OPEN: ("no gap or overlap, but not all is processed yet", "yellow"),
    Verdict.SKIPPED: ("no gap or overlap within a run, but records between two are skipped", "red"),
    Verdict.BROKEN: ("BROKEN: gaps, overlaps, or batches that are gone", "bold red"),
}

_STYLES: Final = {
    **dict.fromkeys(DEFECTS, "bold red"),
    FindingKind.OPEN: "yellow",
    FindingKind.DEAD: "red",
    FindingKind.REJECTED: "red",
    FindingKind.LOST: "red",
    FindingKind.SKIPPED: "red",
}


CheckpointPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Compare with this checkpoint of the gate's query, in a folder of this machine.",
    ),
]
WithSource = Annotated[
    bool,
    typer.Option(
        "--source",
        help="Compare with the present first and last offsets of the topics or the journal.",
    ),
]


def verify(
    *,
    gate: opt.Gates = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    checkpoint: CheckpointPath = None,
    source: WithSource = False,
    option: opt.SourceOption = None,
    options_file: opt.OptionsFile = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print what the verification proves, and what it cannot prove."
        ),
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Prove that every offset from a gate's first to its last is accounted for.

    With --source, give Kafka's security settings with --option or --options-file.
    Exit status 0: each offset is processed, or is dead or lost and then resolved or accepted; or
    the gate has begun no batch.
    Exit status 3: there is no gap and no overlap, but some batches are not done, or headrace
    failures lists a failure; or the ledger has no gate or not the named gate, so that nothing is
    proven.
    Exit status 4: there is a gap or an overlap, or a batch is missing; or records between two
    checkpoints are skipped and not accepted (headrace accept).
    Exit status 1: there was an error, so the answer is not known.
    """
    if (option or options_file) and not source:
        raise OptionError(
            "--option and --options-file have an effect only with --source; add --source."
        )
    options = opt.source_options(option or (), options_file) if source else None
    scope = " ".join([PROVES, CANNOT] if checkpoint and source else [PROVES, CANNOT, ELSEWHERE])
    verdicts: list[Verdict] = []
    is_unresolved = False
    with Ledger.open(ledger, create=False) as opened:
        names = _names(opened, gate or (), ledger)
        if checkpoint is not None:
            from headrace.gate import Checkpoint, refuse_a_stranger  # noqa: PLC0415

            refuse_a_stranger(Checkpoint.read(checkpoint), names)
        for item in names:
            verification, notes = _verified(opened, item, checkpoint, options)
            verdicts.append(verification.verdict)
            is_unresolved |= _is_unresolved(opened, item)
            if as_json:
                out.print_json(_values(item, verification, notes, scope))
            else:
                if len(verdicts) > 1:
                    typer.echo()
                out.show(verification_view(item, verification, notes))
    last = ["headrace failures lists the unresolved failures."] if is_unresolved else []
    for sentences in [*last, *([scope] if explain else [])] if not as_json else []:
        out.show(Text(f"\n{sentences}"))
    best = Verdict.OPEN if is_unresolved else Verdict.PROVEN
    worst = next((item for item in _WORST if item in verdicts), best)
    raise typer.Exit(_EXIT_STATUS[worst])


def _is_unresolved(ledger: Ledger, gate: str) -> bool:
    return gate in ledger.moments.unresolved([gate]) or bool(ledger.proofs.missed(gate).offsets)


def _names(ledger: Ledger, gates: Sequence[str], url: str) -> list[str]:
    names = sorted(item.name for item in ledger.gates.all())
    unknown = [item for item in gates if item not in names]
    if names and not unknown:
        return list(dict.fromkeys(gates)) or names
    if not names:
        sentence = (
            f"The ledger {redact_url(url)} has no gate yet, so nothing is proven; a gated query"
            " declares its gate when it starts. Make sure that this is the right database, and a"
            " whole copy: a SQLite file is copied together with its -wal file."
        )
    else:
        sentence = (
            f"The ledger {redact_url(url)} has no gate {unknown[0]!r}, so nothing is proven; the"
            f" gates it has: {', '.join(names)}."
        )
    typer.echo(f"headrace: {sentence}", err=True)
    raise typer.Exit(ExitStatus.OPEN)


def _verified(
    ledger: Ledger, gate: str, checkpoint: str | None, given: Mapping[str, str] | None
) -> tuple[Verification, list[str]]:
    checkpoints = ledger.history.checkpoints(gate)
    verification, notes = ledger.proofs.verify(gate), list[str]()
    for comparison in _comparisons(ledger, gate, checkpoints, checkpoint, given):
        verification = extended(verification, comparison.findings, comparison.contradictions)
        notes += comparison.notes
    return verification, notes


def _comparisons(
    ledger: Ledger,
    gate: str,
    known: Sequence[CheckpointRecord],
    checkpoint: str | None,
    given: Mapping[str, str] | None,
) -> "Iterator[Comparison]":
    # Imported here, because a proof from the ledger alone does not read sources.
    if checkpoint is not None:
        from headrace.gate import compare_with_checkpoint  # noqa: PLC0415

        yield compare_with_checkpoint(ledger, gate, checkpoint, known)
    newest = () if given is None else ledger.batches.newest(gate, 1)
    if newest and given is not None:
        from headrace.gate import compare_with_log  # noqa: PLC0415

        key = newest[0].batch_key
        connector, options = source_access(ledger, {key: gate}, given)[key]
        yield compare_with_log(
            ledger, gate, known, lambda partitions: connector.log_of(options, partitions)
        )


def _values(
    gate: str, verification: Verification, notes: Sequence[str], scope: str
) -> dict[str, Any]:
    return {
        "gate": gate,
        "verdict": verification.verdict,
        "spans": [out.flat(span) for span in verification.spans],
        "findings": [
            {**out.flat(finding), "interrupted": finding.interrupted}
            for finding in verification.findings
        ],
        "contradictions": verification.contradictions,
        "notes": notes,
        "proves": scope,
    }


def verification_view(
    gate: str, verification: Verification, notes: Sequence[str] = ()
) -> RenderableType:
    """Return the view of a gate's verification: verdict, spans and findings, then ``notes``."""
    last = [Text(words.printable(note), style="dim") for note in notes]
    if verification.verdict is Verdict.EMPTY:
        nothing = f"nothing to prove yet: gate {gate} has begun no batch"
        return Group(out.line(nothing), *last)
    verdict, style = _HEADLINES[verification.verdict]
    gone, accepted = gone_offsets(verification.findings)
    counted = "".join(f", {words.count(number)} {kind}" for kind, number in gone.items())
    headline = Text(words.printable(f"{gate}: {verdict}"), style=style).append(counted, "bold red")
    if accepted:
        headline.append(f", {words.count(accepted)} lost or skipped and accepted")
    shown: list[RenderableType] = [headline, Text(), _spans_table(verification.spans)]
    if any(span.pruned for span in verification.spans):
        shown += [Text(), Text(PRUNED, style="dim")]
    if verification.findings:
        shown += [Text(), _findings_table(verification.findings)]
    if verification.contradictions:
        shown += [Text(), _contradictions_table(verification.contradictions)]
    if missed := gone.get(FindingKind.LOST, 0) + gone.get(FindingKind.SKIPPED, 0):
        command = f"headrace accept {shlex.quote(gate)} --records {missed} --why '...'"
        hint = f"{command} says that this is known."
        shown += [Text(), Text(words.printable(hint), style="dim")]
    if last:
        shown += [Text(), *last]
    return Group(*shown)


def _contradictions_table(contradictions: Sequence[str]) -> Table:
    kind = Text("disagree", style="bold red")
    return out.grid(
        (kind, Text(words.printable(contradiction))) for contradiction in contradictions
    )


def _spans_table(spans: Sequence[Span]) -> Table:
    columns = [*_COUNTS]
    if any(span.pruned for span in spans):
        columns.insert(1, "pruned")
    ids = Counter(topic for topic, _ in {(span.offsets.topic, span.topic_id) for span in spans})

    def row(run: str, read: str, those: Sequence[Span]) -> tuple[str, str, dict[str, int]]:
        return run, read, {name: sum(getattr(span, name) for span in those) for name in columns}

    def cell(name: str, numbers: dict[str, int]) -> Text:
        bad = numbers[name] and name not in _FINE
        return Text(words.count(numbers[name]), style="bold red" if bad else "")

    shown, number = _divided(spans)
    rows = []
    for span in shown:
        of_id = f" topic id {span.topic_id or 'unknown'}" if ids[span.offsets.topic] > 1 else ""
        rows.append(row(span.checkpoint_id[:SHORT], f"{span.offsets}{of_id}", [span]))
    if number:
        more = f"and {len(number):,} more" if shown else f"{len(number):,} partitions"
        rows.append(row("", more, number))
    several = len({span.checkpoint_id for span in spans}) > 1
    return out.table(
        rows,
        ("run", lambda line: out.line(line[0])) if several else None,
        ("read", lambda line: out.line(line[1])),
        *((f">{name}", lambda line, name=name: cell(name, line[2])) for name in columns),
        wide=False,
    )


def _divided(spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    if len(spans) <= SPANS:
        return list(spans), []
    telling = [span for span in spans if span.processed + span.pruned < span.offsets.count]
    shown = telling[:SPANS]
    return shown, [span for span in spans if span not in shown]


def _findings_table(findings: Sequence[Finding]) -> Table:
    rows = [
        (Text(kind, _STYLES.get(kind, "dim")), Text(words.printable(sentence)))
        for kind, sentence in finding_sentences(findings)
    ]
    return out.grid(rows)
