"""``--watch``: the same picture again every second, until Ctrl-C."""

import time
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live

REFRESH_S: Final = 1.0

Watch = Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")]


def show_or_watch(draw: Callable[[int | None], RenderableType | None], *, watch: bool) -> None:
    """Print what ``draw`` returns, once or again and again; on a terminal in the same place.

    It is given the terminal's height (lines) where the picture has to fit, and returns None if it
    has printed by itself, as JSON.
    """
    console = Console()
    if watch and console.is_terminal:
        drawn = draw(console.height)
        if drawn is not None:
            _live(console, drawn, draw)
        time.sleep(REFRESH_S)
    while True:
        drawn = draw(None)
        if drawn is not None:
            console.print(drawn)
        if not watch:
            return
        time.sleep(REFRESH_S)


def _live(
    console: Console, drawn: RenderableType, draw: Callable[[int | None], RenderableType | None]
) -> None:
    with Live(drawn, console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(draw(console.height) or "", refresh=True)
            time.sleep(REFRESH_S)
