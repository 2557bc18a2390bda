"""``headgate verify``: the proof that the gates in a ledger leave nothing out."""

import json
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from headgate.cli.exit_status import BROKEN, OPEN
from headgate.cli.status import DEFAULT_LEDGER, LedgerUrl, gates_of
from headgate.cli.verify_view import verification_view
from headgate.ledger import Finding, Ledger, Span, Verdict, Verification
from headgate.ledger import verify as verify_gate

_EXIT_STATUS: Final = {Verdict.PROVEN: 0, Verdict.OPEN: OPEN, Verdict.BROKEN: BROKEN}


def verify(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Only this gate.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per gate, each on a line of its own.")
    ] = False,
) -> None:
    """Prove that every offset from a gate's first to its last is accounted for.

    Exit status 0: each is processed, or explained as dead or lost.
    Exit status 3: there is no gap and no overlap, but some batches are not done yet.
    Exit status 4: there is a gap or an overlap.
    Exit status 1: there was an error, and nobody knows.
    """
    verdicts: list[Verdict] = []
    with Ledger.open(ledger, create=False) as opened:
        for each in gates_of(opened, gate, ledger):
            verification = verify_gate(opened, each.name)
            verdicts.append(verification.verdict)
            if as_json:
                typer.echo(json.dumps(_values(each.name, verification)))
            else:
                if len(verdicts) > 1:
                    typer.echo()
                Console().print(verification_view(each.name, verification))
    if not as_json and not verdicts:
        typer.echo("The ledger has no gate yet; a gated query declares its own when it starts.")
    worst = next((v for v in (Verdict.BROKEN, Verdict.OPEN) if v in verdicts), Verdict.PROVEN)
    raise typer.Exit(_EXIT_STATUS[worst])


def _values(gate: str, verification: Verification) -> dict[str, Any]:
    return {
        "gate": gate,
        "verdict": verification.verdict,
        "spans": [_flat(span) for span in verification.spans],
        "findings": [_flat(finding) for finding in verification.findings],
    }


def _flat(told: Span | Finding) -> dict[str, Any]:
    values = asdict(told)
    return {**values.pop("offsets"), **values}
