"""The figures as a table."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.figures import Figure
from bench.pairs import Spread


def show(figures: Sequence[Figure], machine: Mapping[str, str]) -> RenderableType:
    """One row a figure: medians, the ratio with its least and most, the target."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("figure")
    for name in ("unit", "native", "headgate", "ratio", "least - most", "target"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("met", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.name,
            figure.unit,
            "" if figure.native is None else number(figure.native.median),
            number(figure.headgate.median),
            "" if figure.ratio is None else f"{figure.ratio.median:.2f}",
            _range(figure),
            "" if figure.target is None else str(figure.target),
            _met(figure),
        )
    words = ", ".join(f"{name} {value}" for name, value in machine.items())
    return Group(table, Text(f"\n{words}", style="dim"))


def number(value: float) -> str:
    """A figure with the digits that mean something.

    >>> [number(value) for value in (735_412.3, 180.4, 4.56, 0.1234, math.inf)]
    ['735 000', '180', '4.56', '0.123', 'never']
    """
    if not math.isfinite(value):
        return "never"
    if value >= 100_000:
        return f"{round(value, -3):,.0f}".replace(",", " ")
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _range(figure: Figure) -> str:
    spread: Spread = figure.ratio or figure.headgate
    if spread.least == spread.most:
        return ""
    return f"{number(spread.least)} - {number(spread.most)}"


def _met(figure: Figure) -> Text:
    if figure.is_met is None:
        return Text("")
    return Text("yes", style="green") if figure.is_met else Text("no", style="yellow")
