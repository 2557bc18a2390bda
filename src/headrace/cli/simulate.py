"""``headrace simulate``: what gates and flows would do, before they do it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Annotated, Final

import typer
from rich.console import Console

from headrace.cli.options import DEFAULT_LEDGER, LedgerUrl
from headrace.cli.simulate_chart import chart
from headrace.cli.simulate_history import with_history
from headrace.cli.simulate_picture import Picture
from headrace.cli.simulate_svg import write_svg
from headrace.cli.simulate_view import comparison, view
from headrace.errors import OptionError
from headrace.simulation import Policy, Result, phases, read_world, run

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
    png: Annotated[
        Path | None,
        typer.Option(help="The same as a PNG; needs 'headrace[plot]'.", dir_okay=False),
    ] = None,
) -> None:
    """Run gates and flows against a scripted world in simulated time, on the control code itself.

    The same file, seed and policy give the same figures, always.
    """
    pictures = _pictures(svg, png)
    scripted = read_world(world)
    if history is not None:
        scripted = with_history(scripted, history, ledger)
    # Each policy meets the same chance.
    results = [run(scripted, each, Random(seed)) for each in dict.fromkeys(policy)]  # noqa: S311
    for path, write in pictures.items():
        _draw(results, path, write)
    if as_json:
        for result in results:
            typer.echo(json.dumps(_json_of(result, seed)))
        return
    console = Console()
    for result in results:
        console.print(view(result))
    if len(results) > 1:
        console.print(comparison(results))


def _pictures(svg: Path | None, png: Path | None) -> dict[Path, Callable[[Picture, Path], None]]:
    """What writes which file; before anything is simulated, for a package may be missing."""
    pictures: dict[Path, Callable[[Picture, Path], None]] = {}
    if svg is not None:
        pictures[svg] = write_svg
    if png is not None:
        from headrace.cli.simulate_png import write_png  # noqa: PLC0415  (an extra)

        pictures[png] = write_png
    return pictures


def _draw(results: Sequence[Result], path: Path, write: Callable[[Picture, Path], None]) -> None:
    try:
        write(chart(results), path)
    except OSError as error:
        raise OptionError(
            f"The picture {path} cannot be written: {error.strerror}; name another file."
        ) from error


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
