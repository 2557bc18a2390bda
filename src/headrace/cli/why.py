"""``headrace why``: why a batch has the size it has, from the top."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli import printing as out
from headrace.cli import shared_options as opt
from headrace.errors import OptionError
from headrace.ledger import Ledger
from headrace.status.explanation import Explanation, explain


def why(
    gate: Annotated[str, typer.Argument(help="The gate.", autocompletion=opt.complete_gates)],
    *,
    batch: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="This batch, by its number in Spark: 1234."),
    ] = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Explain the size of a gate's last batch: lag, rate, the law's terms, caps, operators.

    What a batch costs is not kept for each: it is said as it is known now.
    """
    with Ledger.open(ledger, create=False) as opened:
        (record,) = opt.gates_of(opened, gate, ledger)
        found = explain(opened, record, batch)
    if found is None and batch is None:
        raise OptionError(f"Gate {gate!r} has planned no batch yet; there is nothing to explain.")
    if found is None:
        raise OptionError(
            f"Gate {gate!r} has no batch {batch}; `headrace batches --gate {gate}` lists those it"
            " has."
        )
    if as_json:
        out.print_json(asdict(found))
    else:
        out.show(explanation_view(found))


def explanation_view(found: Explanation) -> Table:
    """A sentence for each thing, each on lines of its own."""
    return out.grid(
        (Text(each.about, style="dim"), Text(out.printable(each.sentence)))
        for each in found.sentences
    )
