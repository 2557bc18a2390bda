"""``headrace status``: how the gates in a ledger fare, and the stages of flows that run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli import printing as out
from headrace.cli.gate_view import gate_view, overview
from headrace.cli.shared_options import DEFAULT_LEDGER, AsJson, LedgerUrl, Picture, gates_of
from headrace.core.clock import wall_clock_ms
from headrace.ledger import Ledger
from headrace.operations.snapshot import GateHistory, GateSnapshot, take_snapshot
from headrace.operations.source_lags import SourceLags
from headrace.operations.stages import BOTTLENECK, StageSnapshot, stages_of

REFRESH_S: Final = 1.0

_STAGE_STYLES: Final = {"throttled": "yellow", BOTTLENECK: "red"}


def status(
    ledger: LedgerUrl = DEFAULT_LEDGER,
    gate: Annotated[str | None, typer.Option(help="Only this gate, in full.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    svg: Picture = None,
) -> None:
    """Show how the gates in a ledger fare: lag, rate, batch times, and what limits them.

    Where no batch has come for a while it asks the brokers or the journal what waits there now, if
    they answer without secrets, and says how old the last figure is.
    Of flows that run it shows each stage too: its queue, what throttles it, and the bottleneck.
    """
    with Ledger.open(ledger, create=False) as opened:
        sources = SourceLags(opened)

        def look() -> tuple[list[GateSnapshot], list[StageSnapshot]]:
            now_ms = wall_clock_ms()
            histories = [GateHistory.read(opened, each) for each in gates_of(opened, gate, ledger)]
            lag_now = sources.of([each for each in histories if each.is_silent(now_ms)])
            gates = [take_snapshot(each, now_ms, lag_now.get(each.gate.name)) for each in histories]
            return gates, stages_of(opened) if gate is None else []

        if svg is not None:
            out.write_picture(status_view(*look()), svg, "headrace status")
        console = Console()
        if watch and console.is_terminal and not as_json:
            _watch(console, lambda: status_view(*look()))
        while True:
            if as_json:
                for group in look():
                    for each in group:
                        out.print_json(asdict(each))
            else:
                console.print(status_view(*look()))
            if not watch:
                break
            time.sleep(REFRESH_S)


def _watch(console: Console, draw: Callable[[], RenderableType]) -> None:
    with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw(), refresh=True)
            time.sleep(REFRESH_S)


def status_view(gates: Sequence[GateSnapshot], stages: Sequence[StageSnapshot]) -> RenderableType:
    """One gate in full, or a line for each; below them a line for each stage."""
    if not gates:
        return "The ledger has no gate yet; a gated query declares its own when it starts."
    shown = gate_view(gates[0]) if len(gates) == 1 else overview(gates)
    return Group(shown, Text(), stages_view(stages)) if stages else shown


def stages_view(stages: Sequence[StageSnapshot]) -> RenderableType:
    """A line for each stage; then the bottlenecks, and stages to which nothing comes."""
    shown = out.table(
        stages,
        ("flow", lambda each: out.line(each.flow)),
        ("stage", lambda each: out.line(each.stage, style="bold")),
        ("state", lambda each: Text(each.state, style=_STAGE_STYLES.get(each.state, "green"))),
        (">queue", lambda each: out.size(each.queue_bytes)),
        (">rate/s", lambda each: out.count(each.rate_per_s)),
        (">at most", lambda each: out.count(each.rate_limit_per_s)),
        ("*throttled by", lambda each: out.line(each.throttled_by or out.UNKNOWN)),
    )
    blamed = [
        out.line(f"Look at stage {each.stage} of flow {each.flow}: it throttles the others.", "red")
        for each in stages
        if each.state == BOTTLENECK
    ]
    alone = [
        out.line(
            f"Nothing comes to stage {each.stage} of flow {each.flow} from stage"
            f" {each.missing_upstream}, which does not run.",
            "yellow",
        )
        for each in stages
        if each.missing_upstream is not None
    ]
    return Group(shown, *blamed, *alone)
