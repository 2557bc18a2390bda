"""The options of ``headrace demo``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def demo(
    *,
    broker: Annotated[
        bool, typer.Option("--broker", help="Start a Kafka broker, instead of a receiver.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=10, help="About how long it lasts, start and end included.")
    ] = 90.0,
    svg: Annotated[
        Path | None,
        typer.Option(help="Write the picture of its best moment to this file.", dir_okay=False),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="Keep the ledger at this URL, to look at it with headrace status while it runs."
        ),
    ] = None,
) -> None:
    """Watch a gated query: a backlog, a handler that gets slower, and no loss.

    Orders are sent over HTTP to a receiver, which keeps them in a journal and slows their sender
    down when the query cannot keep up; or, with --broker, to a Kafka broker.
    It ends by itself, counts what was produced and what arrived, and leaves nothing running. The
    exit status is 1 if an order is missing or came twice.
    """
    if svg is not None and not svg.absolute().parent.is_dir():
        raise typer.BadParameter(f"--svg is {svg}, in a folder that does not exist; make it.")
    # Half a second of imports, which the other commands do without.
    from headrace.cli.demo.demo_scenario import run_demo  # noqa: PLC0415

    console = Console(highlight=False)
    if not run_demo(broker=broker, seconds=seconds, svg=svg, ledger=ledger, console=console):
        raise typer.Exit(1)
