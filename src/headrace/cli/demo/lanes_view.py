"""The demo on a terminal: what happens, and both lanes side by side against one scale of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from headrace.cli.demo.shop import GATED, UNGATED, Run
from headrace.cli.printing import count, plural

TIME_ROWS, SIZE_ROWS, GAP = 6, 4, 3
_STYLES: Final = {UNGATED: "red", GATED: "green"}
_LEVELS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Frame:
    """The demo at one moment.

    Attributes:
        title: which act it is.
        caption: what to look at.
        marks: when each act so far began, in the seconds of ``began_s``.
        runs: all calls of the handlers so far.
        sent: how many orders there are for each lane.
        began_s: when the first handler was called.
        span_s: what the charts have room for, at least.
    """

    title: str
    caption: str
    marks: Sequence[float]
    runs: Sequence[Run]
    sent: int
    began_s: float
    now_s: float
    span_s: float

    @property
    def elapsed_s(self) -> float:
        """Time since the first batch (s)."""
        return max(self.now_s - self.began_s, 0.0)

    def of_lane(self, lane: str) -> list[Run]:
        """One lane's calls."""
        return [run for run in self.runs if run.lane == lane]

    def state(self, lane: str) -> str:
        """Return the state of a lane, in one short line."""
        runs = self.of_lane(lane)
        if not runs:
            return "no batch yet"
        last = runs[-1]
        took = f"{last.took_s(self.now_s):.1f} s"
        if last.error is not None:
            return f"stopped: {last.error}"
        if last.ended_s is None:
            return f"batch of {count(last.orders)}, {took} so far"
        return f"batch of {count(last.orders)} took {took}"

    def waiting(self, lane: str) -> int:
        """Return the number of orders that a lane has still to process."""
        ended = [run for run in self.of_lane(lane) if run.ended_s and run.error is None]
        return max(self.sent - sum(run.orders for run in ended), 0)

    def line(self) -> str:
        """Return the line for a log."""
        lanes = "; ".join(
            f"{lane}: {self.state(lane)}, {count(self.waiting(lane))} wait"
            for lane in (UNGATED, GATED)
        )
        return f"{self.elapsed_s:5.1f} s  {lanes}"

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        width = (options.max_width - GAP) // 2
        title = Text.assemble(
            (f"{self.elapsed_s:3.0f} s  ", "dim"),
            (self.title, "bold"),
        )
        lanes = Table.grid(padding=(0, GAP, 0, 0))
        for _ in range(2):
            lanes.add_column(width=width, no_wrap=True, overflow="ellipsis")
        lanes.add_row(*(self._lane(lane, width) for lane in (UNGATED, GATED)))
        yield title
        yield Text(self.caption)
        yield ""
        yield lanes

    def _lane(self, lane: str, width: int) -> Group:
        style = _STYLES[lane]
        runs = self.of_lane(lane)
        times = self._columns(width, [(run, run.took_s(self.now_s)) for run in runs])
        sizes = self._columns(width, [(run, run.orders) for run in runs])
        longest_s = max((run.took_s(self.now_s) for run in self.runs), default=0.0)
        head = Text(lane.capitalize(), style=f"bold {style}")
        head.append(f" · {plural(self.waiting(lane), 'order')} waiting", style="not bold default")
        return Group(
            head,
            Text(self.state(lane), no_wrap=True, overflow="ellipsis"),
            Text(f"batch time, of {max(longest_s, 1):.0f} s", style="dim"),
            *chart(times, longest_s, TIME_ROWS, style),
            Text(f"orders in a batch, of {count(round(max(sizes)))}", style="dim"),
            *chart(sizes, max(sizes), SIZE_ROWS, style),
            self._marks(width),
        )

    def _columns(self, width: int, values: Sequence[tuple[Run, float]]) -> list[float]:
        """The greatest value of what ran in the time of each column."""
        columns = [0.0] * width
        for run, value in values:
            first = self._column(run.began_s, width)
            # A run that ends where a column begins is not in it.
            last = self._column((run.ended_s or self.now_s) - 0.01, width)
            for column in range(first, max(first, last) + 1):
                columns[column] = max(columns[column], value)
        return columns

    def _column(self, at_s: float, width: int) -> int:
        seconds_each = max(self.span_s, self.elapsed_s) / width
        return min(max(int((at_s - self.began_s) / seconds_each), 0), width - 1)

    def _marks(self, width: int) -> Text:
        """The acts' numbers, where they began."""
        marks = [" "] * width
        for number, at_s in enumerate(self.marks):
            marks[self._column(at_s, width)] = str(number + 1)
        return Text("".join(marks), style="dim")


def chart(values: Sequence[float], top: float, rows: int, style: str) -> list[Text]:
    """Bars side by side, one character wide each; what is not 0 is seen.

    >>> [line.plain for line in chart([0, 1, 8, 16], 16, 2, "red")]
    ['   █', ' ▁██']
    """
    eighths = [
        max(round(8 * rows * value / top), 1) if value > 0 and top > 0 else 0 for value in values
    ]
    lines = []
    for row in reversed(range(rows)):
        line = Text(no_wrap=True)
        for each in eighths:
            level = min(max(each - 8 * row, 0), 8)
            # A full cell is its background, too: a font may leave a seam between two lines.
            line.append(_LEVELS[level], f"{style} on {style}" if level == 8 else style)
        lines.append(line)
    return lines
