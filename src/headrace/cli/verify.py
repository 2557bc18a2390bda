"""``headrace verify``: the proof that the gates in a ledger leave nothing out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from headrace.cli.options import (
    BROKEN,
    DEFAULT_LEDGER,
    OPEN,
    AsJson,
    GateName,
    LedgerUrl,
    OptionsFile,
    SourceOption,
    source_access,
    source_options,
)
from headrace.cli.printing import print_json
from headrace.cli.verify_view import verification_view
from headrace.errors import OptionError
from headrace.ledger import Finding, Kept, Ledger, Span, Verdict, Verification, extended, redact_url
from headrace.ledger import verify as verify_gate

if TYPE_CHECKING:
    from headrace.source.checkpoint_check import Comparison

_EXIT_STATUS: Final = {Verdict.PROVEN: 0, Verdict.OPEN: OPEN, Verdict.BROKEN: BROKEN}

PROVES: Final = (
    "headrace verify proves, or says where it is not so, that the batches leave out no offset "
    "between where each checkpoint began and where it stands, that no checkpoint reads one twice, "
    "that each is processed or explained, and that the ledger's rows agree with each other."
)
CANNOT: Final = (
    "It cannot see from the ledger alone that all of these rows were changed alike, or replaced by "
    "an older copy; nor what is in a sink."
)
ELSEWHERE: Final = "--checkpoint and --source compare it with what Spark and the source know."


@dataclass(frozen=True, slots=True)
class _Outside:
    """What the ledger is compared with."""

    checkpoint: str | None
    source: bool
    options: Mapping[str, str]

    def comparisons(self, ledger: Ledger, gate: str, known: Kept | None) -> "Iterator[Comparison]":
        """What these say of a gate."""
        # They read what sources write; a proof from the ledger alone does without.
        if self.checkpoint is not None:
            from headrace.source import checkpoint_check  # noqa: PLC0415

            yield checkpoint_check.compare(ledger, gate, self.checkpoint, known)
        newest = ledger.batches(gate, 1, parts=False) if self.source else ()
        if newest:
            from headrace.source import log_check  # noqa: PLC0415

            key = newest[0].schedule_id
            source = source_access(ledger, {key: gate}, self.options)[key]
            connector, options = source
            yield log_check.compare(known, lambda each: connector.log_of(options, each))


def verify(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: GateName = None,
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Compare with this checkpoint of the gate's query, in a folder of this machine.",
        ),
    ] = None,
    source: Annotated[
        bool,
        typer.Option(
            "--source",
            help="Compare with where the topics or the journal begin and end now.",
        ),
    ] = False,
    option: SourceOption = None,
    options_file: OptionsFile = None,
    as_json: AsJson = False,
) -> None:
    """Prove that every offset from a gate's first to its last is accounted for.

    With --source, Kafka's security settings are given with --option or --options-file.
    Exit status 0: each is processed, or explained as dead or lost.
    Exit status 3: there is no gap and no overlap, but some batches are not done yet; or the ledger
    has no gate, or not the one that is named, so that nothing is proven.
    Exit status 4: there is a gap or an overlap, or a batch is gone.
    Exit status 1: there was an error, and nobody knows.
    """
    if (option or options_file) and not source:
        raise OptionError(
            "--option and --options-file say how the source is reached; add --source."
        )
    outside = _Outside(checkpoint, source, source_options(option or (), options_file))
    verdicts: list[Verdict] = []
    with Ledger.open(ledger, create=False) as opened:
        names = _names(opened, gate, ledger)
        _refuse_a_strange_checkpoint(checkpoint, names)
        for each in names:
            verification, notes = _verified(opened, each, outside)
            verdicts.append(verification.verdict)
            if as_json:
                print_json(_values(each, verification, notes, _words(outside)))
            else:
                if len(verdicts) > 1:
                    typer.echo()
                Console().print(verification_view(each, verification, notes))
    if not as_json:
        typer.echo()
        Console().print(Text(_words(outside), style="dim"))
    worst = next((v for v in (Verdict.BROKEN, Verdict.OPEN) if v in verdicts), Verdict.PROVEN)
    raise typer.Exit(_EXIT_STATUS[worst])


def _names(ledger: Ledger, gate: str | None, url: str) -> list[str]:
    """The gates to verify, be their own rows gone; the command ends where there is none."""
    known = sorted({*(each.name for each in ledger.gates()), *ledger.undeclared_gates()})
    if gate in known:
        return [gate]
    if gate is None and known:
        return known
    if not known:
        told = (
            f"The ledger {redact_url(url)} has no gate yet, so nothing is proven; a gated query "
            "declares its own when it starts. See that it is the right database, and a whole copy: "
            "a SQLite file is copied with its -wal."
        )
    else:
        told = (
            f"The ledger {redact_url(url)} has no gate {gate!r}, so nothing is proven; the gates "
            f"it has: {', '.join(known)}."
        )
    typer.echo(f"headrace: {told}", err=True)
    raise typer.Exit(OPEN)


def _refuse_a_strange_checkpoint(path: str | None, gates: Sequence[str]) -> None:
    if path is not None:
        from headrace.source.checkpoint import Checkpoint  # noqa: PLC0415
        from headrace.source.checkpoint_check import refuse_a_stranger  # noqa: PLC0415

        refuse_a_stranger(Checkpoint.read(path), gates)


def _verified(ledger: Ledger, gate: str, outside: _Outside) -> tuple[Verification, list[str]]:
    """What is found of a gate, and notes of what it was compared with."""
    known = ledger.kept(gate)
    verification, notes = verify_gate(ledger, gate), list[str]()
    for each in outside.comparisons(ledger, gate, known):
        verification = extended(verification, each.findings, each.contradictions)
        notes += each.notes
    return verification, notes


def _words(outside: _Outside) -> str:
    compared = outside.checkpoint is not None and outside.source
    return " ".join([PROVES, CANNOT] if compared else [PROVES, CANNOT, ELSEWHERE])


def _values(
    gate: str, verification: Verification, notes: Sequence[str], words: str
) -> dict[str, Any]:
    return {
        "gate": gate,
        "verdict": verification.verdict,
        "spans": [_flat(span) for span in verification.spans],
        "findings": [_flat(finding) for finding in verification.findings],
        "contradictions": verification.contradictions,
        "notes": notes,
        "proves": words,
    }


def _flat(told: Span | Finding) -> dict[str, Any]:
    values = asdict(told)
    return {**values.pop("offsets"), **values}
