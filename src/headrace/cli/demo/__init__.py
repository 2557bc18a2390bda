"""``headrace demo``: a gated query, watched live, whose orders are counted at the end."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.printing import print_json


def demo(
    *,
    broker: Annotated[
        bool, typer.Option("--broker", help="Start a Kafka broker, instead of a journal on disk.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=25, max=600, help="About how long it lasts.")
    ] = 75.0,
    picture: Annotated[
        Path | None,
        typer.Option(help="Write a picture of it (SVG) to this file.", dir_okay=False),
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="Keep the ledger at this URL, to look at it afterwards.")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open the dashboard in a browser.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print what was counted as JSON, and nothing else.")
    ] = False,
) -> None:
    """Watch one stream in two queries: without a gate, and with one.

    A backlog waits, the handler gets slower, a record is bad, the driver is killed; in the end,
    what arrived is compared with what was sent.

    The dashboard shows the ledger meanwhile; it is opened where there is a display.
    It ends by itself and leaves nothing running.
    Exit status 0: each order arrived once, and the bad record was put aside.
    Exit status 1: one is missing or came twice, or there was an error.
    """
    if picture is not None and not picture.absolute().parent.is_dir():
        raise typer.BadParameter(
            f"--picture is {picture}, in a folder that does not exist; make it."
        )
    # Half a second of imports, which the other commands do without.
    from headrace.cli.demo.scenario import run_demo  # noqa: PLC0415

    console = Console(highlight=False, quiet=json)
    outcome = run_demo(
        broker=broker,
        seconds=seconds,
        picture=picture,
        ledger=ledger,
        open_browser=not no_browser,
        console=console,
    )
    if json:
        print_json(asdict(outcome))
    console.print(str(outcome), soft_wrap=True)
    if not outcome.passed:
        raise typer.Exit(1)
