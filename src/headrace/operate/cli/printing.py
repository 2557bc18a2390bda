"""Prints numbers, times, lines, tables, bars and JSON for commands."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, TextIO, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headrace.operate.status.words import printable

NARROWEST_BAR: Final = 8
Row = TypeVar("Row")
_LEVELS: Final = "▁▂▃▄▅▆▇█"


def line(text: str, style: str = "") -> Text:
    """Return a text as one line, without control characters, cut with an ellipsis if too long."""
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def batch_number(number: int | None) -> str:
    """Format a batch's number in Spark, such as ``#12``; empty for a batch that has not run yet."""
    return "" if number is None else f"#{number}"


def fitting(facts: Iterable[str], width: int) -> str:
    """Join as many whole facts as fit into ``width`` characters, but at least the first fact."""
    shown = ""
    for fact in map(printable, facts):
        longer = f"{shown} · {fact}" if shown else fact
        if not shown or cell_len(longer) <= width:
            shown = longer
    return shown


@dataclass(frozen=True, slots=True)
class Facts:
    """Prints on one line as many facts as fit, and cuts no fact.

    If the first fact is too long for a line, it is wrapped.
    """

    facts: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(fitting(self.facts, options.max_width), no_wrap=False)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


@dataclass(frozen=True, slots=True)
class Shortened:
    """Text whose middle is left out if the text is too long, so that its end stays visible.

    Attributes:
        lines: Largest number of printed lines.
    """

    text: str
    style: str = ""
    lines: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Lines break between words, so a line holds fewer characters than its width.
        most = options.max_width if self.lines == 1 else options.max_width * self.lines * 9 // 10
        text = middle_cut(printable(self.text), most)
        yield Text(text, style=self.style, no_wrap=self.lines == 1, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, min(len(self.text), options.max_width))


def middle_cut(text: str, most: int) -> str:
    """Leave out the middle of a text that has more than ``most`` characters.

    Commands in backquotes are never cut.

    >>> middle_cut("AttributeError: 'Batch' object has no attribute 'kye'", 34)
    "AttributeError: 'Bat…tribute 'kye'"
    """
    if len(text) <= most or most < 4:
        return text
    ending = (most - 1) * 2 // 5
    first, last = most - 1 - ending, len(text) - ending
    for command in re.finditer("`[^`]+`", text):
        if command.start() < first < command.end():
            first = command.start()
        if command.start() < last < command.end():
            last = command.end()
    return f"{text[:first]}…{text[last:]}"


def table(
    rows: Iterable[Row],
    *columns: tuple[str, Callable[[Row], RenderableType]] | None,
    wide: bool = True,
) -> Table:
    """Return a table without borders; if ``wide``, the table is as wide as the terminal.

    A column is a header and a function that returns the cell of a row; a column that is None is
    left out. ``>`` before the header aligns the column to the right, and ``*`` gives the column the
    remaining width. ``|16`` after the header limits the cells to 16 characters.
    """
    made = Table(expand=wide, box=None, pad_edge=False, header_style="dim")
    present = [column for column in columns if column is not None]
    for header, _ in present:
        name, _, most = header.lstrip(">*").partition("|")
        made.add_column(
            name,
            no_wrap=True,
            justify="right" if header.startswith(">") else "left",
            ratio=1 if header.startswith("*") else None,
            max_width=int(most) if most else None,
        )
    for row in rows:
        made.add_row(*(cell(row) for _, cell in present))
    return made


def grid(rows: Iterable[tuple[RenderableType, ...]], columns: str = "") -> Table:
    """Return a table without headers; each column is as wide as its cells.

    ``columns`` has a letter for each column: ``l`` aligns it to the left, ``r`` to the right, and
    ``*`` gives it the remaining width. A column with a letter does not wrap its cells. Without
    ``columns``, cells are left-aligned and wrapped. Rows may have different numbers of cells.
    """
    made = Table.grid(expand=bool(columns), padding=(0, 2, 0, 0))
    for letter in columns:
        justify = "right" if letter == "r" else "left"
        made.add_column(no_wrap=True, justify=justify, ratio=1 if letter == "*" else None)  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*row)
    return made


class TextLines(logging.Formatter):
    """Log formatter for one line: local time, level if above INFO, and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a log record, without a stack trace."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname} "
        return f"{record.asctime} {level}{printable(record.message)}"


@contextmanager
def logged(
    stream: TextIO, lines: logging.Formatter | None = None, *, of: str | None = None
) -> Iterator[None]:
    """Write log records to a stream during the context. Default of ``lines``: `TextLines`.

    ``of`` names the logger. Default: the root logger, which has warnings of other packages too.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(lines or TextLines())
    logger = logging.getLogger(of)
    logger.addHandler(handler)
    logging.getLogger(of or "headrace").setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def show(picture: RenderableType) -> None:
    """Print a rich renderable on standard output, without colours if the output is no terminal."""
    Console().print(picture)


def if_more(found: int, limit: int, which: str) -> list[Text]:
    """Return a note that a list of ``found`` rows was cut at ``limit``; empty if it was not cut.

    ``which`` describes the printed rows, such as ``newest``.
    """
    if found <= limit:
        return []
    return [Text(), Text(f"These are the {which} {limit}; --limit shows more.")]


def flat(record: Any) -> dict[str, Any]:
    """Return a dataclass's fields for JSON; replace the field ``offsets`` by its own fields."""
    values = asdict(record)
    return {**values.pop("offsets"), **values}


def print_json(values: object) -> None:
    """Print a value as JSON on one line."""
    typer.echo(json.dumps(values))


class Bar:
    """Bar that fills the available width; ``draw`` returns its text for a width (cells)."""

    def __init__(self, draw: Callable[[int], Text]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._draw(options.max_width)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(NARROWEST_BAR, options.max_width)


def duration_bar(duration_ms: int, interval_ms: int, longest_ms: int) -> Bar:
    """Return a bar for a batch's duration, with a mark at the gate's interval.

    A duration of ``longest_ms`` fills the bar.
    """

    def draw(width: int) -> Text:
        filled = _cells(duration_ms, longest_ms, width)
        mark = min(_cells(interval_ms, longest_ms, width), width - 1)
        within, beyond = min(filled, mark), max(filled - mark - 1, 0)
        text = Text("█" * within, style="cyan", no_wrap=True, end="")
        text.append(" " * (mark - within))
        text.append("┃" if filled > mark else "│", style="bold")
        return text.append("█" * beyond, style="yellow")

    return Bar(draw)


def lag_bar(lag: int, admitted: int, longest: int) -> Bar:
    """Return a bar for a lag: solid for the ``admitted`` records, light for the other records.

    A lag of ``longest`` records fills the bar.
    """

    def draw(width: int) -> Text:
        whole = _cells(lag, longest, width)
        solid = min(_cells(admitted, longest, width), whole)
        text = Text("█" * solid, style="cyan", no_wrap=True, end="")
        return text.append("░" * (whole - solid), style="cyan")

    return Bar(draw)


def sparkline(values: Iterable[int], highest: int) -> str:
    """Draw each value as a character: the lowest bar for 0, the full height from ``highest`` on.

    >>> sparkline([0, 500, 1000, 4000], highest=1000)
    '▁▅██'
    """
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(round(value / max(highest, 1) * top), top)] for value in values)


def _cells(value: int, longest: int, width: int) -> int:
    """Return the length (cells) of a bar for a value: at least 1 if the value is above 0."""
    if value <= 0:
        return 0
    return min(max(round(value / max(longest, 1) * width), 1), width)


REFRESH_S: Final = 1.0

Watch = Annotated[
    bool, typer.Option("--watch", help="Refresh the output every second, until Ctrl-C.")
]


def show_or_watch(draw: Callable[[int | None], RenderableType | None], *, watch: bool) -> None:
    """Print the result of ``draw`` once, or with ``watch`` every second.

    With ``watch`` on a terminal, each result replaces the preceding result. ``draw`` is then called
    with the terminal's height (lines), and its result has to fit into this height. Otherwise
    ``draw`` is called with None. ``draw`` returns None if it has already printed JSON.
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
