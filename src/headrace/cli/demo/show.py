"""What is seen of a running demo: a picture that moves, or one line a second in a pipe."""

from contextlib import AbstractContextManager
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from headrace.cli.gate_view import gate_view
from headrace.cli.printing import count, duration
from headrace.cli.snapshot import GateSnapshot

LINE_EVERY_S: Final = 1.0


class Show(AbstractContextManager["Show"]):
    """Shows the demo's phase and its gate until the context is left."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, screen=True, auto_refresh=False) if console.is_terminal else None
        )
        self._last_line_s = -LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, elapsed_s: float, title: str, snapshot: GateSnapshot | None) -> None:
        """Show the present state; where there are lines, no more than one a second."""
        if self._live is not None:
            self._live.update(picture(elapsed_s, title, snapshot), refresh=True)
        elif snapshot is not None and elapsed_s - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = elapsed_s
            self._console.print(line(elapsed_s, title, snapshot), soft_wrap=True)


def picture(elapsed_s: float, title: str, snapshot: GateSnapshot | None) -> RenderableType:
    """The picture of one moment: at most 29 lines."""
    head = Text(f" {elapsed_s:3.0f} s  ", style="dim", no_wrap=True, overflow="ellipsis")
    head.append(title, style="bold")
    return Group(head, gate_view(snapshot) if snapshot else Text(" The query is starting."))


def line(elapsed_s: float, title: str, snapshot: GateSnapshot) -> Text:
    """The same in one line."""
    newest = snapshot.batches[0] if snapshot.batches else None
    drain = None if snapshot.drain_s is None else snapshot.drain_s * 1000
    parts = (
        title,
        snapshot.state,
        f"lag {count(snapshot.lag)}",
        f"rate {count(snapshot.rate_per_s)}/s",
        f"batch {duration(newest.duration_ms if newest else None)}"
        f" of {duration(snapshot.interval_ms)}",
        f"drained in {duration(drain)}",
        f"limited by: {snapshot.reason or '—'}",
    )
    return Text(f"{elapsed_s:5.1f} s  {' · '.join(parts)}")
