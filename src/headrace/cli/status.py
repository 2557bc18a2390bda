"""``headrace status``: how the gates in a ledger fare."""

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli.flows_view import StageSnapshot, flows_view, stages_of
from headrace.cli.snapshot import GateHistory, GateSnapshot, is_silent, take_snapshot
from headrace.cli.view import gate_view, overview
from headrace.cli.waiting_now import WaitingNow, question_of
from headrace.errors import OptionError
from headrace.ledger import GateRecord, Ledger, redact_url

REFRESH_S: Final = 1.0
PICTURE_WIDTH: Final = 100

# Rich has the viewer fetch fonts from elsewhere.
_FONTS: Final = re.compile(r"@font-face \{.*?\}", re.DOTALL)

LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="HEADRACE_LEDGER",
        help="The ledger's URL: sqlite:///file.db or postgresql://user@host/database.",
    ),
]
DEFAULT_LEDGER: Final = "sqlite:///headrace.db"


def status(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Only this gate, in full.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object per gate and per stage, each on a line of its own."
        ),
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Write the picture to this file as well.", dir_okay=False)
    ] = None,
) -> None:
    """Show how the gates in a ledger fare: lag, rate, batch times, and what limits them.

    Where no batch has come for a while it asks the brokers or the journal what waits there now, if
    they answer without secrets, and says how old the last figure is.
    Of flows that run it shows each stage too: its queue, who holds it back, and who is to blame.
    """
    with Ledger.open(ledger, create=False) as opened:
        waiting = WaitingNow(lambda history: question_of(opened, history))

        def look() -> tuple[list[GateSnapshot], list[StageSnapshot]]:
            stages = stages_of(opened) if gate is None else []
            return snapshots_of(opened, gate, ledger, waiting), stages

        if svg is not None:
            write_picture(_picture(*look()), svg, "headrace status")
        if as_json:
            _repeat(lambda: _print_json(*look()), watch=watch)
        elif watch and (console := Console()).is_terminal:
            _watch(console, lambda: _picture(*look()))
        else:
            console = Console()
            _repeat(lambda: console.print(_picture(*look())), watch=watch)


def snapshots_of(
    ledger: Ledger, gate: str | None, url: str, waiting: WaitingNow
) -> list[GateSnapshot]:
    """A snapshot of one gate, or of all, by name; sources are asked where no batches come.

    Raises:
        OptionError: The ledger has no gate of that name.
        LedgerError: The ledger cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    histories = [GateHistory.read(ledger, each) for each in gates_of(ledger, gate, url)]
    lag_now = waiting.of([each for each in histories if is_silent(each, now_ms)])
    return [take_snapshot(each, now_ms, lag_now.get(each.gate.name)) for each in histories]


def gates_of(ledger: Ledger, gate: str | None, url: str) -> list[GateRecord]:
    """One gate, or all, by name.

    Args:
        ledger: Where they are.
        gate: The name of the one; None for all.
        url: The ledger's, for the error.

    Raises:
        OptionError: The ledger has no gate of that name.
        LedgerError: The ledger cannot be read.
    """
    known = ledger.gates()
    wanted = [each for each in known if gate is None or each.name == gate]
    if gate is not None and not wanted:
        names = ", ".join(each.name for each in known) or "none at all"
        raise OptionError(
            f"The ledger {redact_url(url)} has no gate {gate!r}; the gates it has: {names}."
        )
    return wanted


def write_picture(
    picture: RenderableType, path: Path, title: str, width: int = PICTURE_WIDTH
) -> None:
    """Write what a terminal of so many characters shows as an SVG file, which loads nothing.

    Raises:
        OptionError: The file cannot be written.
    """
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(picture)
    write_svg(_FONTS.sub("", console.export_svg(title=title)), path)


def write_svg(svg: str, path: Path) -> None:
    """Write a picture.

    Raises:
        OptionError: The file cannot be written.
    """
    try:
        path.write_text(svg, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"The picture {path} cannot be written: {error.strerror}; name another file."
        ) from error


def _picture(snapshots: list[GateSnapshot], stages: list[StageSnapshot]) -> RenderableType:
    if not snapshots:
        return "The ledger has no gate yet; a gated query declares its own when it starts."
    gates = gate_view(snapshots[0]) if len(snapshots) == 1 else overview(snapshots)
    return Group(gates, Text(), flows_view(stages)) if stages else gates


def _print_json(snapshots: list[GateSnapshot], stages: list[StageSnapshot]) -> None:
    shown: list[GateSnapshot | StageSnapshot] = [*snapshots, *stages]
    for snapshot in shown:
        typer.echo(json.dumps(asdict(snapshot)))


def _repeat(show: Callable[[], None], *, watch: bool) -> None:
    show()
    while watch:
        time.sleep(REFRESH_S)
        show()


def _watch(console: Console, draw: Callable[[], RenderableType]) -> None:
    with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw(), refresh=True)
            time.sleep(REFRESH_S)
