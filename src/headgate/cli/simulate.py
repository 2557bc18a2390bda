"""``headgate simulate``: what gates and flows would do, before they do it."""

import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated, Final

import typer
from rich.console import Console

from headgate.cli.simulate_chart import write_chart
from headgate.cli.simulate_history import with_history
from headgate.cli.simulate_view import comparison, view
from headgate.cli.status import DEFAULT_LEDGER, LedgerUrl
from headgate.simulation import Policy, Result, phases, read_world, run

DEFAULT_POLICY: Final = [Policy.HOP_BY_HOP]


def simulate(
    world: Annotated[Path, typer.Argument(metavar="FILE", help="The world: a TOML file.")],
    *,
    seed: Annotated[int, typer.Option(help="Of what chance does: noise, lost signals.")] = 0,
    policy: Annotated[
        list[Policy],
        typer.Option(help="Who slows down when a stage is overloaded; several are compared."),
    ] = DEFAULT_POLICY,
    history: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE=GATE",
            help="What came to this gate, as its ledger has it, comes to that source.",
        ),
    ] = None,
    ledger: LedgerUrl = DEFAULT_LEDGER,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per policy, each on a line of its own.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw rates, queues and delays too.", dir_okay=False)
    ] = None,
) -> None:
    """Run gates and flows against a scripted world in simulated time, on the control code itself.

    The same file, seed and policy give the same figures, always.
    """
    scripted = read_world(world)
    if history is not None:
        scripted = with_history(scripted, history, ledger)
    # Each policy meets the same chance.
    results = [run(scripted, each, Random(seed)) for each in dict.fromkeys(policy)]  # noqa: S311
    if svg is not None:
        write_chart(results, svg)
    if as_json:
        for result in results:
            typer.echo(json.dumps(_json_of(result, seed)))
        return
    console = Console()
    for result in results:
        console.print(view(result))
    if len(results) > 1:
        console.print(comparison(results))


def _json_of(result: Result, seed: int) -> dict[str, object]:
    return {
        "policy": result.policy,
        "seed": seed,
        "phases": [asdict(phase) for phase in phases(result)],
        "moves": [asdict(move) for move in result.moves],
        "signals": result.signals,
        "largest_bytes": result.largest_bytes,
        "times_s": result.times_s,
        "series": {name: asdict(series) for name, series in result.series.items()},
    }
