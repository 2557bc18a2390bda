"""The figures as a table."""

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from bench.figures import Figure


def table_of(title: str, figures: Sequence[Figure]) -> Table:
    """One row a figure: medians, the ratio, the least and the most, the target.

    The columns have the same widths in every table, so that one follows another.
    """
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(Text(title, style="bold"), width=46)
    for name, width in (("other", 9), ("headrace", 9), ("unit", 7), ("ratio", 5)):
        table.add_column(name, justify="left" if name == "unit" else "right", width=width)
    table.add_column("from - to", justify="right", width=19)
    table.add_column("target", width=8)
    table.add_column("met", width=3)
    for figure in figures:
        table.add_row(
            figure.name,
            "" if figure.native is None else number(figure.native.median),
            number(figure.headrace.median),
            figure.unit,
            "" if figure.ratio is None else f"{figure.ratio.median:.2f}",
            _range(figure),
            "" if figure.target is None else str(figure.target),
            _met(figure),
        )
    return table


def number(value: float) -> str:
    """A figure with the digits that mean something.

    >>> [number(value) for value in (735_412.3, 180.4, 4.56, 0.1234, 12, math.inf)]
    ['735 000', '180', '4.56', '0.123', '12', 'never']
    """
    if not math.isfinite(value):
        return "never"
    if value >= 100_000:
        return f"{round(value, -3):,.0f}".replace(",", " ")
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def _range(figure: Figure) -> str:
    """Format the range of the ratio or, without one, of the figure itself."""
    spread = figure.ratio or figure.headrace
    if spread.least == spread.most:
        return ""
    return f"{number(spread.least)} - {number(spread.most)}"


def _met(figure: Figure) -> Text:
    if figure.is_met is None:
        return Text("")
    return Text("yes", style="green") if figure.is_met else Text("no", style="yellow")
