"""``headrace accept``: somebody says that what a gate has lost or skipped need not be processed."""

from typing import Annotated

import typer

from headrace.cli import printing as out
from headrace.cli import shared_options as opt
from headrace.cli.operator_limits import acting_user
from headrace.ledger import Ledger


def accept(
    gate: Annotated[
        str, typer.Argument(metavar="GATE", help="Whose.", autocompletion=opt.complete_gates)
    ],
    *,
    records: Annotated[
        int, typer.Option(min=1, help="How many are lost or skipped, as headrace verify says.")
    ],
    why: Annotated[str, typer.Option(help="Why they need not be processed; kept with them.")],
    by: Annotated[
        str | None, typer.Option(help="Who does it.", show_default="the name of the user")
    ] = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
) -> None:
    """Accept what a gate has lost, or skipped between two checkpoints; this is final.

    It is about what is there now: where the number is another one, nothing is changed. Then
    headrace verify counts it as accepted, and headrace status asks nobody to look at it any more.
    """
    # Only an existing ledger can be changed: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        opt.gates_of(reader, gate, ledger)
    with Ledger.join(ledger) as opened:
        missed = opened.missed.accept(gate, records, acting_user(by), why)
    typer.echo(
        out.printable(
            f"{gate}: {out.count(missed.lost)} lost and {out.count(missed.skipped)} skipped records"
            " are accepted."
        )
    )
