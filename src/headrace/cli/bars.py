"""Bars of text that fill the width they are given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

NARROWEST: Final = 8
_LEVELS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class DurationBar:
    """The duration of a batch, with a mark where its interval ends.

    Attributes:
        duration_ms: How long the batch took.
        interval_ms: Where the mark stands.
        longest_ms: What the full width is; above 0.
    """

    duration_ms: int
    interval_ms: int
    longest_ms: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        filled = _cells(self.duration_ms, self.longest_ms, width)
        mark = min(_cells(self.interval_ms, self.longest_ms, width), width - 1)
        within, beyond = min(filled, mark), max(filled - mark - 1, 0)
        text = Text("█" * within, style="cyan", no_wrap=True, end="")
        text.append(" " * (mark - within))
        text.append("┃" if filled > mark else "│", style="bold")
        text.append("█" * beyond, style="yellow")
        yield text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST, options.max_width)


@dataclass(frozen=True, slots=True)
class LagBar:
    """A lag, of which a part is admitted: solid, then light.

    Attributes:
        lag: Records that waited.
        admitted: Those of them that the batch reads.
        longest: What the full width is; above 0.
    """

    lag: int
    admitted: int
    longest: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _cells(self.lag, self.longest, options.max_width)
        solid = min(_cells(self.admitted, self.longest, options.max_width), whole)
        text = Text("█" * solid, style="cyan", no_wrap=True, end="")
        text.append("░" * (whole - solid), style="cyan")
        yield text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST, options.max_width)


def sparkline(values: Sequence[int], highest: int) -> str:
    """One character for each value, from the lowest bar for 0 to the full height for ``highest``.

    >>> sparkline([0, 500, 1000, 4000], highest=1000)
    '▁▅██'
    """
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(round(value / max(highest, 1) * top), top)] for value in values)


def _cells(value: int, longest: int, width: int) -> int:
    """How many cells a value fills; what is there at all is seen, and nothing is cut off unseen."""
    if value <= 0:
        return 0
    return min(max(round(value / max(longest, 1) * width), 1), width)
