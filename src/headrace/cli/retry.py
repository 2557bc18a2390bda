"""``headrace retry``: what waits to be run again does so now."""

from collections.abc import Mapping
from typing import Annotated

import typer

from headrace.cli import printing as out
from headrace.cli import shared_options as opt
from headrace.cli.operator_limits import acting_user
from headrace.errors import OptionError
from headrace.ledger import Ledger
from headrace.ledger.repairs import MOST_AT_ONCE


def retry(
    gate: Annotated[
        str, typer.Argument(metavar="GATE", help="Whose.", autocompletion=opt.complete_gates)
    ],
    *,
    why: Annotated[str, typer.Option(help="Why; kept with what it was done to.")] = "to try now",
    by: Annotated[
        str | None, typer.Option(help="Who does it.", show_default="the name of the user")
    ] = None,
    ledger: opt.LedgerUrl = opt.DEFAULT_LEDGER,
    as_json: opt.AsJson = False,
) -> None:
    """Have a gate run at once what waits: for its sink, or for its next backfill.

    A batch whose sink is away is run within two seconds. Failed batches do not wait for their next
    backfill any more: the gate's own process runs each as soon as its schedule and its spare rate
    allow; `headrace backfill` runs them itself.
    """
    # Only an existing ledger can be changed: none is created here.
    with Ledger.open(ledger, create=False) as reader:
        opt.gates_of(reader, gate, ledger)
        failed = [each.batch_key for each in reader.batches.failed(gate, MOST_AT_ONCE)]
        waits = reader.sink_outages.get(gate) is not None
    who = acting_user(by)
    with Ledger.join(ledger) as opened:
        tried = opened.repairs.retry_sink(gate, who, why) if waits else 0
        batches = opened.repairs.retry(gate, failed, who, why) if failed else 0
    if not tried and not batches:
        raise OptionError(f"Nothing of gate {gate!r} waits to be run again; see `headrace status`.")
    if as_json:
        out.print_json({"gate": gate, "sink": bool(tried), "batches": batches})
    else:
        typer.echo(out.printable(_sentence(gate, {"sink": tried, "batches": batches})))


def _sentence(gate: str, done: Mapping[str, int]) -> str:
    said = []
    if done["sink"]:
        said.append("the batch that waits for its sink is run now")
    if number := done["batches"]:
        does = "does" if number == 1 else "do"
        failed = out.plural(number, "failed batch")
        said.append(f"{failed} {does} not wait for the next backfill any more")
    return f"{gate}: {', and '.join(said)}."
